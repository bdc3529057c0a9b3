"""Which actions run beside each other. Each kind of work has room of its own, so that none waits behind another: a
hundred machines that are prepared delay no launch, no listing and no alert (P11). Within one kind the job that has the
fewest under way comes first. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from types import MappingProxyType

from supervisor.model import parts_of
from supervisor.planner.actions import (
    Action,
    AskNode,
    Bootstrap,
    Clean,
    FetchOffers,
    Find,
    Launch,
    ListInstances,
    ListLeftovers,
    Remove,
    SendAlerts,
    Terminate,
)

# How many of each kind run at a time. What a cloud takes of launches in a second is less; preparing a machine is
# minutes of waiting for it.
LANES: Mapping[str, int] = MappingProxyType(
    {"launch": 128, "end": 64, "list": 32, "ask": 64, "prepare": 512, "alert": 16}
)


def lane_of(action: Action) -> str:
    """Return the kind of work that an action is."""
    match action:
        case Launch() | Find():
            return "launch"
        case Terminate() | Remove():
            return "end"
        case ListInstances() | ListLeftovers() | FetchOffers():
            return "list"
        case AskNode():
            return "ask"
        case Bootstrap() | Clean():
            return "prepare"
        case SendAlerts():
            return "alert"


def job_of(action: Action) -> str:
    """Return the job that an action is for; "" where it is for none in particular."""
    match action:
        case Launch(node) | Find(node) | Bootstrap(node) | Clean(node) | AskNode(node):
            return node.job
        case FetchOffers(job=job):
            return job
        case Terminate(node=node) if node:
            return parts_of(node).job
        case _:
            return ""


class Lanes:
    """The actions that wait, and how many run, by lane and job. For one thread at a time."""

    def __init__(self, limits: Mapping[str, int] = LANES) -> None:
        self._limits = limits
        self._waiting: dict[str, dict[str, deque[tuple[float, Action]]]] = {lane: {} for lane in limits}
        self._running: dict[str, Counter[str]] = {lane: Counter() for lane in limits}

    def add(self, action: Action, now: float) -> None:
        """Let an action wait for its turn."""
        self._waiting[lane_of(action)].setdefault(job_of(action), deque()).append((now, action))

    def take(self, lane: str) -> Action | None:
        """Return the next action of a lane, which runs from now on; None if none waits, or as many run as may."""
        waiting, running = self._waiting[lane], self._running[lane]
        if not waiting or running.total() >= self._limits[lane]:
            return None
        job = min(waiting, key=lambda name: (running[name], waiting[name][0][0]))
        _, action = waiting[job].popleft()
        if not waiting[job]:
            del waiting[job]
        running[job] += 1
        return action

    def end(self, action: Action) -> None:
        """Note that an action that was taken has ended."""
        running = self._running[lane_of(action)]
        running[job_of(action)] -= 1
        if not running[job_of(action)]:
            del running[job_of(action)]

    def waits_s(self, now: float) -> dict[str, float]:
        """Return for how long the oldest action of each lane has waited, in seconds."""
        return {
            lane: max((now - queue[0][0] for queue in waiting.values()), default=0.0)
            for lane, waiting in self._waiting.items()
        }

    @property
    def is_full(self) -> bool:
        """True if actions wait in a lane in which as many run as may."""
        return any(
            waiting and self._running[lane].total() >= self._limits[lane] for lane, waiting in self._waiting.items()
        )
