"""What is done on a machine before its termination, over real SSH: its log is read, its file systems unmounted."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bootstrap import Setup, bootstrap
from bootstrap.mounts.model import Mount
from provisioners.base import EndCause, Market, Offer
from supervisor.config import Config
from supervisor.events import EventKind
from supervisor.identity import Identity
from supervisor.model import JobRecord, JobState, NodeRecord
from supervisor.nodes.pre_terminate import LOG_LINES, LOG_S, UNMOUNT_S, SshPreTerminate
from supervisor.planner.actions import BootstrapDone
from supervisor.spec import parse_spec
from tests.sim.harness import empty_world, in_state, machine_of, record, service, submit
from tests.sim.promises import events_of, jobs_of, settled
from tests.support.agents import CODE, TRAINER, wait_for
from tests.support.faulty_ssh import Machine, machine_with_sshd
from tests.support.programs import free_ports

IDENTITY = Identity(b"terminat" * 4)
DEADLINE_S = 60.0


class Clock:
    """Real time; each read skips `skip_s` ahead."""

    def __init__(self) -> None:
        self.skip_s = 0.0
        self._skipped_s = 0.0

    def now(self) -> float:
        self._skipped_s += self.skip_s
        return time.monotonic() + self._skipped_s


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with machine_with_sshd(tmp_path, IDENTITY.host_key("n1"), IDENTITY.client_key()) as made:
        yield made


def out(machine: Machine) -> str:
    return f"{machine.box}/mnt/out"


def records(machine: Machine) -> tuple[NodeRecord, JobRecord]:
    node = NodeRecord("n1", "j", "token", Offer("local", "r", "z", "t", Market.SPOT, None), 0.0)
    storage = [{"mount": out(machine), "nfs": "server:/out"}, {"mount": "/mnt/scratch", "scratch": True}]
    spec = parse_spec({"name": "resnet", "nodes": 1, "run": "train.py", "storage": storage})
    node = replace(node, ssh_host=machine.target.host, ssh_port=machine.target.port)
    return node, JobRecord("resnet", "ab12c", spec, "0" * 64, 0.0, 1, 1, 1)


def pre_terminate(clock: Clock) -> SshPreTerminate:
    return SshPreTerminate(Config(), IDENTITY, clock)


def test_its_agent_is_stopped_and_its_file_systems_are_unmounted(machine: Machine) -> None:
    setup = Setup(
        node="n1",
        agent_config=b"{}",
        code=CODE,
        trainer=TRAINER,
        python=sys.executable,
        mounts=(Mount("nfs", "server:/out", out(machine)),),
    )
    clock = Clock()
    bootstrap(machine.target, setup, clock=clock.now, deadline_s=DEADLINE_S)
    own = machine.home / ".spotsup/nodes/n1"
    wait_for(lambda: "started" in (own / "agent.log").read_text())
    (own / "log").mkdir(exist_ok=True)
    noise = "a line of noise\n" * LOG_LINES
    (own / "log/n1.log").write_text(f"{noise}ModuleNotFoundError: No module named 'nope'\n")
    node, job = records(machine)
    log = pre_terminate(clock).log_of(node).splitlines()
    assert log[0].startswith("started --config ")
    assert log[-1] == "ModuleNotFoundError: No module named 'nope'"
    assert log[-LOG_LINES - 1] != log[-LOG_LINES] == "a line of noise"
    assert "server:/out" in (machine.box / "proc/mounts").read_text()
    pre_terminate(clock).unmount(node, job)
    assert (machine.box / "proc/mounts").read_text() == ""
    assert machine.processes() == {}
    pre_terminate(clock).unmount(node, job)
    assert [line for line in machine.log if line.startswith("umount")] == [f"umount {out(machine)}"]


def test_a_machine_that_was_never_prepared_has_no_log_and_one_that_is_not_reached_is_not_waited_for(
    machine: Machine,
) -> None:
    clock = Clock()
    node, job = records(machine)
    assert pre_terminate(clock).log_of(node) == ""
    clock.skip_s = 1.0
    gone = replace(node, ssh_port=free_ports(1)[0])
    began = time.monotonic()
    for call, limit_s in (
        (lambda: pre_terminate(clock).log_of(gone), LOG_S),
        (lambda: pre_terminate(clock).unmount(gone, job), UNMOUNT_S),
    ):
        asked_at = clock.now()
        assert not call()
        assert limit_s <= clock.now() - asked_at < limit_s + 10.0
    assert time.monotonic() - began < 30


# -- which nodes are asked -------------------------------------------------------------------------------


class RecordingPreTerminate:
    """A PreTerminate that records its calls."""

    def __init__(self, log: str = "") -> None:
        self.logs: list[str] = []
        self.unmounted: list[str] = []
        self._log = log

    def log_of(self, node: NodeRecord) -> str:
        self.logs.append(node.id)
        return self._log

    def unmount(self, node: NodeRecord, job: JobRecord) -> None:
        self.unmounted.append(node.id)


def test_a_launcher_that_never_reaches_the_rendezvous_is_reported_with_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    pre_terminate_calls = RecordingPreTerminate("launcher started\nConnectionRefusedError: etcd at 10.0.0.9:2379\n")
    world = empty_world(pre_terminate=pre_terminate_calls)
    prepare_well, silent = world.nodes.prepare, list[str]()

    def prepare(node: NodeRecord, job: JobRecord) -> BootstrapDone:
        if not silent or node.id in silent:
            silent.append(node.id)
            return BootstrapDone(node.id)
        return prepare_well(node, job)

    monkeypatch.setattr(world.nodes, "prepare", prepare)
    submit(world, "job", 1, 1, 1)
    assert world.run_until(in_state(JobState.RUNNING), 180.0)
    assert pre_terminate_calls.logs == silent[:1]
    (event,) = events_of(world, "job", EventKind.LOG_TAIL)
    assert jobs_of(world)["job"].nodes[silent[0]].error == (
        "its launcher did not reach the rendezvous within 30 s; the last line of its log is: "
        "ConnectionRefusedError: etcd at 10.0.0.9:2379"
    )
    assert pre_terminate_calls.unmounted == []
    assert world.run_until(settled, 120.0)
    assert event


@pytest.mark.parametrize(("mode", "expected"), [("rw", 3), ("ro", 0)])
def test_writable_mounts_of_working_machines_are_unmounted_before_termination(mode: str, expected: int) -> None:
    pre_terminate_calls = RecordingPreTerminate()
    world = empty_world(pre_terminate=pre_terminate_calls)
    storage = [{"mount": "/mnt/out", "nfs": "server:/out", "mode": mode}]
    submit(world, "job", 1, 2, 2, storage=storage, checkpoints="none")
    assert world.run_until(in_state(JobState.RUNNING), 60.0)
    preempted = machine_of(world, 0)
    world.cloud.end(preempted, EndCause.PREEMPTED)
    assert world.run_until(lambda w: record(w).state is not JobState.RUNNING, 30.0)
    assert world.run_until(in_state(JobState.RUNNING), 60.0)
    service(world).commands.drain(machine_of(world, 0).instance.node)
    assert world.run_until(lambda _: len(pre_terminate_calls.unmounted) == min(expected, 1), 120.0)
    assert world.run_until(settled, 120.0)
    service(world).commands.cancel("job")
    assert world.run_until(in_state(JobState.CANCELLED), 60.0)
    assert world.run_until(settled, 120.0)
    assert len(pre_terminate_calls.unmounted) == expected
    assert preempted.instance.node not in pre_terminate_calls.unmounted, "a preempted machine is gone"
    assert pre_terminate_calls.logs == []
