"""Faults of daemons, and their repair by systemd or an operator."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.chaos.context import Context, Outcome
from tests.chaos.flood import Flood
from tests.chaos.plan import Planned
from tests.support.disks import Full

CLOCK_STEPS_S = (-86400, -3600, -90, 90, 3600, 86400)
CLOCK_SLACK_S = 30.0  # its status may be some seconds old on a busy computer


@contextmanager
def leader_killed(context: Context, _planned: Planned, outcome: Outcome) -> Iterator[None]:
    """kill -9 of the leader; systemd starts it again."""
    old = context.testbed.wait_for_leader()
    old.kill()
    outcome.notes["takeover_s"] = round(context.testbed.wait_for_takeover(old), 2)
    yield
    old.start()


@contextmanager
def leader_frozen(context: Context, _planned: Planned, outcome: Outcome) -> Iterator[None]:
    """SIGSTOP of the leader beyond its lease, and SIGCONT: it must change nothing."""
    old = context.testbed.wait_for_leader()
    commits = old.commits()
    old.send(signal.SIGSTOP)
    try:
        outcome.notes["takeover_s"] = round(context.testbed.wait_for_takeover(old), 2)
        yield
    finally:
        old.send(signal.SIGCONT)
    context.testbed.wait_for_step_down(old)
    # Commits that were on their way when it was frozen may still have reached etcd before its lease ended.
    more = old.commits() - commits
    outcome.notes["commits_meanwhile"] = more
    if more > 2:
        outcome.broken.append(f"a frozen leader committed {more} times while it was frozen and after it woke")


@contextmanager
def standby_killed(context: Context, _planned: Planned, _outcome: Outcome) -> Iterator[None]:
    """kill -9 of a standby."""
    leader = context.testbed.wait_for_leader()
    standby = next(each for each in context.testbed.daemons if each is not leader)
    standby.kill()
    yield
    standby.start()


@contextmanager
def daemons_killed(context: Context, _planned: Planned, _outcome: Outcome) -> Iterator[None]:
    """kill -9 of all of them at once."""
    for daemon in context.testbed.daemons:
        daemon.kill()
    yield
    for daemon in context.testbed.daemons:
        daemon.launch()


@contextmanager
def daemon_disk_full(context: Context, _planned: Planned, _outcome: Outcome) -> Iterator[None]:
    """The disk of a daemon is full: it goes on, and can be restarted."""
    assert context.daemon_disk is not None
    full, daemon = Full(context.daemon_disk), context.testbed.daemons[0]
    try:
        full.inject()
        yield
        daemon.kill()
        daemon.start()
    finally:
        full.repair()


def set_clock(file: Path, by_s: int) -> None:
    """Set how far the clock of the process that reads this file is off (wrong_clock/sitecustomize.py)."""
    new = file.with_suffix(".new")
    new.write_text(f"{by_s:+d}\n")
    new.replace(file)


@contextmanager
def clock_stepped(context: Context, planned: Planned, outcome: Outcome) -> Iterator[None]:
    """The leader's wall clock jumps, and jumps back."""
    daemon, leader = context.testbed.daemons[-1], context.testbed.wait_for_leader()
    if leader is not daemon:
        leader.kill()
        context.testbed.wait_for_takeover(leader)
        leader.start()
    by_s = CLOCK_STEPS_S[int(planned.pick * len(CLOCK_STEPS_S))]
    outcome.notes["by_s"] = by_s
    try:
        set_clock(context.clock, by_s)
        yield
        # Its status carries the time that it has accepted, and it accepts no jump so soon.
        if "at" in (status := daemon.health()):
            off_s = outcome.notes["off_s"] = round(float(status["at"]) - time.time(), 1)
            if abs(off_s) > CLOCK_SLACK_S:
                outcome.broken.append(f"a leader whose clock jumped by {by_s:+d} s accepted {off_s:+g} s of it")
    finally:
        set_clock(context.clock, 0)


@contextmanager
def api_flood(context: Context, _planned: Planned, outcome: Outcome) -> Iterator[None]:
    """Hundreds of requests a second, and connections that send nothing."""
    leader = context.testbed.wait_for_leader()
    with Flood(leader.socket, context.job) as flood:
        yield
        outcome.notes |= flood.measure(leader.pid)
    if not outcome.notes["answered"]:
        outcome.broken.append("a flooded daemon answered no request")
    if outcome.notes["failed"]:
        outcome.broken.append(f"a flooded daemon failed {outcome.notes['failed']:.0f} requests: {flood.failure}")
