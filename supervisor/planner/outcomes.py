"""What came of a node's actions: launch, lookup, bootstrap, terminate. It brings the node's record up to date."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from zlib import crc32

from provisioners.base import (
    Denied,
    Fatal,
    Instance,
    Launched,
    LaunchOutcome,
    NoCapacity,
    Quota,
    Refusal,
    Scope,
    Throttled,
    Transient,
    Unknown,
)
from supervisor.events import EventKind
from supervisor.market.offers import OffersView
from supervisor.model import JobState, NodeRecord, NodeState
from supervisor.planner.actions import (
    BootstrapDone,
    CleanDone,
    FetchOffers,
    FindDone,
    LaunchDone,
    NodeOutcome,
    TerminateDone,
)
from supervisor.planner.draft import Draft
from supervisor.planner.predicates import has_enough, has_trained, is_complete

N = NodeState
FATAL_MEMORY_S = 600.0
BACKOFF_S = (1.0, 2.0, 5.0, 10.0, 30.0)
UNKNOWN_RETRY_S = 0.5
MAX_BACKOFF_S = 300.0


def apply_outcome(draft: Draft, node: NodeRecord, outcome: NodeOutcome) -> NodeRecord:
    """Return the node after an outcome. One that came late is ignored: the record has moved on, and listings have the
    rest."""
    match outcome:
        case LaunchDone() if node.state is N.REQUESTED:
            return _launched(draft, node, outcome.outcome)
        case FindDone() if node.state is N.REQUESTED:
            return _found(draft, node, outcome)
        case BootstrapDone() if node.state is N.BOOTSTRAPPING:
            return _bootstrapped(draft, node, outcome)
        case CleanDone() if node.state is N.CLEANING:
            return _cleaned(draft, node, outcome)
        case TerminateDone() if node.state is N.TERMINATING:
            return _terminated(draft, node, outcome)
        case _:
            return node


def accept(draft: Draft, node: NodeRecord, instance: Instance) -> NodeRecord:
    """Take note that the cloud has the node's machine."""
    draft.capacity = draft.capacity.with_a_grant(node.offer, draft.now)
    # By our clock, between the intent and now: the cloud's may differ by hours, or say nothing yet.
    at = min(max(instance.launched_at, node.created_at), draft.now)
    accepted = replace(node, instance_id=instance.id, launched_at=at, launch_unknown=False, error="")
    return draft.move(accepted, N.PENDING, f"{instance.id} in {instance.zone}")


# -- launch ------------------------------------------------------------------------------------------------


def _launched(draft: Draft, node: NodeRecord, outcome: LaunchOutcome) -> NodeRecord:
    match outcome:
        case Launched(instance):
            draft.volatile = draft.volatile.without_denial(node.offer.cloud).with_grant(node, draft.now)
            return accept(draft, node, instance)
        case NoCapacity() | Quota():
            _remember(draft, node, outcome)
            if isinstance(outcome, Quota):
                _report_quota(draft, node, outcome)
            return _refused(draft, node, outcome.message)
        case Throttled():
            draft.volatile = draft.volatile.with_throttled(node, draft.now)
            return draft.set_node(replace(node, retry_at=draft.now + outcome.retry_after_s, error=outcome.message))
        case Transient():
            if outcome.unknown_code:
                _report_unknown_code(draft, node, outcome)
            if node.launch_attempts >= draft.rules.launch_attempts:
                return _refused(draft, node, outcome.message)
            wait_s = BACKOFF_S[min(node.launch_attempts, len(BACKOFF_S) - 1)]
            return draft.set_node(replace(node, retry_at=draft.now + wait_s, error=outcome.message))
        case Fatal():
            return _fatal(draft, node, outcome)
        case Denied():
            return _denied(draft, node, outcome)
        case Unknown():
            retry_at = draft.now + UNKNOWN_RETRY_S
            return draft.set_node(replace(node, launch_unknown=True, retry_at=retry_at, error=outcome.message))


def _remember(draft: Draft, node: NodeRecord, refusal: NoCapacity | Quota | Denied, job: str = "") -> None:
    spare = _is_spare(draft, node)
    if isinstance(refusal, NoCapacity) and refusal.above_cap:
        job = draft.job.name  # another job may pay more
        spec = draft.job.spec
        draft.request_read(FetchOffers(draft.job.name, spec.placement.cloud, spec.offer_queries))
    elif isinstance(refusal, NoCapacity) and not job and not has_enough(draft):
        refusal = replace(refusal, memory_s=min(refusal.memory_s, draft.rules.gang.retry_s))
    draft.capacity = draft.capacity.remember(node.offer, refusal, draft.now, spare=spare, job=job)


