"""The planner's terms: which nodes count, which are heard, lost, vacant or settled. Each is defined here, once."""

from __future__ import annotations

from collections.abc import Mapping

from spotsup_trainer.timing import SaveTimes
from spotsup_trainer.wire import Round

from provisioners.base import InstanceState
from supervisor.market.offers import place_of
from supervisor.model import COUNTED_NODE_STATES, JobState, NodeRecord, NodeState
from supervisor.planner.draft import Draft
from supervisor.planner.world import CLOCKS_S, JobView

N = NodeState
# States of nodes that have a machine, or will have one, and are not being ended.
PRESENT_NODE_STATES = COUNTED_NODE_STATES | {N.DRAINING}
# States of nodes that should be heard.
TALKING_NODE_STATES = (N.READY, N.MEMBER, N.SUSPECT)
# States of machines that have ended, or are ending, without a request of ours.
ENDED_BY_ITSELF = (InstanceState.STOPPING, InstanceState.STOPPED, InstanceState.TERMINATED)


# -- of a job ----------------------------------------------------------------------------------------------


def counted(draft: Draft) -> list[NodeRecord]:
    """Return nodes that the job has or will have: not doomed, not leaving, not ahead."""
    return [node for node in draft.billed if node.state in COUNTED_NODE_STATES and is_kept(node)]


def has_enough(draft: Draft) -> bool:
    """True if the job has as many machines as it needs to train."""
    return sum(bool(node.instance_id) for node in counted(draft)) + spared(draft) >= draft.job.min_nodes


def done(draft: Draft) -> frozenset[str]:
    """Return nodes that the job's round goes on without."""
    return done_nodes(draft.view, draft.nodes)


def done_nodes(job: JobView, nodes: Mapping[str, NodeRecord]) -> frozenset[str]:
    """Return nodes, there or gone, whose ranks have ended well in the current round, while it goes on: it goes on
    without them, and none takes their place. Not the node that hosts its store. Where one that works leaves, or is
    lost, all ranks run again, and all nodes are needed."""
    current = job.round
    if current is None or not current.members or job.result is not None or not job.done:
        return frozenset()
    host, *others = current.nodes()
    found = {node for node in others if _said_done(job, current, node)}
    stays = found and all(_goes_on(job, current, nodes.get(node)) for node in (host, *others) if node not in found)
    return frozenset(found) if stays else frozenset()


def _said_done(job: JobView, current: Round, node: str) -> bool:
    said = job.done.get(node)
    return said is not None and (said.round, said.incarnation) == (current.number, current.incarnations[node])


def _goes_on(job: JobView, current: Round, node: NodeRecord | None) -> bool:
    """True if a node stays in the round, as far as is known. A silent one may."""
    if node is None or node.doomed or node.state not in TALKING_NODE_STATES:
        return False
    report = job.members.get(node.id)
    if report is None:
        return True
    same = report.incarnation == current.incarnations[node.id]
    return same and (
        report.state in {"running", "done"} or (report.state == "waiting" and report.round < current.number)
    )


def spared(draft: Draft) -> int:
    """Return how many nodes the job has not, and does not miss."""
    return len(done(draft) - {node.id for node in counted(draft)})


def lacking(draft: Draft) -> int:
    """Return how many more nodes the job should have."""
    return max(0, wanted(draft) - len(counted(draft)) - spared(draft))


def is_kept(node: NodeRecord) -> bool:
    """True if the job counts on it: it will not leave, and is not ahead of a move."""
    return not (node.doomed or node.ahead)


def ahead(draft: Draft) -> list[NodeRecord]:
    """Return nodes that were requested for a move and will stay; oldest first."""
    found = [node for node in draft.billed if node.state in COUNTED_NODE_STATES]
    return _oldest_first([node for node in found if node.ahead and not node.doomed])


def left_behind(draft: Draft) -> list[NodeRecord]:
    """Return nodes that the job leaves for others."""
    return [node for node in draft.billed if node.left_behind and node.state in PRESENT_NODE_STATES]


def placed(draft: Draft) -> list[NodeRecord]:
    """Return nodes that new ones have to be near: all but those with a notice. Where each has one, the job may begin
    again elsewhere (P8). One that is drained leaves only once it is replaced: that has to be where the others are. The
    nodes ahead of a move, and those that it leaves behind, are where the others are not."""
    here = [node for node in draft.billed if node.state in PRESENT_NODE_STATES and not node.ahead]
    return [node for node in here if node.notice is None and not node.left_behind]


