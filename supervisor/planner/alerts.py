"""Alerts: of checkpoints that fail, and how each event in the outbox is delivered, retried and removed."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from spotsup_trainer.wire import Keys

from supervisor.model import EventKind
from supervisor.planner.actions import MAX_OPERATIONS, Action, AlertDone, Commit, SendAlert
from supervisor.planner.draft import Draft
from supervisor.planner.world import AlertDelivery, VolatileState, World

MAX_PROBLEM_CHARACTERS = 400
MAX_DELIVERIES_AT_ONCE = 4
MAX_DELIVERIES = 200
RETRIES_S = (2.0, 5.0, 15.0, 60.0, 120.0, 300.0)


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
        quiet = draft.now - job.checkpoint_problem_at < draft.rules.checkpoint_alert_quiet_s
        if problem != job.checkpoint_problem and not quiet:
            _report_problem(draft, problem, progress.checkpoint_step)
    elif job.checkpoint_problem and progress.checkpoint_step > job.checkpoint_problem_step:
        # Only once a new checkpoint exists: a restarted program may not have tried yet.
        draft.set_job(checkpoint_problem="", checkpoint_problem_step=0)
        step = progress.checkpoint_step
        text = f"checkpoints of {job.name} are written again; the newest is of step {step}"
        draft.add_event(EventKind.CHECKPOINTS_RESUMED, text, checkpoint_step=step)


def _report_problem(draft: Draft, problem: str, step: int) -> None:
    draft.set_job(checkpoint_problem=problem, checkpoint_problem_step=step, checkpoint_problem_at=draft.now)
    newest = f"the newest is of step {step}" if step else "there is none yet"
    text = f"checkpoints of {draft.job.name} are not being written ({newest}): {problem}"
    draft.add_event(EventKind.CHECKPOINTS_FAILING, text, checkpoint_step=step)


# -- deliveries --------------------------------------------------------------------------------------------


def due_alerts(world: World, now: float) -> list[Action]:
    """Alerts that are due, oldest first. At least once: one whose delivery was not noted is sent again."""
    due: list[Action] = []
    for event_id in world.alerts:
        delivery = world.volatile.alert_deliveries.get(event_id)
        action = SendAlert(event_id)
        is_due = delivery is None or (not delivery.finished and now >= delivery.next_at)
        if action.key not in world.busy and is_due:
            due.append(action)
    return due[:MAX_DELIVERIES_AT_ONCE]


def clear_outbox(world: World, keys: Keys) -> list[Commit]:
    """The commit that removes alerts that are delivered or given up."""
    deliveries = world.volatile.alert_deliveries
    finished = [event_id for event_id in world.alerts if (d := deliveries.get(event_id)) and d.finished]
    outbox_keys = [f"{keys.world}alerts/{event_id}" for event_id in finished[:MAX_OPERATIONS]]
    return [Commit(job="", guards={}, delete_keys=outbox_keys)] if outbox_keys else []


def absorb_alert(volatile: VolatileState, done: AlertDone, now: float) -> VolatileState:
    """With one more attempt of a delivery; at most MAX_DELIVERIES are remembered."""
    attempts = volatile.alert_deliveries.get(done.event_id, AlertDelivery(0, 0.0, finished=False)).attempts
    finished = not done.error or attempts >= len(RETRIES_S)
    wait_s = RETRIES_S[min(attempts, len(RETRIES_S) - 1)]
    newest = [*volatile.alert_deliveries.items(), (done.event_id, AlertDelivery(attempts + 1, now + wait_s, finished))]
    return replace(volatile, alert_deliveries=MappingProxyType(dict(newest[-MAX_DELIVERIES:])))