def _is_spare(draft: Draft, node: NodeRecord) -> bool:
    """True if it is one more than the job needs to be complete."""
    return is_complete(draft) and not node.ahead


def _report_quota(draft: Draft, node: NodeRecord, outcome: Quota) -> None:
    """Once per quota, region and day: nothing but a person raises it, and jobs that lack nodes for it say so."""
    offer = node.offer
    draft.volatile, is_new = draft.volatile.with_quota(offer, draft.now, draft.rules.quota_quiet_s)
    if is_new:
        text = f"a quota of {offer.cloud} in {offer.region} is used up: {outcome.message}. Ask the cloud for more; "
        text += f"{draft.job.name} asks again by itself"
        draft.add_event(EventKind.QUOTA_REFUSED, text, node.id, quota=offer.quota)


def _report_unknown_code(draft: Draft, node: NodeRecord, outcome: Transient) -> None:
    """Once per code and daemon, so that the tables of error codes grow."""
    draft.volatile, is_new = draft.volatile.with_unknown_code(node.offer.cloud, outcome.unknown_code)
    if is_new:
        text = f"{outcome.message}; the request is retried. Please report this error code: no table has it"
        draft.add_event(EventKind.UNKNOWN_CODE, text, node.id, code=outcome.unknown_code)


def _fatal(draft: Draft, node: NodeRecord, outcome: Fatal) -> NodeRecord:
    """Handle a request that can never work: it concerns its job, type and zone. A job that never had a node ends once
    that is so for each of its offers; a running one keeps what it has (P4) and asks later."""
    _remember(draft, node, NoCapacity(Scope.TYPE_IN_ZONE, FATAL_MEMORY_S, outcome.message), draft.job.name)
    node = _refused(draft, node, outcome.message)
    known = draft.volatile.offers.get(draft.job.name, OffersView())
    # Records of nodes that trained may be deleted by now.
    started = has_trained(draft) or bool(draft.billed) or any(other.has_joined for other in draft.nodes.values())
    if (
        not (started or draft.job.spec.places)
        and known.known
        and draft.capacity.can_never_work(known.offers, draft.now, draft.job.name)
    ):
        draft.move_job(JobState.FAILED, f"{node.offer.cloud} refuses the request: {outcome.message}")
    return node


def _denied(draft: Draft, node: NodeRecord, outcome: Denied) -> NodeRecord:
    """Handle what is the account's fault, and no job's: it waits until someone has fixed it. Where nothing works with
    these credentials, no other offer would do better, and the same request is repeated."""
    if outcome.scope is not Scope.GLOBAL:
        _remember(draft, node, outcome)
        return _refused(draft, node, outcome.message)
    retry_at = draft.now + outcome.memory_s
    draft.volatile = draft.volatile.with_denial(node.offer.cloud, outcome.message, draft.now, 2 * outcome.memory_s)
    return draft.set_node(replace(node, retry_at=retry_at, error=outcome.message))


def refuse_late(draft: Draft, node: NodeRecord, refusal: Refusal | None = None) -> None:
    """Take note that its machine ended, or proved to be of no use, before it was bootstrapped: its pool had none to
    give after all. `refusal`: why, where its cloud says so. It is remembered as if the launch had met it."""
    match refusal:
        case NoCapacity() | Quota() | Denied():
            _remember(draft, node, refusal)
        case Fatal():
            never = NoCapacity(Scope.TYPE_IN_ZONE, FATAL_MEMORY_S, refusal.message)
            _remember(draft, node, never, draft.job.name)
        case None:
            memory, spare = draft.capacity, _is_spare(draft, node)
            draft.capacity = memory.with_late_refusal(node.offer, node.created_at, draft.now, spare=spare)


def _refused(draft: Draft, node: NodeRecord, message: str) -> NodeRecord:
    text = f"{node.offer.zone} did not grant {node.id}: {message}"
    draft.add_event(EventKind.LAUNCH_REFUSED, text, node.id, zone=node.offer.zone, why=message)
    return draft.move(replace(node, error=message, ended_at=draft.now), N.GONE, message)


def _found(draft: Draft, node: NodeRecord, outcome: FindDone) -> NodeRecord:
    if outcome.instance is not None:
        return accept(draft, node, outcome.instance)
    if outcome.error:
        return draft.set_node(replace(node, retry_at=draft.now + BACKOFF_S[1], error=outcome.error))
    # Asking again under the same token cannot double it (P2), whether or not the first request is still on its way.
    return draft.set_node(replace(node, launch_unknown=False, retry_at=draft.now))


# -- bootstrap ---------------------------------------------------------------------------------------------


