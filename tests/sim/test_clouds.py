"""Jobs that name places on two clouds: in one at a time, and in the next one where that has no machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from spotsup_simulator.cloud import SimCloud
from spotsup_simulator.surroundings import Conditions
from spotsup_simulator.world import World

from provisioners.base import EndCause, Instance, Offer, OfferQuery, Owner, Provisioner, UnreachableError
from supervisor.api.quote import Quotes
from supervisor.api.service import Service
from supervisor.errors import CommandRefusedError, UsageError
from supervisor.events import EventKind
from supervisor.model import JobState, NodeState
from supervisor.spec import parse_spec
from tests.sim.harness import NO_FAULTS, RULES, in_state, record, wait_in
from tests.sim.promises import Promises, jobs_of, settled
from tests.sim.test_sweeps import body, sweeps_of

pytestmark = pytest.mark.long

ZONE_OF = {"gcp": "zone-a", "azure": "zone-b"}
STORE = "s3://bucket/checkpoints"


class OneOfTwo:
    """One of two clouds: a zone of the simulated one, under a name of its own. Its API alone may be away."""

    def __init__(self, name: str, both: SimCloud, away: set[str]) -> None:
        self.name, self._both, self._away = name, both, away

    def __getattr__(self, name: str) -> Any:
        self._answer()
        return getattr(self._both, name)

    def offers(self, query: OfferQuery, timeout_s: float) -> Sequence[Offer]:
        self._answer()
        found = self._both.offers(query, timeout_s)
        return [replace(each, cloud=self.name) for each in found if each.zone == ZONE_OF[self.name]]

    def instances(self, owner: Owner | None, timeout_s: float) -> Sequence[Instance]:
        self._answer()
        return [each for each in self._both.instances(owner, timeout_s) if each.zone == ZONE_OF[self.name]]

    def _answer(self) -> None:
        if self.name in self._away:
            raise UnreachableError(f"{self.name} does not answer")


class TwoClouds(World):
    """Zone a is one cloud, zone b the other; neither knows the other's machines."""

    def __init__(self, seed: int = 1) -> None:
        self.away: set[str] = set()
        super().__init__(Conditions(seed, NO_FAULTS, RULES))
        Promises(self)
        self.cloud.capacity["zone-c"] = 0
        self.run(1.0)

    @property
    def provisioners(self) -> Mapping[str, Provisioner]:
        return {name: OneOfTwo(name, self.cloud, self.away) for name in ZONE_OF}

    def service(self) -> Service:
        quote = Quotes(self.provisioners, timeout_s=60.0).quote
        return Service(self.daemon.journal, self.daemon.leader, self.clock, list(ZONE_OF), wait_in(self), quote)

    def submit(self, low: int = 2, desired: int = 3, **more: Any) -> None:
        spec: dict[str, Any] = {
            "name": "job",
            "nodes": {"min": low, "desired": desired, "max": desired},
            "run": "train.py",
        }
        places = [{"cloud": name} for name in ZONE_OF]
        api = self.service()
        spec |= {"placement": places, "checkpoints": STORE, **more}
        api.submissions.submit(spec, api.submissions.put_blob(b"code"), f"job at {self.clock.now()}", "", "")

    def allow(self, **machines: int) -> None:
        for name, count in machines.items():
            self.cloud.capacity[ZONE_OF[name]] = count


def clouds(world: World) -> set[str]:
    """Those in which the job has machines, by its records."""
    return {node.offer.cloud for node in jobs_of(world)["job"].nodes.values() if node.state is not NodeState.GONE}


def trains_in(cloud: str, world: World) -> bool:
    return clouds(world) == {cloud} and settled(world)


def billed_zones(world: World) -> set[str]:
    return {each.instance.zone for each in world.cloud.machines.values() if each.billed}


def changes(world: World) -> list[str]:
    return [each.text for each in world.journal.events("job") if each.kind is EventKind.PLACE_CHANGED]


def test_a_job_is_in_the_first_place_that_it_names() -> None:
    world = TwoClouds()
    world.submit()
    assert world.run_until(settled, 120.0)
    world.run(600.0)
    assert (clouds(world), changes(world)) == ({"gcp"}, [])


