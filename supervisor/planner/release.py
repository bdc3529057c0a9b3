"""How machines are given back: nodes that left, failed or were lost, surplus nodes, all nodes of a job that ended."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from supervisor.features.warm.rule import is_over, keep_warm, stays_warm
from supervisor.model import IN_FLIGHT_NODE_STATES, WAITING_NODE_STATES, NodeRecord, NodeState
from supervisor.planner.actions import Clean, Find, Terminate
from supervisor.planner.draft import Draft
from supervisor.planner.predicates import (
    ENDED_BY_ITSELF,
    PRESENT_NODE_STATES,
    counted,
    done,
    has_left,
    is_held,
    place,
    sends_last_log,
    why_doomed,
)

N = NodeState
# Clouds bill a machine for a minute at least.
MIN_BILLED_S = 60.0
_TRAINING_NODE_STATES = frozenset({N.MEMBER, N.SUSPECT})
LEAVING_NODE_STATES = frozenset({N.DRAINING, N.LOST, N.FAILED, N.TERMINATING, N.GONE})


def release(draft: Draft, node: NodeRecord, reason: str) -> None:
    """Give one node back, in the way that its state allows."""
    if node.state in {N.READY, N.MEMBER} and not (draft.job.ended or draft.job.pause.at):
        draft.move(node, N.DRAINING, reason)
    elif node.state is N.REQUESTED:
        _withdraw(draft, node, reason)
    else:
        works = node.state in {N.READY, N.MEMBER, N.DRAINING}
        _terminate(draft, draft.move(node, N.TERMINATING, reason), in_order=works)


def drive_leaving(draft: Draft, node: NodeRecord) -> None:
    """Drive a node of LEAVING_NODE_STATES one step towards its end."""
    match node.state:
        case N.TERMINATING if draft.now >= node.retry_at:
            _terminate(draft, node)
        case N.LOST if stays_its_minute(draft, node):
            pass
        case N.LOST | N.FAILED if node.instance_id:
            # Often only its console says why a machine was never ready, and the console goes with it.
            failed = node.state is N.FAILED
            node = draft.move(node, N.TERMINATING, f"terminate {node.instance_id} in case it still exists")
            _terminate(draft, node, failed=failed)
        case N.FAILED:
            draft.move(replace(node, ended_at=draft.now), N.GONE, "nothing was launched")
        case N.DRAINING if has_left(draft, node) and not stays_its_minute(draft, node):
            _terminate(draft, draft.move(node, N.TERMINATING, "it has left the round"), in_order=True)
        case _:
            pass


def retire_doomed(draft: Draft, chosen: tuple[str, ...]) -> None:
    """Doomed nodes that are not `chosen` for the next round drain once the hint does not name them any more; those that
    never joined are released as soon as they are paid for."""
    hint = draft.view.hint
    named = {*hint.members, *hint.spares} if hint else set()
    for node in draft.in_states(*IN_FLIGHT_NODE_STATES, N.READY, N.MEMBER):
        in_flight = node.state in IN_FLIGHT_NODE_STATES
        if not node.doomed or node.id in chosen or draft.full or (in_flight and stays_its_minute(draft, node)):
            continue
        if node.state is not N.MEMBER or node.id not in named:
            release(draft, node, why_doomed(node))


def release_done(draft: Draft) -> None:
    """Release nodes whose ranks have ended well, while others work on for long: those that hang have been ended by
    then."""
    finish_s = 60.0 * draft.job.spec.limits.finish_minutes
    ended = done(draft)
    for node in draft.in_states(N.MEMBER, N.SUSPECT) if ended else ():
        if node.id in ended and draft.elapsed_s(draft.view.done[node.id].at) >= finish_s and not draft.full:
            release(draft, node, "its ranks have ended well, and others work on")


def release_surplus(draft: Draft, surplus: int) -> None:
    """Release nodes in flight first, newest first; then spares; then members: those whose ranks have ended well, and
    those with the highest ranks. Up to the job's `max` they stay for the minute that each bills anyway: whoever scales
    up again meanwhile has them."""
    order = draft.view.round.nodes() if draft.view.round else ()
    ranks, ended = {node: rank for rank, node in enumerate(order)}, done(draft)

    def usefulness(node: NodeRecord) -> tuple[bool, bool, bool, int]:
        rank = ranks.get(node.id, len(ranks))
        return (node.state not in IN_FLIGHT_NODE_STATES, node.id in ranks, node.id not in ended, -rank)

    newest_first = sorted(counted(draft), key=lambda node: (node.created_at, node.id), reverse=True)
    above_max = len(newest_first) - draft.job.max_nodes - draft.job.spare_nodes
    for number, node in enumerate(sorted(newest_first, key=usefulness)[:surplus]):
        if not draft.full and (number < above_max or not _is_paid_for(draft, node)):
            release(draft, node, "fewer nodes are wanted")


def stays_its_minute(draft: Draft, node: NodeRecord) -> bool:
    """True for the minute that a machine bills anyway, where it ends because of what its node says, and its cloud does
    not say that it has ended: a job whose nodes say so again and again pays for no more machines than it may have."""
    instance = draft.instance(node)
    runs = instance is None or instance.state not in ENDED_BY_ITSELF
    wanted = not (draft.job.ended or draft.job.pause.at or node.drain_requested)
    return runs and wanted and node.needs_replacement and _is_paid_for(draft, node)


def _is_paid_for(draft: Draft, node: NodeRecord) -> bool:
    is_new = bool(node.instance_id) and not node.launched_as
    return is_new and draft.now - node.launched_at < MIN_BILLED_S


def release_strays(draft: Draft) -> None:
    """Release nodes that are apart from those that train, as where machines were adopted after etcd had lost its data:
    they can be in no round, and as long as they are there no place is right for new ones (P8)."""
    nodes = counted(draft)
    weights: Counter[str] = Counter()
    for node in nodes:
        weights[place(draft, node.id)] += len(nodes) + 1 if node.state in _TRAINING_NODE_STATES else 1
    if len(weights) < 2:
        return
    here = max(weights, key=lambda name: (weights[name], name))
    for node in nodes:
        if node.state not in _TRAINING_NODE_STATES and place(draft, node.id) != here and not draft.full:
            release(draft, node, f"the job's other nodes are in {here}")


def release_all(draft: Draft) -> None:
    """Release all nodes of a job that has ended, each once the end of its log is sent; those of one that is to pause
    only once none of them trains any more. Until then they stay, in case the user resumes it."""
    if not draft.job.ended and not is_held(draft):
        return
    reason = "the job has ended" if draft.job.ended else "its job is paused"
    for node in draft.in_states(*PRESENT_NODE_STATES):
        if draft.full or sends_last_log(draft, node):
            continue
        if stays_warm(draft, node):
            keep_warm(draft, node)
        else:
            release(draft, node, reason)


def drive_waiting(draft: Draft) -> None:
    """Clean the machines of a job that has ended, and let those go that wait no longer. Those that another job took
    over in this plan are that job's."""
    for node in draft.in_states(*WAITING_NODE_STATES):
        if draft.full or draft.lacks_records:
            return
        if node.id in draft.hand_overs.taken:
            continue
        if why := is_over(draft, node):
            draft.hand_overs.taken.add(node.id)
            release(draft, node, why)
        elif node.state is N.CLEANING and draft.now >= node.retry_at and not draft.busy(f"node:{node.id}"):
            draft.request_action(Clean(node, draft.job))


