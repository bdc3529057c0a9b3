"""What a stolen node says, and what is made of it: what a simulated world cannot play, and what each row is held by."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from spotsup_trainer.wire import AgentStatus, Done, Notice, Progress, RankTimes, Round, WireError, decode

from provisioners.base import EndCause, InstanceState
from supervisor.events import EventKind
from supervisor.features.slow.rank_times import MAX_FACTOR, factors
from supervisor.journal.codec import dump, load
from supervisor.market.warm import WarmRules
from supervisor.model import JobRecord, NodeRecord
from supervisor.planner.actions import BootstrapDone, Terminate
from supervisor.planner.release import MIN_BILLED_S
from supervisor.planner.world import Rules
from supervisor.runtime.lanes import LANES, Lanes
from tests.sim.stolen_forgeries import FORGERIES
from tests.unit.scene import (
    NOW,
    OFFER,
    Decided,
    J,
    N,
    as_job,
    decide,
    job,
    launcher,
    listing,
    machine,
    member,
    name,
    node,
    round_of,
    scene,
    view,
    world_of,
)
from tests.unit.test_plan_unhealthy import ill

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs/verification/stolen-node.md"
YOUNG_S = MIN_BILLED_S - 1.0


# -- messages --------------------------------------------------------------------------------------------------------


def test_a_round_without_members_keeps_no_job_from_being_decided() -> None:
    after = scene(member(1), member(2), round=Round(7, (), NOW), done={name(1): Done(name(1), "i", 7, NOW)})
    assert dict(after.plan.undecided) == {}


@pytest.mark.parametrize("field", ["checkpoint_p95_s", "step_s", "checkpoint_every_s"])
def test_numbers_from_which_no_other_can_be_computed_are_no_message(field: str) -> None:
    raw = b'{"round":1,"step":1,"at":1,"first_step_at":1,"%s":1e16}' % field.encode()
    with pytest.raises(WireError, match=f"{field} is beyond 1e"):
        decode(Progress, raw)


def test_times_of_ranks_whose_quotient_is_no_number_leave_a_record_that_can_be_read() -> None:
    tiny, kinds = 5e-324, dict.fromkeys("abc", "v100")
    found = factors(RankTimes(1, 1.0, (tiny, tiny, 1e15), (tiny, tiny, 1e15)), kinds)
    assert found["c"] == MAX_FACTOR
    assert math.isfinite(max(found.values()))
    slow = replace(member(1), slow=replace(member(1).slow, factor=found["c"]))
    assert load(NodeRecord, dump(slow), "key") == slow


def test_a_machine_type_is_healthy_by_a_bootstrap_and_not_by_a_forged_key() -> None:
    memory = scene(node(1, N.BOOTSTRAPPING)).volatile.capacity.with_unhealthy(OFFER, "ann")
    for bootstrapped, known in ((False, {"ann": 1}), (True, {})):
        new = node(1, N.BOOTSTRAPPING, bootstrapped=bootstrapped)
        after = scene(new, members={name(1): launcher(1)}, volatile={"capacity": memory})
        assert after.state(1) is N.READY
        assert after.volatile.capacity.unhealthy_streak(OFFER) == known


# -- money -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("age_s", "stays"), [(YOUNG_S, True), (MIN_BILLED_S, False)])
def test_a_machine_that_its_node_gives_up_stays_for_the_minute_that_it_bills(age_s: float, stays: bool) -> None:
    young = {"launched_at": NOW - age_s, "needs_replacement": True}
    lost, leaving = node(2, N.LOST, **young), node(3, N.DRAINING, state_since=NOW - 5, **young)
    after = scene(member(1), lost, leaving, round=round_of(1), record=job(1))
    assert ({each.instance_id for each in after.does(Terminate)} == set()) is stays
    booting = node(2, N.BOOTING, launched_at=NOW - age_s)
    notices = {name(2): Notice(name(2), NOW + 30, NOW, "aws")}
    assert (scene(member(1), booting, notices=notices).state(2) is not N.TERMINATING) is stays


@pytest.mark.parametrize("why", ["ended", "paused", "drained", "its cloud"])
def test_it_does_not_stay_where_somebody_else_ends_it(why: str) -> None:
    lost = node(2, N.LOST, launched_at=NOW - 5, needs_replacement=True, drain_requested=why == "drained")
    record = job(1, J.CANCELLED) if why == "ended" else job(1, pause={"at": NOW - 5}) if why == "paused" else job(1)
    taken = machine(2, InstanceState.TERMINATED, end_cause=EndCause.PREEMPTED)
    listed = listing(machine(1), taken if why == "its cloud" else machine(2))
    after = scene(member(1), lost, record=record, listed=listed)
    assert "i-2" in {each.instance_id for each in after.does(Terminate)}


class Undecidable(Round):
    """A message that what decides is not made for, whatever that may be."""

    def nodes(self) -> tuple[str, ...]:
        raise ValueError("not enough values to unpack")


def test_what_a_user_cancels_ends_although_its_messages_cannot_be_decided_about() -> None:
    def decided(record: JobRecord) -> Decided:
        known = view(record, [member(1), member(2)])
        assert known.round is not None
        return decide(world_of(replace(known, round=Undecidable(1, known.round.members, NOW))))

    stuck, cancelled = decided(job(2)), decided(job(2, cancel_requested=True))
    assert (list(stuck.plan.undecided), stuck.does(Terminate)) == (["job"], [])
    assert cancelled.job.state is J.CANCELLED
    assert {each.instance_id for each in cancelled.does(Terminate)} == {"i-1", "i-2"}


# -- other jobs ------------------------------------------------------------------------------------------------------


def test_a_nodes_own_notice_says_nothing_of_its_pool_and_its_clouds_does_once() -> None:
    said = {name(2): Notice(name(2), NOW + 30, NOW, "local API")}
    own = scene(member(1), member(2), notices=said)
    assert own.node(2).needs_replacement
    assert dict(own.volatile.capacity.exposures) == {}
    listed = listing(machine(1), machine(2, preempt_at=NOW + 30))
    both = scene(member(1), own.node(2), notices=said, listed=listed)
    assert [each.preemptions for each in both.volatile.capacity.exposures.values()] == [1.0]
    again = scene(member(1), both.node(2), notices=said, listed=listed)
    assert dict(again.volatile.capacity.exposures) == {}, "it was counted"
    ended = listing(machine(1), machine(2, state=InstanceState.TERMINATED, end_cause=EndCause.PREEMPTED))
    for before, preemptions in ((own.node(2), [1.0]), (both.node(2), [])):
        after = scene(member(1), before, listed=ended)
        assert [each.preemptions for each in after.volatile.capacity.exposures.values()] == preemptions


@pytest.mark.parametrize(("owners", "replaced"), [(["eve"], True), (["eve", "bob"], False), (["ann"], False)])
def test_unhealthy_nodes_of_one_other_owner_keep_no_node_from_being_replaced(owners: list[str], replaced: bool) -> None:
    mine = view(replace(job(2), owner="ann"), [member(1), member(2)], healths=ill(2))
    others = []
    for number, owner in enumerate(owners):
        called = f"other{number}"
        known = view(replace(job(2), owner=owner), [member(1), member(2)], healths=ill(1, 2))
        others.append(as_job(known, called))
    assert decide(world_of(mine, *others)).node(2).doomed is replaced


def test_agents_of_nobody_do_not_make_a_tenth_of_many() -> None:
    forged = {f"job-u-{number}": AgentStatus(f"job-u-{number}", "b", 1, 0.0, "v") for number in range(100, 1000)}
    agents = {name(n): AgentStatus(name(n), "b", 1, 0.0, "v") for n in (1, 2)} | forged
    after = scene(member(1), member(2), healths=ill(1, 2), agents=agents)
    assert after.event_kinds.count(EventKind.UNHEALTHY_HELD) == 1


@pytest.mark.parametrize(("owners", "for_all"), [("eee", False), ("eea", True)])
def test_unhealthy_machines_in_a_row_block_their_type_for_all_once_two_owners_had_them(
    owners: str, for_all: bool
) -> None:
    before, last = owners[:-1], owners[-1]
    memory = scene(member(1)).volatile.capacity
    for owner in before:
        memory = memory.with_unhealthy(OFFER, owner)
    record = replace(job(2), owner=last)
    done = BootstrapDone(name(3), error="ECC errors", unhealthy=True)
    waited = node(3, N.BOOTSTRAPPING, launched_as="job-v-9")  # for this job, after another one's program ran on it
    after = scene(member(1), waited, record=record, outcomes=[done], volatile={"capacity": memory})
    refused = [after.volatile.capacity.refusal(OFFER, NOW, spare=False, job=each) for each in ("job", "other")]
    assert [each is not None for each in refused] == [True, for_all]


@pytest.mark.parametrize("state", [InstanceState.TERMINATED, InstanceState.RUNNING])
def test_a_key_of_a_machine_that_has_ended_or_is_another_jobs_by_now_holds_up_nothing(state: InstanceState) -> None:
    """An agent's key of a node of an earlier run; its machine has ended, or another job has taken it over."""
    forged = "job-v-9"
    other = as_job(view(job(1), [member(1)]), "other")
    if state is InstanceState.RUNNING:
        taken = {key: replace(each, launched_as=forged, instance_id="i-9") for key, each in other.nodes.items()}
        other = replace(other, nodes=taken)
    listed = listing(machine(1), machine(2), replace(machine(9, state), node=forged))
    world = world_of(
        view(job(2), [member(1), member(2)]),
        other,
        unjournaled=frozenset({forged}),
        rules=Rules(warm=WarmRules(keep_s=60.0)),
        volatile={"clouds": {"local": listed}},
    )
    assert world.lost_nodes == frozenset()
    assert not decide(world).sentence.startswith("left alone")