def test_a_job_that_prefers_the_cheapest_goes_to_its_places_by_price() -> None:
    world = TwoClouds()
    world.submit(placement=[{"cloud": "azure"}, {"cloud": "gcp"}], prefer="cheapest")
    assert world.run_until(partial(trains_in, "gcp"), 120.0)
    assert world.journal.events("job")[0].text.endswith(
        "its places by price: gcp (from 0.1 USD per node and hour), azure (from 0.11 USD per node and hour)"
    )
    world.allow(gcp=0)
    for machine in world.cloud.machines.values():
        world.cloud.end(machine, EndCause.PREEMPTED)
    assert world.run_until(partial(trains_in, "azure"), 300.0)


def test_a_cloud_that_does_not_say_its_prices_comes_last() -> None:
    world = TwoClouds()
    world.away.add("gcp")
    world.submit(prefer="cheapest")
    assert world.run_until(partial(trains_in, "azure"), 120.0)
    assert (
        "azure (from 0.11 USD per node and hour), gcp (its offers are not known)" in world.journal.events("job")[0].text
    )


def test_a_job_goes_to_the_next_cloud_at_once_where_the_first_has_nothing() -> None:
    world = TwoClouds()
    world.allow(gcp=0)
    world.submit()
    assert world.run_until(settled, 120.0)
    assert clouds(world) == {"azure"}
    assert changes(world) == ["job goes from gcp to azure: no capacity: zone-a is full"]
    assert record(world).places.tried == 0


def test_a_job_that_has_trained_goes_on_in_another_cloud_from_its_checkpoint() -> None:
    world = TwoClouds()
    world.submit()
    assert world.run_until(settled, 120.0)
    world.run(60.0)
    world.allow(gcp=0)
    for machine in [each for each in world.cloud.machines.values() if each.alive]:
        world.cloud.preempt(machine, 60.0)
    seen: set[frozenset[str]] = set()

    def trains_elsewhere(w: World) -> bool:
        seen.add(frozenset(billed_zones(w)))
        return clouds(w) == {"azure"} and settled(w)

    assert world.run_until(trains_elsewhere, 600.0)
    assert frozenset({"zone-a", "zone-b"}) not in seen, "it never has machines in two places"
    assert world.nodes.trainings["job"].steps.lost == 0


def test_machines_that_are_too_few_are_given_back_before_it_goes_on() -> None:
    world = TwoClouds()
    world.allow(gcp=1)
    world.submit()
    assert world.run_until(lambda w: clouds(w) == {"azure"} and settled(w), 600.0)
    assert billed_zones(world) == {"zone-b"}


def test_a_job_goes_round_where_no_cloud_has_anything_and_says_so_once() -> None:
    world = TwoClouds()
    world.allow(gcp=0, azure=0)
    world.submit()
    world.run(400.0)
    assert changes(world) == [
        "job goes from gcp to azure: no capacity: zone-a is full",
        "job goes from azure to gcp: no capacity: zone-b is full",
    ]
    world.run(1400.0)
    assert record(world).state is JobState.WAITING
    assert 4 <= record(world).places.tried <= 1800.0 / (RULES.places.stay_s * 5) + 3
    world.allow(azure=3)
    assert world.run_until(lambda w: clouds(w) == {"azure"} and settled(w), 1200.0)


def test_a_cloud_that_lists_nothing_is_left_and_one_that_stops_answering_is_not() -> None:
    world = TwoClouds()
    world.away.add("gcp")
    world.submit()
    assert world.run_until(lambda w: clouds(w) == {"azure"} and settled(w), 300.0)
    world.away.add("azure")
    world.run(300.0)
    assert clouds(world) == {"azure"}, "what is silent may still train (P4)"
    assert in_state(JobState.RUNNING)(world)


@pytest.mark.parametrize("moment", range(6))
def test_another_daemon_goes_on_whenever_one_dies(moment: int) -> None:
    world = TwoClouds(seed=moment + 1)
    world.allow(gcp=1)
    world.submit()
    for _ in range(moment + 1):
        world.run(23.0)
        world.crash_daemon()
    assert world.run_until(lambda w: clouds(w) == {"azure"} and settled(w), 900.0)
    assert billed_zones(world) == {"zone-b"}


def test_a_machine_that_the_first_cloud_denied_and_made_all_the_same_is_ended() -> None:
    world = TwoClouds()
    world.allow(gcp=0)
    world.submit()
    assert world.run_until(lambda w: clouds(w) == {"azure"} and settled(w), 300.0)
    gone = next(node for node in jobs_of(world)["job"].nodes.values() if node.state is NodeState.GONE)
    world.cloud.add_unjournaled(gone.id)
    late = next(each for each in world.cloud.machines.values() if each.node == gone.id)
    assert world.run_until(lambda _: not late.billed, 300.0)
    assert settled(world)


