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
from tests.contract.bed import Bed
from tests.support.machines import (
    CLUSTER,
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
    return {each.node: each.state for each in provisioner.instances(CLUSTER, TIMEOUT_S)}


def offered(provisioner: Provisioner, query: OfferQuery) -> Sequence[Offer] | str:
    """The offers, or why there are none."""
    try:
        return provisioner.offers(query, TIMEOUT_S)
    except ProvisionerError as error:
        return str(error)


def test_offers_are_sorted_by_price_and_fit_the_query(bed: Bed) -> None:
    offers = bed.provisioner.offers(OfferQuery(zones=(bed.zone,)), TIMEOUT_S)
    prices = [offer.usd_per_hour or 0.0 for offer in offers]
    assert offers
    assert prices == sorted(prices)
    assert {offer.zone for offer in offers} == {bed.zone}
    assert {offer.market for offer in offers} == {Market.SPOT}
    assert {offer.cloud for offer in offers} == {bed.provisioner.name}


@pytest.mark.parametrize("query", [OfferQuery(instance_types=("no-such-type",)), OfferQuery(gpu="no-such-gpu")])
def test_what_nobody_rents_is_not_offered(bed: Bed, query: OfferQuery) -> None:
    found = offered(bed.provisioner, query)
    assert "no-such" in found if isinstance(found, str) else not found


def test_a_launched_machine_carries_its_tags_and_takes_a_login_under_its_pinned_key(bed: Bed) -> None:
    before = time.time()
    launched = launch(bed.provisioner, "n1")
    assert (launched.node, launched.cluster, launched.token) == ("n1", CLUSTER, "token-n1")
    assert before - 1 <= launched.launched_at <= time.time() + 1
    instance = wait_state(bed.provisioner, launched.token, InstanceState.RUNNING)
    assert instance.id == launched.id
    assert instance.ssh_host
    assert instance.private_address
    with login(instance) as connection:
        assert run(connection, "echo $((6 * 7))") == "42\n"


def test_the_same_token_means_the_same_machine(bed: Bed) -> None:
    request = request_for(bed.provisioner, "n1")
    first, second = (bed.provisioner.launch(request, TIMEOUT_S) for _ in range(2))
    assert isinstance(first, Launched)
    assert isinstance(second, Launched)
    assert first.instance.id == second.instance.id
    assert len(bed.provisioner.instances(CLUSTER, TIMEOUT_S)) == 1


def test_the_same_token_at_the_same_time_means_the_same_machine(bed: Bed) -> None:
    request = request_for(bed.provisioner, "n1")
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(lambda _: bed.provisioner.launch(request, TIMEOUT_S), range(8)))
    assert len({each.instance.id for each in outcomes if isinstance(each, Launched)}) == 1
    assert len(bed.provisioner.instances(CLUSTER, TIMEOUT_S)) == 1


def test_the_same_token_means_the_same_machine_also_after_its_end(bed: Bed) -> None:
    launched = launch(bed.provisioner, "n1")
    bed.provisioner.terminate(launched.id, TIMEOUT_S)
    wait_state(bed.provisioner, launched.token, InstanceState.TERMINATED)
    again = bed.provisioner.launch(request_for(bed.provisioner, "n1"), TIMEOUT_S)
    assert isinstance(again, Launched)
    assert (again.instance.id, again.instance.state) == (launched.id, InstanceState.TERMINATED)


def test_a_token_that_was_used_for_another_request_is_refused(bed: Bed) -> None:
    launch(bed.provisioner, "n1")
    other = replace(request_for(bed.provisioner, "n1"), node="n2")
    assert isinstance(bed.provisioner.launch(other, TIMEOUT_S), Fatal)
    assert set(listed(bed.provisioner)) == {"n1"}


def test_many_machines_at_once(bed: Bed) -> None:
    names = [f"n{number}" for number in range(8)]
    requests = [request_for(bed.provisioner, name) for name in names]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda request: bed.provisioner.launch(request, TIMEOUT_S), requests))
    machines = [wait_state(bed.provisioner, each.token, InstanceState.RUNNING) for each in requests]
    assert len({each.id for each in machines}) == len(names)
    assert len({(each.ssh_host, each.ssh_port) for each in machines}) == len(names)
    assert len({each.private_address for each in machines}) == len(names)


