"""How `make demo` waits, and what it prints when it gives up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.demo.__main__ import conclude, moved, verdict
from tools.stack import Patience

EVENTS = [
    {"kind": "notice", "request_latency_s": 0.2, "pause_s": 9.5, "steps_lost": 0, "steps_per_s": 3.0, "rounds": [2]},
    {"kind": "kill", "request_latency_s": 0.7, "pause_s": None, "steps_lost": None, "steps_per_s": 0.0, "rounds": []},
]
EARLY: dict[str, Any] = {
    "events": EVENTS,
    "steps": 41,
    "loss_first": 3.7,
    "loss_last": 3.8,
    "nodes_launched": 5,
    "calls": {},
    "wall_s": 300.0,
    **dict.fromkeys(("samples_repeated", "samples_missed", "nodes_leaked", "processes_leaked")),
}


def job(step: int, state: str = "member") -> dict[str, Any]:
    return {"state": "running", "round": 1, "step": step, "node_list": [{"id": "job-1", "state": state}]}


def test_a_wait_lasts_as_long_as_something_moves() -> None:
    patience = Patience(120.0, now=0.0)
    for now in range(0, 1000, 100):
        assert not patience.is_over(moved(job(step=now)), now)
    assert not patience.is_over(moved(job(step=900)), 1020.0)
    assert not patience.is_over(moved(job(step=900, state="lost")), 1021.0)
    assert patience.is_over(moved(job(step=900, state="lost")), 1141.5)


def test_a_demo_that_gave_up_shows_what_it_measured_and_how_slow_the_machine_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = verdict(EARLY, slowness_s=0.0)
    assert conclude(tmp_path / "demo.json", EARLY, broken, "node 2 did not come within 120 s", 3.14) == 1
    shown = capsys.readouterr().out
    assert "30 s notice" in shown
    assert "9.50 s" in shown
    assert "stopped: node 2 did not come within 120 s\nnothing of the above is broken; this machine trains 3.1" in shown
    assert "broken:" not in shown
    written = json.loads((tmp_path / "demo.json").read_text())
    assert (written["ok"], written["broken"]) == (False, ["node 2 did not come within 120 s"])
    assert written["events"] == EVENTS


def test_a_promise_that_was_broken_before_the_demo_gave_up_is_named() -> None:
    lost = EARLY | {"events": [EVENTS[0] | {"steps_lost": 4}]}
    assert verdict(lost, slowness_s=0.0) == ["4 steps were lost by a notice; none may be"]
