"""What provisioners/base.py promises, held against every provider."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from provisioners.base import (
    EndCause,
    Fatal,
    InstanceState,
    Launched,
    LaunchOutcome,
    Market,
    NoCapacity,
    Offer,
    OfferQuery,
    Provisioner,
    ProvisionerError,
    Quota,
    Throttled,
    Transient,
    Unknown,
    UnreachableError,
)
from tests.contract.harness import Harness
from tests.support.machines import (
    OWNER,
    TIMEOUT_S,
    launch,
    launch_running,
    login,
    request_for,
    run,
    wait_for,
    wait_state,
)


def listed(provisioner: Provisioner) -> dict[str, InstanceState]:
    """Node and state of all machines that the cluster's listing shows."""
    return {each.node: each.state for each in provisioner.instances(OWNER, TIMEOUT_S)}


def offered(provisioner: Provisioner, query: OfferQuery) -> Sequence[Offer] | str:
    """The offers, or why there are none."""
    try:
        return provisioner.offers(query, TIMEOUT_S)
    except ProvisionerError as error:
        return str(error)


def test_offers_are_sorted_by_price_and_fit_the_query(harness: Harness) -> None:
    offers = harness.provisioner.offers(OfferQuery(zones=(harness.zone,)), TIMEOUT_S)
    prices = [offer.usd_per_hour or 0.0 for offer in offers]
    assert offers
    assert prices == sorted(prices)
    assert {offer.zone for offer in offers} == {harness.zone}
    assert {offer.market for offer in offers} == {Market.SPOT}
    assert {offer.cloud for offer in offers} == {harness.provisioner.name}


@pytest.mark.parametrize("query", [OfferQuery(instance_types=("no-such-type",)), OfferQuery(gpu="no-such-gpu")])
def test_what_nobody_rents_is_not_offered(harness: Harness, query: OfferQuery) -> None:
    found = offered(harness.provisioner, query)
    assert "no-such" in found if isinstance(found, str) else not found


def test_a_launched_machine_carries_its_tags_and_takes_a_login_under_its_pinned_key(login_harness: Harness) -> None:
    before = time.time()
    launched = launch(login_harness.provisioner, "n1")
    assert (launched.node, launched.owner, launched.token) == ("n1", OWNER, "token-n1")
    assert before - 1 <= launched.launched_at <= time.time() + 1
    instance = wait_state(login_harness.provisioner, launched.token, InstanceState.RUNNING)
    assert instance.id == launched.id
    assert instance.ssh_host
    assert instance.private_address
    with login(instance) as connection:
        assert run(connection, "echo $((6 * 7))") == "42\n"


def test_the_same_token_means_the_same_machine(harness: Harness) -> None:
    request = request_for(harness.provisioner, "n1")
    first, second = (harness.provisioner.launch(request, TIMEOUT_S) for _ in range(2))
    assert isinstance(first, Launched)
    assert isinstance(second, Launched)
    assert first.instance.id == second.instance.id
    assert len(harness.provisioner.instances(OWNER, TIMEOUT_S)) == 1


def test_the_same_token_at_the_same_time_means_the_same_machine(harness: Harness) -> None:
    request = request_for(harness.provisioner, "n1")
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(lambda _: harness.provisioner.launch(request, TIMEOUT_S), range(8)))
    assert len({each.instance.id for each in outcomes if isinstance(each, Launched)}) == 1
    assert len(harness.provisioner.instances(OWNER, TIMEOUT_S)) == 1


def test_the_same_token_means_the_same_machine_also_after_its_end(harness: Harness) -> None:
    launched = launch(harness.provisioner, "n1")
    harness.provisioner.terminate(launched.id, TIMEOUT_S)
    wait_state(harness.provisioner, launched.token, InstanceState.TERMINATED)
    again = harness.provisioner.launch(request_for(harness.provisioner, "n1"), TIMEOUT_S)
    assert isinstance(again, Launched)
    assert (again.instance.id, again.instance.state) == (launched.id, InstanceState.TERMINATED)


def test_a_token_that_was_used_for_another_request_is_refused(harness: Harness) -> None:
    launch(harness.provisioner, "n1")
    other = replace(request_for(harness.provisioner, "n1"), node="n2")
    assert isinstance(harness.provisioner.launch(other, TIMEOUT_S), Fatal)
    assert set(listed(harness.provisioner)) == {"n1"}


