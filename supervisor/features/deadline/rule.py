"""Jobs with a deadline: how far they are, whether they may pay for on-demand machines now, and what people are told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from spotsup_trainer.wire import Progress

from supervisor.billing import Purpose
from supervisor.deadlines import work_of
from supervisor.events import EventKind
from supervisor.features.billing.bookings import bookings_of
from supervisor.market.deadline import Deadline
from supervisor.model import JobRecord, NodeRecord, NodeState
from supervisor.planner.draft import Draft
from supervisor.starting_time import moment

N = NodeState
# From a request to a node that trains, where the job has had none yet; and nobody trains while nodes change.
ARRIVAL_S = 600.0
PAUSE_S = 10.0
# A pace is measured over so long at least, and noted where it has changed by so much.
PACE_S = 60.0
PACE_CHANGE = 0.05


def deadline_of(job: JobRecord, nodes: Iterable[NodeRecord], progress: Progress | None, now: float) -> Deadline | None:
    """None where the job has none, or where the pace of its steps is not known yet."""
    if not job.deadline.finish_by:
        return None
    nodes, work = tuple(nodes), work_of(job.spec.work)
    if work.steps:
        pace = pace_of(job, progress)
        if not pace:
            return None
        total_s, done_s = work.steps * pace, _steps(nodes, progress) * pace
    else:
        total_s = work.seconds * job.spec.nodes.desired / job.desired_nodes
        done_s = _trained_node_s(job, nodes, now) / job.desired_nodes
    begins_at = max(job.submitted_at, job.starts_at)
    return Deadline(begins_at, job.deadline.finish_by, total_s, min(done_s, total_s), _switch_s(job, nodes, progress))


def pace_of(job: JobRecord, progress: Progress | None) -> float:
    """Seconds for each step: of the current round once that has lasted for a while, else as last noted; 0: unknown."""
    if progress is not None and progress.first_step and progress.step > progress.first_step:
        length_s = progress.at - progress.first_step_at
        if length_s >= PACE_S:
            return length_s / (progress.step - progress.first_step)
    return job.deadline.pace_s


def _steps(nodes: tuple[NodeRecord, ...], progress: Progress | None) -> int:
    """Return the steps that are made; while none trains, those that a checkpoint has."""
    if progress is None:
        return 0
    trains = any(node.state is N.MEMBER for node in nodes)
    return progress.step if trains else min(progress.step, progress.checkpoint_step)


def _trained_node_s(job: JobRecord, nodes: tuple[NodeRecord, ...], now: float) -> float:
    """Seconds of each node in which steps were made that were kept. Of a program that reports no steps, all in which it
    was in a round."""
    counted = {Purpose.USEFUL} if job.billing.rounds.round else {Purpose.USEFUL, Purpose.UNKNOWN}
    return sum(each.seconds for each in bookings_of(job, nodes, now) if each.purpose in counted)


def _switch_s(job: JobRecord, nodes: tuple[NodeRecord, ...], progress: Progress | None) -> float:
    found = [
        move.at - node.created_at for node in nodes for move in node.history if move.after == N.READY and not node.ahead
    ]
    repeated_s = progress.checkpoint_every_s if progress is not None else 0.0
    return max(found, default=ARRIVAL_S) + PAUSE_S + job.checkpoints.save_s + repeated_s


# -- of a draft --------------------------------------------------------------------------------------------


def deadline(draft: Draft) -> Deadline | None:
    """Return the deadline as decided so far."""
    return deadline_of(draft.job, draft.nodes.values(), draft.view.progress, draft.now)


def may_pay(draft: Draft) -> bool:
    """True if on-demand machines may be asked for: not while a job with a deadline can still wait for spot."""
    found = deadline(draft)
    return found is None or found.needs_on_demand(draft.now)


def may_go_back(draft: Draft) -> bool:
    """True if on-demand machines may be left for spot ones."""
    found = deadline(draft)
    return found is None or found.may_go_back(draft.now)


def drive_deadline(draft: Draft) -> None:
    """Note the pace of its steps; tell people once that it cannot finish in time, and again if that has changed."""
    job = draft.job
    if job.ended or not job.deadline.finish_by:
        return
    pace = pace_of(job, draft.view.progress)
    if abs(pace - job.deadline.pace_s) > PACE_CHANGE * job.deadline.pace_s:
        draft.set_part(replace(draft.job.deadline, pace_s=pace))
    found = deadline(draft)
    if found is None:
        return
    if not job.deadline.missed and found.is_missed(draft.now):
        draft.set_part(replace(draft.job.deadline, missed=True))
        text = (
            f"{job.name} cannot finish by {moment(job.deadline.finish_by)}: {hours(found.left_s)} of training are "
            f"left, and {hours(max(0.0, job.deadline.finish_by - draft.now))}; it trains on. More nodes make it "
            f"faster: `spotsupctl scale {job.name} N`"
        )
        draft.add_event(EventKind.DEADLINE_MISSED, text, left_s=round(found.left_s))
    elif job.deadline.missed and found.slack_s(draft.now) > found.switch_s:
        draft.set_part(replace(draft.job.deadline, missed=False))


# -- for people --------------------------------------------------------------------------------------------


def clause(draft: Draft) -> str:
    """Return what the job's sentence says of its deadline; it changes rarely."""
    if draft.job.deadline.missed:
        return f"it cannot finish by {moment(draft.job.deadline.finish_by)}"
    found = deadline(draft)
    dear = [each for each in draft.job.spec.markets if each in draft.job.spec.dear_markets]
    if found is None or not dear or found.needs_on_demand(draft.now):
        return ""
    return f"{dear[0]} from {moment(found.needed_at(draft.now))[11:16]} UTC, for its deadline"


def as_text(job: JobRecord, found: Deadline | None, now: float) -> str:
    """Return whether a job with a deadline will finish in time, for `status`."""
    by = f"finish by {moment(job.deadline.finish_by)}"
    if job.ended:
        if job.state != "succeeded":
            return by
        late_s = job.ended_at - job.deadline.finish_by
        return f"{by}: finished {hours(abs(late_s))} {'too late' if late_s > 0 else 'before'}"
    if found is None:
        return f"{by}: the pace of its steps is not known yet"
    left = f"{found.done_s / found.total_s:.0%} done, {hours(found.left_s)} of training left"
    slack_s = found.slack_s(now)
    if found.is_missed(now):
        return f"{by}: cannot be met any more: {left}, {hours(-slack_s)} too much"
    return f"{by}: will be met: {left}, {hours(slack_s)} to spare"


def hours(seconds: float) -> str:
    """`3.2 h`, or `25 min`."""
    return f"{seconds / 3600.0:.1f} h" if seconds >= 5400.0 else f"{seconds / 60.0:.0f} min"