def test_ends_of_many_machines_that_answer_slowly_hold_up_no_end_of_another_jobs() -> None:
    lanes = Lanes()
    for number in range(3 * LANES["end"]):
        lanes.add(Terminate("aws", f"i-{number}", f"evil-u-{number}"), float(number))
    running = [lanes.take("end") for _ in range(LANES["end"])]
    lanes.add(Terminate("aws", "i-ann", "ann-u-1"), 1e6)
    assert running[0] is not None
    lanes.end(running[0])
    found = lanes.take("end")
    assert isinstance(found, Terminate)
    assert found.node == "ann-u-1"


# -- the table -------------------------------------------------------------------------------------------------------


def test_each_try_has_a_row_and_each_row_a_test() -> None:
    rows = re.findall(
        r"^\| (.+?) \| (.+?) \| `(\w+)/(test_\w+\.py)::(\w+)(?:\[([\w-]+)\])?` \|$", TABLE.read_text(), re.MULTILINE
    )
    assert len(rows) == TABLE.read_text().count("\n| ") - _headings()
    assert len(rows) >= 40
    for _, _, folder, file, test, case in rows:
        text = (ROOT / "tests" / folder / file).read_text()
        assert f"def {test}(" in text, test
        if case and file != "test_stolen_node.py":
            assert f'"{case}"' in text, case
    tried = {case for *_, folder, file, _, case in rows if (folder, file) == ("sim", "test_stolen_node.py")}
    assert tried == set(FORGERIES)


def _headings() -> int:
    return len(re.findall(r"^\| tried ", TABLE.read_text(), re.MULTILINE))
