"""Silence is not death (P4): which silent nodes are held or kept, and the alerts about them.

A lease that ends says that a node cannot be heard, not that it has ended. Where many fall silent together, it is the
network's silence, and all of them are held. A single one is asked over SSH. What its provider says counts at once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import replace
from types import MappingProxyType

from supervisor.events import EventKind
from supervisor.model import NodeRecord, NodeState
from supervisor.planner.actions import AskNode
from supervisor.planner.draft import Draft
from supervisor.planner.predicates import ENDED_BY_ITSELF, TALKING_NODE_STATES, in_round, is_talking
from supervisor.planner.world import Hold, JobView, VolatileState, World

N = NodeState
ASK_S = 5.0  # between two questions, while a suspicion runs out


# -- many --------------------------------------------------------------------------------------------------


def hold_of(world: World, planned: Iterable[JobView], now: float) -> Hold:
    """Return the silent nodes that are held: with others they fell silent within a minute, and they are more than one
    and more than a tenth of all nodes, or of their job's. Recomputed from the records in each plan, also by the next
    leader.

    `planned`: the jobs that are not steady; all nodes of a steady one are heard.
    """
    by_job = [(job, _silent(world, job, now)) for job in planned]
    everyone = _Group([since for _, silent in by_job for _, since in silent])
    if len(everyone.since) < 2:
        return Hold()
    all_nodes = sum(_count(world, job) for job in world.jobs.values())
    held: list[NodeRecord] = []
    for job, silent in by_job:
        group, nodes = _Group([since for _, since in silent]), _count(world, job)
        for node, since in silent:
            of_job, of_all = (each.around(since, world.rules.silence.window_s) for each in (group, everyone))
            if _many(of_job, nodes, world) or _many(of_all, all_nodes, world):
                held.append(node)
    return Hold(frozenset(node.id for node in held), frozenset(node.offer.cloud for node in held))


def remember(volatile: VolatileState, hold: Hold, jobs: Iterable[JobView], now: float) -> VolatileState:
    """Remember when nodes were last held: their suspicion begins anew then. Nodes that are heard are forgotten."""
    if not (volatile.held_at or volatile.answers or hold.nodes):
        return volatile
    suspects = {node.id for job in jobs for node in job.billed if node.state is N.SUSPECT}
    held_at = {node: at for node, at in volatile.held_at.items() if node in suspects}
    answers = {node: answer for node, answer in volatile.answers.items() if node in suspects}
    held_at |= dict.fromkeys(hold.nodes, now)
    return replace(volatile, held_at=MappingProxyType(held_at), answers=MappingProxyType(answers))


class _Group:
    """When each of some nodes fell silent."""

    def __init__(self, since: list[float]) -> None:
        self.since = sorted(since)

    def around(self, moment: float, window_s: float) -> int:
        """Return how many fell silent within the window before or after this moment."""
        return bisect_right(self.since, moment + window_s) - bisect_left(self.since, moment - window_s)


def _many(silent: int, nodes: int, world: World) -> bool:
    return silent > 1 and silent > world.rules.silence.share * nodes


def _count(world: World, job: JobView) -> int:
    return 0 if job.record.ended else sum(_works(world, job, node) for node in job.billed)


def _silent(world: World, job: JobView, now: float) -> list[tuple[NodeRecord, float]]:
    """Return the silent nodes of a job, each with the time since when it is."""
    if job.record.ended or job.result is not None:
        return []
    silent = [node for node in job.billed if not is_talking(job, node.id) and _works(world, job, node)]
    paused = world.timers_paused_until
    return [(node, max(node.state_since if node.state is N.SUSPECT else now, paused)) for node in silent]


def _works(world: World, job: JobView, node: NodeRecord) -> bool:
    """True if it should be heard: its provider does not say that it ended, nor does its launcher."""
    if node.state not in TALKING_NODE_STATES or node.id in job.exits:
        return False
    cloud = world.volatile.cloud(node.offer.cloud)
    instance = cloud.of_node(node)
    return instance is None or instance.state not in ENDED_BY_ITSELF


# -- one ---------------------------------------------------------------------------------------------------


def in_hold(draft: Draft, node: NodeRecord) -> bool:
    """True if it is silent together with many."""
    return node.id in draft.hold.nodes


def silent_for_s(draft: Draft, node: NodeRecord) -> float:
    """Return for how long a suspected node has been silent by itself: not while it was held."""
    return draft.elapsed_s(max(node.state_since, draft.volatile.held_at.get(node.id, 0.0)))


def ask(draft: Draft, node: NodeRecord) -> None:
    """Ask a silent node over SSH, again and again."""
    answer = draft.volatile.answers.get(node.id)
    period_s = draft.rules.silence.ask_again_s if answer and answer.advances else ASK_S
    if answer is None or draft.now - answer.asked_at >= period_s:
        draft.request_read(AskNode(node))


def why_lost(draft: Draft, node: NodeRecord) -> str:
    """Return why a suspected node is given up now, "" if it is not: its cloud was listed and it was asked since it fell
    silent, and its steps do not advance."""
    answer, quiet_s = draft.volatile.answers.get(node.id), silent_for_s(draft, node)
    if quiet_s < draft.rules.silence.suspect_s or _unlisted(draft, node):
        return ""
    if answer is None or answer.advances or answer.asked_at < draft.now - quiet_s:
        return ""
    found = f"over SSH: {answer.error}" if answer.error else "no step advances on it"
    return f"silent for {draft.rules.silence.suspect_s:g} s, and {found}"


def advances(draft: Draft, node: NodeRecord) -> bool:
    """True if it answered over SSH that its steps advance."""
    answer = draft.volatile.answers.get(node.id)
    return answer is not None and answer.advances


def _unlisted(draft: Draft, node: NodeRecord) -> bool:
    """True if its region's listing is older than the suspicion."""
    return draft.cloud.region_listed_at(node.offer.region) <= node.state_since