def place(draft: Draft, node_id: str) -> str:
    """Return where a node is, as far apart as its job's nodes may be, and of which alternative; "" where that is not
    known."""
    node = draft.nodes.get(node_id)
    spec = draft.job.spec
    return place_of(node.offer, spec.placement.spread, spec.kinds) if node else ""


def wanted(draft: Draft) -> int:
    """Return how many nodes the job should have now, spares included."""
    if draft.job.ended or draft.job.pause.at or draft.now < draft.job.starts_at:
        return 0
    return draft.job.desired_nodes + draft.job.spare_nodes


def is_complete(draft: Draft) -> bool:
    """True if all desired nodes are ready and will stay: any further one is a spare."""
    healthy = {node.id for node in draft.in_states(N.READY, N.MEMBER) if is_kept(node)}
    return len(healthy | done(draft)) >= draft.job.desired_nodes


def has_trained(draft: Draft) -> bool:
    """True if it ever had a round: its set-up is proven then, and whatever fails later is not its own fault (P12)."""
    return draft.job.rounds.reported > 0 or draft.view.round is not None


def members(draft: Draft) -> list[NodeRecord]:
    """Return nodes that train now."""
    return draft.in_states(N.MEMBER)


def part_of_round(draft: Draft) -> int:
    """Return how many nodes train now, or have done their part of what trains."""
    return len({node.id for node in members(draft)} | done(draft))


def is_settled(draft: Draft) -> bool:
    """True if the job has ended and all of its machines are gone."""
    return draft.job.ended and not draft.billed


def vacancies(draft: Draft) -> list[NodeRecord]:
    """Return nodes that the round lost, or may have lost, and whose place no other node has taken; oldest first."""
    taken = {node.took_over_from for node in draft.nodes.values()}
    lost = [n for n in draft.nodes.values() if n.has_joined and (n.needs_replacement or n.state is N.SUSPECT)]
    return _oldest_first([node for node in lost if node.id not in taken | done(draft)])


def unreplaced(draft: Draft) -> list[NodeRecord]:
    """Return nodes that were taken from the round and have no replacement, oldest first.

    A replacement that never joined does not count, unless a spare has filled the place since.
    """
    taken = {node.took_over_from for node in draft.nodes.values()}
    replaced = {
        node.replaces
        for node in draft.nodes.values()
        if node.state is not N.GONE or node.has_joined or node.replaces in taken
    }
    lost = [n for n in draft.nodes.values() if n.needs_replacement and n.has_joined and n.id not in replaced]
    spare = done(draft)
    return _oldest_first([node for node in lost if node.id not in spare])


def is_scaling_up(draft: Draft) -> bool:
    """True if a round that has enough nodes waits for more than it ever had: it has lost none, and none is silent."""
    count = part_of_round(draft)
    outside = draft.in_states(N.SUSPECT) or any(node.has_joined for node in draft.in_states(N.READY))
    return draft.job.min_nodes <= count < draft.job.desired_nodes and not (outside or vacancies(draft))


def is_held(draft: Draft) -> bool:
    """True if a job that is to pause stands still: every launcher's workers have stopped, or time is up."""
    alive = draft.in_states(N.READY, N.MEMBER, N.SUSPECT)
    hold_published = draft.view.hint is not None and draft.view.hint.hold
    late = draft.elapsed_s(draft.job.pause.at) > leaving_timeout_s(draft)
    return hold_published and (late or all(has_stopped(draft, node) for node in alive))


def stands_still(job: JobView, silent_since: float = 0.0) -> bool:
    """True if a job's round stands still for a reason that its cloud may know: a member is silent or has stopped. One
    that was suspected before `silent_since` does not count: its cloud was asked often enough."""
    if job.round is None:
        return False
    for node in job.round.nodes():
        known, found = job.nodes.get(node), job.members.get(node)
        if known is None or known.state not in TALKING_NODE_STATES:
            continue  # its end is known already
        if known.state is N.SUSPECT and known.state_since < silent_since:
            continue
        stopped = found is not None and found.state == "waiting" and found.round >= job.round.number
        if found is None or (stopped and not found.parked):
            return True
    return False


def machine_room(draft: Draft) -> int:
    """Return how many more machines may be asked for (P3). What bills, or may by an answer that is awaited, counts
    until its cloud says that it ends: machines that a node's own word took from the job's count go beyond its `max` by
    no more than `desired`, as where all of its nodes are replaced at once."""
    job = draft.job
    there = sum(may_have_machine(draft, node) for node in draft.billed)
    return job.max_nodes + job.spare_nodes + job.desired_nodes - there


# -- of a node ---------------------------------------------------------------------------------------------


def is_heard(draft: Draft, node: NodeRecord) -> bool:
    """Any sign of life: its agent's lease, or its launcher's."""
    return is_talking(draft.view, node.id)


