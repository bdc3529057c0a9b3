"""Launchers with real etcd and real workers: machines come, go, vanish and freeze, and training goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from spotsup_trainer.agent.child import own_program
from spotsup_trainer.rendezvous.stores import reach

from tests.e2e.launching import STEPS, Nodes, eventually, nodes
from tests.support.combinations import others_nightly
from tests.support.etcd_server import cable, etcd_server
from tests.support.programs import run_module


@pytest.fixture
def job(etcd_endpoint: str, tmp_path: Path) -> Iterator[Nodes]:
    with nodes(etcd_endpoint, tmp_path) as made:
        yield made


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def children(pid: int) -> list[int]:
    """The processes that another one has started."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_job_lives_through_loss_joining_and_leaving(job: Nodes) -> None:
    """One job, as its machines change: formed by hint, a loss without notice, a newcomer, a leaver, the end."""
    first = job.form("a", "b", "c")["round"]
    assert first == 1
    assert job.round().nodes() == ("a", "b", "c")

    # a loss that only the lease shows: survivors keep their ranks, and it counts as no failure of the program
    job.kill("b")
    second = job.stepping(2, first)["round"]
    assert job.round().nodes() == ("a", "c")
    assert job.round().app_failures == 0

    # a newcomer: all checkpoint at the same step, and no step is done twice
    job.start("d")
    job.ready("d")
    job.hint("a", "c", "d")
    third = job.stepping(3, second)["round"]
    assert job.round().nodes() == ("a", "c", "d")
    assert job.round().reason == "d joined"
    assert job.first_step(third) == job.last_step(second) + 1
    assert {event["step"] for event in job.events("parked", round=second)} == {job.last_step(second)}

    # rank 0 itself leaves in order
    job.launchers["a"].send_signal(signal.SIGTERM)
    fourth = job.stepping(2, third)["round"]
    assert job.exit_code("a") == 0
    assert '"left"' in (job.folder / "run-a" / "ended.json").read_text()
    assert job.processes("a") == []
    assert job.round().nodes() == ("c", "d")
    assert job.first_step(fourth) == job.last_step(third) + 1
    assert job.round().app_failures == 0

    # the end: all nodes stop with success, and nothing of old rounds is left
    left = {file.name.split("-")[1].split(".")[0] for file in (job.folder / "run-c").glob("*-*")}
    assert left == {str(fourth)}
    job.end_file.touch()
    assert [job.exit_code(node) for node in "cd"] == [0, 0]
    result = job.result()
    assert result is not None
    assert (result.outcome, result.round) == ("success", fourth)
    assert [job.processes(node) for node in "cd"] == [[], []]

    def keys() -> list[str]:
        return [kv.key for kv in job.etcd.range(job.keys.member(job.job, "")).kvs if kv.key[-1] in "cd"]

    eventually("their keys are gone", lambda: not keys())
    assert "c has trained" in job.log("c").read_text()
    assert [each.name for each in job.temporary.iterdir() if not is_of_torch(each)] == []


def is_of_torch(folder: Path) -> bool:
    """Its cache, which it never removes, and what torch 2.6 makes when it is imported, and a killed launcher leaves."""
    return folder.name.startswith("torchinductor_") or (folder / "_remote_module_non_scriptable.py").is_file()


def test_a_program_that_keeps_failing_ends_the_job_and_is_quoted(etcd_endpoint: str, tmp_path: Path) -> None:
    program = {"fail_on": "b", "fail_times": "99"}
    with nodes(etcd_endpoint, tmp_path, program=program, max_restarts=1) as job:
        job.hint("a", "b", minimum=2)
        job.start("a", "b")
        assert [job.exit_code(node) for node in "ab"] == [1, 1]
        result = job.result()
        assert result is not None
        assert result.outcome == "failure"
        assert "failed 2 times, 1 allowed; last on b, local rank 0, exit code 1" in result.message
        assert "ValueError: failing on purpose, time 2" in result.message
        assert len(job.events("start", node="a")) == 2
        assert job.processes("a") + job.processes("b") == []
        # the traceback in the log is the program's, without our frames
        log = job.log("b").read_text()
        assert "ValueError: failing on purpose" in log
        assert "worker.py" not in log


def test_a_frozen_node_is_replaced_and_fenced_when_it_thaws(job: Nodes) -> None:
    job.form("a", "b")
    frozen = {event["pid"] for event in job.events("start", node="b")}
    for pid in job.processes("b"):
        os.kill(pid, signal.SIGSTOP)
    alone = job.stepping(1, 1)["round"]
    assert job.round().nodes() == ("a",)
    for pid in job.processes("b"):
        os.kill(pid, signal.SIGCONT)
    again = job.stepping(2, alone)["round"]
    assert job.round().nodes() == ("a", "b")
    assert job.round().app_failures == 0
    assert not any(alive(pid) for pid in frozen)
    assert job.events("step", node="b", round=alone) == []
    eventually("b steps, too", lambda: job.events("step", node="b", round=again) or None)


