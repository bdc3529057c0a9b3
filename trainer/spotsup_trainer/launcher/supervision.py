"""What a launcher does about its workers, given where its node stands. Pure: no I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Union

from spotsup_trainer.rendezvous.membership import Broken, Over, Standing, Yield
from spotsup_trainer.wire import Progress

# ended: after they were asked to end.
Workers = Literal["running", "succeeded", "failed", "ended"]
Next = Literal["rejoin", "leave", "end"]

_SLACK_S = 60.0


@dataclass(frozen=True)
class Limits:
    """Time limits, in seconds."""

    # From the request to yield until workers that have a Session must be parked; once measured, SaveTimes.yield_s.
    yield_s: float = 120.0
    # From SIGTERM to SIGKILL where the round broke, and for workers that do not catch SIGTERM.
    grace_s: float = 2.0
    # The same in an ordered end of the round for workers that catch it, and how long before its machine's deadline a
    # node begins to leave for them. None: as long as a notice leaves time, and at most `yield_s` where there is none.
    stop_s: float | None = None
    # How long parking may go on after a member has left: rank 0 may still be naming a checkpoint that all have written.
    lost_s: float = 5.0
    # From the first rank that ended well until those that are idle are ended: they hang.
    finish_s: float = 120.0
    # The same until an alert is sent for those that work, and until these are ended: they may write results for long.
    tell_s: float = 1800.0
    exit_s: float = 86400.0
    # Stop this long before the deadline of this node's own notice.
    margin_s: float = 1.0
    # Form the round anew when its steps hang.
    restart_hung: bool = False
    # How long workers whose steps hang have for a checkpoint.
    hung_yield_s: float = 20.0
    # How long workers may outlive SIGKILL before the machine counts as unhealthy.
    outlive_s: float = 60.0


@dataclass(frozen=True)
class Local:
    """The state of a launcher's own node. Times are monotonic; None: has not happened."""

    workers: Workers
    # How many local workers there are, how many of them can park, and how many have.
    ranks: int
    sessions: int
    parked: int
    # Since when the workers are asked to yield.
    yielding_since: float | None = None
    # A worker catches SIGTERM: it may save something then.
    catches: bool = False
    # Since when the workers are asked to end, by SIGTERM.
    ending_since: float | None = None
    # Since when the round is broken.
    broken_since: float | None = None
    # Since when the launcher is asked to leave.
    leaving_since: float | None = None
    # Since when all local workers have ended well.
    done_since: float | None = None
    # Since when some rank of the round has ended well while others run on this node.
    finished_since: float | None = None
    # Since when those that run on this node have been idle.
    idle_since: float | None = None
    # Since when the steps of the round hang.
    hung_since: float | None = None
    # When the stacks were logged, of ranks that hang or have not ended.
    stacks_at: float | None = None
    # The steps may hang once more: a new round may help.
    may_restart: bool = True
    # When this node's machine will be taken.
    deadline: float | None = None
    # The launcher was asked to leave twice.
    force: bool = False
    # The round's store is here: the others cannot go on without this node.
    hosts_store: bool = False


@dataclass(frozen=True)
class Continue:
    """Nothing to do."""


@dataclass(frozen=True)
class AnnounceDone:
    """Announce that this node's workers ended well, and wait for the other nodes' workers."""


@dataclass(frozen=True)
class AskToYield:
    """Ask the workers to checkpoint and park."""

    reason: str


@dataclass(frozen=True)
class LeaveEarly:
    """Begin to leave before anyone asks for it: the workers need the time to save."""


@dataclass(frozen=True)
class AskToEnd:
    """Send the workers SIGTERM, and let them save."""

    reason: str


@dataclass(frozen=True)
class KeepStacks:
    """Log the stacks of the workers that run, and tell people why."""

    why: str
    tell: bool = True


@dataclass(frozen=True)
class EndUnfinished:
    """Log the stacks of the workers that run, kill them, and count them as the others: they ended well."""

    since: str


@dataclass(frozen=True)
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
    # A worker failed, here or on another node: GPUs may be the reason, also those of a node whose workers only hang.
    check_gpus: bool = False


Action = Union[Continue, AnnounceDone, AskToYield, LeaveEarly, AskToEnd, KeepStacks, EndUnfinished, Stop]


@dataclass(frozen=True)
class CheckpointCount:
    """How many checkpoints were completed in a round, as its rank 0 reports; other nodes see none."""

    count: int = 0
    # The step of the newest; -1 before the first report, whose checkpoint may be the one that the round began with.
    step: int = -1

    def after(self, found: Progress | None, number: int) -> CheckpointCount:
        """Return the count with one more report; those of other rounds are left out."""
        if found is None or found.round != number or found.checkpoint_step <= self.step:
            return self
        return CheckpointCount(self.count + (self.step >= 0), found.checkpoint_step)


