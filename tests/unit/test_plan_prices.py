"""Prices of running machines: when they are read again, and what a job has spent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioners.base import Offer
from supervisor.features.limits.rule import spent_usd
from supervisor.market.offers import OffersView
from supervisor.planner.actions import MAX_OPERATIONS, FetchOffers
from supervisor.planner.plan import plan
from supervisor.planner.world import Rules
from tests.unit.scene import (
    KEYS,
    NOW,
    OFFER,
    Decided,
    J,
    N,
    as_job,
    job,
    member,
    node,
    offering,
    scene,
    spec,
    view,
    world_of,
)

DEARER = replace(OFFER, usd_per_hour=2.0, price_source="live")
RULES = Rules(leftovers_s=1e9)


def offered(offer: Offer, *nodes: object, **more: object) -> Decided:
    """One plan for a job that trains on node 1, while this is offered."""
    return scene(*(nodes or (member(1),)), record=job(1), volatile=offering(offer, **more))  # type: ignore[arg-type]


def test_what_is_spent_follows_a_price_that_changes() -> None:
    after = offered(DEARER).node(1)
    assert after.offer == DEARER
    assert after.usd_before == pytest.approx(0.5 * 1000 / 3600)
    assert after.priced_at == NOW
    later = NOW + 1800
    assert after.usd(later) == pytest.approx(0.5 * 1000 / 3600 + 1.0)
    again = replace(after, offer=OFFER, usd_before=after.usd(later), priced_at=later)
    assert spent_usd(job(1), [again], later + 3600) == pytest.approx(0.5 * 1000 / 3600 + 1.0 + 0.5)


def test_a_price_that_becomes_known_is_that_of_the_whole_time_and_an_unknown_one_changes_nothing() -> None:
    unknown = replace(OFFER, usd_per_hour=None)
    after = offered(DEARER, member(1, offer=unknown)).node(1)
    assert (after.offer, after.usd_before, after.priced_at, after.usd(NOW)) == (DEARER, 0.0, 0.0, 2.0 * 1000 / 3600)
    assert offered(unknown).commit.nodes == ()
    assert offered(OFFER).commit.nodes == ()
    for other in (replace(DEARER, zone="zone-b"), replace(DEARER, instance_type="large")):
        assert offered(other).commit.nodes == ()
    ended = member(1), node(9, N.GONE, ended_at=NOW - 9)
    assert offered(DEARER, *ended).node(9).offer == OFFER, "what has ended has its price"


def test_prices_are_read_again_now_and_then_while_machines_run() -> None:
    def reads(age_s: float, *nodes: object, **more: object) -> int:
        found = offered(OFFER, *nodes, asked_at=NOW - age_s, **more)
        return len(found.does(FetchOffers))

    assert (reads(0.5 * RULES.prices_s - 1), reads(RULES.prices_s + 1)) == (0, 1)
    short = scene(member(1), record=job(2), volatile=offering(asked_at=NOW - RULES.prices_s - 1))
    assert len(short.does(FetchOffers)) == 1, "once, although it lacks a node"
    taken_over = scene(member(1), record=job(1), volatile=offering(OFFER, asked_at=0.0), timers_paused_until=NOW - 9)
    assert taken_over.does(FetchOffers) == [], "a new leader does not read those of all jobs at once"
    assert scene(record=job(1, J.PAUSED, pause={"at": NOW - 9}), volatile=offering(asked_at=0.0)).actions == []


def test_the_reads_of_many_jobs_are_spread_over_half_a_period() -> None:
    def reads(age_s: float) -> int:
        jobs = [replace(job(1), name=f"job-{number}", uid="u") for number in range(40)]
        views = [as_job(view(job(1), [member(1)]), each.name) for each in jobs]
        offers = {each.name: OffersView((OFFER,), known=True, asked_at=NOW - age_s) for each in jobs}
        decided, _ = plan(world_of(*views, volatile={"offers": offers}), {}, KEYS, NOW)
        return len([each for each in decided.actions if isinstance(each, FetchOffers)])

    half_s = RULES.prices_s / 2
    assert (reads(half_s), reads(RULES.prices_s + 1)) == (0, 40)
    assert 10 <= reads(1.5 * half_s) <= 30


def test_what_has_no_machine_yet_keeps_the_price_it_was_requested_at_and_none_is_read_for_it() -> None:
    waiting = node(1, N.REQUESTED, retry_at=NOW + 9)
    after = offered(DEARER, waiting, asked_at=NOW - RULES.prices_s - 1)
    assert (after.node(1), after.actions) == (waiting, [])


def test_machines_of_a_job_that_has_ended_keep_their_prices() -> None:
    leaving = node(1, N.TERMINATING, retry_at=NOW + 9)
    volatile = offering(DEARER, asked_at=NOW - RULES.prices_s - 1)
    after = scene(leaving, record=job(1, J.FAILED), hint=None, volatile=volatile)
    assert (after.node(1), after.actions) == (leaving, [])


def test_new_prices_of_many_machines_are_taken_over_in_parts() -> None:
    nodes = [member(number) for number in range(1, 201)]
    after = scene(*nodes, record=job(200, max_nodes=200), volatile=offering(DEARER))
    repriced = [each for each in after.commit.nodes if each.offer == DEARER]
    assert 100 <= len(repriced) < MAX_OPERATIONS


def test_a_job_says_that_a_price_is_unknown() -> None:
    unknown = replace(OFFER, usd_per_hour=None)
    after = offered(unknown, member(1, offer=unknown))
    assert after.sentence.endswith("the price of 1 node is unknown")
    asked = scene(record=job(1, J.QUEUED), volatile=offering(unknown))
    assert "(small, price unknown)" in asked.events[0].text
    limited = scene(record=job(1, J.QUEUED, spec=spec(limits={"usd": 5.0})), volatile=offering(unknown))
    assert limited.new == []
    assert "the job has a limit of money" in limited.sentence
