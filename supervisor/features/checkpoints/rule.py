"""Checkpoints that fail, or take longer than a notice is ahead: what people are told, and what is noted."""

from __future__ import annotations

from dataclasses import replace

from provisioners.base import Market
from supervisor.events import EventKind
from supervisor.planner.draft import Draft
from supervisor.planner.predicates import members

MAX_PROBLEM_CHARACTERS = 400
# Beside a checkpoint and a step: for the notice to arrive, and for the ranks to agree.
MIN_MARGIN_S = 3.0


def drive_checkpoints(draft: Draft) -> None:
    """Report that checkpoints fail, and note what they take."""
    drive_checkpoint_alerts(draft)
    note_checkpoint_times(draft)


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
        quiet = draft.now - job.checkpoints.problem_at < draft.rules.checkpoints.alert_quiet_s
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
    """Return how long before a preemption the job's cloud announces it; 0 where it does not, or where none can come."""
    if not any(node.offer.market is Market.SPOT for node in members(draft)):
        return 0.0
    return draft.rules.notice_s.get(draft.job.spec.placement.cloud, 0.0)


def _differs(before: float, now: float) -> bool:
    return abs(now - before) > max(0.5, 0.1 * before)
