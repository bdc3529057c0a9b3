"""What a launcher does about its workers, given where its node stands. Pure: no I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from spotsup_trainer.rendezvous.membership import Broken, Over, Standing, Yield

Workers: TypeAlias = Literal["running", "succeeded", "failed"]
Next: TypeAlias = Literal["rejoin", "leave", "end"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds.

    yield_s: from the wish to yield until workers that have a Session must be parked. grace_s: from SIGTERM to SIGKILL
    when there is nothing to save. lost_s: how long parking may take once a member has left, for a checkpoint that all
    ranks have written but rank 0 has not named yet. exit_s: from the first node's success until all must have ended;
    the last one may write results for long. margin_s: to be done before the deadline of this node's own notice.
    """

    yield_s: float = 20.0
    grace_s: float = 2.0
    lost_s: float = 5.0
    exit_s: float = 1800.0
    margin_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Local:
    """What a launcher knows of its own node. Times are monotonic; None: has not happened.

    `sessions` of the `ranks` local workers can park, `parked` have. `leaving_since`: told to leave. `force`: twice.
    `deadline`: when this node's machine will be taken.
    """

    workers: Workers
    ranks: int
    sessions: int
    parked: int
    yielding_since: float | None = None
    broken_since: float | None = None
    leaving_since: float | None = None
    done_since: float | None = None
    deadline: float | None = None
    force: bool = False


@dataclass(frozen=True, slots=True)
class GoOn:
    """Nothing to do."""


@dataclass(frozen=True, slots=True)
class SayDone:
    """Tell the others that this node's workers ended well, and wait for theirs."""


@dataclass(frozen=True, slots=True)
class AskToYield:
    """Ask the workers to checkpoint and park."""

    reason: str


@dataclass(frozen=True, slots=True)
class Stop:
    """End the workers: SIGTERM, and SIGKILL after `grace_s` (0: SIGKILL at once). Then `then`.

    `parked`: their checkpoint is complete. `blame`: their failure may be the program's own.
    """

    then: Next
    reason: str
    grace_s: float = 0.0
    parked: bool = False
    blame: bool = False


Action: TypeAlias = GoOn | SayDone | AskToYield | Stop


def decide(local: Local, standing: Standing, now: float, limits: Limits) -> Action:
    """The next step. The caller carries it out, keeps the times of what happened, and asks again."""
    then: Next = "rejoin" if local.leaving_since is None else "leave"
    if isinstance(standing, Over):
        return Stop("end", standing.result.message, limits.grace_s)
    if local.force or (local.deadline is not None and now >= local.deadline - limits.margin_s):
        return Stop("leave", "no time is left")
    if local.workers == "failed":
        return Stop(then, "a worker failed", limits.grace_s, blame=local.yielding_since is None)
    if local.workers == "succeeded":
        return _decide_done(local, standing, now, limits, then)
    # Before anything else: peers may have asked for it, and then nothing is lost by ending these workers at once.
    if local.parked == local.ranks:
        return Stop(then, "all workers are parked", parked=True)
    if isinstance(standing, Broken) and not _may_still_park(local, standing, now, limits):
        return Stop(then, standing.reason, limits.grace_s)
    return _decide_yield(local, standing, now, limits, then)


def _decide_done(local: Local, standing: Standing, now: float, limits: Limits, then: Next) -> Action:
    """Done workers have nothing to yield. They are needed again only if the round breaks before all others are done."""
    if isinstance(standing, Broken):
        return Stop(then, standing.reason)
    if local.leaving_since is not None and now >= local.leaving_since + limits.yield_s:
        return Stop("leave", "the other nodes are not done yet")
    if local.done_since is not None and now >= local.done_since + limits.exit_s:
        return Stop("leave", f"the other nodes were not done {limits.exit_s:.0f} s after this one")
    return SayDone()


def _may_still_park(local: Local, broken: Broken, now: float, limits: Limits) -> bool:
    """Whether a checkpoint may be about to be complete: the one who left may have been the first to see it so."""
    parking = local.yielding_since is not None and local.sessions == local.ranks
    since = now if local.broken_since is None else local.broken_since
    return parking and broken.cause == "lost" and now < since + limits.lost_s


def _decide_yield(local: Local, standing: Standing, now: float, limits: Limits, then: Next) -> Action:
    """Once begun, a yield goes to its end, even if its reason goes away: some ranks may be parked already."""
    if local.yielding_since is None:
        if local.leaving_since is not None:
            return AskToYield("this node leaves")
        return AskToYield(standing.reason) if isinstance(standing, Yield) else GoOn()
    if local.sessions < local.ranks:
        return Stop(then, "the workers have no Session to checkpoint with", limits.grace_s)
    if now >= local.yielding_since + limits.yield_s:
        return Stop(then, f"the workers did not park within {limits.yield_s:.0f} s", limits.grace_s)
    return GoOn()