def test_many_machines_at_once(harness: Harness) -> None:
    names = [f"n{number}" for number in range(8)]
    requests = [request_for(harness.provisioner, name) for name in names]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda request: harness.provisioner.launch(request, TIMEOUT_S), requests))
    machines = [wait_state(harness.provisioner, each.token, InstanceState.RUNNING) for each in requests]
    assert len({each.id for each in machines}) == len(names)
    assert len({(each.ssh_host, each.ssh_port) for each in machines}) == len(names)
    assert len({each.private_address for each in machines}) == len(names)


def test_what_makes_no_sense_is_fatal(harness: Harness) -> None:
    request = request_for(harness.provisioner, "n1")
    nowhere = replace(request, offer=replace(request.offer, zone="no-such-zone"))
    with_unknown_code = replace(request, offer=replace(request.offer, instance_type="no-such-type"))
    for senseless in (nowhere, with_unknown_code):
        outcome = harness.provisioner.launch(senseless, TIMEOUT_S)
        assert isinstance(outcome, Fatal)
        assert "no-such" in outcome.message
    assert not listed(harness.provisioner)


def test_no_capacity_is_an_outcome_that_says_how_far_it_reaches(harness: Harness) -> None:
    harness.exhaust(harness.zone)
    outcome = harness.provisioner.launch(request_for(harness.provisioner, "n1", zone=harness.zone), TIMEOUT_S)
    assert isinstance(outcome, NoCapacity)
    assert outcome.memory_s > 0
    assert harness.zone in outcome.message
    assert set(listed(harness.provisioner).values()) <= {InstanceState.TERMINATED}


@pytest.mark.parametrize(
    ("fault", "kind"),
    [("throttled", Throttled), ("transient", Transient), ("fatal", Fatal), ("quota", Quota)],
)
def test_a_refused_launch_launches_nothing_and_holds_once(
    harness: Harness, fault: str, kind: type[LaunchOutcome]
) -> None:
    harness.fail_next_launch(fault)
    request = request_for(harness.provisioner, "n1")
    assert isinstance(harness.provisioner.launch(request, TIMEOUT_S), kind)
    assert harness.provisioner.find(OWNER, request.token, TIMEOUT_S) is None
    assert isinstance(harness.provisioner.launch(request, TIMEOUT_S), Launched)


def test_a_lost_answer_is_unknown_and_the_machine_is_found_by_its_token(harness: Harness) -> None:
    harness.fail_next_launch("drop-reply")
    request = request_for(harness.provisioner, "n1")
    assert isinstance(harness.provisioner.launch(request, TIMEOUT_S), Unknown)
    found = harness.provisioner.find(OWNER, request.token, TIMEOUT_S)
    assert found is not None
    again = harness.provisioner.launch(request, TIMEOUT_S)
    assert isinstance(again, Launched)
    assert again.instance.id == found.id
    assert len(listed(harness.provisioner)) == 1


def test_no_answer_in_time_is_unknown(harness: Harness) -> None:
    harness.fail_next_launch("hang")
    request = request_for(harness.provisioner, "n1")
    began = time.monotonic()
    assert isinstance(harness.provisioner.launch(request, 0.5), Unknown)
    assert time.monotonic() - began < 15.0  # 0.5 s, and what a busy machine adds
    assert harness.provisioner.find(OWNER, request.token, TIMEOUT_S) is None


def test_a_lagging_listing_shows_the_past(harness: Harness) -> None:
    old = launch_running(harness.provisioner, "old")
    harness.lag(3600.0)
    launch(harness.provisioner, "new")
    assert not listed(harness.provisioner)
    harness.lag(0.0)
    wait_state(harness.provisioner, "token-new", InstanceState.RUNNING)
    harness.lag(0.5)
    wait_for(lambda: set(listed(harness.provisioner)) == {"old", "new"}, "the listing has caught up")
    began = time.monotonic()
    harness.provisioner.terminate(old.id, TIMEOUT_S)
    seen = listed(harness.provisioner)["old"]
    assert seen is InstanceState.RUNNING or time.monotonic() - began > 0.5
    wait_for(lambda: listed(harness.provisioner)["old"] is InstanceState.TERMINATED, "the end is listed")


