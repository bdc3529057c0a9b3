"""What is remembered after a plan of which etcd did not take everything."""

from __future__ import annotations

from dataclasses import replace

from provisioners.base import Leftover, LeftoverKind
from supervisor.events import EventKind
from supervisor.model import Event
from supervisor.planner.actions import Commit, Remove, Terminate
from supervisor.planner.problems import report
from supervisor.planner.unwritten import as_unwritten
from supervisor.planner.world import LeftoversView, Problem, Sighting, VolatileState
from tests.unit.scene import NOW, OFFER, OWNER, world_of

NIC = Leftover("nic-1", LeftoverKind.NETWORK_INTERFACE, OWNER, "job-u-1", "zone-a")


def test_people_who_were_not_told_are_told_by_the_next_plan() -> None:
    problem = Problem(EventKind.NOT_LISTED, "aws", 0.0, "it does not answer", over="it answers")
    begun, told, _ = report(world_of(), VolatileState(), [problem], NOW)
    assert as_unwritten(begun[0], VolatileState(), told) == VolatileState()
    over, after, _ = report(world_of(), told, [], NOW + 60)
    assert as_unwritten(over[0], told, after) == told
    assert report(world_of(), told, [], NOW + 61)[0][0].events[0].text == "it answers"


def test_orphans_that_were_not_ended_are_ended_by_the_next_plan() -> None:
    seen, listed = Sighting(NOW - 60, 2), LeftoversView({"nic-1": NIC}, {"nic-1": Sighting(NOW - 60, 2)})
    before = VolatileState(sightings={"i-9": seen, "i-8": seen}, leftovers={"aws": listed, "gcp": listed})
    begun = replace(seen, listings=0, ended_at=NOW, asked_at=NOW)
    after = replace(
        before, sightings={"i-9": begun, "i-8": begun}, leftovers={"aws": LeftoversView(), "gcp": LeftoversView()}
    )
    kept = as_unwritten(Commit("", {}, actions=(Terminate("aws", "i-9", ""), Remove("aws", NIC))), before, after)
    assert kept.sightings == {"i-9": seen, "i-8": begun}
    assert kept.leftovers == {"aws": listed, "gcp": LeftoversView()}


def test_a_quota_and_an_unknown_code_are_new_again_where_their_event_was_not_written() -> None:
    before = VolatileState()
    after, _ = before.with_quota(replace(OFFER, quota="gpus"), NOW, 60.0)
    after, _ = after.with_unknown_code("aws", "Odd")
    unsaid = [
        Commit("job", {}, events=(Event(str(kind), NOW, "job", kind, "text"),))
        for kind in (EventKind.QUOTA_REFUSED, EventKind.UNKNOWN_CODE, EventKind.ROUND)
    ]
    assert as_unwritten(unsaid[0], before, after) == replace(after, quotas_reported={})
    assert as_unwritten(unsaid[1], before, after) == replace(after, unknown_codes=())
    assert as_unwritten(unsaid[2], before, after) == after
