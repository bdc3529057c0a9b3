"""What is done to daemons, and what systemd or an operator would mend of it."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.chaos.flood import Flood
from tests.chaos.ground import Ground, Outcome
from tests.chaos.plan import Planned
from tests.chaos.site import Daemon
from tests.support.disks import Full
from tools.stack import StackError

TAKEOVER_TIMEOUT_S = 120.0
YIELD_TIMEOUT_S = 120.0
CLOCK_STEPS_S = (-86400, -3600, -90, 90, 3600, 86400)
CLOCK_SLACK_S = 30.0  # what it says may be some seconds old on a busy computer


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
def leader_killed(ground: Ground, _planned: Planned, outcome: Outcome) -> Iterator[None]:
    """kill -9 of the leader; systemd starts it again."""
    old = _leader(ground)
    old.kill()
    _taken_over(ground, old, outcome)
    yield
    old.start()


@contextmanager
def leader_frozen(ground: Ground, _planned: Planned, outcome: Outcome) -> Iterator[None]:
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
        lambda: old.health().get("headline", "").startswith("standby"), YIELD_TIMEOUT_S, "the frozen one to yield"
    )
    # What was decided before it was frozen, and reached etcd before its lease had ended, is no change of one that woke.
    more = old.commits() - commits
    outcome.notes["commits_meanwhile"] = more
    if more > 2:
        outcome.broken.append(f"a leader that was frozen has committed {more} times around that")


@contextmanager
def standby_killed(ground: Ground, _planned: Planned, _outcome: Outcome) -> Iterator[None]:
    """kill -9 of one that does not lead."""
    leader = _leader(ground)
    standby = next(each for each in ground.site.daemons if each is not leader)
    standby.kill()
    yield
    standby.start()


@contextmanager
def daemons_killed(ground: Ground, _planned: Planned, _outcome: Outcome) -> Iterator[None]:
    """kill -9 of all of them at once."""
    for daemon in ground.site.daemons:
        daemon.kill()
    yield
    for daemon in ground.site.daemons:
        daemon.launch()


@contextmanager
def daemon_disk_full(ground: Ground, _planned: Planned, _outcome: Outcome) -> Iterator[None]:
    """It goes on, and can be started."""
    assert ground.daemon_disk is not None
    full, daemon = Full(ground.daemon_disk), ground.site.daemons[0]
    try:
        full.strike()
        yield
        daemon.kill()
        daemon.start()
    finally:
        full.repair()


def set_clock(file: Path, by_s: int) -> None:
    """Let the process that reads this file be so far off, from now on (wrong_clock/sitecustomize.py)."""
    new = file.with_suffix(".new")
    new.write_text(f"{by_s:+d}\n")
    new.replace(file)


@contextmanager
def clock_stepped(ground: Ground, planned: Planned, outcome: Outcome) -> Iterator[None]:
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
def api_flood(ground: Ground, _planned: Planned, outcome: Outcome) -> Iterator[None]:
    """Hundreds of requests a second, and connections that say nothing."""
    leader = _leader(ground)
    with Flood(leader.socket, ground.job) as flood:
        yield
        outcome.notes |= flood.measure(leader.pid)
    if not outcome.notes["answered"]:
        outcome.broken.append("a flooded daemon has answered nobody")
    if outcome.notes["failed"]:
        outcome.broken.append(f"a flooded daemon has failed {outcome.notes['failed']:.0f} requests: {flood.failure}")
