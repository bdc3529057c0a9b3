"""Ranks that do not end, steps that hang, workers that outlive SIGKILL: with real etcd and real workers."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from spotsup_trainer.nvml import LIBRARY

from tests.e2e.launching import Nodes, eventually, nodes
from tests.support.nvml_library import PIDS, library

pytestmark = pytest.mark.long

PLAIN = Path(__file__).with_name("plain.py")
UNEVEN = Path(__file__).with_name("uneven.py")


@pytest.mark.main
@pytest.mark.parametrize(
    ("warm", "hang_at", "lost"),
    [
        ("1", "", "what its program had not written by then is lost"),
        pytest.param("1", "exit", "its last line had run", marks=pytest.mark.nightly),
        pytest.param("0", "", "what its program had not written by then is lost", marks=pytest.mark.nightly),
    ],
)
def test_a_rank_that_hangs_at_its_end_is_shown_and_ended_and_the_job_ends_as_the_others_say(
    etcd_endpoint: str, tmp_path: Path, warm: str, hang_at: str, lost: str
) -> None:
    env, program = {"SPOTSUP_FINISH_S": "1", "SPOTSUP_WARM": warm}, {"hang_rank": "1", "hang_at": hang_at}
    with nodes(etcd_endpoint, tmp_path, script=PLAIN, program=program, env=env, nproc=2) as job:
        job.start("a")
        assert job.exit_code("a") == 0
        result = job.result()
        assert result is not None
        assert result.outcome == "success"
        assert result.problem.startswith("a: local rank 1 had not ended ")
        ending = " s after the first rank ended, and was killed: {}; its stack is in the node's log"
        assert result.problem.endswith(ending.format(lost))
        log = job.log("a").read_text()
        assert "round 1: local rank 1: had not ended" in log
        # py-spy is not installed here; a fresh interpreter has no handler
        assert ("in hang_for_ever\n" in log) if warm == "1" else ("no stacks: install py-spy" in log)
        assert job.processes("a") == []


def test_a_rank_that_writes_its_last_file_slowly_is_left_alone(etcd_endpoint: str, tmp_path: Path) -> None:
    env, file = {"SPOTSUP_FINISH_S": "1"}, tmp_path / "final.pt"
    with nodes(etcd_endpoint, tmp_path, script=PLAIN, program={"slow_file": str(file)}, env=env, nproc=2) as job:
        job.start("a")
        assert job.exit_code("a") == 0
        result = job.result()
        assert result is not None
        assert (result.outcome, result.problem) == ("success", "")
        assert file.stat().st_size == 240_000


@pytest.mark.nightly
def test_the_ranks_of_a_node_that_hang_after_those_of_another_have_ended_are_ended(
    etcd_endpoint: str, tmp_path: Path
) -> None:
    with nodes(etcd_endpoint, tmp_path, program={"slow_on": "b"}, env={"SPOTSUP_FINISH_S": "1"}) as job:
        job.form("a", "b")
        job.end_file.touch()
        assert [job.exit_code(node) for node in "ab"] == [0, 0]
        result = job.result()
        assert result is not None
        assert (result.outcome, result.round) == ("success", 1)
        assert result.problem.startswith("b: local rank 0 had not ended")


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_twenty_short_jobs_at_once_all_end(etcd_endpoint: str, tmp_path: Path) -> None:
    """Plain scripts that drop their model last, from fresh interpreters and from warm ones, on a machine with too few
    processors. One that hung at its end would be ended after a minute, and its result would say so."""
    with contextlib.ExitStack() as stack:
        jobs = []
        for number in range(20):
            warm, destroy = str(number % 2), str(number // 2 % 2)
            folder = tmp_path / str(number)
            folder.mkdir()
            env = {"SPOTSUP_FINISH_S": "60", "SPOTSUP_WARM": warm}
            job = Nodes(
                etcd_endpoint, folder, f"job{number}", PLAIN, {"destroy": destroy}, env, nproc=2, nnodes="1", ttl_s=10.0
            )
            stack.callback(job.end)
            job.start("a")
            jobs.append(job)
        assert [job.exit_code("a", timeout_s=600.0) for job in jobs] == [0] * 20
        results = [job.result() for job in jobs]
        assert [(result.outcome, result.problem) for result in results if result] == [("success", "")] * 20


def is_done(job: Nodes, node: str) -> bool:
    """Whether a launcher has said that its ranks have ended well."""
    return job.etcd.get(job.keys.done(job.job, node)) is not None


def wait_until_alone(job: Nodes, node: str) -> None:
    """Its peer is gone, and was seen to be gone for longer than any lease lasts."""
    eventually("the lease has ended", lambda: job.member("b") is None)
    job.write_tombstone("b")
    seen = job.log(node).stat().st_size
    with contextlib.suppress(AssertionError):
        eventually("nothing", lambda: job.round().number > 1 or job.log(node).stat().st_size > seen, 3.0)


@pytest.mark.parametrize("how", ["lost", pytest.param("asked to leave", marks=pytest.mark.nightly)])
def test_the_loss_of_a_node_whose_ranks_have_ended_well_interrupts_no_other(
    etcd_endpoint: str, tmp_path: Path, how: str
) -> None:
    with nodes(etcd_endpoint, tmp_path, script=UNEVEN) as job:
        job.form("a", "b")
        Path(f"{job.end_file}-b").touch()
        eventually("b is done", lambda: is_done(job, "b"))
        if how == "lost":
            job.kill("b")
        else:
            job.launchers["b"].terminate()
            job.exit_code("b", timeout_s=20.0)
            assert "its part is done, and the others go on without this node" in job.log("b").read_text()
        wait_until_alone(job, "a")
        assert [(event["node"], event["round"]) for event in job.events("step")].count(("a", 1)) == 1
        assert job.round().number == 1
        Path(f"{job.end_file}-a").touch()
        assert job.exit_code("a") == 0
        result = job.result()
        assert result is not None
        assert (result.outcome, result.round, result.problem) == ("success", 1, "")
        assert {event["round"] for event in job.events("step")} == {1}, "nothing was done twice"


@pytest.mark.nightly
def test_the_loss_of_a_done_node_that_hosts_the_store_restarts_the_others(etcd_endpoint: str, tmp_path: Path) -> None:
    with nodes(etcd_endpoint, tmp_path, script=UNEVEN) as job:
        job.form("a", "b")
        Path(f"{job.end_file}-a").touch()
        eventually("a is done", lambda: is_done(job, "a"))
        job.kill("a")
        assert job.stepping(1, after_round=1)["node"] == "b"
        Path(f"{job.end_file}-b").touch()
        assert job.exit_code("b") == 0


@pytest.mark.nightly
def test_a_done_node_runs_again_with_the_others_when_one_that_works_is_lost(etcd_endpoint: str, tmp_path: Path) -> None:
    with nodes(etcd_endpoint, tmp_path, script=UNEVEN) as job:
        job.form("a", "b", "c")
        Path(f"{job.end_file}-c").touch()
        eventually("c is done", lambda: is_done(job, "c"))
        job.kill("b")
        job.stepping(2, after_round=1)
        assert job.round().nodes() == ("a", "c")
        Path(f"{job.end_file}-a").touch()
        assert [job.exit_code(node) for node in "ac"] == [0, 0]


def hung(job: Nodes) -> bool:
    """Whether all members say that their steps hang."""
    members = [job.member(node) for node in job.round().nodes()]
    return all(member is not None and member.stalled_since > 0 for member in members)


def test_steps_that_hang_are_shown_with_stacks_and_formed_anew_where_the_job_asks_for_it(
    etcd_endpoint: str, tmp_path: Path
) -> None:
    program = {"hang_at": "5", "hangs_after_s": "12"}
    with nodes(etcd_endpoint, tmp_path, program=program, env={"SPOTSUP_HANG": "restart"}) as job:
        job.form("a", "b")
        eventually("both say so", lambda: hung(job))
        second = job.stepping(2, 1, timeout_s=60)["round"]
        assert job.round().reason == "its steps hung"
        assert len(job.round().recent_hangs) == 1
        assert job.round().app_failures == 0
        logs = [job.log(node).read_text() for node in "ab"]
        for log in logs:
            assert log.count("local rank 0: its steps hang\n") == 1
            assert "in hang_or_not\n" in log
            assert log.count("asking the workers to checkpoint: its steps hang\n") == 1
        # The first to end its workers breaks the round, which may be why the other ends its own.
        assert "stopping the workers: its steps hang\n" in "".join(logs)
        job.end_file.touch()
        assert [job.exit_code(node) for node in "ab"] == [0, 0]
        assert job.round().number == second


@pytest.fixture
def stuck(etcd_endpoint: str, tmp_path: Path, outlive_s: float) -> Iterator[Nodes]:
    """A job of a and b; SIGKILL has no effect on the workers of b."""
    with nodes(etcd_endpoint, tmp_path, program={"deaf": "1"}, module="tests.e2e.outlives_sigkill") as job:
        (tmp_path / "stuck-b").touch()
        job.hint("a", "b", minimum=2)
        for node in "ab":
            where, outlive = str(tmp_path / f"stuck-{node}"), f"{outlive_s}"
            job.start(node, SPOTSUP_TEST_STUCK=where, SPOTSUP_TEST_OUTLIVE_S=outlive)
        job.stepping(2)
        job.hint("a", "b")
        yield job


@pytest.mark.nightly
@pytest.mark.parametrize("outlive_s", [60.0])
def test_workers_that_outlive_sigkill_hold_their_node_out_and_the_others_train_on(stuck: Nodes) -> None:
    job = stuck
    worker = job.events("start", node="b")[0]["pid"]
    os.kill(job.events("start", node="a")[0]["pid"], signal.SIGKILL)
    alone = job.stepping(1, 1)["round"]
    assert job.round().nodes() == ("a",)
    member = job.member("b")
    assert member is not None
    assert member.state == "stopping"
    assert member.problem.startswith(f"workers outlive SIGKILL: local rank 0, pid {worker}, state ")
    # once they are gone, it is back
    (job.folder / "stuck-b").unlink()
    os.kill(worker, signal.SIGKILL)
    job.stepping(2, alone)
    assert job.round().nodes() == ("a", "b")
    assert job.round().app_failures == 0


@pytest.mark.parametrize("outlive_s", [1.0])
def test_a_machine_whose_workers_outlive_sigkill_for_too_long_leaves_as_unhealthy(stuck: Nodes) -> None:
    job = stuck
    os.kill(job.events("start", node="a")[0]["pid"], signal.SIGKILL)
    assert job.exit_code("b") == 1
    assert '"failure", "message": "unhealthy: workers have outlived SIGKILL for 1 s: local rank 0, pid ' in (
        (job.folder / "run-b" / "ended.json").read_text()
    )
    job.stepping(1, 1)
    assert job.round().nodes() == ("a",)
    assert job.round().app_failures == 0


def test_a_node_waits_until_the_driver_has_none_of_its_workers_on_gpus(etcd_endpoint: str, tmp_path: Path) -> None:
    """Its library is one of ours here, which lists whatever a file says."""
    Path(library(tmp_path, lists=True)).rename(tmp_path / LIBRARY)
    env = {"LD_LIBRARY_PATH": str(tmp_path), "SPOTSUP_GPU_CHECK": "1", PIDS: str(tmp_path / "pids")}
    with nodes(etcd_endpoint, tmp_path, env=env, module="tests.e2e.gpus_held") as job:
        (tmp_path / "pids").touch()
        job.start("a")
        worker = job.stepping(1)["pid"]
        (tmp_path / "pids").write_text(f"{os.getpid()} {worker}")
        job.hint("a", "b", minimum=2)  # else the newcomer may go on alone meanwhile
        job.start("b")
        said = f"workers outlive SIGKILL: the driver still has them on GPUs: pid {worker}"
        eventually("a waits", lambda: (member := job.member("a")) and member.problem == said)
        assert job.round().number == 1
        (tmp_path / "pids").write_text(f"{os.getpid()}")
        job.stepping(2, 1)
        assert job.round().nodes() == ("a", "b")
        assert job.round().app_failures == 0
