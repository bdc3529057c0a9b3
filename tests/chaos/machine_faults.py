"""Faults of the cloud, its machines, and the processes on them."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from provisioners.localcloud import processes
from provisioners.localcloud.processes import Identity
from tests.chaos.context import Context, Fault, Outcome
from tests.chaos.etcd_faults import etcd_gone
from tests.chaos.plan import Planned
from tools.stack import StackError

NOTICE_S = 25.0
LEAVE_S = 120.0
SCALE_S = 300.0


@contextmanager
def cloud_killed(context: Context, _planned: Planned, _outcome: Outcome) -> Iterator[None]:
    """kill -9 of the local cloud's server; its machines run on."""
    assert context.testbed.cloud is not None
    context.testbed.cloud.kill()
    context.testbed.cloud.wait()
    yield
    context.testbed.start_cloud()


@contextmanager
def cloud_frozen(context: Context, _planned: Planned, _outcome: Outcome) -> Iterator[None]:
    """SIGSTOP of the local cloud's server, and SIGCONT."""
    assert context.testbed.cloud is not None
    context.testbed.cloud.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        context.testbed.cloud.send_signal(signal.SIGCONT)


def _members(context: Context) -> list[str]:
    return sorted(str(n["id"]) for n in context.testbed.job(context.job)["node_list"] if n["state"] == "member")


def _drawn(members: Sequence[str], planned: Planned) -> list[str]:
    """The victim, and after it those that take its place if it has no such process."""
    if not members:
        raise StackError("no node trains")
    at = int(planned.pick * len(members))
    return [*members[at:], *members[:at]]


def _victims(context: Context, planned: Planned, part: str, outcome: Outcome) -> list[Identity]:
    """The processes of one kind on the drawn node, or on the next: a machine whose sshd was killed goes on without.
    All processes if the part is "machine"."""
    members = _drawn(_members(context), planned)
    for node in members:
        running = context.testbed.processes_of(node)
        found = parts({each.pid: command for each, command in running.items()}, parent_pids())
        victims = [each for each in running if part in ("machine", found.get(each.pid))]
        if victims:
            return victims
    outcome.remark = f"no {part} runs on any of {', '.join(members)}"
    return []


def parent_pids() -> dict[int, int]:
    """Each running process's parent, by pid."""
    return {each.identity.pid: each.parent for each in processes.snapshot().values()}


def parts(commands: Mapping[int, str], parents: Mapping[int, int]) -> dict[int, str]:
    """What each process of a machine is, by pid. The launcher forks a server that forks the workers: all three have the
    launcher's command line."""
    found = {}
    for pid, command in commands.items():
        if "spotsup_trainer.launcher" in command:
            found[pid] = _LAUNCHERS[min(_above(pid, commands, parents), 2)]
        elif "spotsup_trainer.agent" in command:
            found[pid] = "agent"
        elif "sshd" in command.split(" ")[0]:
            found[pid] = "sshd"
    return found


_LAUNCHERS = ("launcher", "fork server", "worker")


def _above(pid: int, commands: Mapping[int, str], parents: Mapping[int, int]) -> int:
    """How many of its ancestors have a launcher's command line, too."""
    parent = parents.get(pid, 0)
    above = "spotsup_trainer.launcher" in commands.get(parent, "")
    return 1 + _above(parent, commands, parents) if above else 0


def killed(part: str) -> Fault:
    """kill -9 of one kind of process on a machine."""

    @contextmanager
    def inject(context: Context, planned: Planned, outcome: Outcome) -> Iterator[None]:
        for victim in _victims(context, planned, part, outcome):
            processes.send(victim, signal.SIGKILL)
        yield

    return inject


def frozen(part: str) -> Fault:
    """SIGSTOP of one kind of process on a machine, and SIGCONT."""

    @contextmanager
    def inject(context: Context, planned: Planned, outcome: Outcome) -> Iterator[None]:
        victims = _victims(context, planned, part, outcome)
        for victim in victims:
            processes.send(victim, signal.SIGSTOP)
        try:
            yield
        finally:
            for victim in victims:
                processes.send(victim, signal.SIGCONT)

    return inject


@contextmanager
def machine_lost(context: Context, planned: Planned, _outcome: Outcome) -> Iterator[None]:
    """A machine ends without a notice."""
    context.testbed.cloud_ctl("kill", _drawn(_members(context), planned)[0])
    yield


@contextmanager
def machines_lost(context: Context, _planned: Planned, _outcome: Outcome) -> Iterator[None]:
    """Every machine of the job ends without a notice."""
    for node in _members(context):
        context.testbed.cloud_ctl("kill", node)
    yield


@contextmanager
def machine_lost_without_etcd(context: Context, planned: Planned, _outcome: Outcome) -> Iterator[None]:
    """A machine ends while all of etcd is down: the others go on once etcd is back."""
    doomed = _drawn(_members(context), planned)[0]
    with etcd_gone(context, planned, _outcome):
        context.testbed.cloud_ctl("kill", doomed)
        yield


@contextmanager
def machine_notice(context: Context, planned: Planned, _outcome: Outcome) -> Iterator[None]:
    """A machine is preempted after a notice."""
    doomed = _drawn(_members(context), planned)[0]
    context.testbed.cloud_ctl("preempt", doomed, "--notice", f"{NOTICE_S:g}")
    yield
    # The round that this fault ends must not be counted against the next fault.
    context.testbed.wait_for(
        lambda: doomed not in _members(context), NOTICE_S + LEAVE_S, f"{doomed} to leave the round"
    )


@contextmanager
def nodes_cut_off(context: Context, planned: Planned, outcome: Outcome) -> Iterator[None]:
    """Nodes cannot reach etcd, only one another: connections break, or nothing passes and nobody is told. Then what was
    held back arrives late. Daemons reach etcd, and the cloud."""
    before = {machine["id"] for machine in context.testbed.machines()}
    breaks = planned.pick < 0.5
    outcome.remark = "connections broken" if breaks else "nothing passes"
    for wire in context.cables:
        (wire.cut if breaks else wire.hang)()
    try:
        yield
        if any(node["state"] == "member" for node in context.testbed.job(context.job)["node_list"]):
            outcome.broken.append("the daemon did not see that nodes are silent")
        outcome.remark += f": {context.testbed.job(context.job)['sentence']}"
    finally:
        for wire in context.cables:
            wire.repair()
    ended = before - {machine["id"] for machine in context.testbed.machines()}
    if ended:
        outcome.broken.append(f"{len(ended)} of {len(before)} working machines were ended")


@contextmanager
def job_scaled(context: Context, _planned: Planned, _outcome: Outcome) -> Iterator[None]:
    """A user adds a node, and removes it once it trains."""
    before = len(_members(context))
    _scale(context, before + 1)
    yield
    _scale(context, before)


def _scale(context: Context, nodes: int) -> None:
    done = context.testbed.any().ctl("scale", context.job, str(nodes))
    if done.returncode:
        raise StackError(f"scaling to {nodes} nodes was refused: {done.stderr.strip()}")
    context.testbed.wait_for(lambda: len(_members(context)) == nodes, SCALE_S, f"{nodes} nodes to train")
