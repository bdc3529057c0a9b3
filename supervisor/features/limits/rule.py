"""Limits of hours and dollars: how much is used, when people are warned, and when the job pauses.

A limit destroys nothing: the job checkpoints and pauses as if a user had asked for it, until the limit is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from supervisor.billing import month_of
from supervisor.budget import BUDGET, USER_BUDGET, BudgetUse
from supervisor.events import EventKind
from supervisor.features.budgets.rule import month_usd, over_budget
from supervisor.features.flood.rule import FLOOD
from supervisor.features.flood.rule import reason as flood_reason
from supervisor.features.pause.record import PauseRecord
from supervisor.features.queue.rule import PRIORITY, displaced
from supervisor.features.silence.rule import advances, kept
from supervisor.model import JobRecord, JobState, NodeRecord, NodeState
from supervisor.planner.draft import Draft
from supervisor.planner.predicates import done, in_round

N = NodeState
WARN_AT = 0.8  # of a limit
WARN_EARLY_AT = 0.5  # of one of dollars
USD_PER_MONTH = "usd_per_month"
# What pauses a job until it is no longer reached, without a command.
LIFTED = frozenset({USD_PER_MONTH, BUDGET, USER_BUDGET})
PAUSED_BY_USER = "a user paused it"


@dataclass(frozen=True, slots=True)
class Use:
    """How much of a limit is used."""

    name: str  # as in the job file
    used: float
    limit: float
    month: str = ""  # of a limit per month

    @property
    def reached(self) -> bool:
        """True if nothing is left."""
        return self.used >= self.limit

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return what people are to be warned of once: their names in `LimitsRecord.warned`, the most urgent last."""
        levels = ((WARN_EARLY_AT, "@50"), (WARN_AT, "")) if self.name.startswith("usd") else ((WARN_AT, ""),)
        month = f":{self.month}" if self.month else ""
        return tuple(f"{self.name}{name}{month}" for level, name in levels if self.used >= level * self.limit)

    def remedy(self, job: str) -> str:
        """Return the command that allows half as much again."""
        more = float(f"{1.5 * max(self.used, self.limit):.2g}")
        return f"`spotsupctl limits {job} --{self.name.replace('_', '-')} {more:g}`"

    def reason(self, job: str) -> str:
        """Return why the job is paused, and what to do."""
        goes_on = "goes on, or the next month (UTC)" if self.month else "goes on"
        return f"limits.{self.name} {self.limit:g} reached; {self.remedy(job)} {goes_on}"


def trained_s(job: JobRecord, now: float) -> float:
    """Return for how long the job has trained: time without enough nodes does not count."""
    return job.limits.trained_s + (max(0.0, now - job.limits.training_since) if job.limits.training_since else 0.0)


def spent_usd(job: JobRecord, nodes: Iterable[NodeRecord], now: float) -> float:
    """Return what the job has cost so far."""
    return job.billing.dropped_usd + sum(node.usd(now) for node in nodes)


# What a job has used of each limit that pauses it, by the limit's name in the job file.
USED: Mapping[str, Callable[[JobRecord, Sequence[NodeRecord], float], float]] = MappingProxyType(
    {
        "hours": lambda job, _, now: trained_s(job, now) / 3600,
        "usd": spent_usd,
        USD_PER_MONTH: lambda job, nodes, now: month_usd(job, nodes, month_of(now), now),
    }
)


def uses(job: JobRecord, nodes: Iterable[NodeRecord], now: float) -> list[Use]:
    """Return the use of each limit that pauses the job."""
    nodes = tuple(nodes)
    return [
        Use(name, used(job, nodes, now), limit, month_of(now) if name == USD_PER_MONTH else "")
        for name, used in USED.items()
        if (limit := getattr(job.spec.limits, name)) is not None
    ]


def reached(job: JobRecord, nodes: Iterable[NodeRecord], now: float) -> Use | None:
    """Return a limit that is reached."""
    return next((use for use in uses(job, nodes, now) if use.reached), None)


