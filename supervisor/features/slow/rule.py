"""Nodes that all others wait for at each step: people are told, and where the job file says so one is replaced.

Each report of ranks' times is a program's own word. So of the nodes that it calls slow one at a time is replaced, once
that can be done, at most one an hour and three a day; and none whose predecessor was as slow, or of too many at once.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from supervisor.events import EventKind
from supervisor.features.queue.rule import is_admitted
from supervisor.features.slow.rank_times import Watch, watched
from supervisor.features.slow.record import SlowRecord
from supervisor.market.offers import is_allowed
from supervisor.model import JobState, NodeRecord, NodeState
from supervisor.planner.draft import Draft
from supervisor.planner.fleet import constraints, has_old_offers, offers_of
from supervisor.planner.predicates import counted, done, lacking, machine_room, members
from supervisor.spec import NO_CHECKPOINTS

DAY_S = 86_400.0


def drive_slow(draft: Draft) -> None:
    """Take a report of ranks' times in, say which nodes are slow, and begin or give up the replacement of one."""
    watch = _watch(draft)
    if draft.job.ended:
        return
    _give_up_late(draft)
    if watch is None:
        return
    for node in members(draft):
        verdict = watch.verdicts.get(node.id)
        if draft.full or verdict is None or verdict.doubted or verdict.slow == bool(node.slow.at):
            continue
        if watch.lasted_s(node.id, draft.timers_paused_until) >= draft.rules.slow.lasts_s:
            _report(draft, node, watch)
    if draft.job.spec.limits.slow == "replace":
        _begin(draft, watch)


def _watch(draft: Draft) -> Watch | None:
    """Return what was seen of the current round's nodes so far; remembered."""
    known, task = draft.volatile.watches, draft.job.task_id
    times, current, rules = draft.view.rank_times, draft.view.round, draft.rules
    if draft.job.ended or times is None or current is None or times.round != current.number:
        watch = None if draft.job.ended else known.get(task)
    else:
        kinds = {node: draft.nodes[node].offer.instance_type for node in current.nodes() if node in draft.nodes}
        complete = len(kinds) == len(current.nodes())
        before = known.get(task)
        watch = watched(before, times, kinds, rules.slow.factor, rules.slow.lasts_s, draft.now) if complete else before
    if watch is not known.get(task):
        kept = {each: seen for each, seen in known.items() if each != task}
        watches = MappingProxyType(kept if watch is None else {**kept, task: watch})
        draft.volatile = replace(draft.volatile, watches=watches)
    return watch


def _report(draft: Draft, node: NodeRecord, watch: Watch) -> None:
    minutes = f"{draft.rules.slow.lasts_s / 60:g} min"
    if node.slow.at:
        draft.set_node(replace(node, slow=replace(node.slow, at=0.0, factor=0.0)))
        text = f"{node.id} has been as fast as most nodes of {draft.job.name} for {minutes}"
        draft.add_event(EventKind.SLOW_ENDED, text, node.id)
        return
    factor = round(watch.factors[node.id], 2)
    draft.set_node(replace(node, slow=replace(node.slow, at=draft.now, factor=factor)))
    remedy = ""
    if draft.job.spec.limits.slow == "tell":
        remedy = f"; `spotsupctl drain {node.id}` replaces it"
    text = (
        f"all nodes of {draft.job.name} wait for {node.id} at each step: for {minutes} it has worked {factor:g} times "
        f"as long as most{remedy}"
    )
    draft.add_event(EventKind.NODE_SLOW, text, node.id, factor=factor)


# -- replace -----------------------------------------------------------------------------------------------


def _begin(draft: Draft, watch: Watch) -> None:
    """Have one of them replaced: first a new node, then one change of the round."""
    slow = [node for node in members(draft) if node.slow.at]
    credible = len(slow) <= max(1, int(draft.rules.slow.share * len(members(draft))))
    rightly = [node for node in slow if watch.verdicts.get(node.id) and not _follows_a_slow_one(draft, node)]
    may_begin = _is_steady(draft) and _may_again(draft) and _can_be_had(draft)
    if not rightly or not credible or draft.full or not may_begin:
        return
    node = max(rightly, key=lambda each: (watch.factors[each.id], each.id))
    draft.set_node(replace(node, slow=replace(node.slow, leaves_at=draft.now), needs_replacement=True))
    recent = tuple(at for at in draft.job.slow.replaced_at if at > draft.now - DAY_S)
    draft.set_part(SlowRecord((*recent, draft.now)))


def _follows_a_slow_one(draft: Draft, node: NodeRecord) -> bool:
    """True if the node whose place it took was slow, too: then it is not the machine."""
    before = draft.nodes.get(node.took_over_from)
    return before is not None and bool(before.slow.leaves_at)


def _is_steady(draft: Draft) -> bool:
    """True if the job trains on all nodes that it wants, saves what it does, and nothing else is under way."""
    job, progress = draft.job, draft.view.progress
    if job.state is not JobState.RUNNING or job.pause.at or job.moves.since or draft.view.result is not None:
        return False
    if job.spec.kind != "training" or job.spec.checkpoints == NO_CHECKPOINTS or done(draft):
        return False
    saves = not (job.checkpoints.problem or (progress is not None and progress.checkpoint_problem) or job.hang.since)
    settled = all(node.state in {NodeState.MEMBER, NodeState.READY} and not node.doomed for node in draft.billed)
    return saves and settled and bool(counted(draft)) and not lacking(draft)


def _may_again(draft: Draft) -> bool:
    rules, begun = draft.rules, draft.job.slow.replaced_at
    today = sum(at > draft.now - DAY_S for at in begun)
    return today < rules.slow.max_a_day and draft.now - max(begun, default=0.0) >= rules.slow.again_s


def _can_be_had(draft: Draft) -> bool:
    """True if one more machine may be asked for now, within all limits."""
    if machine_room(draft) < 1:
        return False
    if has_old_offers(draft):
        offers_of(draft)  # a job that has all of its nodes has them read rarely
        return False
    limits = constraints(draft)
    return any(
        is_admitted(draft, offer) and is_allowed(offer, draft.capacity, limits, draft.now, spare=False)
        for offer in offers_of(draft, read=False)
    )


def _give_up_late(draft: Draft) -> None:
    """Give up late: a slow node that was not replaced in time stays, and what was requested for it is released as one
    too many."""
    for node in members(draft):
        late = node.slow.leaves_at and draft.elapsed_s(node.slow.leaves_at) >= draft.rules.slow.limit_s
        if late and not draft.full:
            stays = node.notice is None and not (node.drain_requested or node.unhealthy_at)
            needed = node.needs_replacement and not stays
            draft.set_node(replace(node, slow=replace(node.slow, leaves_at=0.0), needs_replacement=needed))
