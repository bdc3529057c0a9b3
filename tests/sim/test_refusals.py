"""How far a cloud's refusals reach: credentials, one job's request, a quota's family."""

from __future__ import annotations

from dataclasses import replace

import pytest
from spotsup_simulator.world import World

from provisioners.base import EndCause
from supervisor.api.jobs.changes import Scale
from supervisor.errors import CommandRefusedError
from supervisor.events import EventKind
from supervisor.model import JobState
from supervisor.spec_limits import LimitChanges
from tests.sim.harness import (
    NO_FAULTS,
    RULES,
    empty_world,
    in_state,
    machine_of,
    record,
    sentence,
    service,
    submit,
    training_world,
)
from tests.sim.promises import events_of, jobs_of, settled

pytestmark = pytest.mark.long


def expire_credentials(world: World, *, expired: bool = True) -> None:
    world.set_fault_rates(replace(NO_FAULTS, denied=1.0 if expired else 0.0))


def sent(world: World, kind: EventKind) -> list[str]:
    return [event.text for event in world.sent if event.kind is kind]


@pytest.mark.nightly
def test_an_hour_of_expired_credentials_fails_nothing_is_told_once_and_everything_goes_on_by_itself() -> None:
    world = training_world(2, 3, 4)
    expire_credentials(world)
    world.run(10.0)
    world.cloud.end(machine_of(world, 0), EndCause.PREEMPTED)
    submit(world, "new", 1, 2, 2)
    world.run(3600.0)
    assert record(world).state in {JobState.RUNNING, JobState.DEGRADED}
    assert record(world, "new").state is JobState.QUEUED, "it never had a node, and waits"
    assert len(sent(world, EventKind.ACCESS_DENIED)) == 1
    assert "local denies spotsup's requests: the credentials have expired" in world.daemon.loop.status.headline
    assert len(jobs_of(world)["job"].nodes) <= 4, "requests are repeated, not made anew"
    expire_credentials(world, expired=False)
    assert world.run_until(settled, 180.0)
    world.run(10.0)
    assert sent(world, EventKind.ACCESS_RESTORED) == ["local accepts spotsup's requests again"]
    assert "denies" not in world.daemon.loop.status.headline


def test_credentials_that_expire_before_the_first_request_fail_no_new_job() -> None:
    world = empty_world()
    world.hooks.boundary.append(lambda _daemon, where, kind: _expire_at(world, where, kind))
    submit(world, "job", 1, 2, 2)
    world.run(900.0)
    assert not world.cloud.machines
    assert record(world).state is JobState.STARTING
    world.hooks.boundary.clear()
    expire_credentials(world, expired=False)
    assert world.run_until(settled, 180.0)


def _expire_at(world: World, where: str, kind: str) -> None:
    if (where, kind) == ("after intent", "Launch"):
        expire_credentials(world)


def test_one_jobs_impossible_request_keeps_nothing_from_another_job() -> None:
    world = training_world(1, 2, 3)
    world.cloud.refused_jobs.add("wrong")
    submit(world, "wrong", 1, 1, 1)
    assert world.run_until(lambda w: record(w, "wrong").state is JobState.FAILED, 30.0)
    assert record(world, "wrong").reason == "local refuses the request: the key pair does not exist"
    service(world).commands.scale("job", Scale(desired=3))
    assert world.run_until(settled, 30.0), "at once, on the same cloud and market"


def test_a_request_that_one_type_can_never_grant_is_granted_by_another() -> None:
    world = empty_world()
    world.cloud.types, world.cloud.impossible = ("small", "large"), frozenset({"small"})
    submit(world, "job", 1, 2, 2)
    assert world.run_until(settled, 60.0)
    assert {node.offer.instance_type for node in jobs_of(world)["job"].nodes.values() if node.has_joined} == {"large"}


def test_a_used_up_quota_keeps_nothing_from_another_family() -> None:
    world = empty_world()
    world.cloud.types, world.cloud.used_up = ("small", "large"), frozenset({"small"})
    submit(world, "job", 1, 2, 2)
    assert world.run_until(in_state(JobState.RUNNING), 30.0)
    assert {node.offer.instance_type for node in jobs_of(world)["job"].nodes.values() if node.has_joined} == {"large"}
    assert len(events_of(world, "job", EventKind.LAUNCH_REFUSED)) == 2, "the other zone shares the quota"
    world.cloud.used_up = frozenset({"small", "large"})
    service(world).commands.scale("job", Scale(desired=2, max_nodes=3))
    service(world).commands.scale("job", Scale(desired=3))
    world.run(10.0)
    assert "the quota of" in sentence(world)


def wasted(world: World, zone: str) -> int:
    return sum(m.instance.zone == zone and m.ended_at is not None for m in world.cloud.machines.values())


def test_a_zone_that_takes_its_machines_before_they_are_ready_is_left_for_the_next() -> None:
    world = empty_world()
    world.cloud.early_deaths = {"zone-a"}
    submit(world, "job", 2, 4, 4)
    assert world.run_until(in_state(JobState.RUNNING), 60.0)
    assert wasted(world, "zone-a") == 4, "once for all of them"
    assert {node.offer.zone for node in jobs_of(world)["job"].nodes.values() if node.has_joined} == {"zone-b"}


def test_zones_that_keep_no_machine_are_asked_ever_more_rarely_and_again_once_they_keep_them() -> None:
    world = empty_world()
    world.cloud.early_deaths = {"zone-a", "zone-b"}
    submit(world, "job", 1, 1, 1)
    world.run(600.0)
    assert 6 <= len(world.cloud.machines) <= 14
    assert "ended before it was ready, " in sentence(world)
    before = len(world.cloud.machines)
    world.run(600.0)
    assert len(world.cloud.machines) <= before + 4
    world.cloud.early_deaths = set()
    assert world.run_until(settled, 660.0)


