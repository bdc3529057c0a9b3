"""What each node's cost is for (P13): booked where its purpose changes. What is not known is booked as unknown.

A round's steps are known from what its rank 0 reports. Where a round ended unseen, its end is known from the pause that
nodes measured; else the time since its last noted step is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from spotsup_trainer.wire import Progress, Round

from supervisor.billing import Purpose, RoundTimes, booked, month_start, moved
from supervisor.features.billing.bookings import BOOTING_NODE_STATES, begun
from supervisor.model import NodeRecord, NodeState
from supervisor.planner.draft import Draft
from supervisor.planner.pauses import pauses_of
from supervisor.planner.predicates import has_stopped, in_round

N = NodeState
_MAY_TRAIN = frozenset({N.MEMBER, N.SUSPECT, N.DRAINING})


def drive_billing(draft: Draft) -> None:
    """Count the round's time, then book what nodes cost whose purpose has changed."""
    _count_rounds(draft)
    month, times = month_start(draft.now), draft.job.billing.rounds
    for node in list(draft.nodes.values()):
        if not node.launched_at or (node.state is N.GONE and not draft.is_written(node)):
            continue
        billing = node.billing
        purpose, inside = _purpose(draft, node)
        if (purpose, inside) == (billing.purpose, billing.in_round) and billing.booked_to >= month:
            continue
        if draft.full and not draft.is_written(node):
            continue
        at = node.ended_at or draft.now
        billing = booked(begun(node), node.usd(at), at, times)
        if inside and not billing.in_round:
            billing = replace(billing, round=_number(draft), left_at=0.0)
        elif billing.in_round and not inside:
            # One that joined after the last round that made steps had no part in it.
            billing = replace(billing, round=max(billing.round, times.round), left_at=at)
        draft.set_node(replace(node, billing=replace(billing, purpose=purpose, in_round=inside)))


def _number(draft: Draft) -> int:
    return draft.view.round.number if draft.view.round is not None else 0


def _purpose(draft: Draft, node: NodeRecord) -> tuple[Purpose | None, bool]:
    """Return the purpose of its time from now on, and whether that is its round's."""
    if node.state is N.GONE:
        return None, False
    if node.state in BOOTING_NODE_STATES:
        return Purpose.BOOT, False
    if node.state in _MAY_TRAIN and in_round(draft, node) and not draft.job.ended:
        return Purpose.UNKNOWN, True
    return Purpose.IDLE, False


# -- rounds ------------------------------------------------------------------------------------------------


def _count_rounds(draft: Draft) -> None:
    current, times = draft.view.round, draft.job.billing.rounds
    if current is None:
        return
    if not times.since:
        times = replace(times, since=draft.now)
    progress = _progress(draft, current)
    if times.phase is Purpose.USEFUL:
        times = _ended(draft, times, current, progress)
    if times.phase is not Purpose.USEFUL:
        times = _begins(draft, times, current, progress)
    draft.set_part(replace(draft.job.billing, rounds=times))


def _progress(draft: Draft, current: Round) -> Progress | None:
    """Return what is reported of its steps; of a data job the command itself is its work, and runs as long as its
    node."""
    progress = draft.view.progress
    if draft.job.spec.kind == "data":
        return Progress(current.number, 1, draft.now, current.formed_at)
    return progress if progress is not None and progress.step else None


def _stands(draft: Draft, current: Round) -> bool:
    """True if a member says that the round makes no steps."""
    if draft.job.ended or draft.view.result is not None:
        return True
    reports = draft.view.members
    for name in current.nodes():
        node, report = draft.nodes.get(name), reports.get(name)
        if node is None or report is None or report.incarnation != current.incarnations[name]:
            continue
        if has_stopped(draft, node) or report.stalled_since:
            return True
    return False