def is_talking(job: JobView, node: str) -> bool:
    """True if its agent or its launcher holds a lease."""
    return node in job.agents or node in job.members


def is_preparing(job: JobView, node: str) -> bool:
    """True if its launcher imports what its program needs, before it waits at the rendezvous."""
    return node in job.agents and bool(job.agents[node].preparing) and node not in job.members


def may_be_in_round(draft: Draft, node: NodeRecord) -> bool:
    """True for a silent node that the others have not formed a round without: they may still hear it."""
    return node.state is N.SUSPECT and in_round(draft, node) and not node.doomed


def may_have_machine(draft: Draft, node: NodeRecord) -> bool:
    """False only of a node that has none by its cloud's last answer, and is not being asked for."""
    if node.instance_id:
        return not draft.volatile.cloud(node.offer.cloud).is_ending(node)
    return node.launch_unknown or not node.error or draft.busy(f"node:{node.id}")


def in_round(draft: Draft, node: NodeRecord) -> bool:
    """True if the current round has it."""
    return draft.view.round is not None and node.id in draft.view.round.incarnations


def must_leave(draft: Draft, node: NodeRecord) -> bool:
    """True if a node with a notice has to leave now: the time that is left is needed for the checkpoint."""
    return node.notice is not None and draft.now >= node.notice.deadline - leaving_takes_s(draft)


def is_past(draft: Draft, node: NodeRecord) -> bool:
    """True if its notice's deadline has passed, and a margin: its provider has it, or never takes it. Either way it is
    no node that the job counts on, and whatever bills ends."""
    return node.notice is not None and draft.elapsed_s(node.notice.deadline) >= CLOCKS_S


def why_doomed(node: NodeRecord) -> str:
    """Return why a node will leave."""
    if node.notice:
        return "its provider takes it"
    if node.left_behind or node.unhealthy_at:
        return node.left_behind or "its GPUs are unhealthy"
    return "a user drains it" if node.drain_requested else "all others wait for it"


def leaving_takes_s(draft: Draft) -> float:
    """Return how long before its notice's deadline a node of this job has to begin to leave, by its measured
    checkpoints."""
    return SaveTimes(draft.job.checkpoints.save_s, draft.job.checkpoints.step_s).window_s(draft.rules.leave_margin_s)


def leaving_timeout_s(draft: Draft) -> float:
    """Return how long a node without a deadline may take to leave, and a job to pause: as long as its checkpoint takes,
    or as its program may take on SIGTERM."""
    measured_s = (
        SaveTimes(draft.job.checkpoints.save_s, draft.job.checkpoints.step_s).yield_s
        if draft.job.checkpoints.save_s
        else 0.0
    )
    measured_s = max(measured_s, draft.job.spec.limits.stop_seconds or 0.0)
    return max(draft.rules.drain_timeout_s, measured_s + draft.rules.leave_margin_s)


def has_left(draft: Draft, node: NodeRecord) -> bool:
    """True if a draining node is out of the round, or out of time: a drain waits for a checkpoint, but not for ever.

    A node that the hint still names, be it as a spare, may be in the next round, or in one that was formed since the
    view was read, so it has not left.
    """
    hint = draft.view.hint
    named = hint is not None and node.id in (*hint.members, *hint.spares)
    late = is_past(draft, node) or draft.elapsed_s(node.state_since) > leaving_timeout_s(draft)
    return late or node.id in done(draft) or not (named or in_round(draft, node))


def sends_last_log(draft: Draft, node: NodeRecord) -> bool:
    """True if its program has just ended, and its agent has not yet sent the end of the log: it says so as it ends."""
    if draft.view.result is None or draft.job.state is JobState.CANCELLED or node.id in draft.view.exits:
        return False
    works = node.state in {N.READY, N.MEMBER} and node.id in draft.view.agents and node.notice is None
    return works and draft.elapsed_s(draft.job.ended_at) < draft.rules.last_log_s


def has_stopped(draft: Draft, node: NodeRecord) -> bool:
    """True if its workers have stopped, as its launcher reports. Without a report it may still train: etcd may have
    been away for longer than its lease."""
    report, current = draft.view.members.get(node.id), draft.view.round
    if report is None:
        return False
    inside = current is not None and current.incarnations.get(node.id) == report.incarnation
    left_round = current is None or not inside or report.round >= current.number
    return report.state == "done" or report.parked or (report.state == "waiting" and left_round)


def _oldest_first(nodes: list[NodeRecord]) -> list[NodeRecord]:
    return sorted(nodes, key=lambda node: (node.created_at, node.id))