def _bootstrapped(draft: Draft, node: NodeRecord, outcome: BootstrapDone) -> NodeRecord:
    if not outcome.error:
        return draft.set_node(
            replace(node, bootstrapped=True, ready_by=draft.now + draft.rules.ready_timeout_s, error="")
        )
    if outcome.unreachable and draft.elapsed_s(node.state_since) < draft.rules.bootstrap_timeout_s:
        return draft.set_node(replace(node, retry_at=draft.now + BACKOFF_S[2], error=outcome.error))
    if outcome.unhealthy:
        _count_unhealthy(draft, node, outcome.error)
    if (outcome.unhealthy or outcome.unreachable) and not node.launched_as:  # the pool gave one that has had a job
        refuse_late(draft, node)
    if outcome.foreign:
        draft.add_event(EventKind.FOREIGN_HOST, f"{node.id} is not bootstrapped: {outcome.error}", node.id)
    unknown = outcome.unreachable and is_unlisted(draft, node)
    return fail_bootstrap(draft, node, outcome.error, blamed=not (outcome.unhealthy or unknown), of_job=outcome.of_job)


def is_unlisted(draft: Draft, node: NodeRecord) -> bool:
    """True if its region was not listed for a while: the cloud may have taken a machine that does not answer (P5)."""
    unlisted_s = draft.now - draft.cloud.region_listed_at(node.offer.region)
    return unlisted_s > max(draft.rules.silence.suspect_s, 2 * draft.rules.listing_s)


def _count_unhealthy(draft: Draft, node: NodeRecord, error: str) -> None:
    """Block a machine type after several unhealthy machines in a row, for a while: in all zones, and for all jobs once
    machines of two owners' jobs were. What a machine answers may be its last job's word (9c)."""
    draft.capacity = draft.capacity.with_unhealthy(node.offer, draft.job.owner)
    streak = draft.capacity.unhealthy_streak(node.offer)
    if (count := sum(streak.values())) >= draft.rules.unhealthy.max_streak:
        why = f"{count} machines in a row were unhealthy. The last error: {error.splitlines()[0]}"
        _block_type(draft, node, why, job="" if len(streak) > 1 else draft.job.name)


def count_unhealthy_in_training(draft: Draft, node: NodeRecord) -> None:
    """Do the same for GPUs that died in training. Those machines have worked, so they are not in a row: they are
    counted over as long a time as the type is then blocked. That they died is their nodes' word: for other jobs it
    counts only once nodes of two owners say so (9c)."""
    rules, since = draft.rules, draft.now - draft.rules.unhealthy.memory_s
    count = _died(draft.nodes.values(), node, since)
    if count >= rules.unhealthy.max_streak:
        within = f"within {rules.unhealthy.memory_s / 60:g} min"
        why = f"GPUs of {count} machines died {within}. The last error: {node.unhealthy}"
        others = [view for view in draft.jobs.values() if view.record.owner != draft.job.owner]
        agreed = any(_died(view.nodes.values(), node, since) for view in others)
        _block_type(draft, node, why, job="" if agreed else draft.job.name)


def _died(nodes: Iterable[NodeRecord], like: NodeRecord, since: float) -> int:
    return sum(each.unhealthy_at > since and each.offer.instance_type == like.offer.instance_type for each in nodes)


def _block_type(draft: Draft, node: NodeRecord, why: str, job: str = "") -> None:
    """Request no machine of its type for a while. `job`: for this one alone."""
    offer, rules = node.offer, draft.rules
    text = (
        f"{offer.cloud} machine type {offer.instance_type} is blocked for {rules.unhealthy.memory_s / 60:g} min"
        f"{f' for {job}' if job else ''}: {why}"
    )
    block = NoCapacity(Scope.TYPE_IN_ZONE, rules.unhealthy.memory_s, text)
    known = draft.volatile.offers.get(draft.job.name, OffersView()).offers
    same_type = [each for each in known if each.instance_type == offer.instance_type]
    draft.capacity = draft.capacity.without_unhealthy(offer)
    for each in (*same_type, offer):  # one that is known twice is remembered once
        draft.capacity = draft.capacity.remember(each, block, draft.now, spare=False, job=job)
    draft.add_event(EventKind.MACHINE_TYPE_BLOCKED, text, node.id)


def fail_bootstrap(draft: Draft, node: NodeRecord, error: str, *, blamed: bool = True, of_job: str = "") -> NodeRecord:
    """Take note that the node's set-up failed: its own budget, never the application's (P5). A spare's ends no job that
    has all; nor do machines that are to blame themselves. `of_job`: as in BootstrapDone."""
    draft.add_event(EventKind.NODE_FAILED, f"bootstrap of {node.id} failed: {error}", node.id)
    if node.ahead:
        pass  # its move is given up, and tried again later
    elif is_complete(draft):
        draft.set_part(replace(draft.job.bootstraps, spare_retry_at=draft.now + draft.rules.bootstraps.spare_retry_s))
    elif blamed and node.created_at >= draft.job.bootstraps.retry_at:
        _count_failure(draft, error, of_job=of_job)
    return draft.move(replace(node, error=error), N.FAILED, error.splitlines()[0])