def _withdraw(draft: Draft, node: NodeRecord, reason: str) -> None:
    """Withdraw a request. One without an answer may still become a machine: look it up before the record is given up
    (P1)."""
    if draft.busy(f"node:{node.id}") or draft.cloud.foreign:
        return
    if node.launch_unknown:
        draft.request_action(Find(node))
    else:
        draft.move(replace(node, ended_at=draft.now), N.GONE, reason)


def _terminate(draft: Draft, node: NodeRecord, *, failed: bool = False, in_order: bool = False) -> None:
    """`failed`: it was never ready, so its console and log are read. `in_order`: it works, and has time to unmount."""
    read_log_of = node if failed and node.bootstrapped else None
    # A preempted machine has no seconds to spare for it: checkpoints are on the server by then.
    unmounts = in_order and bool(draft.job.spec.shared) and node.notice is None
    unmount_first = (node, draft.job) if unmounts else None
    action = Terminate(node.offer.cloud, node.instance_id, node.id, failed, read_log_of, unmount_first)
    # Another account has no such machine, and would say that it is gone.
    is_ours = not draft.volatile.cloud(node.offer.cloud).foreign
    if is_ours and not (draft.busy(action.key) or draft.doubted):
        draft.set_node(replace(node, retry_at=draft.now + draft.rules.terminate_retry_s))
        draft.request_action(action)
