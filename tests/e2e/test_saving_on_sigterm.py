"""Programs without a Session that save when they get SIGTERM: they have the time that a notice leaves."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from spotsup_trainer.wire import Notice, encode

from tests.e2e.launching import Nodes, nodes

SAVES = Path(__file__).with_name("saves_on_sigterm.py")
WRAPPER = """#!/bin/bash
# As people wrap their scripts: bash stays, and does not pass SIGTERM on.
{} -u {} "$@"
echo "python has ended"
"""


def announce(job: Nodes, node: str, notice_s: float) -> float:
    """As the agent does; return when."""
    now = time.time()
    job.etcd.put(job.keys.notice(job.job, node), encode(Notice(node, now + notice_s, now, "test")))
    return now


@pytest.mark.parametrize("code", ["143", pytest.param("0", marks=pytest.mark.nightly)])
def test_all_ranks_have_time_to_save_from_the_notice_on(etcd_endpoint: str, tmp_path: Path, code: str) -> None:
    """Also where a peer's rank has ended long before, and whatever they end with."""
    with nodes(etcd_endpoint, tmp_path, script=SAVES, program={"fast": "0", "code": code}) as job:
        job.form("a", "b")
        at = announce(job, "b", 40.0)
        assert job.exit_code("b") == 0
        second = job.stepping(1, 1)["round"]
        saved = job.events("saved", round=1)
        assert sorted(event["rank"] for event in saved) == [0, 1]
        assert max(event["at"] for event in saved) < at + 35.0
        assert job.round().app_failures == 0
        job.end_file.touch()
        assert job.exit_code("a") == 0
        assert job.round().number == second


def test_a_job_says_how_long_it_saves_and_trains_until_then(etcd_endpoint: str, tmp_path: Path) -> None:
    with nodes(etcd_endpoint, tmp_path, script=SAVES, program={"save_s": "1"}, env={"SPOTSUP_STOP_S": "3"}) as job:
        job.form("a")
        deadline = announce(job, "a", 8.0) + 8.0
        assert job.exit_code("a") == 0
        (asked,) = job.events("asked")
        assert deadline - 4.0 <= asked["at"] <= deadline
        assert job.events("saved")


def test_a_program_below_a_shell_script_gets_sigterm_too(etcd_endpoint: str, tmp_path: Path) -> None:
    wrapper = tmp_path / "train.sh"
    wrapper.write_text(WRAPPER.format(sys.executable, SAVES))
    wrapper.chmod(0o755)
    with nodes(etcd_endpoint, tmp_path, script=wrapper, options=("--no-python",)) as job:
        job.form("a")
        announce(job, "a", 40.0)
        assert job.exit_code("a") == 0
        assert job.events("saved")


@pytest.mark.nightly
def test_one_that_does_not_end_is_killed_before_its_machine_is_taken(etcd_endpoint: str, tmp_path: Path) -> None:
    with nodes(etcd_endpoint, tmp_path, script=SAVES, program={"save_s": "100"}) as job:
        job.form("a")
        deadline = announce(job, "a", 8.0) + 8.0
        assert job.exit_code("a") == 0
        assert time.time() < deadline
        assert job.events("asked")
        assert not job.events("saved")
