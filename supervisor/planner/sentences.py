"""One sentence per job for `spotsupctl status` and the log: what is done and why, in counts rather than lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from provisioners.base import Market
from supervisor.budget import BUDGET, USER_BUDGET
from supervisor.features.deadline.rule import clause, may_pay
from supervisor.features.flood.rule import FLOOD
from supervisor.features.queue.rule import PRIORITY
from supervisor.features.silence.rule import may_train, silence_text
from supervisor.market.admission import Admission
from supervisor.market.offers import obstacle, wished
from supervisor.model import IN_FLIGHT_NODE_STATES, WAITING_NODE_STATES, JobRecord, JobState, NodeRecord, NodeState
from supervisor.planner.draft import Draft
from supervisor.planner.fleet import constraints, tries_one
from supervisor.planner.predicates import (
    ahead,
    counted,
    done,
    is_complete,
    is_preparing,
    is_scaling_up,
    lacking,
    members,
    part_of_round,
)
from supervisor.starting_time import moment

J, N = JobState, NodeState
ENDED_AS = {J.SUCCEEDED: "finished", J.FAILED: "failed", J.CANCELLED: "cancelled"}
MAX_NAMED = 3
# Of texts that a machine or a cloud wrote, within a sentence of ours.
MAX_ERROR_CHARACTERS = 60  # of a node
MAX_REASON_CHARACTERS = 160  # why nodes are missing: it has the remedy
_ARRIVING = (N.BOOTSTRAPPING, N.BOOTING, N.PENDING, N.REQUESTED)  # the most advanced first


def sentence(draft: Draft) -> str:
    """Return what is done and why. It changes with what is decided, not with each step of training."""
    job = draft.job
    if job.ended:
        again = "; its schedule submits it again" if job.is_renewed else ""
        return f"{ENDED_AS[job.state]}: {job.reason}{_releasing(draft)}{again}"
    if job.state is J.PAUSED:
        return f"paused: {job.reason}{_releasing(draft)}"
    if job.pause.at:
        why = _why_it_pauses(job)
        return f"{why}pausing: waiting for a checkpoint of {node_count(len(draft.in_states(N.READY, N.MEMBER)))}"
    hung = "its steps hang: see the stacks in its logs" if job.hang.since else ""
    clauses = [
        _training(draft),
        hung,
        _spares(draft),
        silence_text(draft),
        *_leaving(draft),
        *_arriving(draft),
        _missing(draft),
        _doubt(draft),
        _deadline(draft),
        _unpriced(draft),
    ]
    return "; ".join(clause for clause in clauses if clause)


def why_missing(draft: Draft) -> str:
    """Return why nodes that the job wants are not there, in one clause; "" if they are on their way."""
    last = max((node for node in draft.nodes.values() if node.error), key=lambda node: node.state_since, default=None)
    tried = f"the last try: {first_line(last.error, MAX_REASON_CHARACTERS)}" if last and not last.has_joined else ""
    return _doubt(draft) or _missing(draft) or tried


def _doubt(draft: Draft) -> str:
    return draft.why_no_launch if draft.cloud.listed_at else ""


def _why_it_pauses(job: JobRecord) -> str:
    if job.pause.by == PRIORITY:
        return f"{job.queue.displaced_by} has a higher priority; "
    if job.pause.by in {BUDGET, USER_BUDGET}:
        return "its budget is spent; "
    if job.pause.by == FLOOD:
        return "its nodes flood etcd; "
    return f"limits.{job.pause.by} is reached; " if job.pause.by else ""


def training_count(draft: Draft) -> str:
    """Return how many of the desired nodes train."""
    count, desired = len({node.id for node in members(draft)} - done(draft)), draft.job.desired_nodes
    growing = "scaling up: " if is_scaling_up(draft) else ""
    ended = f", {finished} {'has' if finished == 1 else 'have'} ended well" if (finished := len(done(draft))) else ""
    return f"{growing}{count} of {node_count(desired)} {'trains' if count == 1 else 'train'}{ended}"


def _releasing(draft: Draft) -> str:
    waiting = draft.in_states(*WAITING_NODE_STATES)
    count = len(draft.billed) - len(waiting)
    released = f"; releasing {node_count(count)}" if count else ""
    return released + (f"; {_waiting(draft, waiting)}" if waiting else "")


def _waiting(draft: Draft, nodes: Sequence[NodeRecord]) -> str:
    """Machines that are kept for the next job."""
    until = min(node.state_since for node in nodes) + draft.rules.warm.keep_s
    one = len(nodes) == 1
    machines = f"{len(nodes)} machine{'' if one else 's'} {'waits' if one else 'wait'}"
    return f"{machines} until {time_of_day(until)} for the next job"


def _training(draft: Draft) -> str:
    current = draft.view.round
    if current is None:
        return f"waiting for {node_count(draft.job.min_nodes)} to begin"
    if not members(draft):
        return f"round {current.number} may train on" if may_train(draft) else "no node trains"
    if draft.job.spec.kind == "data":
        return f"the command runs (round {current.number})"
    count, min_nodes = part_of_round(draft), draft.job.min_nodes
    if count < min_nodes <= len(current.members) and not draft.in_states(N.SUSPECT):
        # It has lost so many that the rest have to wait; one that is silent may train on.
        here = f"{count} of at least {node_count(min_nodes)} {'is' if count == 1 else 'are'} here, and none trains"
    else:
        here = training_count(draft)
    return f"{here} (round {current.number})"


def _spares(draft: Draft) -> str:
    have, want = len(draft.view.spares), draft.job.spare_nodes
    if draft.view.round is None or not want:
        return ""
    if not have:
        return "no spare yet"
    return ("1 spare" if want == 1 else f"{want} spares") if have == want else f"{have} of {want} spares"


def _leaving(draft: Draft) -> list[str]:
    """Return nodes that leave or are silent: by name where all are of one kind, or few; else by count."""
    present = draft.in_states(N.READY, N.MEMBER, N.DRAINING)
    noticed = [node for node in present if node.notice is not None]
    others = [node for node in present if node.notice is None]
    draining = [node for node in others if node.state is N.DRAINING]
    unhealthy = [node for node in others if node.state is not N.DRAINING and node.unhealthy]
    moving = [node for node in others if node.state is not N.DRAINING and node.left_behind]
    slow = [node for node in others if node.state is N.MEMBER and node.slow.at and not node.doomed]
    exchanged = [node for node in others if node.state is not N.DRAINING and node.slow.leaves_at and not node.unhealthy]
    to_drain = [node for node in others if node.state is not N.DRAINING and node.drain_requested and not node.unhealthy]
    taken = [node for node in noticed if node.offer.market is Market.SPOT]
    ends = [node for node in noticed if node not in taken]
    preempted, ended = f"will be preempted in about {_left_s(draft, taken)} s", f"in about {_left_s(draft, ends)} s"
    groups = [
        (taken, preempted, preempted),
        (ends, f"ends {ended}", f"end {ended}"),
        (draining, "is draining", "are draining"),
        (moving, "leaves as the job moves", "leave as the job moves"),
        (unhealthy, "has unhealthy GPUs", "have unhealthy GPUs"),
        (slow, "is slow", "are slow"),
        (exchanged, "is slow and leaves once replaced", "are slow and leave once replaced"),
        (to_drain, "leaves once replaced", "leave once replaced"),
        ([] if silence_text(draft) else draft.in_states(N.SUSPECT), "is silent", "are silent"),
    ]
    groups = [group for group in groups if group[0]]
    by_name = len(groups) == 1 or sum(len(group) for group, _, _ in groups) <= MAX_NAMED
    clauses: list[str] = []
    for group, one, many in groups:
        count = str(len(group)) if clauses else node_count(len(group))
        who = named([node.id for node in group]) if by_name else count
        clauses.append(f"{who} {one if len(group) == 1 else many}")
    return clauses


def _left_s(draft: Draft, nodes: Sequence[NodeRecord]) -> int:
    """Until the first deadline, in whole tens, so that the sentence is not a new one each second."""
    deadline = min((node.notice.deadline for node in nodes if node.notice), default=draft.now)
    return max(0, round((deadline - draft.now) / 10) * 10)


def _arriving(draft: Draft) -> list[str]:
    """Return nodes that are on their way, by purpose; while there is no round, also those that are ready."""
    ready = len(draft.in_states(N.READY)) if draft.view.round is None else 0
    coming = ahead(draft)
    clauses = [f"{node_count(ready)} {'is' if ready == 1 else 'are'} ready"] if ready else []
    if coming:
        count = sum(node.state is N.READY for node in coming)
        clauses.append(f"{node_count(len(coming))} in {coming[0].offer.zone} to move to, {count} of them ready")
    arriving = [node for node in draft.in_states(*IN_FLIGHT_NODE_STATES) if not node.ahead]
    preparing = sum(is_preparing(draft.view, node.id) for node in arriving)
    groups: dict[str, list[NodeRecord]] = {}
    complete = is_complete(draft)
    for node in arriving:
        purpose = "spare" if complete else "replacement" if node.replaces else "node"
        groups.setdefault(purpose, []).append(node)
    clauses += [_on_their_way(purpose, group) for purpose, group in groups.items()]
    if preparing:
        clauses.append(f"{node_count(preparing)} {'imports' if preparing == 1 else 'import'} what the program needs")
    return clauses


def _on_their_way(purpose: str, group: Sequence[NodeRecord]) -> str:
    by_state = {state: sum(node.state is state for node in group) for state in _ARRIVING}
    by_state = {state: count for state, count in by_state.items() if count}
    error = next((f" ({first_line(node.error, MAX_ERROR_CHARACTERS)})" for node in group if node.error), "")
    who = f"{len(group)} {purpose}{'' if len(group) == 1 else 's'}"
    if len(by_state) > 1:
        return f"{who}: {', '.join(f'{count} {state}' for state, count in by_state.items())}{error}"
    state = next(iter(by_state))
    verb = "" if state is N.REQUESTED else "is " if len(group) == 1 else "are "
    return f"{who} {verb}{state}{error}"


def _missing(draft: Draft) -> str:
    """Return why nodes that the job wants are not requested."""
    if draft.now < draft.job.starts_at:
        return f"it begins at {moment(draft.job.starts_at)}"
    if not lacking(draft):
        return ""
    if draft.admission is not None and len(counted(draft)) >= draft.admission.nodes:
        return in_the_queue(draft.admission)
    spare, cloud = is_complete(draft), draft.job.spec.placement.cloud
    if spare and draft.now < draft.job.bootstraps.spare_retry_at:
        return "the next spare is requested later: the last one could not be bootstrapped"
    if draft.now < draft.job.bootstraps.retry_at:
        return f"{_failed_bootstraps(draft)}: the next is requested at {time_of_day(draft.job.bootstraps.retry_at)}"
    known = draft.volatile.offers.get(draft.job.name)
    if known is None or not known.known:
        error = first_line(known.error, MAX_REASON_CHARACTERS) if known else ""
        return f"asking {cloud} for offers{f' ({error})' if error else ''}"
    if not known.offers:
        return f"{cloud} offers nothing that fits the job's resources and placement"
    offers = known.offers
    if not may_pay(draft):
        offers = wished(offers, draft.job.spec.dear_markets)
    why = obstacle(offers, draft.capacity, constraints(draft), draft.now, spare=spare)
    if not why and tries_one(draft):
        return f"{_failed_bootstraps(draft)}: they are tried one at a time"
    return first_line(why, MAX_REASON_CHARACTERS)


def _deadline(draft: Draft) -> str:
    """Say that it cannot finish in time, or until when nodes that are missing are waited for on spot."""
    lacks = lacking(draft) > 0
    return clause(draft) if lacks or draft.job.deadline.missed else ""


def in_the_queue(admission: Admission) -> str:
    """Return what it waits for, and where it stands."""
    place = f"number {admission.place} in the queue: " if admission.place else ""
    return first_line(f"{place}{admission.reason}", MAX_REASON_CHARACTERS)


def _unpriced(draft: Draft) -> str:
    count = sum(node.offer.usd_per_hour is None for node in draft.billed)
    return f"the price of {node_count(count)} is unknown" if count else ""


def _failed_bootstraps(draft: Draft) -> str:
    last = max((node for node in draft.nodes.values() if node.error), key=lambda node: node.state_since, default=None)
    why = f" ({first_line(last.error, MAX_REASON_CHARACTERS)})" if last else ""
    return f"{node_count(draft.job.bootstraps.failures)} in a row could not be bootstrapped{why}"


# -- phrases --------------------------------------------------------------------------------------------


def node_count(count: int) -> str:
    """`1 node`, `64 nodes`."""
    return f"{count} node{'' if count == 1 else 's'}"


def per_hour(nodes: Iterable[NodeRecord]) -> str:
    """Return what nodes cost: `$1.20 an hour`, or `money` where no price is known."""
    usd = sum(node.offer.usd_per_hour or 0.0 for node in nodes if node.state is not N.REQUESTED)
    return f"${usd:.2f} an hour" if usd else "money"


def time_of_day(at: float) -> str:
    """`14:02:05 UTC`."""
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S UTC")


def lasted(seconds: float) -> str:
    """`43 s`, `12 min`, `1 h 23 min`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(int(seconds // 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def named(names: Sequence[str]) -> str:
    """At most MAX_NAMED names, and how many more there are."""
    listed, rest = ", ".join(names[:MAX_NAMED]), len(names) - MAX_NAMED
    return f"{listed} and {rest} more" if rest > 0 else listed


def first_line(text: str, limit: int) -> str:
    """Return the first line of a text, cut to so many characters."""
    line = next(iter(text.splitlines()), "")
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
