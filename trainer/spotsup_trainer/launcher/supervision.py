"""What a launcher does about its workers, given where its node stands. Pure: no I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from spotsup_trainer.rendezvous.membership import Broken, Over, Standing, Yield

Workers: TypeAlias = Literal["running", "succeeded", "failed"]
Next: TypeAlias = Literal["rejoin", "leave", "end"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Time limits, in seconds."""

    # From the request to yield until workers that have a Session must be parked.
    yield_s: float = 20.0
    # From SIGTERM to SIGKILL when there is nothing to save.
    grace_s: float = 2.0
    # How long parking may go on after a member has left: rank 0 may still be naming a checkpoint that all have written.
    lost_s: float = 5.0
    # From this node's success until all nodes must have ended; the last one may write results for long.
    exit_s: float = 1800.0
    # Stop this long before the deadline of this node's own notice.
    margin_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Local:
    """The state of a launcher's own node. Times are monotonic; None: has not happened."""

    workers: Workers
    # How many local workers there are, how many of them can park, and how many have.
    ranks: int
    sessions: int
    parked: int
    # Since when the workers are asked to yield.
    yielding_since: float | None = None
    # Since when the round is broken.
    broken_since: float | None = None
    # Since when the launcher is asked to leave.
    leaving_since: float | None = None
    # Since when all local workers have ended well.
    done_since: float | None = None
    # When this node's machine will be taken.
    deadline: float | None = None
    # The launcher was asked to leave twice.
    force: bool = False


@dataclass(frozen=True, slots=True)
class Continue:
    """Nothing to do."""


@dataclass(frozen=True, slots=True)
class AnnounceDone:
    """Announce that this node's workers ended well, and wait for the other nodes' workers."""


@dataclass(frozen=True, slots=True)
class AskToYield:
    """Ask the workers to checkpoint and park."""

    reason: str


@dataclass(frozen=True, slots=True)
class Stop:
    """End the workers, then do `then`."""

    then: Next
    reason: str
    # From SIGTERM to SIGKILL; 0: SIGKILL at once.
    grace_s: float = 0.0
    # Their checkpoint is complete.
    parked: bool = False
    # Their failure may be the program's own.
    blame: bool = False


Action: TypeAlias = Continue | AnnounceDone | AskToYield | Stop


def decide(local: Local, standing: Standing, now: float, limits: Limits) -> Action:
    """The next action. The caller carries it out, records when things happened, and calls again."""
    then: Next = "rejoin" if local.leaving_since is None else "leave"
    if isinstance(standing, Over):
        return Stop("end", standing.result.message, limits.grace_s)
    if local.force or (local.deadline is not None and now >= local.deadline - limits.margin_s):
        return Stop("leave", "no time is left")
    if local.workers == "failed":
        return Stop(then, "a worker failed", limits.grace_s, blame=local.yielding_since is None)
    if local.workers == "succeeded":
        return _decide_done(local, standing, now, limits, then)
    # First of all: these workers can end at once without loss, even if the request to park came from peers.
    if local.parked == local.ranks:
        return Stop(then, "all workers are parked", parked=True)
    if isinstance(standing, Broken) and not _may_still_park(local, standing, now, limits):
        return Stop(then, standing.reason, limits.grace_s)
    return _decide_yield(local, standing, now, limits, then)


def _decide_done(local: Local, standing: Standing, now: float, limits: Limits, then: Next) -> Action:
    """Done workers have nothing to save. They start again only if the round breaks before all others are done."""
    if isinstance(standing, Broken):
        return Stop(then, standing.reason)
    if local.leaving_since is not None and now >= local.leaving_since + limits.yield_s:
        return Stop("leave", "the other nodes are not done yet")
    if local.done_since is not None and now >= local.done_since + limits.exit_s:
        return Stop("leave", f"the other nodes were not done {limits.exit_s:.0f} s after this one")
    return AnnounceDone()


def _may_still_park(local: Local, broken: Broken, now: float, limits: Limits) -> bool:
    """Whether a checkpoint may be about to complete: the lost member may have left because it saw it complete."""
    parking = local.yielding_since is not None and local.sessions == local.ranks
    since = now if local.broken_since is None else local.broken_since
    return parking and broken.cause == "lost" and now < since + limits.lost_s


def _decide_yield(local: Local, standing: Standing, now: float, limits: Limits, then: Next) -> Action:
    """A yield that has begun goes to its end, even if its reason disappears: some ranks may be parked already."""
    if local.yielding_since is None:
        if local.leaving_since is not None:
            return AskToYield("this node leaves")
        return AskToYield(standing.reason) if isinstance(standing, Yield) else Continue()
    if local.sessions < local.ranks:
        return Stop(then, "the workers have no Session to checkpoint with", limits.grace_s)
    if now >= local.yielding_since + limits.yield_s:
        return Stop(then, f"the workers did not park within {limits.yield_s:.0f} s", limits.grace_s)
    return Continue()