def test_what_makes_no_sense_is_fatal(bed: Bed) -> None:
    request = request_for(bed.provisioner, "n1")
    nowhere = replace(request, offer=replace(request.offer, zone="no-such-zone"))
    with_unknown_code = replace(request, offer=replace(request.offer, instance_type="no-such-type"))
    for senseless in (nowhere, with_unknown_code):
        outcome = bed.provisioner.launch(senseless, TIMEOUT_S)
        assert isinstance(outcome, Fatal)
        assert "no-such" in outcome.message
    assert not listed(bed.provisioner)


def test_no_capacity_is_an_outcome_that_says_how_far_it_reaches(bed: Bed) -> None:
    bed.exhaust(bed.zone)
    outcome = bed.provisioner.launch(request_for(bed.provisioner, "n1", zone=bed.zone), TIMEOUT_S)
    assert isinstance(outcome, NoCapacity)
    assert outcome.memory_s > 0
    assert bed.zone in outcome.message
    assert not listed(bed.provisioner)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [("throttled", Throttled), ("transient", Transient), ("fatal", Fatal), ("quota", Quota)],
)
def test_a_refused_launch_launches_nothing_and_holds_once(bed: Bed, fault: str, kind: type[LaunchOutcome]) -> None:
    bed.fail_next_launch(fault)
    request = request_for(bed.provisioner, "n1")
    assert isinstance(bed.provisioner.launch(request, TIMEOUT_S), kind)
    assert bed.provisioner.find(request.token, TIMEOUT_S) is None
    assert isinstance(bed.provisioner.launch(request, TIMEOUT_S), Launched)


def test_a_lost_answer_is_unknown_and_the_machine_is_found_by_its_token(bed: Bed) -> None:
    bed.fail_next_launch("drop-reply")
    request = request_for(bed.provisioner, "n1")
    assert isinstance(bed.provisioner.launch(request, TIMEOUT_S), Unknown)
    found = bed.provisioner.find(request.token, TIMEOUT_S)
    assert found is not None
    again = bed.provisioner.launch(request, TIMEOUT_S)
    assert isinstance(again, Launched)
    assert again.instance.id == found.id
    assert len(listed(bed.provisioner)) == 1


def test_no_answer_in_time_is_unknown(bed: Bed) -> None:
    bed.fail_next_launch("hang")
    request = request_for(bed.provisioner, "n1")
    began = time.monotonic()
    assert isinstance(bed.provisioner.launch(request, 0.5), Unknown)
    assert time.monotonic() - began < 2.0
    assert bed.provisioner.find(request.token, TIMEOUT_S) is None


def test_listings_show_one_cluster_only(bed: Bed) -> None:
    launch(bed.provisioner, "n1")
    other = replace(request_for(bed.provisioner, "n2"), cluster="another-cluster")
    assert isinstance(bed.provisioner.launch(other, TIMEOUT_S), Launched)
    assert set(listed(bed.provisioner)) == {"n1"}


def test_a_lagging_listing_shows_the_past(bed: Bed) -> None:
    old = launch_running(bed.provisioner, "old")
    bed.lag(3600.0)
    launch(bed.provisioner, "new")
    assert not listed(bed.provisioner)
    bed.lag(0.0)
    wait_state(bed.provisioner, "token-new", InstanceState.RUNNING)
    bed.lag(0.5)
    wait_for(lambda: set(listed(bed.provisioner)) == {"old", "new"}, "the listing has caught up")
    began = time.monotonic()
    bed.provisioner.terminate(old.id, TIMEOUT_S)
    seen = listed(bed.provisioner)["old"]
    assert seen is InstanceState.RUNNING or time.monotonic() - began > 0.5
    wait_for(lambda: listed(bed.provisioner)["old"] is InstanceState.TERMINATED, "the end is listed")