def test_a_replacement_waits_where_the_jobs_zone_takes_machines_before_they_are_ready() -> None:
    world = training_world(1, 2, 2)
    world.cloud.early_deaths = {"zone-a", "zone-b"}
    world.cloud.end(machine_of(world, 0), EndCause.PREEMPTED)
    world.run(900.0)
    assert record(world).state is JobState.DEGRADED
    assert len(events_of(world, "job", EventKind.NODE_LOST)) <= 12, "those of two attempts to move among them"


# -- prices ------------------------------------------------------------------------------------------------


def test_a_job_with_a_limit_of_money_uses_no_machine_without_a_price_and_another_says_so() -> None:
    world = empty_world()
    world.cloud.types, world.cloud.unpriced = ("small", "large"), frozenset({"small"})
    submit(world, "limited", 1, 1, 1, limits={"usd": 50.0})
    submit(world, "job", 1, 1, 1, resources={"instance_types": ["small"]})
    assert world.run_until(settled, 60.0)
    (limited,) = jobs_of(world)["limited"].nodes.values()
    assert limited.offer.instance_type == "large"
    assert sentence(world).endswith("the price of 1 node is unknown")
    with pytest.raises(CommandRefusedError, match=r"job can have no limit of money: no price is known for small"):
        service(world).commands.limits("job", LimitChanges(usd=5.0))
    world.cloud.unpriced = frozenset({"small", "large"})
    submit(world, "waits", 1, 1, 1, limits={"usd_per_hour": 5.0})
    world.run(30.0)
    assert jobs_of(world)["waits"].nodes == {}
    assert "no price is known for small in local (spot)" in world.daemon.loop.status.sentences["waits"]


def test_what_is_spent_follows_prices_that_change_also_over_a_takeover() -> None:
    world = empty_world(replace(RULES, prices_s=300.0))
    submit(world, "job", 1, 1, 1, limits={"usd": 50.0})
    assert world.run_until(in_state(JobState.RUNNING), 60.0)
    (node,) = jobs_of(world)["job"].nodes.values()
    first = node.offer.usd_per_hour
    assert first is not None
    world.run(3600.0)
    world.cloud.price_factor = 3.0
    world.crash_daemon()
    world.run(3600.0)
    (node,) = jobs_of(world)["job"].nodes.values()
    assert node.offer.usd_per_hour == 3 * first
    spent = node.usd(world.clock.now())
    assert 3.7 * first <= spent <= 4.05 * first, "an hour at each, but for what a reading is late"
    assert record(world).state is JobState.RUNNING


def test_machines_above_a_jobs_cap_are_not_asked_for_until_it_is_raised() -> None:
    world = empty_world()
    submit(world, "job", 1, 1, 1, limits={"usd_per_node_hour": 0.09}, market="spot-then-on-demand")
    world.run(60.0)
    assert jobs_of(world)["job"].nodes == {}
    assert world.cloud.launched == 0
    assert sentence(world).endswith(
        "the cheapest costs $0.10 per hour, your limit is $0.09; raise it: "
        "`spotsupctl limits job --usd-per-node-hour 0.10`"
    )
    service(world).commands.limits("job", LimitChanges(usd_per_node_hour=0.10))
    assert world.run_until(in_state(JobState.RUNNING), 60.0)
    (machine,) = world.cloud.machines.values()
    assert (machine.instance.zone, machine.max_usd_per_hour) == ("zone-a", 0.10)


def test_a_machine_that_becomes_dearer_than_its_cap_is_preempted_and_its_pool_is_asked_again_once_it_is_cheaper() -> (
    None
):
    world = empty_world(replace(RULES, prices_s=60.0))
    submit(world, "job", 1, 1, 1, limits={"usd_per_node_hour": 0.12})
    submit(world, "rich", 1, 1, 1)
    assert world.run_until(settled, 60.0)
    world.run(200.0)
    world.cloud.set_prices(2.0)
    world.run(900.0)
    view = jobs_of(world)["job"]
    assert view.record.state is JobState.WAITING
    first = min(view.nodes)
    assert events_of(world, "job", EventKind.NOTICE) == [first]
    assert events_of(world, "job", EventKind.NODE_LOST) == [first]
    assert not any(node.launched_at and not node.ended_at for node in view.nodes.values())
    assert "the cheapest costs $0.20 per hour, your limit is $0.12" in world.daemon.loop.status.sentences["job"]
    assert jobs_of(world)["rich"].record.state is JobState.RUNNING
    assert world.rng.injected["price above the cap"] <= 4, "prices that are known are not asked for"
    world.cloud.set_prices(1.0)
    assert world.run_until(settled, 900.0)


def test_a_pool_that_refuses_one_jobs_cap_serves_another_job_at_once() -> None:
    world = empty_world(replace(RULES, offers_s=3600.0, prices_s=3600.0))
    world.cloud.no_capacity_s = 3600.0
    world.hooks.commit.append(lambda _, commit: world.cloud.set_prices(1.5) if commit.nodes else None)
    submit(world, "job", 1, 1, 1, limits={"usd_per_node_hour": 0.105})
    world.run(30.0)
    assert world.rng.injected["price above the cap"] >= 1
    assert record(world).state is not JobState.FAILED
    submit(world, "rich", 1, 1, 1)
    assert world.run_until(lambda world: record(world, "rich").state is JobState.RUNNING, 60.0)
    (machine,) = world.cloud.machines.values()
    assert machine.instance.zone == "zone-a"