def decide(local: Local, standing: Standing, now: float, limits: Limits) -> Action:
    """Return the next action. The caller carries it out, records when things happened, and calls again."""
    then: Next = "rejoin" if local.leaving_since is None else "leave"
    if isinstance(standing, Over):
        return Stop("end", standing.result.message, limits.grace_s)
    if local.force or (local.deadline is not None and now >= local.deadline - limits.margin_s):
        return Stop("leave", "no time is left")
    if local.ending_since is not None:
        return _decide_end(local, local.ending_since, standing, now, limits, then)
    if local.workers == "failed":
        lost = isinstance(standing, Broken) and standing.cause == "lost"  # that is why
        blame = local.yielding_since is None
        return Stop(then, "a worker failed", limits.grace_s, blame=blame, check_gpus=not lost)
    if local.workers == "succeeded":
        return _decide_done(local, standing, now, limits, then)
    # First of all: these workers can end at once without loss, even if the request to park came from peers.
    if local.parked == local.ranks:
        return Stop(then, "all workers are parked", parked=True)
    if isinstance(standing, Broken) and not _may_still_park(local, standing, now, limits):
        return Stop(then, standing.reason, limits.grace_s, check_gpus=standing.cause == "stopped")
    if _needs_to_leave(local, now, limits):
        return LeaveEarly()
    problem = _unfinished(local, now, limits) or _hung(local, now, limits, then)
    return problem or _decide_yield(local, standing, now, limits, then)


def _needs_to_leave(local: Local, now: float, limits: Limits) -> bool:
    """True if workers that save on SIGTERM, and have no Session to say how long that takes, need the time from now to
    the deadline."""
    if local.deadline is None or local.leaving_since is not None or local.sessions == local.ranks:
        return False
    return local.catches and (limits.stop_s is None or now >= local.deadline - limits.margin_s - limits.stop_s)


def _decide_end(
    local: Local, since: float, standing: Standing, now: float, limits: Limits, then: Next
) -> Continue | Stop:
    """Workers that were asked to end. That others of the round end first, or are gone, takes no time from them."""
    if local.workers == "ended":
        return Stop(then, "the workers have ended", parked=local.catches)
    if isinstance(standing, Broken) and standing.cause == "moved":
        return Stop(then, standing.reason)
    limit_s = limits.yield_s if limits.stop_s is None else limits.stop_s
    if not local.catches:
        limit_s = limits.grace_s
    elif limits.stop_s is None and local.deadline is not None:
        return Continue()  # until the deadline
    if now < since + limit_s:
        return Continue()
    return Stop(then, f"the workers had not ended {now - since:.0f} s after SIGTERM")


def _unfinished(local: Local, now: float, limits: Limits) -> Action | None:
    """Ranks that do not end although others have. Those that are idle hang: in a destructor, or waiting for ranks that
    have ended. Those that work may write results."""
    if local.finished_since is None:
        return None
    passed_s = now - local.finished_since
    since = f"{passed_s:.0f} s after the first rank ended"
    idle_s = 0.0 if local.idle_since is None else now - max(local.idle_since, local.finished_since)
    if idle_s >= limits.finish_s or passed_s >= longest_end_s(limits):
        return EndUnfinished(since)
    if passed_s >= limits.tell_s and local.stacks_at is None:
        return KeepStacks(f"still works {since}")
    return None


def longest_end_s(limits: Limits) -> float:
    """Return the time from the first rank that ended well to the last."""
    return max(limits.exit_s, limits.finish_s)


def _hung(local: Local, now: float, limits: Limits, then: Next) -> Action | None:
    """Steps that hang: stacks for people, and where the job asks for it a new round, after a try of a checkpoint."""
    if local.hung_since is None:
        return None
    if local.stacks_at is None:
        return KeepStacks("its steps hang", tell=False)  # the members' keys show it
    if not (limits.restart_hung and local.may_restart):
        return None
    if local.yielding_since is None:
        return AskToYield("its steps hang")
    if now >= local.yielding_since + limits.hung_yield_s:
        return Stop(then, "its steps hang", limits.grace_s)
    return None


def _decide_done(local: Local, standing: Standing, now: float, limits: Limits, then: Next) -> Action:
    """Done workers have nothing to save. They start again only if the round breaks before all others are done."""
    if isinstance(standing, Broken):
        return Stop(then, standing.reason)
    if local.done_since is not None and local.leaving_since is not None:
        if not local.hosts_store:
            return Stop("leave", "its part is done, and the others go on without this node")
        if now >= local.leaving_since + limits.yield_s:
            return Stop("leave", "the other nodes are not done yet")
    # Only where another launcher hangs itself: it ends its own ranks after `longest_end_s`.
    if local.done_since is not None and now >= local.done_since + longest_end_s(limits) + _SLACK_S:
        return Stop("leave", f"the other nodes were not done {now - local.done_since:.0f} s after this one")
    return AnnounceDone()


def _may_still_park(local: Local, broken: Broken, now: float, limits: Limits) -> bool:
    """True if a checkpoint may be about to complete: the lost member may have left because it saw it complete."""
    parking = local.yielding_since is not None and local.sessions == local.ranks
    since = now if local.broken_since is None else local.broken_since
    return parking and broken.cause == "lost" and now < since + limits.lost_s


def _decide_yield(local: Local, standing: Standing, now: float, limits: Limits, then: Next) -> Action:
    """Decide on a yield. A yield that has begun goes to its end, even if its reason disappears: some ranks may be
    parked already."""
    reason = standing.reason if isinstance(standing, Yield) else ""
    if local.leaving_since is not None:
        reason = "this node leaves"
    if local.yielding_since is None:
        return AskToYield(reason) if reason else Continue()
    if local.sessions < local.ranks:
        return AskToEnd(reason or "this round was to end")
    if now >= local.yielding_since + limits.yield_s:
        return Stop(then, f"the workers did not park within {limits.yield_s:.0f} s", limits.grace_s)
    return Continue()
