"""Alerts: of checkpoints that fail, workers that hang, and clouds that deny everything."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from provisioners.base import Market
from supervisor.alerts.routes import is_wanted
from supervisor.model import HISTORY_LIMIT, Event, EventKind, JobRecord, JobState
from supervisor.planner.actions import Commit
from supervisor.planner.draft import Draft
from supervisor.planner.predicates import members
from supervisor.planner.world import Denial, VolatileState, World

MAX_PROBLEM_CHARACTERS = 400
_WAITING = frozenset({JobState.QUEUED, JobState.STARTING, JobState.WAITING})
# Beside a checkpoint and a step: for the notice to arrive, and for the ranks to agree.
MIN_MARGIN_S = 3.0


# -- checkpoints that fail ---------------------------------------------------------------------------------


def drive_checkpoint_alerts(draft: Draft) -> None:
    """Report that checkpoints fail, and that they are written again.

    The latter is reported at once; another problem only `checkpoint_alert_quiet_s` after the last report, so that a
    flapping disk does not flood anyone with alerts.
    """
    job, progress = draft.job, draft.view.progress
    if job.ended or progress is None:
        return
    problem = " ".join(progress.checkpoint_problem.split())[:MAX_PROBLEM_CHARACTERS]
    if problem:
        quiet = draft.now - job.checkpoints.problem_at < draft.rules.checkpoint_alert_quiet_s
        if problem != job.checkpoints.problem and not quiet:
            _report_problem(draft, problem, progress.checkpoint_step)
    elif job.checkpoints.problem and progress.checkpoint_step > job.checkpoints.problem_step:
        # Only once a new checkpoint exists: a restarted program may not have tried yet.
        draft.set_part(replace(draft.job.checkpoints, problem="", problem_step=0))
        step = progress.checkpoint_step
        text = f"checkpoints of {job.name} are written again; the newest is of step {step}"
        draft.add_event(EventKind.CHECKPOINTS_RESUMED, text, checkpoint_step=step)


def _report_problem(draft: Draft, problem: str, step: int) -> None:
    draft.set_part(replace(draft.job.checkpoints, problem=problem, problem_step=step, problem_at=draft.now))
    newest = f"the newest is of step {step}" if step else "there is none yet"
    text = f"checkpoints of {draft.job.name} are not being written ({newest}): {problem}"
    draft.add_event(EventKind.CHECKPOINTS_FAILING, text, checkpoint_step=step)


def note_checkpoint_times(draft: Draft) -> None:
    """Note in the journal what checkpoints and steps take, where that has changed by more than a tenth; and say once,
    and again if it gets much worse, that a preemption's notice is too short for a checkpoint."""
    job, progress = draft.job, draft.view.progress
    if job.ended or progress is None or not progress.checkpoint_p95_s:
        return
    checkpoint_s, step_s = progress.checkpoint_p95_s, progress.step_s
    if _differs(job.checkpoints.save_s, checkpoint_s) or _differs(job.checkpoints.step_s, step_s):
        draft.set_part(replace(draft.job.checkpoints, save_s=checkpoint_s, step_s=step_s))
    notice_s = _notice_s(draft)
    if (
        not notice_s
        or checkpoint_s + step_s + MIN_MARGIN_S <= notice_s
        or checkpoint_s <= 2 * job.checkpoints.window_warned_s
    ):
        return
    draft.set_part(replace(draft.job.checkpoints, window_warned_s=checkpoint_s))
    costs = f"up to {progress.checkpoint_every_s:.0f} s of training" if progress.checkpoint_every_s else "the steps"
    text = (
        f"checkpoints of {job.name} take {checkpoint_s:.0f} s, and a preemption is announced {notice_s:.0f} s before: "
        f"each one costs {costs} since the last checkpoint; checkpoint more often, or to faster storage"
    )
    draft.add_event(EventKind.CHECKPOINTS_TOO_SLOW, text, checkpoint_p95_s=checkpoint_s, notice_s=notice_s)


def _notice_s(draft: Draft) -> float:
    """How long before a preemption the job's cloud announces it; 0 where it does not, or where none can come."""
    if not any(node.offer.market is Market.SPOT for node in members(draft)):
        return 0.0
    return draft.rules.notice_s.get(draft.job.spec.placement.cloud, 0.0)


def _differs(before: float, now: float) -> bool:
    return abs(now - before) > max(0.5, 0.1 * before)


# -- jobs that wait ----------------------------------------------------------------------------------------