def _count_failure(draft: Draft, error: str, *, of_job: str) -> None:
    """Count one more failure in a row: the next node is requested later each time. Those that were requested together
    are one failure. While a job that has trained cannot bootstrap either, the cause is not this job's, and its budget
    is kept.
    """
    rules, trained = draft.rules, has_trained(draft)
    before = draft.job.bootstraps
    count = before.failures + 1
    own = (before.own_failures if of_job == before.own_failure else 0) + 1 if of_job else 0
    if not trained and draft.others_fail_to_bootstrap():
        count, own = min(count, rules.bootstraps.failures - 1), min(own, rules.bootstraps.own_failures - 1)
    wait_s = min(rules.bootstraps.max_retry_s, rules.bootstraps.retry_s * 2.0 ** min(count - 1, 30))
    retry_at = draft.now + wait_s
    draft.set_part(replace(before, failures=count, own_failures=own, own_failure=of_job, retry_at=retry_at))
    if count == rules.bootstraps.failures and trained:
        text = (
            f"{draft.job.name} lacks nodes: {count} in a row could not be bootstrapped, the last one by: "
            f"{error.splitlines()[0]}. It goes on with those it has, and tries again at least every "
            f"{rules.bootstraps.max_retry_s / 60:g} min; each try is paid for. "
            f"`spotsupctl events {draft.job.name} --raw` has each error"
        )
        draft.add_event(EventKind.BOOTSTRAPS_FAILING, text)


def clear_failures(draft: Draft) -> None:
    """Clear the failures: a node is ready, so bootstraps work."""
    count = draft.job.bootstraps.failures
    if count >= draft.rules.bootstraps.failures:
        text = f"nodes of {draft.job.name} can be bootstrapped again, after {count} failures in a row"
        draft.add_event(EventKind.BOOTSTRAPS_RECOVERED, text)
    draft.set_part(replace(draft.job.bootstraps, failures=0, own_failures=0, own_failure="", retry_at=0.0))


# -- clean -------------------------------------------------------------------------------------------------


def _cleaned(draft: Draft, node: NodeRecord, outcome: CleanDone) -> NodeRecord:
    """Terminate a machine on which something of its job may be left: it waits for no job."""
    if not outcome.error:
        return draft.move(replace(node, bootstrapped=False), N.WARM, "nothing of its job is left")
    if outcome.unreachable and draft.elapsed_s(node.state_since) < draft.rules.clean_timeout_s:
        return draft.set_node(replace(node, retry_at=draft.now + BACKOFF_S[2], error=outcome.error))
    text = f"{node.id} is not kept for the next job: it could not be cleaned: {outcome.error}"
    draft.add_event(EventKind.CLEANING_FAILED, text, node.id)
    return draft.move(replace(node, error=outcome.error), N.TERMINATING, "it could not be cleaned")


# -- terminate ---------------------------------------------------------------------------------------------


def _terminated(draft: Draft, node: NodeRecord, outcome: TerminateDone) -> NodeRecord:
    node = _report_tails(draft, node, outcome)  # read once, even if the cloud refuses to terminate for now
    if outcome.error:
        return draft.set_node(replace(node, retry_at=_next_try(draft, node, BACKOFF_S[1]), error=outcome.error))
    return draft.set_node(replace(node, retry_at=_next_try(draft, node, draft.rules.terminate_retry_s)))


def _next_try(draft: Draft, node: NodeRecord, wait_s: float) -> float:
    """Return when to ask for its end again: ever more seldom, and not at the same time as all others."""
    later_s = min(MAX_BACKOFF_S, (draft.now - node.state_since) / 3)
    return draft.now + max(wait_s, later_s * (0.8 + crc32(node.id.encode()) % 1000 / 2500))


def _report_tails(draft: Draft, node: NodeRecord, outcome: TerminateDone) -> NodeRecord:
    """Report the ends of its console and log. The log's last line is most often why the node was never ready."""
    if outcome.console:
        draft.add_event(EventKind.CONSOLE_TAIL, f"the console of {node.id} ends with:\n{outcome.console}", node.id)
    lines = outcome.log.strip().splitlines()
    if not lines:
        return node
    draft.add_event(EventKind.LOG_TAIL, f"the log of {node.id} ends with:\n{outcome.log.strip()}", node.id)
    return draft.set_node(replace(node, error=f"{node.error}; the last line of its log is: {lines[-1].strip()}"))