def test_on_demand_machines_are_asked_for_once_no_place_has_spot() -> None:
    world = TwoClouds()
    world.allow(gcp=0)
    world.submit(market="spot-then-on-demand")
    assert world.run_until(settled, 300.0)
    assert {node.offer.market.value for node in jobs_of(world)["job"].nodes.values() if node.instance_id} == {"spot"}


def test_all_are_lost_while_it_moves_between_clouds() -> None:
    world = TwoClouds()
    world.submit()
    assert world.run_until(settled, 120.0)
    for _ in range(4):
        here, there = ("gcp", "azure") if clouds(world) == {"gcp"} else ("azure", "gcp")
        world.allow(**{here: 0, there: 3})
        for machine in [each for each in world.cloud.machines.values() if each.alive]:
            world.cloud.end(machine, EndCause.PREEMPTED)
        assert world.run_until(partial(trains_in, there), 900.0)
    assert billed_zones(world) == {ZONE_OF["gcp"]}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"checkpoints": "/mnt/shared"}, "checkpoints have to be in reach of each"),
        ({"placement": [{"cloud": "gcp"}, {}]}, "names no cloud"),
        ({"placement": [{"cloud": "gcp"}, {"cloud": "gcp"}]}, "are the same, gcp"),
        ({"placement": []}, "has 0 places"),
        ({"placement": [{"cloud": "gcp"}] * 5}, "has 5 places"),
        ({"places": [{"cloud": "gcp"}]}, "leave `places` out"),
        ({"storage": [{"mount": "/mnt/x", "nfs": "a:/b", "cloud": "aws"}]}, "/mnt/x is on aws"),
    ],
)
def test_places_that_cannot_be_right_are_refused_in_one_sentence(more: dict[str, Any], said: str) -> None:
    both = [{"cloud": "gcp"}, {"cloud": "azure"}]
    with pytest.raises(UsageError, match=said):
        parse_spec({"name": "job", "nodes": 1, "run": "a.py", "placement": both, "checkpoints": STORE, **more})


def test_a_job_that_may_come_to_a_rented_cloud_is_one_that_costs_money() -> None:
    world = TwoClouds()
    service = Service(
        world.daemon.journal, world.daemon.leader, world.clock, list(ZONE_OF), wait_in(world), hosted=["gcp"]
    )
    spec = {"name": "job", "nodes": 1, "run": "a.py", "checkpoints": STORE}
    assert service.job_files.is_rented(
        service.job_files.parse({**spec, "placement": [{"cloud": "gcp"}, {"cloud": "azure"}]})
    )
    assert not service.job_files.is_rented(service.job_files.parse({**spec, "placement": {"cloud": "gcp"}}))


def test_each_place_has_to_be_on_a_cloud_of_the_daemon() -> None:
    world = TwoClouds()
    with pytest.raises(CommandRefusedError, match=r"`placement\.cloud` is aws"):
        world.submit(placement=[{"cloud": "gcp"}, {"cloud": "aws"}])


def test_each_job_of_a_sweep_has_its_places() -> None:
    world = TwoClouds()
    placement = [{"cloud": name} for name in ZONE_OF]
    spec = {"name": "lr", "nodes": 1, "run": "train.py", "placement": placement, "checkpoints": STORE}
    sweep = sweeps_of(world.service(), world).check(body(world, spec=spec), "")
    assert sweep.base["placement"] == placement
    assert world.service().job_files.parse({**sweep.base, "name": "lr-1"}).clouds == tuple(ZONE_OF)


def test_each_place_has_the_storage_of_its_cloud() -> None:
    entries = [{"mount": "/data", "nfs": "a:/b", "cloud": "gcp"}, {"mount": "/data", "nfs": "c:/d", "cloud": "azure"}]
    spec = parse_spec(
        {
            "name": "job",
            "nodes": 1,
            "run": "a.py",
            "placement": [{"cloud": "gcp"}, {"cloud": "azure"}],
            "checkpoints": STORE,
            "storage": entries,
        }
    )
    assert [each.nfs for each in spec.mounted] == ["a:/b"]
    assert [each.nfs for each in spec.at(spec.places[1]).mounted] == ["c:/d"]
