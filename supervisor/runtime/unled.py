"""Tells people that nobody leads, that etcd is full, or that it has no journal although machines run: no decision is
made then, and nothing reaches the outbox. Each daemon says so for itself, straight to the channels, with what it knows;
training goes on meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import structlog

from supervisor.alerts.routes import Channel
from supervisor.alerts.senders import Outgoing, Receipt, Sender
from supervisor.events import EventKind
from supervisor.journal.reading import Reading
from supervisor.model import Event
from supervisor.planner.problems import reminder_s
from supervisor.runtime.background import in_background
from supervisor.runtime.clock import Clock
from supervisor.runtime.loop import Status

AFTER_S = 120.0
RETRY_S = 60.0
MAX_EVENTS = 10  # that wait for a channel; the oldest go first

log = structlog.get_logger("spotsupd")


def why_undecided(status: Status, reading: Reading, etcd_problem: str, *, leading: bool, leader: str) -> str:
    """Return why nothing is decided, as this daemon sees it, "" while somebody decides. `status`: of the last tick; the
    rest: as `runtime.leader.Leadership` has it."""
    if status.etcd_away_since:
        return "etcd does not answer"
    if leading:
        return etcd_problem or (status.headline if reading.cluster is None else "")
    return "" if leader or reading.pause is not None else etcd_problem or "no daemon leads"


class NoLeaderWatch:
    """Call `follow` after each tick: it returns at once. One delivery per channel runs at a time."""

    def __init__(
        self,
        problem: Callable[[], str],
        channels: Mapping[str, tuple[Channel, Sender]],
        clock: Clock,
        name: str,
        start: Callable[[Callable[[], Receipt], str], Future[Any]] = in_background,
    ) -> None:
        """`problem`: why nobody decides, as this daemon sees it, "" while somebody does. `name`: this daemon's.
        `start`: starts a call on a thread."""
        self._problem, self._clock, self._name, self._start = problem, clock, name, start
        self._channels = channels
        self._since = 0.0
        self._times, self._said_at = 0, 0.0
        self._events: dict[str, list[Event]] = {}
        self._running: dict[str, tuple[Future[Any], int]] = {}
        self._next_at: dict[str, float] = {}

    def follow(self) -> None:
        """Look how things are, and tell people if that is due."""
        now, problem = self._clock.now(), self._problem()
        if problem:
            self._since = min(self._since or now, now)
            wait_s = reminder_s(self._times) if self._times else 0.0
            if now - self._since >= AFTER_S and now - self._said_at >= wait_s:
                self._times, self._said_at = self._times + 1, now
                lasts = _minutes(now - self._since)
                self._tell(f"{self._name}: nothing was decided for {lasts}: {problem}; training goes on", now)
        else:
            if self._times:
                self._tell(f"{self._name}: decisions are made again, after {_minutes(now - self._since)}", now)
            self._since, self._times = 0.0, 0
        for name in list(self._events):
            self._deliver(name, now)

    def _tell(self, text: str, now: float) -> None:
        event = Event(f"{EventKind.NO_LEADER}-{self._name}-{int(now)}", now, "", EventKind.NO_LEADER, text)
        log.error(text)
        for name, (channel, _) in self._channels.items():
            if channel.takes(event):
                self._events[name] = [*self._events.get(name, []), event][-MAX_EVENTS:]

    def _deliver(self, name: str, now: float) -> None:
        if running := self._running.get(name):
            future, count = running
            if not future.done():
                return
            del self._running[name]
            error = str(future.exception() or "") or future.result().error
            if error:
                log.warning("cannot deliver alerts; will retry", channel=name, count=count, error=error)
                self._next_at[name] = now + RETRY_S
            else:
                self._events[name] = self._events[name][count:]
        events = tuple(self._events[name])
        if not events:
            del self._events[name]
        elif now >= self._next_at.get(name, 0.0):
            sender = self._channels[name][1]
            message = Outgoing(events, at=now)
            self._running[name] = (self._start(lambda: sender.send(message), f"alerts-{name}"), len(events))


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min"
