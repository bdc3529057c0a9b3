"""Alerts: of checkpoints that fail and workers that hang, and how each event in the outbox is delivered and removed."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from spotsup_trainer.wire import Keys

from provisioners.base import Market
from supervisor.model import Event, EventKind
from supervisor.planner.actions import MAX_OPERATIONS, Action, AlertDone, Commit, SendAlert
from supervisor.planner.draft import Draft
from supervisor.planner.predicates import members
from supervisor.planner.world import AlertDelivery, Denial, VolatileState, World

MAX_PROBLEM_CHARACTERS = 400
# Beside a checkpoint and a step: for the notice to arrive, and for the ranks to agree.
MIN_MARGIN_S = 3.0
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


def note_checkpoint_times(draft: Draft) -> None:
    """Note in the journal what checkpoints and steps take, where that has changed by more than a tenth; and say once,
    and again if it gets much worse, that a preemption's notice is too short for a checkpoint."""
    job, progress = draft.job, draft.view.progress
    if job.ended or progress is None or not progress.checkpoint_p95_s:
        return
    checkpoint_s, step_s = progress.checkpoint_p95_s, progress.step_s
    if _differs(job.checkpoint_s, checkpoint_s) or _differs(job.step_s, step_s):
        draft.set_job(checkpoint_s=checkpoint_s, step_s=step_s)
    notice_s = _notice_s(draft)
    if not notice_s or checkpoint_s + step_s + MIN_MARGIN_S <= notice_s or checkpoint_s <= 2 * job.window_warned_s:
        return
    draft.set_job(window_warned_s=checkpoint_s)
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
    alerts = events if world.rules.alerts else []
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
    if since and not draft.job.hung_since:
        draft.set_job(hung_since=since)
        text = f"the steps of {draft.job.name} hang: no rank has shown life for {draft.now - since:.0f} s; "
        draft.add_event(EventKind.STEPS_HANG, text + "the stacks of all ranks are in its logs", since=since)
    elif draft.job.hung_since and not since and progress is not None and progress.at > draft.job.hung_since:
        draft.set_job(hung_since=0.0)
        text = f"{draft.job.name} has completed step {progress.step}, after its steps hung"
        draft.add_event(EventKind.STEPS_RESUMED, text, step=progress.step)
    for node in list(draft.nodes.values()):
        member = draft.view.members.get(node.id)
        problem = " ".join(member.problem.split())[:MAX_PROBLEM_CHARACTERS] if member else ""
        if problem and problem != node.worker_problem and not draft.full:
            draft.set_node(node, worker_problem=problem)
            draft.add_event(EventKind.WORKERS_STUCK, f"{node.id}: {problem}", node.id)


def _hung_since(draft: Draft) -> float:
    """Since when no rank of any member of the round has given a sign of life; 0 while one does."""
    nodes = draft.view.round.nodes() if draft.view.round else ()
    members = [draft.view.members.get(node) for node in nodes]
    times = [member.stalled_since for member in members if member is not None and member.state == "running"]
    return min(times, default=0.0) if len(times) == len(nodes) else 0.0


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
    before = volatile.alert_deliveries.get(done.event_id)
    attempts = before.attempts if before is not None else 0
    finished = not done.error or attempts >= len(RETRIES_S)
    wait_s = RETRIES_S[min(attempts, len(RETRIES_S) - 1)]
    newest = [*volatile.alert_deliveries.items(), (done.event_id, AlertDelivery(attempts + 1, now + wait_s, finished))]
    return replace(volatile, alert_deliveries=MappingProxyType(dict(newest[-MAX_DELIVERIES:])))
