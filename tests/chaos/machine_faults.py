"""What is done to the cloud, its machines, and what runs on them."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from provisioners.localcloud import processes
from provisioners.localcloud.processes import Identity
from tests.chaos.ground import Ground, Outcome, Strike
from tests.chaos.plan import Planned
from tools.stack import StackError

NOTICE_S = 25.0
LEAVE_S = 120.0


@contextmanager
def cloud_killed(ground: Ground, _planned: Planned, _outcome: Outcome) -> Iterator[None]:
    """kill -9 of the local cloud's server; its machines run on."""
    assert ground.site.cloud is not None
    ground.site.cloud.kill()
    ground.site.cloud.wait()
    yield
    ground.site.start_cloud()


@contextmanager
def cloud_frozen(ground: Ground, _planned: Planned, _outcome: Outcome) -> Iterator[None]:
    """SIGSTOP of the local cloud's server, and SIGCONT."""
    assert ground.site.cloud is not None
    ground.site.cloud.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        ground.site.cloud.send_signal(signal.SIGCONT)


def _members(ground: Ground) -> list[str]:
    return sorted(str(n["id"]) for n in ground.site.job(ground.job)["node_list"] if n["state"] == "member")


def _drawn(members: Sequence[str], planned: Planned) -> list[str]:
    """The one that is struck first, then those that are struck in its place."""
    if not members:
        raise StackError("no node trains")
    at = int(planned.pick * len(members))
    return [*members[at:], *members[:at]]


def _victims(ground: Ground, planned: Planned, part: str, outcome: Outcome) -> list[Identity]:
    """Of the node that was drawn, or the next one: a machine whose sshd was killed goes on without."""
    members = _drawn(_members(ground), planned)
    for node in members:
        there = ground.site.processes_of(node)
        parents = {each.identity.pid: each.parent for each in processes.snapshot().values()}
        found = parts({each.pid: words for each, words in there.items()}, parents)
        victims = [each for each in there if found.get(each.pid) == part]
        if victims:
            return victims
    outcome.said = f"there was no {part} on any of {', '.join(members)}"
    return []


def parts(commands: Mapping[int, str], parents: Mapping[int, int]) -> dict[int, str]:
    """What each process (its pid) of a machine is. Workers are forked by a server that the launcher has forked: all
    three have the launcher's command."""
    found = {}
    for pid, words in commands.items():
        if "spotsup_trainer.launcher" in words:
            found[pid] = _LAUNCHERS[min(_above(pid, commands, parents), 2)]
        elif "spotsup_trainer.agent" in words:
            found[pid] = "agent"
        elif "sshd" in words.split(" ")[0]:
            found[pid] = "sshd"
    return found


_LAUNCHERS = ("launcher", "fork server", "worker")


def _above(pid: int, commands: Mapping[int, str], parents: Mapping[int, int]) -> int:
    """How many of its ancestors are launchers, too."""
    parent = parents.get(pid, 0)
    above = "spotsup_trainer.launcher" in commands.get(parent, "")
    return 1 + _above(parent, commands, parents) if above else 0


def killed(part: str) -> Strike:
    """kill -9 of one kind of process on a machine."""

    @contextmanager
    def strike(ground: Ground, planned: Planned, outcome: Outcome) -> Iterator[None]:
        for victim in _victims(ground, planned, part, outcome):
            processes.send(victim, signal.SIGKILL)
        yield

    return strike


def frozen(part: str) -> Strike:
    """SIGSTOP of one kind of process on a machine, and SIGCONT."""

    @contextmanager
    def strike(ground: Ground, planned: Planned, outcome: Outcome) -> Iterator[None]:
        victims = _victims(ground, planned, part, outcome)
        for victim in victims:
            processes.send(victim, signal.SIGSTOP)
        try:
            yield
        finally:
            for victim in victims:
                processes.send(victim, signal.SIGCONT)

    return strike


@contextmanager
def machine_lost(ground: Ground, planned: Planned, _outcome: Outcome) -> Iterator[None]:
    """A machine is gone, without a notice."""
    ground.site.cloud_ctl("kill", _drawn(_members(ground), planned)[0])
    yield


@contextmanager
def machine_notice(ground: Ground, planned: Planned, _outcome: Outcome) -> Iterator[None]:
    """A machine is taken, as it was announced."""
    doomed = _drawn(_members(ground), planned)[0]
    ground.site.cloud_ctl("preempt", doomed, "--notice", f"{NOTICE_S:g}")
    yield
    # The next fault is not to be blamed for the round that this one ends.
    ground.site.wait_for(lambda: doomed not in _members(ground), NOTICE_S + LEAVE_S, f"{doomed} to leave the round")