def pause_reason(draft: Draft) -> str:
    """Return why a job that is to pause does so."""
    job = draft.job
    if job.pause.by == PRIORITY:
        return displaced(job.queue.displaced_by)
    if job.pause.by == FLOOD:
        return flood_reason(draft)
    of_limit = [use for use in uses(job, draft.nodes.values(), draft.now) if use.name == job.pause.by]
    if of_limit:
        return of_limit[0].reason(job.name)
    budget = over_budget(draft.budget_uses or {}, job)
    if budget is not None and job.pause.by:
        return budget.reason()
    return "its budget is spent" if job.pause.by in LIFTED else PAUSED_BY_USER


def drive_limits(draft: Draft) -> None:
    """Count the time of training; warn when a limit is near; pause the job when it, or a budget, is reached, and let it
    go on once a budget has room again."""
    _count_training(draft)
    job = draft.job
    if job.ended:
        return
    found = uses(job, draft.nodes.values(), draft.now)
    over = next((use for use in found if use.reached), None)
    budget = over_budget(draft.budget_uses or {}, job)
    if job.pause.at:
        if job.pause.by in LIFTED and draft.budget_uses is not None:
            _lift(draft, over, budget)
        return
    for use in found:
        new = [each for each in use.warnings if each not in job.limits.warned]
        if new and not use.reached:
            text = f"{job.name} used {use.used:.3g} of limits.{use.name} {use.limit:g}, and pauses when that is reached"
            draft.add_event(EventKind.LIMIT_NEAR, f"{text}; {use.remedy(job.name)} raises it", limit=use.name)
    draft.set_part(replace(draft.job.limits, warned=tuple(each for use in found for each in use.warnings)))
    if over is not None:
        draft.set_part(PauseRecord(draft.now, over.name))
        text = f"{job.name} checkpoints and pauses: {over.reason(job.name)}"
        draft.add_event(EventKind.LIMIT_REACHED, text, limit=over.name)
    elif budget is not None:
        # People are told once of the budget, not once per job.
        draft.set_part(PauseRecord(draft.now, budget.name))
        draft.add_event(EventKind.PAUSE_REQUESTED, f"{job.name} checkpoints and pauses: {budget.reason()}")


def _lift(draft: Draft, over: Use | None, budget: BudgetUse | None) -> None:
    """Lift the pause for a limit per month or a budget if the job no longer has to pause."""
    job, paused = draft.job, draft.job.state is JobState.PAUSED
    if over is not None:
        draft.set_job(
            replace(
                draft.job,
                reason=over.reason(job.name) if paused else job.reason,
                pause=replace(draft.job.pause, by=over.name),
            )
        )
    elif budget is not None:
        draft.set_part(replace(draft.job.pause, by=budget.name))
    else:
        draft.set_part(PauseRecord())
        draft.add_event(EventKind.RESUMED, f"{job.name} goes on: its budget has room again")


def _count_training(draft: Draft) -> None:
    since, training = draft.job.limits.training_since, _is_training(draft)
    if training and not since:
        draft.set_part(replace(draft.job.limits, training_since=draft.now))
    elif since and not training:
        until, progress = draft.now, draft.view.progress
        if progress is not None and since < draft.timers_paused_until:
            # No daemon watched a part of this stretch: it lasted until the last step that was made.
            until = min(until, max(since, progress.at))
        draft.set_part(
            replace(
                draft.job.limits, trained_s=draft.job.limits.trained_s + max(0.0, until - since), training_since=0.0
            )
        )


def _is_training(draft: Draft) -> bool:
    """True if a round has enough nodes. A silent one counts while its suspicion runs out, for it may train; one that is
    kept for longer only if its steps advance."""
    unseen = {node.id for node in kept(draft) if not advances(draft, node)}
    inside = [node for node in draft.in_states(N.MEMBER, N.SUSPECT, N.DRAINING) if in_round(draft, node)]
    trains = {node.id for node in inside if node.id not in unseen} | done(draft)
    return not draft.job.ended and len(trains) >= draft.job.min_nodes
