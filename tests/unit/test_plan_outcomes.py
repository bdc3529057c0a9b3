"""What the planner makes of launches, look-ups and bootstraps that were answered. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pytest
from spotsup_trainer.timing import MAX_PREPARE_S
from spotsup_trainer.wire import AgentStatus, Ended

from provisioners.base import (
    Denied,
    Fatal,
    InstanceState,
    Launched,
    LaunchOutcome,
    Market,
    NoCapacity,
    Quota,
    Scope,
    Throttled,
    Transient,
    Unknown,
)
from supervisor.events import EventKind
from supervisor.market.capacity import CapacityMemory
from supervisor.model import JobRecord, JobState, NodeState
from supervisor.planner.actions import Bootstrap, BootstrapDone, Find, FindDone, Launch, LaunchDone
from supervisor.planner.outcomes import BACKOFF_S, FATAL_MEMORY_S
from supervisor.planner.world import Rules, VolatileState
from tests.unit.scene import (
    NONE_KNOWN,
    NOW,
    OFFER,
    Decided,
    J,
    N,
    decide,
    job,
    launcher,
    listing,
    machine,
    member,
    name,
    node,
    offering,
    scene,
    view,
    world_of,
)

REQUESTED = node(3, N.REQUESTED)
NEW = replace(job(1, J.STARTING), rounds=replace(job(1, J.STARTING).rounds, reported=0))
RULES = Rules(leftovers_s=1e9)


def launched(outcome: LaunchOutcome, **more: Any) -> Decided:
    """Node 3 of a job that trains on 1 and 2 was asked for, and this came of it."""
    record = more.pop("record", job(3))
    asked = more.pop("asked", REQUESTED)
    return scene(member(1), member(2), asked, record=record, outcomes=[LaunchDone(name(3), OFFER, outcome)], **more)


# -- a launch ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reported", "kept"),
    [(NOW - 30, NOW - 30), (0.0, REQUESTED.created_at), (NOW + 7200, NOW), (NOW - 90000, REQUESTED.created_at)],
)
def test_a_launch_time_lies_between_the_intent_and_now(reported: float, kept: float) -> None:
    asked = replace(REQUESTED, launch_unknown=True, error="no answer", retry_at=NOW + 60)
    after = launched(Launched(machine(3, InstanceState.PENDING, launched_at=reported)), asked=asked).node(3)
    assert (after.state, after.instance_id, after.launched_at) == (N.PENDING, "i-3", kept)
    assert (after.launch_unknown, after.error) == (False, "")
    assert after.history[-1].reason == "i-3 in zone-a"


@pytest.mark.parametrize("kind", [NoCapacity, Quota])
def test_a_refusal_ends_the_node_and_is_remembered_for_its_time(kind: type[NoCapacity]) -> None:
    after = launched(kind(Scope.ZONE, 60.0, "zone-a is full"))
    gone = after.node(3)
    assert (gone.state, gone.error, gone.ended_at) == (N.GONE, "zone-a is full", NOW)
    (event,) = [each for each in after.events if each.kind is EventKind.LAUNCH_REFUSED]
    assert (event.node, event.text) == (name(3), f"zone-a did not grant {name(3)}: zone-a is full")
    assert after.volatile.capacity.refusal(OFFER, NOW + 59.9, spare=False)
    assert not after.volatile.capacity.refusal(OFFER, NOW + 60.0, spare=False)
    assert after.new == [], "there is no other offer"


def test_people_are_told_of_a_quota_that_is_used_up_and_of_no_other_refusal() -> None:
    after = launched(Quota(Scope.QUOTA, 60.0, "VcpuLimitExceeded"))
    (event,) = [each for each in after.events if each.kind is EventKind.QUOTA_REFUSED]
    assert event.text == (
        "a quota of local in region-1 is used up: VcpuLimitExceeded. Ask the cloud for more; job asks again by itself"
    )
    assert EventKind.QUOTA_REFUSED not in launched(NoCapacity(Scope.ZONE, 60.0, "full")).event_kinds


def test_a_refusal_of_a_spare_is_remembered_as_such() -> None:
    after = launched(NoCapacity(Scope.ZONE, 60.0, "full"), record=job(2, spare_nodes=1))
    assert after.volatile.capacity.refusal(OFFER, NOW, spare=True)
    assert not after.volatile.capacity.refusal(OFFER, NOW, spare=False)


def test_a_throttled_launch_waits_for_as_long_as_the_cloud_says() -> None:
    after = launched(Throttled(7.0, "slow down"))
    assert (after.state(3), after.node(3).retry_at, after.node(3).error) == (N.REQUESTED, NOW + 7.0, "slow down")
    assert after.does(Launch) == []


@pytest.mark.parametrize(("attempts", "wait_s"), [(0, 1.0), (1, 2.0), (2, 5.0), (3, 10.0), (4, 30.0)])
def test_a_transient_error_is_retried_with_backoff(attempts: int, wait_s: float) -> None:
    after = launched(Transient("try again"), asked=replace(REQUESTED, launch_attempts=attempts))
    assert (after.state(3), after.node(3).retry_at, after.node(3).error) == (N.REQUESTED, NOW + wait_s, "try again")
    assert wait_s in BACKOFF_S


def test_the_backoff_is_bounded() -> None:
    rules = replace(RULES, launch_attempts=100)
    after = launched(Transient("again"), asked=replace(REQUESTED, launch_attempts=50), rules=rules)
    assert after.node(3).retry_at == NOW + BACKOFF_S[-1]


def test_a_transient_error_that_persists_is_a_refusal() -> None:
    after = launched(Transient("again"), asked=replace(REQUESTED, launch_attempts=RULES.launch_attempts))
    assert (after.state(3), after.event_kinds[0]) == (N.GONE, EventKind.LAUNCH_REFUSED)


def test_an_unknown_error_code_is_reported_once() -> None:
    first = launched(Transient("fault", "Strange"))
    (event,) = first.events
    assert (event.kind, event.node, event.data) == (EventKind.UNKNOWN_CODE, name(3), {"code": "Strange"})
    assert launched(Transient("fault", "Strange"), volatile={"unknown_codes": (("local", "Strange"),)}).events == []
    assert launched(Transient("fault", "Strange"), volatile={"unknown_codes": (("aws", "Strange"),)}).events != []
    assert launched(Transient("fault")).events == []


def test_a_launch_without_an_answer_is_looked_up_half_a_second_later_and_not_repeated() -> None:
    after = launched(Unknown("timeout"))
    assert (after.node(3).launch_unknown, after.node(3).retry_at, after.node(3).error) == (True, NOW + 0.5, "timeout")
    assert (after.does(Launch), after.does(Find)) == ([], [])
    later = scene(member(1), member(2), after.node(3), record=job(3), outcomes=[])
    assert later.does(Find) == []
    due = scene(member(1), member(2), replace(after.node(3), retry_at=NOW), record=job(3))
    assert [each.node.id for each in due.does(Find)] == [name(3)]
    assert due.does(Launch) == []


def test_a_fatal_error_ends_a_job_that_never_ran_and_no_other() -> None:
    outcome = LaunchDone(name(3), OFFER, Fatal("no such key pair"))
    alone = scene(REQUESTED, record=NEW, outcomes=[outcome])
    assert (alone.job.state, alone.job.reason) == (JobState.FAILED, "local refuses the request: no such key pair")
    running = launched(Fatal("no such key pair"))
    assert running.job.state is not JobState.FAILED
    once = scene(REQUESTED, node(1, N.GONE, has_joined=True), record=NEW, outcomes=[outcome], members={})
    assert once.job.state is not JobState.FAILED, "it has trained before"
    kept = scene(REQUESTED, record=replace(NEW, rounds=replace(NEW.rounds, reported=7)), outcomes=[outcome])
    assert kept.job.state is not JobState.FAILED, "also where the records of its nodes are deleted"
    asking = scene(REQUESTED, node(4, N.REQUESTED), record=replace(NEW, desired_nodes=2), outcomes=[outcome])
    assert asking.job.state is J.STARTING, "another request is under way"
    assert (alone.state(3), running.state(3)) == (N.GONE, N.GONE)
    here, memory = running.node(3).offer, running.volatile.capacity
    assert memory.refusal(here, NOW + 599, spare=False, job="job")
    assert not memory.refusal(here, NOW + 600, spare=False, job="job"), "for ten minutes"
    assert not memory.refusal(here, NOW, spare=False, job="other"), "another job's image and key may be right"
    for other in (replace(OFFER, zone="zone-b"), replace(OFFER, instance_type="other")):
        assert not memory.refusal(other, NOW, spare=False, job="job")
    assert scene(member(1), record=job(2), volatile={"capacity": memory}).sentence.endswith(
        "the request is refused: no such key pair"
    )


def test_a_request_that_can_never_work_is_remembered_as_long_by_a_job_that_cannot_train() -> None:
    outcome = LaunchDone(name(3), OFFER, Fatal("no such image"))
    first = scene(REQUESTED, record=NEW, outcomes=[outcome], volatile=offering(OFFER, replace(OFFER, zone="zone-b")))
    (refusal,) = first.volatile.capacity.refusals
    assert refusal.until == NOW + FATAL_MEMORY_S, "as it may have many offers, each of which it asks once"


def test_a_job_fails_only_once_each_of_its_offers_was_refused_for_good() -> None:
    outcome, elsewhere = LaunchDone(name(3), OFFER, Fatal("no such image")), replace(OFFER, zone="zone-b")
    record = NEW
    first = scene(REQUESTED, record=record, outcomes=[outcome], volatile=offering(OFFER, elsewhere))
    assert (first.job.state, [each.offer for each in first.new]) == (J.STARTING, [elsewhere])
    memory = {"capacity": first.volatile.capacity} | offering(OFFER, elsewhere)
    again = replace(REQUESTED, offer=elsewhere)
    done = LaunchDone(name(3), elsewhere, Fatal("no such image"))
    assert scene(again, record=record, outcomes=[done], volatile=memory).job.state is J.FAILED
    assert scene(REQUESTED, record=record, outcomes=[outcome], volatile=NONE_KNOWN).job.state is J.STARTING


def test_without_valid_credentials_a_request_waits_and_is_repeated() -> None:
    expired = Denied(Scope.GLOBAL, 60.0, "the token has expired")
    outcome = LaunchDone(name(3), OFFER, expired)
    after = scene(REQUESTED, record=job(1, J.STARTING), outcomes=[outcome])
    assert (after.job.state, after.state(3), after.node(3).retry_at) == (J.STARTING, N.REQUESTED, NOW + 60)
    assert (after.volatile.capacity.refusals, after.new, after.does(Launch)) == ((), [], [])
    assert "1 node requested (the token has expired)" in after.sentence
    due = scene(replace(after.node(3), retry_at=NOW), record=after.job)
    assert [each.node.token for each in due.does(Launch)] == [name(3)]


def test_a_missing_permission_ends_no_job_and_other_places_are_asked() -> None:
    elsewhere = replace(OFFER, zone="zone-b")
    outcome = LaunchDone(name(3), OFFER, Denied(Scope.TYPE_IN_ZONE, 600.0, "give the role what it lacks"))
    after = scene(REQUESTED, record=job(1, J.STARTING), outcomes=[outcome], volatile=offering(OFFER, elsewhere))
    assert (after.job.state, after.state(3)) == (J.STARTING, N.GONE)
    assert [each.offer for each in after.new] == [elsewhere]
    assert after.volatile.denials == {}


def test_people_hear_once_that_a_cloud_denies_everything_and_once_that_it_does_not_any_more() -> None:
    expired = LaunchDone(name(3), OFFER, Denied(Scope.GLOBAL, 60.0, "the token has expired"))
    first = scene(member(1), REQUESTED, outcomes=[expired])
    assert (first.event_kinds, first.plan.warnings) == ([], ()), "not at once: it may be over in a moment"
    still = decide(
        world_of(view(job(2), [member(1), first.node(3)]), volatile={"denials": first.volatile.denials}), now=NOW + 60
    )
    (event,) = [each for each in still.events if each.kind is EventKind.ACCESS_DENIED]
    assert (event.job, event.id) == ("", "access-denied-local-100060")
    assert event.text == (
        "local denies spotsup's requests: the token has expired. Until that is fixed what trains goes on, and no "
        "machine is launched, replaced or ended; then all goes on by itself"
    )
    assert still.plan.warnings == (event.text,)
    told = {"reminders": still.volatile.reminders}
    later = world_of(view(job(2), [member(1)]), volatile={"denials": still.volatile.denials, **told})
    assert decide(later, now=NOW + 99).event_kinds.count(EventKind.ACCESS_DENIED) == 0
    over = VolatileState(denials=still.volatile.denials)
    assert over.without_denial("local", NOW + 119).denials == over.denials, "a launch was denied after that listing"
    assert over.without_denial("other").denials == over.denials
    for works in (over.without_denial("local", NOW + 120), over.without_denial("local")):
        after = decide(world_of(view(job(2), [member(1), member(2)]), volatile={"denials": works.denials, **told}))
        assert [each.text for each in after.events] == ["local accepts spotsup's requests again"]
        assert after.volatile.denials == {}
    brief = VolatileState(denials=first.volatile.denials).without_denial("local")
    assert decide(world_of(view(job(2), [member(1), member(2)]), volatile={"denials": brief.denials})).events == []


def test_a_fatal_error_of_a_spares_request_holds_back_only_spares() -> None:
    after = launched(Fatal("no such key pair"), record=job(2, spare_nodes=1))
    assert not after.volatile.capacity.refusal(OFFER, NOW, spare=False, job="job")
    assert after.volatile.capacity.refusal(OFFER, NOW, spare=True, job="job")


# -- a look-up ---------------------------------------------------------------------------------------------


def found(outcome: FindDone) -> Decided:
    asked = replace(REQUESTED, launch_unknown=True, error="timeout", retry_at=NOW + 60)
    return scene(member(1), member(2), asked, record=job(3), outcomes=[outcome])


def test_a_machine_that_is_found_is_the_nodes() -> None:
    after = found(FindDone(name(3), machine(3, InstanceState.PENDING)))
    assert (after.state(3), after.node(3).instance_id) == (N.PENDING, "i-3")


def test_a_failed_lookup_is_repeated_later_and_an_empty_one_launches_again_at_once() -> None:
    failed = found(FindDone(name(3), None, "away")).node(3)
    assert (failed.launch_unknown, failed.retry_at, failed.error) == (True, NOW + 2.0, "away")
    nothing = found(FindDone(name(3), None))
    assert (nothing.node(3).launch_unknown, nothing.node(3).launch_attempts) == (False, 2)
    assert [each.node.token for each in nothing.does(Launch)] == [name(3)], "under the same token"


# -- bootstrap ---------------------------------------------------------------------------------------------

SETUP_FAILED = "environment, 1: `setup` ended with status 1: no"
PREPARED = node(3, N.BOOTSTRAPPING)


def bootstrapped(*, record: Any = None, asked: Any = PREPARED, **outcome: Any) -> Decided:
    done = BootstrapDone(name(3), **outcome)
    return scene(member(1), member(2), asked, record=record or job(3), outcomes=[done])


def test_a_bootstrapped_node_has_a_deadline_to_reach_the_rendezvous() -> None:
    after = bootstrapped(asked=replace(PREPARED, error="unreachable")).node(3)
    assert (after.state, after.bootstrapped, after.error) == (N.BOOTSTRAPPING, True, "")
    assert after.ready_by == NOW + RULES.ready_timeout_s


@pytest.mark.parametrize(("age_s", "state"), [(899.0, N.BOOTSTRAPPING), (900.0, N.TERMINATING)])
def test_an_unreachable_machine_is_retried_until_its_time_is_up(age_s: float, state: NodeState) -> None:
    after = bootstrapped(error="no route", unreachable=True, asked=replace(PREPARED, state_since=NOW - age_s))
    assert after.state(3) is state
    assert after.node(3).error == "no route"
    if state is N.BOOTSTRAPPING:
        assert after.node(3).retry_at == NOW + 5.0
        assert after.does(Bootstrap) == []


@pytest.mark.parametrize(
    ("listing_s", "listed_s_ago", "counted"),
    [(5.0, 20.0, 1), (5.0, 20.1, 0), (15.0, 30.0, 1), (15.0, 30.1, 0)],  # two listings, and not less than suspect_s
)
def test_a_machine_that_does_not_answer_while_its_cloud_cannot_be_listed_may_be_gone(
    listing_s: float, listed_s_ago: float, counted: int
) -> None:
    more: dict[str, Any] = {"record": job(3), "rules": replace(RULES, listing_s=listing_s)}
    asked = replace(PREPARED, state_since=NOW - 900.0)
    known = listing(*(machine(number) for number in (1, 2, 3)), listed_at=NOW - listed_s_ago)
    broken = BootstrapDone(name(3), "no route", unreachable=True)
    after = scene(member(1), member(2), asked, outcomes=[broken], listed=known, **more)
    assert (after.state(3), after.job.bootstraps.failures) == (N.TERMINATING, counted)
    late = replace(asked, bootstrapped=True, ready_by=NOW - 0.1)
    after = scene(member(1), member(2), late, listed=known, **more)
    assert (after.state(3), after.job.bootstraps.failures) == (N.TERMINATING, counted)
    answers = BootstrapDone(name(3), "setup failed")
    assert scene(member(1), member(2), asked, outcomes=[answers], listed=known, **more).job.bootstraps.failures == 1


def test_a_failed_bootstrap_counts_unless_the_job_is_complete() -> None:
    missing = bootstrapped(error="step x failed\nmore")
    assert (missing.job.bootstraps.failures, missing.job.bootstraps.spare_retry_at) == (1, 0.0)
    (event,) = [each for each in missing.events if each.kind is EventKind.NODE_FAILED]
    assert (event.node, event.text) == (name(3), f"bootstrap of {name(3)} failed: step x failed\nmore")
    assert missing.node(3).history[-2].reason == "step x failed"
    assert missing.node(3).error == "step x failed\nmore"
    spare = bootstrapped(error="step x failed", record=job(2, spare_nodes=1))
    assert (spare.job.bootstraps.failures, spare.job.bootstraps.spare_retry_at) == (
        0,
        NOW + RULES.bootstraps.spare_retry_s,
    )
    unhealthy = bootstrapped(error="ECC errors", unhealthy=True)
    assert (unhealthy.job.bootstraps.failures, unhealthy.job.bootstraps.spare_retry_at) == (0, 0.0), (
        "that is its machine's fault"
    )


@pytest.mark.parametrize(
    ("before", "of_job", "counted", "state"),
    [
        ("", SETUP_FAILED, 1, J.STARTING),
        (SETUP_FAILED, SETUP_FAILED, 2, J.FAILED),
        (SETUP_FAILED, "environment, 7: no such package", 1, J.STARTING),
        (SETUP_FAILED, "", 0, J.STARTING),
    ],
)
def test_a_second_node_that_fails_alike_by_what_the_job_brings_ends_a_job_that_never_trained(
    before: str, of_job: str, counted: int, state: JobState
) -> None:
    count = int(bool(before))
    record = replace(
        job(2, J.STARTING),
        rounds=replace(job(2, J.STARTING).rounds, reported=0),
        bootstraps=replace(job(2, J.STARTING).bootstraps, failures=count),
    )
    record = replace(record, bootstraps=replace(record.bootstraps, own_failures=count, own_failure=before))
    failed = BootstrapDone(name(3), "node n3: torch 2.5 is not supported", of_job=of_job)
    after = scene(PREPARED, outcomes=[failed], record=record)
    assert (after.job.bootstraps.own_failures, after.job.state) == (counted, state)
    if state is J.FAILED:
        assert after.job.reason == (
            "2 nodes in a row could not be bootstrapped, the last 2 in the same way, by what the job or its image "
            "brings: node n3: torch 2.5 is not supported"
        )
    trained = scene(PREPARED, outcomes=[failed], record=replace(record, rounds=replace(record.rounds, reported=1)))
    assert trained.job.state is not J.FAILED
    late = replace(record, bootstraps=replace(record.bootstraps, retry_at=PREPARED.created_at + 0.1))
    together = scene(PREPARED, outcomes=[failed], record=late)
    assert together.job.bootstraps.own_failures == count, "nodes that were requested together fail as one"


def test_after_a_failure_by_what_the_job_brings_one_machine_is_tried_and_no_set_of_them() -> None:
    record = replace(
        job(4, J.STARTING),
        rounds=replace(job(4, J.STARTING).rounds, reported=0),
        bootstraps=replace(job(4, J.STARTING).bootstraps, failures=1, retry_at=NOW),
    )
    assert len(scene(record=record).new) == 4
    assert (
        len(
            scene(
                record=replace(record, bootstraps=replace(record.bootstraps, own_failures=1, own_failure=SETUP_FAILED))
            ).new
        )
        == 1
    )
    trained = replace(
        record,
        bootstraps=replace(record.bootstraps, own_failures=1, own_failure=SETUP_FAILED),
        rounds=replace(record.rounds, reported=1),
    )
    assert len(scene(record=trained).new) == 4


@pytest.mark.parametrize(("before", "wait_s"), [(0, 5.0), (1, 10.0), (6, 320.0), (7, 600.0), (5000, 600.0)])
def test_after_each_failed_bootstrap_in_a_row_the_next_node_is_requested_later(before: int, wait_s: float) -> None:
    after = bootstrapped(error="the package index is away", record=job(4, bootstraps={"failures": before}))
    assert (after.job.bootstraps.failures, after.job.bootstraps.retry_at) == (before + 1, NOW + wait_s)
    assert after.new == []
    waiting = replace(after.job, bootstraps=replace(after.job.bootstraps, retry_at=NOW + 0.1))
    assert scene(member(1), member(2), record=waiting).new == []
    assert len(
        scene(member(1), member(2), record=replace(waiting, bootstraps=replace(waiting.bootstraps, retry_at=NOW))).new
    ) == (1 if before else 2)
    probing = scene(
        member(1),
        PREPARED,
        record=replace(waiting, bootstraps=replace(waiting.bootstraps, retry_at=NOW)),
        busy=frozenset({"node:job-u-3"}),
    )
    assert len(probing.new) == (0 if before else 2), "one at a time"


def test_nodes_that_were_requested_together_fail_as_one() -> None:
    record = job(5, bootstraps={"failures": 1, "retry_at": PREPARED.created_at + 0.1})
    after = bootstrapped(error="the package index is away", record=record)
    assert (after.job.bootstraps.failures, after.job.bootstraps.retry_at) == (1, record.bootstraps.retry_at)
    next_one = bootstrapped(
        error="it is away still",
        record=replace(record, bootstraps=replace(record.bootstraps, retry_at=PREPARED.created_at)),
    )
    assert next_one.job.bootstraps.failures == 2, "it was requested as soon as it might be"


def test_people_hear_once_that_a_job_that_trains_gets_no_nodes_and_once_that_it_does_again() -> None:
    fifth = bootstrapped(error="the package index is away\nmore", record=job(3, bootstraps={"failures": 4}))
    (event,) = [each for each in fifth.events if each.kind is EventKind.BOOTSTRAPS_FAILING]
    assert event.text == (
        "job lacks nodes: 5 in a row could not be bootstrapped, the last one by: the package index is away. It goes on "
        "with those it has, and tries again at least every 10 min; each try is paid for. `spotsupctl events job --raw` "
        "has each error"
    )
    for before in (3, 5):
        assert (
            EventKind.BOOTSTRAPS_FAILING
            not in bootstrapped(error="x", record=job(3, bootstraps={"failures": before})).event_kinds
        )
    for before, kinds in ((4, []), (5, [EventKind.BOOTSTRAPS_RECOVERED])):
        members = {name(n): launcher(n) for n in (1, 2, 3)}
        after = scene(member(1), member(2), PREPARED, record=job(3, bootstraps={"failures": before}), members=members)
        assert after.event_kinds == kinds


def test_a_new_job_keeps_its_budget_while_one_that_has_trained_fails_too() -> None:
    new = replace(
        job(1, J.STARTING, bootstraps={"failures": 4}),
        rounds=replace(job(1, J.STARTING, bootstraps={"failures": 4}).rounds, reported=0),
    )
    other = replace(job(2, bootstraps={"failures": 1}), name="other")

    def decided(record: JobRecord, ours: JobRecord = new) -> Decided:
        views = (view(ours, [PREPARED]), view(record, []))
        return decide(world_of(*views), BootstrapDone(name(3), error="the package index is away"))

    held = decided(other).job
    assert (held.state, held.bootstraps.failures, held.bootstraps.retry_at) == (J.STARTING, 4, NOW + 40)
    assert decided(other, replace(new, bootstraps=replace(new.bootstraps, failures=0))).job.bootstraps.failures == 1
    trained = decided(other, replace(new, rounds=replace(new.rounds, reported=1)))
    assert (trained.job.bootstraps.failures, EventKind.BOOTSTRAPS_FAILING in trained.event_kinds) == (5, True)
    for not_failing in (
        replace(other, bootstraps=replace(other.bootstraps, failures=0)),
        replace(other, rounds=replace(other.rounds, reported=0)),
        replace(other, pause=replace(other.pause, at=NOW)),
        replace(other, state=J.SUCCEEDED),
    ):
        failed = decided(not_failing)
        assert failed.job.state is J.FAILED
        assert EventKind.BOOTSTRAPS_FAILING not in failed.event_kinds


def test_the_console_of_a_failed_machine_is_read_before_it_is_terminated() -> None:
    after = bootstrapped(error="broken")
    (end,) = after.does(type(after.does(object)[0]))
    assert (end.instance_id, end.node, end.read_console) == ("i-3", name(3), True)
    assert after.node(3).retry_at == NOW + RULES.terminate_retry_s


def test_unhealthy_machines_in_a_row_block_their_type_in_all_zones_for_an_hour() -> None:
    elsewhere = replace(OFFER, zone="zone-b")
    larger, on_demand = replace(OFFER, instance_type="large"), replace(OFFER, market=Market.ON_DEMAND)
    offers = offering(elsewhere, OFFER, on_demand, larger)

    def unhealthy(before: int, known: dict[str, Any] = offers) -> Decided:
        done = BootstrapDone(name(3), error="ECC errors\nmore", unhealthy=True)
        volatile = {"capacity": CapacityMemory((), {("local", "small", "bob"): before} if before else {})} | known
        return scene(member(1), member(2), PREPARED, record=job(2, spare_nodes=1), outcomes=[done], volatile=volatile)

    assert dict(unhealthy(0).volatile.capacity.unhealthy_streaks) == {("local", "small", ""): 1}
    assert unhealthy(1).volatile.capacity.refusals == ()
    third = unhealthy(2)
    assert dict(third.volatile.capacity.unhealthy_streaks) == {}, "the count starts again"
    for offer, closed in ((OFFER, True), (elsewhere, True), (on_demand, True), (larger, False)):
        assert bool(third.volatile.capacity.refusal(offer, NOW + 3599, spare=False)) is closed
        assert not third.volatile.capacity.refusal(offer, NOW + 3600, spare=False)
    assert len(third.volatile.capacity.refusals) == 3, "one for each zone and market"
    unlisted = unhealthy(2, NONE_KNOWN).volatile.capacity
    assert unlisted.refusal(OFFER, NOW + 3599, spare=False), "also where the cloud's offers are not known"
    (event,) = [each for each in third.events if each.kind is EventKind.MACHINE_TYPE_BLOCKED]
    assert event.node == name(3)
    assert "local machine type small is blocked for 60 min: 3 machines in a row" in event.text
    assert event.text.endswith("The last error: ECC errors")


def test_a_machine_that_failed_by_the_jobs_fault_is_not_unhealthy() -> None:
    assert dict(bootstrapped(error="setup failed").volatile.capacity.unhealthy_streaks) == {}


def test_a_machine_that_works_resets_the_counts_of_unhealthy_and_failed_ones() -> None:
    volatile = {"capacity": CapacityMemory((), {("local", "small", ""): 2, ("local", "large", "ann"): 1})}
    after = scene(
        member(1),
        member(2),
        replace(PREPARED, bootstrapped=True),
        record=job(3, bootstraps={"failures": 4, "retry_at": NOW + 40}),
        members={name(n): launcher(n) for n in (1, 2, 3)},
        volatile=volatile,
    )
    assert (after.state(3), after.node(3).bootstrapped) == (N.READY, True)
    assert (after.job.bootstraps.failures, after.job.bootstraps.retry_at) == (0, 0.0)
    assert dict(after.volatile.capacity.unhealthy_streaks) == {("local", "large", "ann"): 1}


def test_a_launcher_that_never_comes_fails_the_node() -> None:
    ready_by = replace(PREPARED, bootstrapped=True, ready_by=NOW)
    assert scene(member(1), member(2), ready_by, record=job(3)).state(3) is N.BOOTSTRAPPING
    late = scene(member(1), member(2), replace(ready_by, ready_by=NOW - 0.1), record=job(3))
    assert late.state(3) is N.TERMINATING
    assert "did not reach the rendezvous within 180 s" in late.node(3).error
    busy = scene(member(1), member(2), replace(PREPARED, retry_at=NOW - 1), record=job(3), busy=frozenset())
    assert busy.state(3) is N.BOOTSTRAPPING, "its bootstrap is repeated"


def test_a_launcher_that_prepares_has_more_time_and_not_without_end() -> None:
    status = AgentStatus(name(3), "boot", 1, 0.0, "1", preparing="importing transformers")
    for late_s, state in ((0.1, N.BOOTSTRAPPING), (MAX_PREPARE_S, N.BOOTSTRAPPING), (MAX_PREPARE_S + 1, N.TERMINATING)):
        waited = replace(PREPARED, bootstrapped=True, ready_by=NOW - late_s)
        after = scene(member(1), member(2), waited, record=job(3), agents={name(3): status})
        assert after.state(3) is state
    assert scene(member(1), member(2), waited, record=job(3), members={name(3): launcher(3)}).state(3) is N.READY


@pytest.mark.parametrize(("outcome", "state"), [("failure", N.TERMINATING), ("left", N.BOOTSTRAPPING)])
def test_a_launcher_that_fails_before_it_is_ready_fails_the_node(
    outcome: Literal["failure", "left"], state: NodeState
) -> None:
    ended = {name(3): Ended(name(3), outcome, 3, "no module torch", NOW)}
    bootstrap = replace(PREPARED, bootstrapped=True, ready_by=NOW + 9)
    after = scene(member(1), member(2), bootstrap, record=job(3), exits=ended)
    assert after.state(3) is state
    if outcome == "failure":
        assert after.node(3).error == "its launcher ended with status 3: no module torch"
        assert after.job.bootstraps.failures == 1


def test_a_foreign_machine_at_a_nodes_address_is_reported() -> None:
    after = bootstrapped(error="it is not the one that was launched", foreign=True)
    (event,) = [each for each in after.events if each.kind is EventKind.FOREIGN_HOST]
    assert (event.node, "is not bootstrapped" in event.text) == (name(3), True)
    assert EventKind.FOREIGN_HOST not in bootstrapped(error="broken").event_kinds