def drive_wait_alerts(draft: Draft) -> None:
    """Report once that a job has waited for machines for long, and that it no longer does."""
    job = draft.job
    if job.state in _WAITING:
        since = max(waits_since(job), job.starts_at)
        if not job.waits.reported_at and draft.now - since >= draft.rules.waits_alert_s:
            draft.set_part(replace(draft.job.waits, reported_at=draft.now))
            text = f"{job.name} has waited for machines for {_hours(draft.now - since)}: {job.reason or 'it is queued'}"
            draft.add_event(EventKind.WAITS_LONG, text, since=since)
    elif job.waits.reported_at:
        draft.set_part(replace(draft.job.waits, reported_at=0.0))
        if job.state in {JobState.RUNNING, JobState.DEGRADED}:
            draft.add_event(EventKind.WAIT_ENDED, f"{job.name} waits no more: it is {job.state}")


def waits_since(job: JobRecord) -> float:
    """Since when a job that waits has not trained: being queued, starting and waiting take turns."""
    for transition in reversed(job.history):
        if transition.after in _WAITING and transition.before not in _WAITING:
            return transition.at
    return job.history[0].at if len(job.history) >= HISTORY_LIMIT else job.submitted_at


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h"


# -- clouds that deny everything -----------------------------------------------------------------------------


def report_denials(world: World, volatile: VolatileState, now: float) -> tuple[list[Commit], VolatileState]:
    """Report once that a cloud has denied all calls for a while, and once that it accepts them again."""
    kept: dict[str, Denial] = {}
    events: list[Event] = []
    for cloud, denial in volatile.denials.items():
        if denial.over:
            if denial.reported:
                text = f"{cloud} accepts spotsup's requests again"
                events.append(_of_the_cluster(EventKind.ACCESS_RESTORED, cloud, text, now))
            continue
        due = not denial.reported and now - denial.since >= world.rules.denied_alert_s
        kept[cloud] = replace(denial, reported=denial.reported or due)
        if due:
            events.append(_of_the_cluster(EventKind.ACCESS_DENIED, cloud, _in_words(cloud, denial), now))
    alerts = [event for event in events if is_wanted(world.rules.channels_used, event)]
    commits = [Commit(job="", guards={}, events=events, alerts=alerts)] if events else []
    if kept == volatile.denials:
        return commits, volatile
    return commits, replace(volatile, denials=MappingProxyType(kept))


def denials_in_words(volatile: VolatileState) -> tuple[str, ...]:
    """For the daemon's status: which clouds deny everything."""
    return tuple(_in_words(cloud, denial) for cloud, denial in volatile.denials.items() if denial.reported)


def _in_words(cloud: str, denial: Denial) -> str:
    return f"{cloud} denies spotsup's requests: {denial.message}. Jobs wait, and go on by themselves once that is fixed"


def _of_the_cluster(kind: EventKind, cloud: str, text: str, now: float) -> Event:
    return Event(f"{kind}-{cloud}-{int(now)}", now, "", kind, text)


# -- workers that hang -------------------------------------------------------------------------------------


def drive_worker_alerts(draft: Draft) -> None:
    """Report steps that hang, and what launchers say of their workers: once each."""
    if draft.job.ended:
        return
    since, progress = _hung_since(draft), draft.view.progress
    if since and not draft.job.hang.since:
        draft.set_part(replace(draft.job.hang, since=since))
        text = f"the steps of {draft.job.name} hang: no rank has shown life for {draft.now - since:.0f} s; "
        draft.add_event(EventKind.STEPS_HANG, text + "the stacks of all ranks are in its logs", since=since)
    elif draft.job.hang.since and not since and progress is not None and progress.at > draft.job.hang.since:
        draft.set_part(replace(draft.job.hang, since=0.0))
        text = f"{draft.job.name} has completed step {progress.step}, after its steps hung"
        draft.add_event(EventKind.STEPS_RESUMED, text, step=progress.step)
    for node in list(draft.nodes.values()):
        member = draft.view.members.get(node.id)
        problem = " ".join(member.problem.split())[:MAX_PROBLEM_CHARACTERS] if member else ""
        if problem and problem != node.worker_problem and not draft.full:
            draft.set_node(replace(node, worker_problem=problem))
            draft.add_event(EventKind.WORKERS_STUCK, f"{node.id}: {problem}", node.id)


def _hung_since(draft: Draft) -> float:
    """Since when no rank of any member of the round has given a sign of life; 0 while one does."""
    nodes = draft.view.round.nodes() if draft.view.round else ()
    members = [draft.view.members.get(node) for node in nodes]
    times = [member.stalled_since for member in members if member is not None and member.state == "running"]
    return min(times, default=0.0) if len(times) == len(nodes) else 0.0
