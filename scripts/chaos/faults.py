"""What is done to an installation, kind by kind: each strikes, holds, and mends what an operator or systemd would."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from spotsup_trainer.etcd import Etcd, EtcdError

from provisioners.localcloud import processes
from provisioners.localcloud.processes import Identity
from scripts.chaos import space
from scripts.chaos.flood import Flood
from scripts.chaos.plan import Kind, Planned
from scripts.chaos.rooms import Rooms
from scripts.chaos.site import Daemon, Site
from scripts.stack import StackError
from tests.disks import Full

TAKEOVER_TIMEOUT_S = 120.0
YIELD_TIMEOUT_S = 120.0
CLOCK_STEPS_S = (-86400, -3600, -90, 90, 3600, 86400)
CLOCK_SLACK_S = 30.0  # what it says may be some seconds old on a busy computer
NOTICE_S = 25.0
LEAVE_S = 120.0
_DISK_PIECES = 60


@dataclass
class Ground:
    """Where faults strike. `disks`: the small file systems, of etcd's member 0 and of daemon 0, where there are any;
    `clock`: the file that says how far the clock of the last daemon is off."""

    site: Site
    job: str
    members: int
    clock: Path
    rooms: Rooms | None = None
    etcd_disk: Path | None = None
    daemon_disk: Path | None = None


@dataclass
class Outcome:
    """What one fault came to. Times in seconds; `broken` in words; `notes` are more measurements."""

    planned: Planned
    at_s: float
    pause_s: float = 0.0
    recovered_s: float | None = None
    notes: dict[str, float] = field(default_factory=dict)
    said: str = ""
    broken: list[str] = field(default_factory=list)


Strike = Callable[[Ground, Planned, Outcome], AbstractContextManager[None]]


# -- daemons ---------------------------------------------------------------------------------------------------


def _leader(ground: Ground) -> Daemon:
    found = ground.site.leader()
    if found is None:
        raise StackError("nobody leads")
    return found


def _taken_over(ground: Ground, old: Daemon, outcome: Outcome) -> None:
    others = [each for each in ground.site.daemons if each is not old]
    took_s = ground.site.wait_for(
        lambda: any(each.health().get("leading") for each in others), TAKEOVER_TIMEOUT_S, "another daemon to lead"
    )
    outcome.notes["takeover_s"] = round(took_s, 2)


@contextmanager
def _leader_killed(ground: Ground, _planned: Planned, outcome: Outcome) -> Iterator[None]:
    old = _leader(ground)
    old.kill()
    _taken_over(ground, old, outcome)
    yield
    old.start()


@contextmanager
def _leader_frozen(ground: Ground, _planned: Planned, outcome: Outcome) -> Iterator[None]:
    """It wakes, and changes nothing."""
    old = _leader(ground)
    commits = old.commits()
    old.send(signal.SIGSTOP)
    try:
        _taken_over(ground, old, outcome)
        yield
    finally:
        old.send(signal.SIGCONT)
    ground.site.wait_for(
        lambda: old.health().get("headline", "").startswith("standing by"), YIELD_TIMEOUT_S, "the frozen one to yield"
    )
    # What was decided before it was frozen, and reached etcd before its lease had ended, is no change of one that woke.
    more = old.commits() - commits
    outcome.notes["commits_meanwhile"] = more
    if more > 2:
        outcome.broken.append(f"a leader that was frozen has committed {more} times around that")


@contextmanager
def _standby_killed(ground: Ground, _planned: Planned, _outcome: Outcome) -> Iterator[None]:
    leader = _leader(ground)
    standby = next(each for each in ground.site.daemons if each is not leader)
    standby.kill()
    yield
    standby.start()


@contextmanager
def _daemons_killed(ground: Ground, _planned: Planned, _outcome: Outcome) -> Iterator[None]:
    for daemon in ground.site.daemons:
        daemon.kill()
    yield
    for daemon in ground.site.daemons:
        daemon.launch()


@contextmanager
def _daemon_disk_full(ground: Ground, _planned: Planned, _outcome: Outcome) -> Iterator[None]:
    """It goes on, and can be started."""
    assert ground.daemon_disk is not None
    full, daemon = Full(ground.daemon_disk), ground.site.daemons[0]
    try:
        full.strike()
        yield
        daemon.kill()
        daemon.start()
    finally:
        full.mend()


def set_clock(file: Path, by_s: int) -> None:
    """Let the process that reads this file be so far off, from now on (wrong_clock/sitecustomize.py)."""
    new = file.with_suffix(".new")
    new.write_text(f"{by_s:+d}\n")
    new.replace(file)


@contextmanager
def _clock_stepped(ground: Ground, planned: Planned, outcome: Outcome) -> Iterator[None]:
    """The time of day of the leader jumps, and jumps back."""
    daemon = ground.site.daemons[-1]
    if _leader(ground) is not daemon:
        other = _leader(ground)
        other.kill()
        ground.site.wait_for(lambda: bool(daemon.health().get("leading")), TAKEOVER_TIMEOUT_S, "it to lead")
        other.start()
    by_s = CLOCK_STEPS_S[int(planned.pick * len(CLOCK_STEPS_S))]
    outcome.notes["by_s"] = by_s
    try:
        set_clock(ground.clock, by_s)
        yield
        # What it says is stamped with the time that it believes, and it believes no jump so soon.
        if "at" in (said := daemon.health()):
            off_s = outcome.notes["off_s"] = round(float(said["at"]) - time.time(), 1)
            if abs(off_s) > CLOCK_SLACK_S:
                outcome.broken.append(f"a leader whose clock jumped by {by_s:+d} s has believed {off_s:+g} s of it")
    finally:
        set_clock(ground.clock, 0)


@contextmanager
def _api_flood(ground: Ground, _planned: Planned, outcome: Outcome) -> Iterator[None]:
    """Hundreds of requests a second, and connections that say nothing."""
    leader = _leader(ground)
    with Flood(leader.socket, ground.job) as flood:
        yield
        outcome.notes |= flood.measure(leader.pid)
    if not outcome.notes["answered"]:
        outcome.broken.append("a flooded daemon has answered nobody")
    if outcome.notes["failed"]:
        outcome.broken.append(f"a flooded daemon has failed {outcome.notes['failed']:.0f} requests: {flood.failure}")


# -- etcd ------------------------------------------------------------------------------------------------------


@contextmanager
def _etcd_killed(ground: Ground, planned: Planned, _outcome: Outcome) -> Iterator[None]:
    number = int(planned.pick * ground.members)
    ground.site.etcd.kill(number)
    yield
    ground.site.etcd.start(number)


@contextmanager
def _etcd_frozen(ground: Ground, planned: Planned, _outcome: Outcome) -> Iterator[None]:
    number = int(planned.pick * ground.members)
    ground.site.etcd.freeze(number)
    try:
        yield
    finally:
        ground.site.etcd.thaw(number)


@contextmanager
def _etcd_gone(ground: Ground, _planned: Planned, _outcome: Outcome) -> Iterator[None]:
    for number in range(ground.members):
        ground.site.etcd.kill(number)
    yield
    ground.site.etcd.start_all()


@contextmanager
def _etcd_cut_off(ground: Ground, planned: Planned, _outcome: Outcome) -> Iterator[None]:
    assert ground.rooms is not None
    number = int(planned.pick * ground.members)
    ground.rooms.cut(number)
    try:
        yield
    finally:
        ground.rooms.mend(number)


@contextmanager
def _etcd_narrow(ground: Ground, _planned: Planned, _outcome: Outcome) -> Iterator[None]:
    assert ground.rooms is not None
    try:
        for number in range(ground.members):
            ground.rooms.narrow(number)
        yield
    finally:
        for number in range(ground.members):
            ground.rooms.mend(number)


@contextmanager
def _etcd_disk_full(ground: Ground, _planned: Planned, outcome: Outcome) -> Iterator[None]:
    """A member whose disk is full ends itself, at the latest when it has something to write."""
    assert ground.etcd_disk is not None
    full, etcds = Full(ground.etcd_disk), ground.site.etcd
    try:
        full.strike()
        with contextlib.closing(Etcd(etcds.endpoints, timeout_s=2.0)) as etcd, contextlib.suppress(EtcdError):
            for number in range(_DISK_PIECES):
                if not etcds.pid(0):
                    break
                etcd.put(f"{space.JUNK}{number:05d}", bytes(2**18))
        yield
    finally:
        full.mend()
    outcome.notes["ended_itself"] = 0.0 if etcds.pid(0) else 1.0
    if not etcds.pid(0):
        etcds.kill(0)
        etcds.start(0)
    _mend(ground, outcome)


@contextmanager
def _etcd_no_space(ground: Ground, _planned: Planned, outcome: Outcome) -> Iterator[None]:
    etcds = ground.site.etcd
    with contextlib.closing(Etcd(etcds.endpoints, timeout_s=10.0)) as etcd:
        try:
            outcome.notes["filled_mib"] = space.use_up(etcd) / 2**20
            refused = ground.site.any().ctl("scale", ground.job, "3", "--max", "3")
            if refused.returncode != 1 or "etcd takes no more data" not in refused.stderr:
                outcome.broken.append(f"a command was answered with {refused.returncode}: {refused.stderr.strip()}")
            yield
            outcome.said = str(ground.site.any().health().get("headline", ""))
        finally:
            _mend(ground, outcome)


def _mend(ground: Ground, outcome: Outcome) -> None:
    """As an operator does. etcd 3.4 was seen to die of a defragmentation under reads (a nil pointer in its
    concurrentReadTx): it is started again, as systemd does."""
    etcds = ground.site.etcd
    try:
        space.mend(etcds.endpoints)
    except EtcdError:
        dead = [number for number in range(ground.members) if not etcds.pid(number)]
        if not dead:
            raise
        for number in dead:
            etcds.start(number)
        outcome.notes["etcd_died"] = float(len(dead))
        space.mend(etcds.endpoints)


# -- the cloud and its machines --------------------------------------------------------------------------------


@contextmanager
def _cloud_killed(ground: Ground, _planned: Planned, _outcome: Outcome) -> Iterator[None]:
    assert ground.site.cloud is not None
    ground.site.cloud.kill()
    ground.site.cloud.wait()
    yield
    ground.site.start_cloud()


@contextmanager
def _cloud_frozen(ground: Ground, _planned: Planned, _outcome: Outcome) -> Iterator[None]:
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


def _killed(part: str) -> Strike:
    @contextmanager
    def strike(ground: Ground, planned: Planned, outcome: Outcome) -> Iterator[None]:
        for victim in _victims(ground, planned, part, outcome):
            processes.send(victim, signal.SIGKILL)
        yield

    return strike


def _frozen(part: str) -> Strike:
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
def _machine_lost(ground: Ground, planned: Planned, _outcome: Outcome) -> Iterator[None]:
    ground.site.cloud_ctl("kill", _drawn(_members(ground), planned)[0])
    yield


@contextmanager
def _machine_notice(ground: Ground, planned: Planned, _outcome: Outcome) -> Iterator[None]:
    doomed = _drawn(_members(ground), planned)[0]
    ground.site.cloud_ctl("preempt", doomed, "--notice", f"{NOTICE_S:g}")
    yield
    # The next fault is not to be blamed for the round that this one ends.
    ground.site.wait_for(lambda: doomed not in _members(ground), NOTICE_S + LEAVE_S, f"{doomed} to leave the round")


STRIKES: Mapping[Kind, Strike] = {
    Kind.LEADER_KILLED: _leader_killed,
    Kind.LEADER_FROZEN: _leader_frozen,
    Kind.STANDBY_KILLED: _standby_killed,
    Kind.DAEMONS_KILLED: _daemons_killed,
    Kind.ETCD_KILLED: _etcd_killed,
    Kind.ETCD_FROZEN: _etcd_frozen,
    Kind.ETCD_GONE: _etcd_gone,
    Kind.ETCD_CUT_OFF: _etcd_cut_off,
    Kind.ETCD_NARROW: _etcd_narrow,
    Kind.ETCD_DISK_FULL: _etcd_disk_full,
    Kind.ETCD_NO_SPACE: _etcd_no_space,
    Kind.DAEMON_DISK_FULL: _daemon_disk_full,
    Kind.CLOCK_STEPPED: _clock_stepped,
    Kind.API_FLOOD: _api_flood,
    Kind.CLOUD_KILLED: _cloud_killed,
    Kind.CLOUD_FROZEN: _cloud_frozen,
    Kind.SSHD_KILLED: _killed("sshd"),
    Kind.AGENT_KILLED: _killed("agent"),
    Kind.AGENT_FROZEN: _frozen("agent"),
    Kind.LAUNCHER_KILLED: _killed("launcher"),
    Kind.LAUNCHER_FROZEN: _frozen("launcher"),
    Kind.WORKER_KILLED: _killed("worker"),
    Kind.WORKER_FROZEN: _frozen("worker"),
    Kind.MACHINE_LOST: _machine_lost,
    Kind.MACHINE_NOTICE: _machine_notice,
}
