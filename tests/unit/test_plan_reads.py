"""What is read of clouds and when, what is remembered of it, and what is done about orphans."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from spotsup_trainer.wire import Result

from provisioners.base import Instance, InstanceState, Leftover, LeftoverKind
from supervisor.events import EventKind
from supervisor.market.offers import OffersView
from supervisor.model import NodeRecord, NodeState
from supervisor.planner.actions import (
    AskDone,
    LeftoversDone,
    ListDone,
    ListInstances,
    ListLeftovers,
    OffersDone,
    Remove,
    Terminate,
)
from supervisor.planner.orphans import is_orphan
from supervisor.planner.plan import absorb
from supervisor.planner.world import (
    CloudView,
    Denial,
    LeftoversView,
    Missing,
    Reminder,
    Rules,
    Sighting,
    VolatileState,
)
from tests.unit.scene import (
    MISSED,
    NOW,
    OFFER,
    OWNER,
    Decided,
    J,
    N,
    hint_of,
    job,
    launcher,
    listing,
    machine,
    member,
    name,
    node,
    round_of,
    scene,
    spec,
    view,
)

RULES = Rules()


# -- listings ----------------------------------------------------------------------------------------------


def lists(after: Decided) -> list[str]:
    return [each.cloud for each in after.does(ListInstances)]


@pytest.mark.parametrize(("tried_s", "asks"), [(4.9, False), (5.0, True)])
def test_each_cloud_is_listed_once_per_period(tried_s: float, asks: bool) -> None:
    listed = listing(machine(1), machine(2), attempted_at=NOW - tried_s)
    assert lists(scene(member(1), member(2), listed=listed)) == (["local"] if asks else [])
    never = scene(member(1), member(2), listed=listed, clouds=("local", "aws"))
    assert lists(never) == (["local", "aws"] if asks else ["aws"])
    busy = scene(member(1), member(2), listed=listed, busy=frozenset({"list:local"}))
    assert lists(busy) == []


SILENT: dict[str, Any] = {"members": {name(1): launcher(1, "running")}}
STOPPED = {name(1): launcher(1, "running"), name(2): launcher(2, "waiting", round=1)}


@pytest.mark.parametrize(
    ("messages", "record", "asks"),
    [
        ({}, job(2), False),
        (SILENT, job(2), True),
        ({"members": STOPPED}, job(2), True),
        ({"members": STOPPED | {name(2): launcher(2, "waiting", round=0)}}, job(2), False),  # of the round before
        ({"members": STOPPED | {name(2): launcher(2, "waiting", parked=True)}}, job(2), False),  # in order
        (SILENT, job(2, J.FAILED), False),
        (SILENT | {"result": Result("success", "", 1)}, job(2), False),  # its program has ended
        (SILENT | {"round": None}, job(2), False),
        (SILENT | {"round": round_of(1, 9)}, job(2), False),  # its record is gone
    ],
)
@pytest.mark.parametrize(("tried_s", "soon"), [(0.4, False), (0.5, True)])
def test_a_cloud_is_listed_sooner_while_a_round_stands_still(
    messages: Any, record: Any, asks: bool, tried_s: float, soon: bool
) -> None:
    clouds = {
        "local": listing(machine(1), machine(2), attempted_at=NOW - tried_s),
        "aws": CloudView(listed_at=NOW - tried_s, attempted_at=NOW - tried_s),
    }
    after = scene(member(1), member(2), record=record, volatile={"clouds": clouds}, clouds=("local", "aws"), **messages)
    assert lists(after) == (["local"] if asks and soon else [])


def test_a_cloud_is_listed_sooner_also_for_a_job_about_which_nothing_is_decided() -> None:
    listed = listing(machine(1), machine(2), machine(9), attempted_at=NOW - 1)
    for messages, found in ((SILENT, ["local"]), ({}, [])):
        lacking = frozenset({name(9)})
        after = scene(member(1), member(2), listed=listed, unjournaled=lacking, **messages)
        assert after.sentence.startswith("left alone: job-u-9 may work for it and is not in the journal")
        assert lists(after) == found


def test_a_member_whose_end_is_known_causes_no_sooner_listing() -> None:
    listed = listing(machine(1), machine(2), attempted_at=NOW - 1)
    for state in (N.DRAINING, N.LOST, N.TERMINATING):
        which = node(2, state, retry_at=NOW + 9)
        after = scene(member(1), which, listed=listed, round=round_of(1, 2), **SILENT)
        assert lists(after) == [], state
    for state in (N.SUSPECT, N.READY):
        which = node(2, state, state_since=NOW)
        after = scene(member(1), which, listed=listed, round=round_of(1, 2), **SILENT)
        assert lists(after) == ["local"], state


def listed(volatile: VolatileState, *machines: Instance, **changes: Any) -> VolatileState:
    nodes = changes.pop("nodes", [member(1), member(2)])
    done = ListDone(changes.pop("cloud", "local"), changes.pop("asked_at", NOW - 1), machines, **changes)
    return absorb(volatile, done, [view(job(2), nodes)], NOW)


def test_a_listing_replaces_the_last_one() -> None:
    known = VolatileState(
        clouds={"local": listing(machine(1), error="away", listed_at=1.0, attempted_at=2.0), "aws": CloudView()}
    )
    after = listed(known, machine(1), machine(2))
    assert after.clouds["local"] == CloudView(
        {"i-1": machine(1), "i-2": machine(2)}, listed_at=NOW - 1, attempted_at=NOW - 1
    )
    assert after.clouds["local"].instances["i-1"] is known.clouds["local"].instances["i-1"]
    assert set(after.clouds) == {"local", "aws"}
    assert after.changed_jobs == {"job"}
    assert listed(replace(after, changed_jobs=frozenset()), machine(1), machine(2)).changed_jobs == frozenset()


def test_a_failed_listing_keeps_the_last_good_one_and_its_error() -> None:
    known = VolatileState(clouds={"local": listing(machine(1)), "aws": CloudView()})
    failed = listed(known, error="timeout", asked_at=NOW)
    assert failed.clouds.keys() == {"local", "aws"}
    after = failed.clouds["local"]
    assert (after.instances, after.listed_at, after.attempted_at) == ({"i-1": machine(1)}, NOW - 1, NOW)
    assert after.error == "timeout"


def test_a_listing_without_a_region_keeps_what_was_known_of_it_and_counts_nothing_there_as_missing() -> None:
    known = VolatileState(clouds={"local": listing(machine(1), machine(2), listed_at=NOW - 60)})
    elsewhere = replace(machine(3), region="elsewhere")
    after = listed(known, elsewhere, silent={"region-1": "503"}).clouds["local"]
    assert set(after.instances) == {"i-1", "i-2", "i-3"}
    assert (after.region_listed_at("region-1"), after.region_listed_at("elsewhere")) == (NOW - 60, NOW - 1)
    assert after.missing == {}
    assert after.is_known
    again = listed(VolatileState(clouds={"local": after}), silent={"region-1": "504"}, asked_at=NOW).clouds["local"]
    assert (again.region_listed_at("region-1"), again.silent["region-1"].error) == (NOW - 60, "504")
    assert set(again.instances) == {"i-1", "i-2"}
    assert not listed(VolatileState(), silent={"region-1": "503"}).clouds["local"].is_known


def test_only_a_listing_that_was_denied_says_that_a_cloud_denies_everything() -> None:
    assert listed(VolatileState(), error="timeout").denials == {}
    denied = listed(VolatileState(), error="expired", denied=True, asked_at=NOW - 2)
    assert denied.denials == {"local": Denial("expired", NOW - 2, NOW - 2)}
    assert listed(denied, asked_at=NOW - 1).denials == {}
    assert listed(denied, asked_at=NOW - 1, cloud="aws").denials == denied.denials


def test_a_machine_without_an_id_may_be_any_that_is_missing() -> None:
    known = VolatileState(clouds={"local": listing(machine(1), machine(2))})
    after = listed(known, machine(1), machine(2, id="")).clouds["local"]
    assert after.instances.keys() == {"i-1", "i-2"}
    assert after.missing == {}


@pytest.mark.parametrize(
    ("which", "missed_at"),
    [
        (member(2), (NOW - 1, NOW)),
        (node(2, N.GONE), None),
        (node(2, N.REQUESTED), None),
        (member(2, offer=replace(OFFER, cloud="aws")), None),
    ],
)
def test_the_last_two_listings_in_a_row_that_miss_the_machine_of_an_open_node_are_remembered(
    which: Any, missed_at: tuple[float, ...] | None
) -> None:
    known = VolatileState(clouds={"local": listing(missed_at={name(2): MISSED})})
    after = listed(known, machine(1), nodes=[member(1), which], asked_at=NOW)
    found = after.clouds["local"].missing.get(name(2))
    assert (found.asked_at if found else None) == missed_at
    assert dict(listed(after, machine(1), machine(2), nodes=[member(1), which]).clouds["local"].missing) == {}
    assert listed(VolatileState(), machine(1), nodes=[member(1), member(2)]).clouds["local"].missing == {
        name(2): Missing(NOW - 1, (NOW - 1,))
    }


def test_a_job_has_changed_when_its_machines_changed_or_are_missing() -> None:
    known = VolatileState(clouds={"local": listing(machine(1), machine(2))}, changed_jobs=frozenset({"other"}))
    assert listed(known, machine(1), machine(2)).changed_jobs == {"other"}
    assert listed(known, machine(1), machine(2, InstanceState.STOPPED)).changed_jobs == {"other", "job"}
    assert listed(known, machine(1)).changed_jobs == {"other", "job"}
    gone = [member(1), node(2, N.GONE)]
    assert listed(known, machine(1), nodes=gone).changed_jobs == {"other", "job"}, "its machine is not listed any more"
    assert listed(known, machine(1), machine(2), machine(9)).changed_jobs == {"other"}


def test_a_machine_elsewhere_does_not_make_the_cloud_unclear() -> None:
    record = job(2, spec=spec(placement={"cloud": "aws"}))
    volatile = {
        "clouds": {"local": listing(machine(1), machine(2), attempted_at=NOW - 1), "aws": listing(attempted_at=NOW - 1)}
    }
    after = scene(
        member(1), member(2), record=record, volatile=volatile, clouds=("local", "aws"), hint=hint_of(1, 2), **SILENT
    )
    assert lists(after) == ["aws"]


# -- orphans -----------------------------------------------------------------------------------------------

UNJOURNALED = machine(9, node="other-x-1")


@pytest.mark.parametrize(
    ("state", "known", "orphan"),
    [
        (InstanceState.RUNNING, None, True),
        (InstanceState.STOPPED, None, True),
        (InstanceState.PENDING, None, True),
        (InstanceState.TERMINATED, None, False),
        (InstanceState.RUNNING, N.GONE, True),
        (InstanceState.RUNNING, N.MEMBER, False),
        (InstanceState.RUNNING, N.TERMINATING, False),
    ],
)
def test_what_an_orphan_is(state: InstanceState, known: NodeState | None, orphan: bool) -> None:
    states = {"other-x-1": known} if known else {}
    assert is_orphan(replace(UNJOURNALED, state=state), states) is orphan


def test_orphans_are_counted_by_listing_and_dropped_when_they_are_gone() -> None:
    others = Sighting(5.0, 3, cloud="aws")
    first = listed(VolatileState(sightings={"i-7": others}), machine(1), UNJOURNALED, asked_at=NOW - 9)
    assert dict(first.sightings) == {"i-7": others, "i-9": Sighting(NOW - 9, 1, 0.0, "local", NOW - 9)}
    second = listed(first, machine(1), UNJOURNALED, asked_at=NOW - 1)
    assert second.sightings["i-9"] == Sighting(NOW - 9, 2, 0.0, "local", NOW - 1)
    ended = replace(UNJOURNALED, state=InstanceState.TERMINATED)
    assert "i-9" not in listed(second, machine(1), ended).sightings
    assert listed(second, error="away").sightings == second.sightings, "a failed listing changes nothing"


@pytest.mark.parametrize(
    ("listings", "age_s", "more", "ended"),
    [
        (2, 60.0, {}, True),
        (1, 60.0, {}, False),
        (2, 59.9, {}, False),
        (2, 60.0, {"busy": frozenset({"end:i-9"})}, False),
        (2, 60.0, {"unjournaled": frozenset({"other-x-1"})}, False),
        (2, 60.0, {"unreadable_jobs": {"other": "newer"}}, False),
        (2, 60.0, {"unreadable_jobs": {"oth": "newer"}}, True),
    ],
)
def test_an_orphan_is_terminated_when_seen_twice_and_old_unless_it_is_protected(
    listings: int, age_s: float, more: Any, ended: bool
) -> None:
    volatile = {
        "clouds": {"local": listing(machine(1), machine(2), UNJOURNALED)},
        "sightings": {"i-9": Sighting(NOW - age_s, listings)},
    }
    after = scene(member(1), member(2), volatile=volatile, **more)
    assert after.does(Terminate) == ([Terminate("local", "i-9", "")] if ended else [])
    if ended:
        (event,) = after.events
        assert (event.id, event.kind, event.node, event.job) == ("orphan-i-9", EventKind.ORPHAN, "other-x-1", "")
        assert event.text == "i-9 carries our tags (node other-x-1) but is not in the journal: terminating it"


SINCE = NOW - 500  # when this daemon began to read etcd, or etcd came back


def with_unjournaled(seen: Sighting, *nodes: NodeRecord, instance: Instance = UNJOURNALED, **more: Any) -> Decided:
    volatile = {
        "clouds": {"local": listing(machine(1), machine(2), instance)},
        "sightings": {instance.id: seen},
        **more.pop("volatile", {}),
    }
    return scene(member(1), member(2), *nodes, volatile=volatile, timers_paused_until=SINCE, **more)


@pytest.mark.parametrize(
    ("launched_at", "unlisted_at", "state", "ended"),
    [
        (SINCE + 61, SINCE + 1, None, True),
        (SINCE + 59, SINCE + 1, None, False),  # clocks may differ by a minute
        (0.0, SINCE + 1, None, False),  # its cloud does not say when
        (SINCE + 61, 0.0, None, False),  # the first listing had it: the cloud's clock may be wrong
        (SINCE + 61, SINCE - 1, None, False),  # one that lacked it was of before
        (NOW - 9000, 0.0, N.GONE, True),  # the journal knows it, and that it has ended
    ],
)
def test_a_machine_that_may_be_older_than_what_etcd_shows_and_has_no_record_is_left_for_people(
    launched_at: float, unlisted_at: float, state: NodeState | None, ended: bool
) -> None:
    instance = machine(9, node=name(9), launched_at=launched_at)
    known = [node(9, state, instance_id="")] if state else []
    after = with_unjournaled(Sighting(NOW - 60, 2, unlisted_at), *known, instance=instance)
    assert bool(after.does(Terminate)) is ended
    assert (after.event_kinds == [EventKind.UNJOURNALED]) is not ended
    assert any("`spotsupd adopt`" in each for each in after.plan.warnings) is not ended


def test_a_listing_that_lacked_it_is_remembered_with_a_machine() -> None:
    first = listed(VolatileState(), machine(1), asked_at=NOW - 9)
    second = listed(first, machine(1), UNJOURNALED, asked_at=NOW - 1)
    assert second.sightings["i-9"] == Sighting(NOW - 1, 1, NOW - 9, "local", seen_at=NOW - 1)
    third = listed(second, machine(1), UNJOURNALED, asked_at=NOW)
    assert third.sightings["i-9"] == Sighting(NOW - 1, 2, NOW - 9, "local", seen_at=NOW)


def test_an_orphan_that_is_in_every_second_listing_only_is_seen_twice_all_the_same() -> None:
    volatile = VolatileState()
    for turn in range(4):
        there = [UNJOURNALED] if turn % 2 == 0 else []
        volatile = listed(volatile, machine(1), *there, asked_at=NOW - 100 + 30 * turn)
    assert volatile.sightings["i-9"].listings == 2
    assert listed(volatile, machine(1), asked_at=NOW + 700).sightings == {}, "what stays away is forgotten"


@pytest.mark.parametrize(
    ("told", "tells"),
    [
        (None, True),
        (("i-9", NOW - 3599, 1), False),
        (("i-9", NOW - 3600, 1), True),
        (("i-9", NOW - 7199, 2), False),
        (("i-9", NOW - 7200, 2), True),
        (("i-9", NOW - 86400, 99), True),
        (("i-8", NOW - 599, 1), False),  # there is one more
        (("i-8", NOW - 600, 1), True),
    ],
)
def test_machines_that_are_left_alone_raise_one_alert_and_ever_rarer_reminders(
    told: tuple[str, float, int] | None, tells: bool
) -> None:
    before = {"unjournaled-": left_alone(*told)} if told else {}
    after = with_unjournaled(Sighting(NOW - 60, 2), volatile={"reminders": before}, rules=replace(RULES, alerts=True))
    assert after.does(Terminate) == []
    assert [event.kind for event in after.events] == [EventKind.UNJOURNALED] * tells
    if tells:
        (commit,) = [each for each in after.plan.commits if each.alerts]
        assert commit.alerts[0].text.startswith("1 machine runs that is not in the journal (other-x-1).")
        known = after.volatile.reminders["unjournaled-"]
        assert (known.at, known.times) == (NOW, told[2] + 1 if told else 1)
        assert known.members == {"i-9", told[0] if told else "i-9"}
    else:
        assert after.volatile.reminders == before


def left_alone(instance: str, at: float, times: int) -> Reminder:
    return Reminder(EventKind.UNJOURNALED, at, times, frozenset({instance}), "", EventKind.SOLVED)


def test_once_none_is_left_the_next_one_is_news_again() -> None:
    before = {"unjournaled-": left_alone("i-9", NOW - 9, 3)}
    assert scene(member(1), member(2), volatile={"reminders": before}).volatile.reminders == {}


def test_an_orphan_that_is_ended_is_not_ended_again_before_two_more_listings_have_it() -> None:
    seen = Sighting(NOW - 60, 2, SINCE + 1)
    instance = replace(UNJOURNALED, launched_at=SINCE + 61)
    after = with_unjournaled(seen, instance=instance)
    assert after.does(Terminate) == [Terminate("local", "i-9", "")]
    asked = after.volatile.sightings["i-9"]
    assert asked == replace(seen, listings=0, ended_at=NOW, asked_at=NOW)
    assert with_unjournaled(asked, instance=instance).does(Terminate) == []
    again = with_unjournaled(replace(asked, listings=2), instance=instance)
    assert (len(again.does(Terminate)), again.events) == (1, []), "people know it already"
    later = replace(asked, listings=2, ended_at=NOW - 200, asked_at=NOW - 99)
    assert with_unjournaled(later, instance=instance).does(Terminate) == [], "ever more seldom"


def test_an_orphan_that_has_become_a_nodes_machine_is_left_alone() -> None:
    volatile = {"sightings": {"i-1": Sighting(0.0, 9), "i-8": Sighting(0.0, 9)}}
    assert scene(member(1), member(2), volatile=volatile).actions == []


def test_all_orphans_are_terminated_by_their_ids_one_by_one() -> None:
    more = [machine(number, node=f"other-x-{number}") for number in (3, 4, 5, 6)]
    others = [*more, machine(7, InstanceState.TERMINATED, node="x"), machine(8, node=""), UNJOURNALED]
    volatile = {
        "clouds": {"local": listing(machine(1), machine(2), *reversed(others))},
        "sightings": {each.id: Sighting(0.0, 2) for each in others},
    }
    after = scene(member(1), member(2), volatile=volatile)
    assert [each.instance_id for each in after.does(Terminate)] == ["i-3", "i-4", "i-5", "i-6", "i-8", "i-9"]
    assert "(node unknown)" in after.events[4].text


# -- leftovers ---------------------------------------------------------------------------------------------

DISK = Leftover("disk-1", LeftoverKind.DISK, OWNER, name(3), "region-1")
CARD = Leftover("card-1", LeftoverKind.NETWORK_INTERFACE, OWNER, "", "region-1")


@pytest.mark.parametrize(("tried_s", "asks"), [(299.9, False), (300.0, True)])
def test_leftovers_are_listed_once_per_period_and_cloud(tried_s: float, asks: bool) -> None:
    volatile = {"leftovers": {"local": LeftoversView(attempted_at=NOW - tried_s)}}
    after = scene(member(1), member(2), rules=RULES, volatile=volatile)
    assert after.does(ListLeftovers) == ([ListLeftovers("local")] if asks else [])
    busy = scene(member(1), member(2), rules=RULES, volatile=volatile, busy=frozenset({"leftovers:local"}))
    assert busy.does(ListLeftovers) == []


def test_leftovers_are_counted_by_listing_and_a_failed_one_changes_none_of_them() -> None:
    first = absorb(VolatileState(), LeftoversDone("local", NOW - 9, (DISK, CARD)), [], NOW)
    second = absorb(first, LeftoversDone("local", NOW - 1, (DISK,)), [], NOW)
    assert second.leftovers["local"] == LeftoversView({"disk-1": DISK}, {"disk-1": Sighting(NOW - 9, 2)}, NOW - 1)
    failed = absorb(second, LeftoversDone("local", NOW, (), "denied"), [], NOW)
    assert failed.leftovers["local"] == replace(
        second.leftovers["local"], attempted_at=NOW, failing_since=NOW, error="denied"
    )
    both = absorb(second, LeftoversDone("aws", NOW, ()), [], NOW)
    assert set(both.leftovers) == {"local", "aws"}


@pytest.mark.parametrize(
    ("listings", "state", "more", "removed"),
    [
        (2, None, {}, True),
        (1, None, {}, False),
        (2, N.GONE, {}, True),
        (2, N.TERMINATING, {}, False),
        (2, None, {"unjournaled": frozenset({name(3)})}, False),
        (2, None, {"unreadable_jobs": {"job": "newer"}}, False),
    ],
)
def test_leftovers_without_an_open_node_are_removed_when_seen_twice(
    listings: int, state: NodeState | None, more: Any, removed: bool
) -> None:
    other = Leftover("disk-2", LeftoverKind.DISK, OWNER, name(1), "region-1")
    seen = {"disk-1": Sighting(NOW - 900, listings), "disk-2": Sighting(NOW - 900, 2)}
    known = LeftoversView({"disk-1": DISK, "disk-2": other}, seen, NOW - 1)
    nodes = [member(1), member(2), *([node(3, state, retry_at=NOW + 9)] if state else [])]
    aws = LeftoversView({"card-1": CARD}, {"card-1": Sighting(NOW, 1)}, NOW - 1)
    after = scene(*nodes, volatile={"leftovers": {"gcp": LeftoversView(), "local": known, "aws": aws}}, **more)
    assert after.does(Remove) == ([Remove("local", DISK)] if removed else [])
    kept = after.volatile.leftovers["local"]
    assert set(kept.leftovers) == {"disk-2"} | (set() if removed else {"disk-1"})
    assert set(kept.sightings) == {"disk-1", "disk-2"}
    assert kept.sightings["disk-1"].ended_at == (NOW if removed else 0.0)
    assert after.volatile.leftovers["aws"] == aws
    if removed:
        event = after.events[-1]
        assert (event.id, event.kind, event.node, event.job) == ("orphan-disk-1", EventKind.ORPHAN, name(3), "")
        assert event.text == f"disk disk-1 was left behind (node {name(3)}): removing it"


def test_orphans_without_a_node_in_their_tag_are_called_unknown() -> None:
    known = LeftoversView({"card-1": CARD}, {"card-1": Sighting(NOW - 900, 2)}, NOW - 1)
    assert "(node unknown)" in scene(member(1), member(2), volatile={"leftovers": {"local": known}}).events[0].text


# -- offers ------------------------------------------------------------------------------------------------


def test_offers_are_kept_for_live_jobs_and_a_failed_read_keeps_the_last_good_ones() -> None:
    over = view(replace(job(1), name="over", state=J.FAILED), [])
    going = view(replace(job(1), name="going"), [])
    before = VolatileState(
        offers={each: OffersView((OFFER,), known=True, asked_at=1.0) for each in ("job", "over", "going")}
    )
    other = replace(OFFER, zone="zone-b")
    after = absorb(before, OffersDone("job", NOW - 1, (other,)), [over, going], NOW).offers
    assert after == {"going": before.offers["going"], "job": OffersView((other,), known=True, asked_at=NOW - 1)}
    first = absorb(VolatileState(), OffersDone("job", NOW - 1, (other,)), [], NOW).offers
    assert first == {"job": after["job"]}
    failed = absorb(before, OffersDone("job", NOW - 1, (), "denied"), [], NOW).offers["job"]
    assert failed == OffersView((OFFER,), known=True, asked_at=NOW - 1, error="denied")
    never = absorb(VolatileState(), OffersDone("job", NOW - 1, (), "denied"), [], NOW).offers["job"]
    assert never == OffersView((), known=False, asked_at=NOW - 1, error="denied")


def test_a_job_is_planned_again_once_its_offers_were_read() -> None:
    before = VolatileState(changed_jobs=frozenset({"other"}))
    assert absorb(before, OffersDone("job", NOW, (OFFER,)), [], NOW).changed_jobs == {"job", "other"}


def test_the_last_answer_of_each_silent_node_is_kept() -> None:
    old, new = AskDone(name(1), NOW - 9, "timeout"), AskDone(name(1), NOW, agent_runs=True)
    other = AskDone(name(2), NOW - 5, "connection refused")
    before = VolatileState(answers={name(1): old, name(2): other})
    assert absorb(before, new, [], NOW).answers == {name(1): new, name(2): other}


def test_a_machine_is_found_by_its_tag_only_until_its_id_is_known() -> None:
    known = listing(machine(1, id="i-77"), machine(2))
    assert known.of_node(node(1, N.REQUESTED)) == machine(1, id="i-77")
    assert known.of_node(member(1)) is None
    assert known.of_node(member(2)) == machine(2)
    assert known.of_node(node(3, N.REQUESTED)) is None