def kept(draft: Draft) -> list[NodeRecord]:
    """Silent nodes that are not given up although they have been silent for long enough."""
    return [node for node in draft.in_states(N.SUSPECT) if in_hold(draft, node) or _is_overdue(draft, node)]


def _is_overdue(draft: Draft, node: NodeRecord) -> bool:
    return silent_for_s(draft, node) >= draft.rules.silence.suspect_s


def may_train(draft: Draft) -> bool:
    """True if the job's round may go on with kept nodes in it: then the job's state stays as it is."""
    return any(in_round(draft, node) for node in kept(draft))


# -- alerts ----------------------------------------------------------------------------------


def silence_text(draft: Draft) -> str:
    """Return which silent nodes are kept, and why; "" where there are none."""
    nodes = kept(draft)
    if not nodes:
        return ""
    held = sum(in_hold(draft, node) for node in nodes)
    if held:
        everyone = len(draft.in_states(*TALKING_NODE_STATES))
        others = len(draft.hold.nodes) - held
        besides = f", and {others} of other jobs" if others > 0 else ""
        return (
            f"{held} of {everyone} node{'s' * (everyone > 1)} {'is' if held == 1 else 'are'} silent{besides}: network?"
        )
    node = nodes[0]
    if advances(draft, node):
        return f"{node.id} is silent, and its steps advance: it cannot reach etcd"
    if _unlisted(draft, node):
        return (
            f"{node.id} is silent, and {node.offer.cloud} was not listed since: {draft.cloud.error or 'no answer yet'}"
        )
    return f"{node.id} is silent, and is asked over SSH"


def drive_silence(draft: Draft) -> None:
    """Report once that silent nodes are kept, each hour that they still are, and that all are heard again."""
    job, rules, text = draft.job, draft.rules, silence_text(draft)
    if not text:
        if job.silence.since and job.silence.reported_at >= job.silence.since:
            left = len(draft.in_states(N.SUSPECT))
            what = f"of the silent nodes of {job.name}, all but {left} are" if left else f"all nodes of {job.name} are"
            draft.add_event(EventKind.SILENCE_ENDED, f"{what} heard again, or known to have ended")
        draft.set_part(replace(draft.job.silence, since=0.0))
        return
    if not job.silence.since:
        draft.set_part(replace(draft.job.silence, since=draft.now))
    reported = draft.job.silence.reported_at >= draft.job.silence.since
    quiet_s = draft.now - draft.job.silence.reported_at
    lasts = draft.elapsed_s(draft.job.silence.since) >= rules.silence.suspect_s
    if lasts and quiet_s >= (rules.silence.reminder_s if reported else rules.silence.quiet_s):
        draft.set_part(replace(draft.job.silence, reported_at=draft.now))
        end = "" if text.endswith("?") else "."
        remedy = (
            "What is silent is kept until it is heard, its cloud says that it ended, or you run `spotsupctl drain NODE`"
        )
        look = "" if _unlisted(draft, kept(draft)[0]) else ". It may train on: look at its way to etcd"
        draft.add_event(EventKind.SILENCE, f"{text}{end} {remedy}{look}")