@pytest.mark.nightly
def test_a_leader_that_freezes_while_the_round_is_formed_does_not_block_the_others(job: Nodes) -> None:
    """Its machine still takes connections, and no answer ever comes."""
    job.ttl_s = 20.0  # a frozen member counts until then
    job.hint(minimum=2)
    job.start("a", "b")
    job.ready("a", "b")
    for pid in job.processes("a"):
        os.kill(pid, signal.SIGSTOP)
    job.hint("a", "b")
    eventually("a round that a leads", lambda: job.etcd.get(job.keys.round(job.job)))
    assert job.round().nodes() == ("a", "b")
    alone = job.stepping(1, 1)["round"]
    assert job.round().nodes() == ("b",)
    for pid in job.processes("a"):
        os.kill(pid, signal.SIGCONT)
    job.stepping(2, alone)


def test_a_node_that_is_cut_off_from_etcd_trains_on_and_one_that_is_given_up_comes_back(job: Nodes) -> None:
    job.ttl_s = 5.0
    with cable(job.endpoint) as wire:
        job.hint("a", "b", minimum=2)
        job.start("a")
        job.start("b", via=wire.endpoint)
        job.stepping(2)
        job.hint("a", "b")
        wire.cut()
        eventually("its lease ends", lambda: job.member("b") is None)
        ended_at = time.time()
        eventually("steps long after that", lambda: job.last_step_at(1) > ended_at + 5.0)
        wire.repair()
        eventually("it is back", lambda: job.member("b"))
        eventually("steps long after that", lambda: job.last_step_at(1) > ended_at + 10.0)
        assert (job.round().number, len(job.events("start"))) == (1, 2)
        wire.cut()
        job.write_tombstone("b")  # the other goes on without it, and so ends its workers too
        alone = job.stepping(1, 1)["round"]
        job.etcd.delete(job.keys.tombstone(job.job, "b"))
        assert job.round().nodes() == ("a",)
        eventually("b has stopped", lambda: len(job.processes("b")) == 2)
        wire.repair()
        job.stepping(2, alone)
        assert job.round().nodes() == ("a", "b")
        assert job.round().app_failures == 0


def test_training_goes_on_while_etcd_is_away(tmp_path: Path) -> None:
    with etcd_server(tmp_path / "etcd") as server, nodes(server.endpoint, tmp_path) as job:
        job.form("a", "b")
        server.kill()
        killed_at = time.time()
        # longer than the leases
        eventually("steps 5 s after etcd ended", lambda: job.last_step_at(1) > killed_at + 5.0)
        assert server.start()
        back_at = time.time()
        eventually("steps past every grace period", lambda: job.last_step_at(1) > back_at + 5.0)
        assert job.round().number == 1
        assert len(job.events("start")) == 2
        # and the rendezvous works again
        job.kill("b")
        job.stepping(1, 1)


def test_a_done_node_starts_again_when_a_slower_one_is_lost(etcd_endpoint: str, tmp_path: Path) -> None:
    with nodes(etcd_endpoint, tmp_path, program={"slow_on": "b"}) as job:
        job.form("a", "b")
        job.end_file.touch()
        eventually("b takes its time", lambda: job.events("slow"))
        eventually("a is done", lambda: (member := job.member("a")) and member.state == "done")
        job.kill("b")
        job.write_tombstone("b")
        assert job.exit_code("a") == 0
        assert [event["world"] for event in job.events("start", node="a")] == [2, 1]
        result = job.result()
        assert result is not None
        assert (result.outcome, result.round) == ("success", 2)


def test_a_node_that_leaves_in_order_takes_the_rounds_store_along_last_and_no_log_has_a_trace(
    etcd_endpoint: str, tmp_path: Path
) -> None:
    with nodes(etcd_endpoint, tmp_path, program={"late_s": "1.5"}) as job:
        job.form("a", "b", "c")
        job.hint("a", "b", "c", minimum=3)
        first, *others = job.round().nodes()
        job.launchers[first].send_signal(signal.SIGTERM)
        assert job.exit_code(first) == 0
        job.ready(*others)
        for node in others:
            log = job.log(node).read_text()
            assert "all workers are parked" in log
            assert "frame #" not in log
            assert "does not answer" not in log