def test_terminate_is_idempotent_and_says_who_ended_it(bed: Bed) -> None:
    instance = launch_running(bed.provisioner, "n1")
    for _ in range(2):
        bed.provisioner.terminate(instance.id, TIMEOUT_S)
    ended = wait_state(bed.provisioner, instance.token, InstanceState.TERMINATED)
    assert ended.end_cause is EndCause.USER
    bed.provisioner.terminate(instance.id, TIMEOUT_S)
    bed.provisioner.terminate("no-such-machine", TIMEOUT_S)
    assert listed(bed.provisioner) == {"n1": InstanceState.TERMINATED}


def test_a_machine_can_be_terminated_before_it_runs(bed: Bed) -> None:
    launched = launch(bed.provisioner, "n1")
    bed.provisioner.terminate(launched.id, TIMEOUT_S)
    ended = wait_state(bed.provisioner, launched.token, InstanceState.TERMINATED)
    assert ended.end_cause is EndCause.USER


def test_a_preemption_is_announced_and_then_evidence(bed: Bed) -> None:
    instance = launch_running(bed.provisioner, "n1")
    deadline = time.time() + 0.5
    bed.preempt(instance.id, 0.5)
    ended = wait_state(bed.provisioner, instance.token, InstanceState.TERMINATED)
    assert time.time() >= deadline
    assert ended.end_cause is EndCause.PREEMPTED


def test_an_announced_preemption_shows_its_deadline(bed: Bed) -> None:
    instance = launch_running(bed.provisioner, "n1")
    deadline = bed.preempt(instance.id, 600.0)
    found = bed.provisioner.find(instance.token, TIMEOUT_S)
    assert found is not None
    assert found.state is InstanceState.RUNNING
    assert found.end_cause is None
    assert found.preempt_at == pytest.approx(deadline, abs=1.0)
    assert deadline > time.time() + 25


def test_a_silent_loss_is_not_told_as_a_preemption(bed: Bed) -> None:
    instance = launch_running(bed.provisioner, "n1")
    bed.vanish(instance.id)
    ended = wait_state(bed.provisioner, instance.token, InstanceState.TERMINATED)
    assert ended.end_cause in {EndCause.FAILED, EndCause.UNKNOWN}
    assert ended.preempt_at is None


def test_a_cloud_that_cannot_be_reached_says_nothing_about_machines(bed: Bed) -> None:
    request = request_for(bed.provisioner, "n1")
    bed.cut_off()
    assert isinstance(bed.provisioner.launch(request, TIMEOUT_S), Transient)
    for ask in (
        lambda: bed.provisioner.offers(OfferQuery(), TIMEOUT_S),
        lambda: bed.provisioner.find("token", TIMEOUT_S),
        lambda: bed.provisioner.instances(CLUSTER, TIMEOUT_S),
        lambda: bed.provisioner.terminate("machine", TIMEOUT_S),
    ):
        with pytest.raises(UnreachableError):
            ask()


def test_a_fresh_cluster_has_left_nothing_over(bed: Bed) -> None:
    instance = launch_running(bed.provisioner, "n1")
    assert not bed.provisioner.leftovers(CLUSTER, TIMEOUT_S)
    bed.provisioner.terminate(instance.id, TIMEOUT_S)
    wait_state(bed.provisioner, instance.token, InstanceState.TERMINATED)
    assert not bed.provisioner.leftovers(CLUSTER, TIMEOUT_S)


def test_a_console_tells_of_its_machine_alone(bed: Bed) -> None:
    instance = launch_running(bed.provisioner, "n1")
    assert wait_for(lambda: bed.provisioner.console(instance.id, TIMEOUT_S), "the console")
    assert bed.provisioner.console("no-such-machine", TIMEOUT_S) == ""


def test_a_check_finds_whether_the_cloud_can_be_reached(bed: Bed) -> None:
    assert bed.provisioner.check(TIMEOUT_S)[0].ok
    bed.cut_off()
    found = bed.provisioner.check(TIMEOUT_S)
    assert not found[0].ok
    assert found[0].message
