"""The platform's day in little: it keeps every promise, its report says what happened, and a seed means one day."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from spotsup_simulator.replay.recording import read

from supervisor.events import EventKind
from tests.scenario.__main__ import main, run
from tests.scenario.day import Day
from tests.scenario.facts import facts
from tests.scenario.market import pools_of
from tests.scenario.page import html
from tests.scenario.story import HOUR_S, NODES, SHORT, WHOLE, Step
from tests.sim.promises import Violation

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """The report of the short day, as `make scenario SHORT=1` writes it."""
    out = tmp_path_factory.mktemp("scenario")
    assert main(["--short", "--out", str(out)]) == 0
    return json.loads((out / "scenario.json").read_text()), (out / "scenario.html").read_text()


def job(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(each for each in found["jobs"] if each["name"] == name)


def test_each_job_of_the_short_day_comes_to_the_end_that_its_story_has_for_it(
    written: tuple[dict[str, Any], str],
) -> None:
    found, _ = written
    states = {each["name"]: each["state"] for each in found["jobs"]}
    assert states == {
        "speech": "succeeded",
        "llm": "paused",
        "eval": "succeeded",
        "urgent": "succeeded",
        "typo": "cancelled",
        "lr-1": states["lr-1"],
        "lr-2": "succeeded",
        "lr-3": states["lr-3"],
    }
    assert "limits.usd 4 reached" in job(found, "llm")["reason"]
    assert job(found, "eval")["first_step_s"] > job(found, "eval")["may_begin_s"] >= (0.15 + 0.5) * HOUR_S - 60
    assert found["sweep"]["best"] == "lr-2" or found["sweep"]["members"][1]["loss"] is not None
    assert [each["why"] for each in found["takeovers"]] == ["killed", "frozen"]
    assert all(0 < each["seconds"] < 30 for each in found["takeovers"])
    assert found["total"]["machines_left"] == 0


def test_its_money_adds_up_and_is_less_than_on_demand(written: tuple[dict[str, Any], str]) -> None:
    found, _ = written
    total = found["total"]
    assert sum(found["purposes"].values()) == pytest.approx(total["usd"], abs=0.05)
    assert sum(each["usd"] for each in found["users"]) == pytest.approx(total["usd"], abs=0.05)
    assert 0 < total["usd"] < total["on_demand_usd"]
    assert 0.5 < total["goodput"] < 1
    assert max(each["held"] for each in found["samples"]) <= 10 + 6, "those that leave, too"


def test_the_page_loads_nothing_and_names_every_job_user_and_promise(written: tuple[dict[str, Any], str]) -> None:
    found, page = written
    assert not re.search(r"<script|<link|src=|@import|url\(", page)
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page
    for each in found["jobs"]:
        assert f'id="job-{each["name"]}"' in page
    for each in (*found["users"], *found["promises"]["kept"]):
        assert each["name"] in page
    assert found["repeat"]["digest"] in page
    assert found["repeat"]["command"] == "make scenario SEED=1 SHORT=1"


def test_what_the_story_names_is_escaped(written: tuple[dict[str, Any], str]) -> None:
    found, _ = written
    evil = {**found, "story": [{"second": 0.0, "kind": "user", "text": "<script>alert(1)</script>"}]}
    assert "<script>" not in html(evil)


def test_equal_seeds_make_equal_days_and_others_do_not() -> None:
    little = replace(SHORT, hours=0.5)
    digests = [Day(seed, little).play().world.digest() for seed in (3, 3, 4)]
    assert digests[0] == digests[1] != digests[2]


def test_a_recording_takes_the_place_of_the_zones_with_v100(tmp_path: Path) -> None:
    path = tmp_path / "tiny.csv"
    path.write_text("seconds,us-east-2b,us-west-2a\n0,4,0\n300,0,6\n")
    pools = [each for each in pools_of(1, 1.0, read(path)) if each.kind.name == "p3.2xlarge"]
    assert [each.zone for each in pools] == ["us-east-2b", "us-west-2a"]
    assert [each.capacity.at(0.0) for each in pools] == [4.0, 0.0]
    assert [each.capacity.at(400.0) for each in pools] == [0.0, 6.0]
    assert main(["--short", "--recording", str(tmp_path / "none.csv"), "--out", str(tmp_path)]) == 2


def test_a_broken_promise_ends_the_day_with_its_seed_and_what_was_before(tmp_path: Path) -> None:
    day = Day(5, replace(SHORT, hours=0.5))

    def break_one() -> None:
        if day.second() > 0.2 * HOUR_S:
            raise Violation("P1: i-7 has been leaked <for 999 s>")

    day.world.hooks.step.append(break_one)
    assert run(day, "make scenario SEED=5", tmp_path) == 1
    found = json.loads((tmp_path / "scenario.json").read_text())
    page = (tmp_path / "scenario.html").read_text()
    assert (found["ok"], found["repeat"]["seed"]) == (False, 5)
    assert found["violation"].startswith("P1")
    assert "leaked &lt;for 999 s&gt;" in page
    assert "ann submits speech" in page


def test_a_round_that_stands_still_while_etcd_is_away_breaks_p7() -> None:
    steps = (Step(0.5, "etcd away", value=120.0),)
    kept = Day(5, replace(SHORT, hours=0.6, steps=steps)).play()
    assert kept.trained_on > 0, "or nothing was judged"
    broken = Day(5, replace(SHORT, hours=0.6, steps=steps))

    def hang() -> None:
        for training in broken.world.nodes.trainings.values():
            training.hang(broken.world.clock.now())

    broken.world.schedule(broken.world.started_at + 0.5 * HOUR_S + 1.0, hang)
    with pytest.raises(
        Violation, match=r"P7: etcd did not answer, and \w+ trained for \d+ of 180 s, with all its mach"
    ):
        broken.play()


def test_a_command_that_is_refused_is_told_as_such() -> None:
    steps = (Step(0.4, "cancel", "typo"), Step(0.5, "scale", "typo", 2))
    jobs = tuple(each for each in SHORT.jobs if each.name == "typo")
    day = Day(5, replace(SHORT, hours=0.6, jobs=jobs, sweep=None, steps=steps)).play()
    texts = [each.text for each in day.told]
    assert "dan cancels typo." in texts
    assert "dan scales typo to 2 nodes: refused, it is cancelled." in texts


def test_what_one_fault_does_to_several_jobs_is_one_sentence() -> None:
    steps = (Step(0.5, "silence", value=90.0),)
    day = Day(5, replace(SHORT, hours=0.8, steps=steps)).play()
    silent = [each["text"] for each in facts(day, "")["story"] if "silent, and" in each["text"]]
    assert len({each.job for each in day.events if each.kind is EventKind.SILENCE}) > 1, "or there is nothing to join"
    assert len(silent) == 1
    assert "Likewise" in silent[0]


def test_the_whole_day_is_twenty_jobs_of_four_users_on_three_clouds() -> None:
    assert WHOLE.count == 20
    assert {each.owner for each in WHOLE.jobs} == {"ann", "bob", "carla", "dan"}
    assert {each.cloud for each in WHOLE.jobs} == {"aws", "gcp", "azure"}
    assert {each.gpu for each in WHOLE.jobs} == {"V100", "A100", "L4"}
    assert WHOLE.queue.cluster.nodes == NODES == 64