def test_terminate_is_idempotent_and_says_who_ended_it(harness: Harness) -> None:
    instance = launch_running(harness.provisioner, "n1")
    for _ in range(2):
        harness.provisioner.terminate(instance.id, TIMEOUT_S)
    ended = wait_state(harness.provisioner, instance.token, InstanceState.TERMINATED)
    assert ended.end_cause is EndCause.USER
    harness.provisioner.terminate(instance.id, TIMEOUT_S)
    harness.provisioner.terminate("no-such-machine", TIMEOUT_S)
    assert listed(harness.provisioner) == {"n1": InstanceState.TERMINATED}


def test_a_machine_can_be_terminated_before_it_runs(harness: Harness) -> None:
    launched = launch(harness.provisioner, "n1")
    harness.provisioner.terminate(launched.id, TIMEOUT_S)
    ended = wait_state(harness.provisioner, launched.token, InstanceState.TERMINATED)
    assert ended.end_cause is EndCause.USER


def test_a_preemption_is_announced_and_then_evidence(harness: Harness) -> None:
    instance = launch_running(harness.provisioner, "n1")
    deadline = time.time() + 0.5
    harness.preempt(instance.id, 0.5)
    ended = wait_state(harness.provisioner, instance.token, InstanceState.TERMINATED)
    assert time.time() >= deadline
    assert ended.end_cause is EndCause.PREEMPTED


def test_an_announced_preemption_shows_its_deadline(harness: Harness) -> None:
    instance = launch_running(harness.provisioner, "n1")
    before = time.time()
    deadline = harness.preempt(instance.id, 600.0)
    found = harness.provisioner.find(OWNER, instance.token, TIMEOUT_S)
    assert found is not None
    assert found.state is InstanceState.RUNNING
    assert found.end_cause is None
    assert found.preempt_at == pytest.approx(deadline, abs=1.0)
    assert deadline > before + 25


def test_a_silent_loss_is_not_told_as_a_preemption(harness: Harness) -> None:
    instance = launch_running(harness.provisioner, "n1")
    harness.vanish(instance.id)
    # Azure's machines cannot end themselves, but stop paying for all but their disk.
    ended = wait_state(harness.provisioner, instance.token, InstanceState.TERMINATED, InstanceState.STOPPED)
    assert ended.end_cause in {EndCause.FAILED, EndCause.UNKNOWN}
    assert ended.preempt_at is None


def test_a_cloud_that_cannot_be_reached_says_nothing_about_machines(harness: Harness) -> None:
    request = request_for(harness.provisioner, "n1")
    harness.cut_off()
    # Of a machine that there is once, it means that this one cannot be had.
    no = NoCapacity if request.offer.room == 1 else Transient
    assert isinstance(harness.provisioner.launch(request, TIMEOUT_S), no)
    for ask in (
        lambda: harness.provisioner.offers(OfferQuery(), TIMEOUT_S),
        lambda: harness.provisioner.find(OWNER, "token", TIMEOUT_S),
        lambda: harness.provisioner.instances(OWNER, TIMEOUT_S),
        lambda: harness.provisioner.terminate("machine", TIMEOUT_S),
    ):
        with pytest.raises(UnreachableError):
            ask()


def test_a_fresh_cluster_has_left_nothing_over(harness: Harness) -> None:
    instance = launch_running(harness.provisioner, "n1")
    assert not harness.provisioner.leftovers(OWNER, TIMEOUT_S)
    harness.provisioner.terminate(instance.id, TIMEOUT_S)
    wait_state(harness.provisioner, instance.token, InstanceState.TERMINATED)
    assert not harness.provisioner.leftovers(OWNER, TIMEOUT_S)


def test_a_console_tells_of_its_machine_alone(harness: Harness) -> None:
    instance = launch_running(harness.provisioner, "n1")
    assert wait_for(lambda: harness.provisioner.console(instance.id, TIMEOUT_S), "the console")
    assert harness.provisioner.console("no-such-machine", TIMEOUT_S) == ""


def test_a_check_finds_whether_the_cloud_can_be_reached(harness: Harness) -> None:
    assert harness.provisioner.check(TIMEOUT_S)[0].ok
    harness.cut_off()
    found = harness.provisioner.check(TIMEOUT_S)
    assert not found[0].ok
    assert found[0].message