def test_nodes_that_are_lost_without_a_notice_are_one_sentence_in_the_logs_of_the_others(job: Nodes) -> None:
    """Beside what their program says of its collectives. The first one serves the round's store.

    A process takes some time to end, and torch prints a stack of C++ for a call to its store that falls into it: here
    the launchers of the others stand still meanwhile.
    """
    job.form("a", "b", "c", "d")
    store, other, *left = job.round().nodes()
    for number, gone in enumerate((store, other), start=1):
        rounds_store = reach(job.round().members[0])
        for node in left:
            job.launchers[node].send_signal(signal.SIGSTOP)
        rounds_store.check(["x"])  # after all that they have asked before
        job.kill(gone)
        job.launchers[gone].wait(60)
        for node in left:
            job.launchers[node].send_signal(signal.SIGCONT)
        job.stepping(4 - number, number)
    assert job.round().nodes() == tuple(left)
    for node in left:
        log = job.log(node).read_text()
        assert "frame #" not in log
        assert "does not answer" not in log
        assert [log.count(f": {gone} left\n") for gone in (store, other)] == [1, 1]


@pytest.mark.parametrize(
    "start",
    [
        own_program(sys.executable, "main"),
        pytest.param([sys.executable, "-m", "spotsup_trainer.launcher"], marks=pytest.mark.nightly),
    ],
)
def test_a_worker_finds_modules_where_python_finds_them_and_not_in_the_current_folder_too(
    etcd_endpoint: str, tmp_path: Path, start: list[str]
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "show.py").write_text("import json, sys\nprint(json.dumps(sys.path), flush=True)\n")
    options = ["--nnodes", "1", "--rdzv-backend", "spotsup", "--rdzv-endpoint", etcd_endpoint, "--rdzv-id", "paths"]
    command = [*start, *options, "--local-addr", "127.0.0.1", "code/show.py"]
    found = [
        subprocess.run(each, cwd=tmp_path, capture_output=True, text=True, timeout=170, check=True)
        for each in (command, [sys.executable, "code/show.py"])
    ]
    assert json.loads(found[0].stdout) == json.loads(found[1].stdout)


def test_a_program_without_a_session_is_restarted_for_a_newcomer_and_not_blamed(
    etcd_endpoint: str, tmp_path: Path
) -> None:
    """And it runs by a fresh interpreter here, as --no-python and other interpreters do."""
    with nodes(etcd_endpoint, tmp_path, program={"session": "0"}, env={"SPOTSUP_WARM": "0"}) as job:
        job.start("a")
        job.stepping(1)
        job.start("b")
        job.stepping(2, 1)
        assert job.round().nodes() == ("a", "b")
        assert job.round().app_failures == 0
        log = job.log("a").read_text()
        assert log.count("sending the workers SIGTERM, as they have no Session that checkpoints: b joins\n") == 1
        assert "asking the workers" not in log
        # leaving takes no longer for it
        job.launchers["b"].send_signal(signal.SIGTERM)
        assert job.exit_code("b") == 0
        job.stepping(1, 2)
        assert job.round().app_failures == 0


def test_any_killed_process_of_a_launcher_leaves_nothing_and_counts_as_no_failure(job: Nodes) -> None:
    job.form("a", "b")
    eventually("there are launcher, fork server, worker", lambda: len(job.processes("a")) == 3)
    # without the process that forks its workers a launcher ends, for its agent to start another
    server = children(job.launchers["b"].pid)[0]
    os.kill(server, signal.SIGKILL)
    assert job.exit_code("b") == 1
    assert f"process {server}, which starts the workers, has ended" in job.log("b").read_text()
    assert not (job.folder / "run-b" / "ended.json").exists()
    assert job.processes("b") == []
    job.stepping(1, 1)
    assert job.round().nodes() == ("a",)
    assert job.round().app_failures == 0
    job.launchers["a"].kill()
    job.launchers["a"].wait()
    eventually("nothing is left", lambda: not job.processes("a"))


def test_a_worker_that_ignores_sigterm_does_not_block_the_others(etcd_endpoint: str, tmp_path: Path) -> None:
    with nodes(etcd_endpoint, tmp_path, program={"deaf": "1"}) as job:
        job.form("a", "b")
        old = {event["pid"] for event in job.events("start", node="a")}
        job.kill("b")
        job.write_tombstone("b")
        job.stepping(1, 1, timeout_s=45)
        assert not any(alive(pid) for pid in old)
        assert job.round().app_failures == 0


WRONG_USAGES = [
    (["--rdzv-backend", "c10d", str(STEPS)], "--rdzv-backend is c10d; this launcher needs spotsup"),
    (["--rdzv-backend", "spotsup", "missing.py"], "missing.py does not exist in"),
    (["--rdzv-backend", "spotsup", str(STEPS)], "--rdzv-endpoint is empty"),
]


@pytest.mark.parametrize(("arguments", "message"), others_nightly(WRONG_USAGES[:1], WRONG_USAGES))
def test_wrong_usage_is_one_sentence_and_exit_code_2(arguments: list[str], message: str) -> None:
    done = run_module("spotsup_trainer.launcher", *arguments)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
