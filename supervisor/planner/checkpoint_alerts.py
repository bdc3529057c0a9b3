"""Checkpoints that are not being written: people hear of it, once, and once more when they are written again."""

from __future__ import annotations

from supervisor.model import EventKind
from supervisor.planner.draft import Draft

MAX_CHARACTERS = 400


def drive_checkpoint_alerts(draft: Draft) -> None:
    """Tell of what the program says about its checkpoints.

    An end is told at once; the next trouble, or another reason, only once the last telling is old enough: a disk that
    comes and goes must not flood anybody.
    """
    job, progress = draft.job, draft.view.progress
    if job.ended or progress is None:
        return
    said = " ".join(progress.checkpoint_problem.split())[:MAX_CHARACTERS]
    if said:
        if (
            said != job.checkpoint_problem
            and draft.now - job.checkpoint_problem_at >= draft.rules.checkpoint_alert_quiet_s
        ):
            _tell_of_trouble(draft, said, progress.checkpoint_step)
    elif job.checkpoint_problem and progress.checkpoint_step > job.checkpoint_problem_step:
        # Not before a new checkpoint is there: a program that was started anew has merely not tried yet.
        draft.set_job(checkpoint_problem="", checkpoint_problem_step=0)
        step = progress.checkpoint_step
        text = f"checkpoints of {job.name} are written again; the newest is of step {step}"
        draft.add_event(EventKind.CHECKPOINTS_RESUMED, text, checkpoint_step=step)


def _tell_of_trouble(draft: Draft, said: str, step: int) -> None:
    draft.set_job(checkpoint_problem=said, checkpoint_problem_step=step, checkpoint_problem_at=draft.now)
    newest = f"the newest is of step {step}" if step else "there is none yet"
    text = f"checkpoints of {draft.job.name} are not being written ({newest}): {said}"
    draft.add_event(EventKind.CHECKPOINTS_FAILING, text, checkpoint_step=step)