def _ended(draft: Draft, times: RoundTimes, current: Round, progress: Progress | None) -> RoundTimes:
    """Steps were made when last looked: whether they still are, or until when they were."""
    over = current.number > times.round
    if progress is None or progress.round < times.round:
        return _phase_from(draft, times, draft.now, Purpose.UNKNOWN) if over else times
    if progress.round == times.round:
        if over or _stands(draft, current):
            times = _noted(times, progress)
            return _phase_from(draft, times, progress.at, Purpose.PAUSE)
        due = progress.at - times.step_at >= draft.rules.note_s or draft.changes
        return _noted(times, progress) if due else times
    measured = [each for each in pauses_of(draft.view) if each.round == progress.round == times.round + 1]
    if measured and measured[0].pause_s is not None:
        return _phase_from(draft, times, measured[0].at - measured[0].pause_s, Purpose.PAUSE)
    return _phase_from(draft, times, times.step_at, Purpose.UNKNOWN)


def _begins(draft: Draft, times: RoundTimes, current: Round, progress: Progress | None) -> RoundTimes:
    """No steps were made when last looked: whether they are now, and since when."""
    if progress is None:
        return times
    if not times.round:  # it reports steps: until its first one it started
        times = replace(times, phase=Purpose.PAUSE)
    if progress.round != current.number or _stands(draft, current):
        return times
    if progress.round == times.round:  # it hung, and goes on
        again = progress.step > times.step and progress.at > times.since
        return _phase_from(draft, _noted(times, progress), progress.at, Purpose.USEFUL) if again else times
    lost_s = _lost_s(times, progress)
    times = _phase_from(draft, times, progress.first_step_at, Purpose.USEFUL)
    times = replace(times, useful_s=times.useful_s - lost_s, lost_s=times.lost_s + lost_s)
    if lost_s:
        _book_lost(draft, times.round, lost_s)
    began = min(progress.first_step_at, progress.at)
    times = replace(times, round=progress.round, first_step=progress.first_step, first_step_at=began)
    return _noted(times, progress)


def _noted(times: RoundTimes, progress: Progress) -> RoundTimes:
    return replace(times, step=progress.step, step_at=progress.at)


def _phase_from(draft: Draft, times: RoundTimes, at: float, phase: Purpose) -> RoundTimes:
    """Return the times with another phase since `at`, which is a node's clock's: not before the present one, and not
    after now."""
    at = min(max(at, times.since), draft.now)
    if times.phase is Purpose.USEFUL:
        _correct_those_that_left(draft, times.round, at, phase)
    return replace(times.until(at), phase=phase)


def _lost_s(times: RoundTimes, progress: Progress) -> float:
    """Return for how long the round before made steps that are made again."""
    again = times.step - progress.first_step + 1
    if not progress.first_step or not times.first_step or again <= 0:
        return 0.0
    made = times.step - times.first_step + 1
    length_s = max(0.0, times.step_at - times.first_step_at)
    return min(length_s * min(1.0, again / made) if made > 0 else 0.0, times.useful_s)


def _correct_those_that_left(draft: Draft, number: int, at: float, purpose: Purpose) -> None:
    """Nodes that left the round after its last step were booked as useful until then."""
    for node in _that_left(draft, number):
        late_s = node.billing.left_at - at
        if late_s > 0:
            draft.set_node(replace(node, billing=moved(node.billing, late_s, purpose)))


def _book_lost(draft: Draft, number: int, seconds: float) -> None:
    """Nodes that are in rounds since then see it by the totals; those that left, and those that came, do not."""
    for node in _that_left(draft, number):
        draft.set_node(replace(node, billing=moved(node.billing, seconds, Purpose.LOST)))
    for node in list(draft.nodes.values()):
        billing = node.billing
        if billing.in_round and billing.round > number and (not draft.full or draft.is_written(node)):
            useful_s, lost_s = billing.useful_s - seconds, billing.lost_s + seconds
            draft.set_node(replace(node, billing=replace(billing, useful_s=useful_s, lost_s=lost_s)))


def _that_left(draft: Draft, number: int) -> Iterable[NodeRecord]:
    """Yield nodes of the round that are in none any more; the commit may have no room for all of very many."""
    for node in list(draft.nodes.values()):
        billing = node.billing
        left = billing.round == number and not billing.in_round and billing.left_at
        if left and (not draft.full or draft.is_written(node)):
            yield draft.nodes[node.id]
