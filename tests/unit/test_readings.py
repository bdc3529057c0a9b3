"""Clouds' answers of a wrong shape: one machine that cannot be read hides no other, is not ended, and not forgotten."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from provisioners.aws import describe as aws
from provisioners.aws.settings import AwsSettings
from provisioners.base import InstanceState, Launched, Leftover, LeftoverKind, ProvisionerError, Unknown
from provisioners.readings import MAX_FIELD_CHARACTERS, Guarded, read_each
from supervisor.model import NodeState
from supervisor.planner.actions import ListDone, Terminate
from supervisor.planner.orphans import is_orphan
from supervisor.planner.plan import absorb
from supervisor.planner.world import Missing, Sighting
from tests.unit.scene import NOW, OFFER, N, decide, job, listing, machine, member, name, node, view, world_of

GOOD = machine(1)
OWNER = GOOD.owner
WRONG: list[dict[str, Any]] = [
    {"node": None},
    {"node": 5},
    {"state": "running?"},
    {"launched_at": float("nan")},
    {"launched_at": "soon"},
    {"preempt_at": float("inf")},
    {"ssh_port": "22"},
    {"ssh_host": "x" * (MAX_FIELD_CHARACTERS + 1)},
    {"instance_type": "a\x1bb"},
    {"zone": "\ud800"},
    {"end_cause": "lightning"},
]


@pytest.mark.parametrize("changes", WRONG, ids=lambda each: repr(each)[:40])
def test_a_machine_that_cannot_be_read_is_listed_as_unreadable_and_hides_no_other(changes: dict[str, Any]) -> None:
    listed = [GOOD, replace(machine(2), **changes), machine(3)]
    found = read_each(listed, lambda each: each, lambda each: each.id)
    assert [found[0], found[2]] == [GOOD, machine(3)]
    assert (found[1].id, found[1].state, found[1].node) == ("i-2", InstanceState.UNREADABLE, "")


def test_a_machine_of_ec2_without_its_state_is_listed_by_its_id() -> None:
    settings = AwsSettings(regions=("us-east-1",))
    raw: list[Any] = [{"InstanceId": "i-1"}, {"State": {"Name": "running"}}, 5]
    found = read_each(
        raw,
        lambda each: aws.instance(each, "us-east-1", settings, None),
        lambda each: aws.id_of("us-east-1", each["InstanceId"]),
    )
    assert [each.id for each in found] == ["us-east-1:i-1", "", ""]
    assert {each.state for each in found} == {InstanceState.UNREADABLE}


UNREADABLE = replace(machine(2, InstanceState.UNREADABLE), node="", token="", ssh_host="")


@pytest.mark.parametrize("state", [N.PENDING, N.READY, N.MEMBER, N.TERMINATING, N.SUSPECT])
def test_of_a_node_whose_machine_cannot_be_read_nothing_is_concluded(state: NodeState) -> None:
    record = node(2, state, state_since=NOW - 10_000 if state is not N.SUSPECT else NOW)
    scene_ = view(job(2), [member(1), record])
    listed = {"clouds": {"local": listing(machine(1), UNREADABLE)}, "sightings": {"i-2": Sighting(NOW - 9999, 9)}}
    after = decide(world_of(scene_, volatile=listed))
    assert after.state(2) is state
    assert [each for each in after.does(Terminate) if each.instance_id == "i-2"] in (
        [],
        [Terminate("local", "i-2", name(2))],
    )
    assert not is_orphan(UNREADABLE, {})
    assert any("cannot be read (i-2)" in text for text in after.plan.warnings)


def test_a_listing_with_a_machine_without_an_id_proves_no_absence() -> None:
    scene_ = view(job(2), [member(1), member(2)])
    volatile = world_of(scene_).volatile
    nameless = replace(UNREADABLE, id="")
    for _ in range(3):
        volatile = absorb(volatile, ListDone("local", NOW, (machine(1), nameless)), [scene_], NOW)
    assert set(volatile.clouds["local"].instances) == {"i-1", "i-2"}
    assert volatile.clouds["local"].missing == {}
    volatile = absorb(volatile, ListDone("local", NOW, (machine(1),)), [scene_], NOW)
    assert volatile.clouds["local"].missing == {name(2): Missing(NOW, (NOW,))}


class Cloud:
    """Answers what it is given, or raises it."""

    name = "odd"

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def __getattr__(self, _: str) -> Callable[..., Any]:
        def call(*_: Any) -> Any:
            if isinstance(self._answer, Exception):
                raise self._answer
            return self._answer

        return call


CALLS: list[Callable[[Any], Any]] = [
    lambda cloud: cloud.offers(None, 1.0),
    lambda cloud: cloud.find(OWNER, "t", 1.0),
    lambda cloud: cloud.instances(OWNER, 1.0),
    lambda cloud: cloud.terminate("i", 1.0),
    lambda cloud: cloud.leftovers(OWNER, 1.0),
    lambda cloud: cloud.remove(Leftover("d", LeftoverKind.DISK, OWNER, "", "r"), 1.0),
    lambda cloud: cloud.console("i", 1.0),
]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("error", [KeyError("x"), AttributeError("y"), TypeError("z"), RecursionError()])
def test_an_answer_of_a_wrong_shape_fails_its_call_with_a_typed_error(call: Any, error: Exception) -> None:
    with pytest.raises(ProvisionerError, match=f"^odd answered a call for .* cannot be read: {type(error).__name__}"):
        call(Guarded(Cloud(error)))
    own = ProvisionerError("as it is")
    with pytest.raises(ProvisionerError, match=r"^as it is$"):
        call(Guarded(Cloud(own)))


def test_after_a_launch_whose_answer_cannot_be_read_the_machine_may_exist() -> None:
    assert isinstance(Guarded(Cloud(KeyError("x"))).launch(None, 1.0), Unknown)  # type: ignore[arg-type]
    for instance in (None, replace(GOOD, id=""), replace(GOOD, launched_at="soon")):  # type: ignore[arg-type]
        assert isinstance(Guarded(Cloud(Launched(instance))).launch(None, 1.0), Unknown)  # type: ignore[arg-type]
    assert Guarded(Cloud(Launched(GOOD))).launch(None, 1.0) == Launched(GOOD)  # type: ignore[arg-type]


def test_a_machine_that_cannot_be_read_is_not_known_by_its_token() -> None:
    with pytest.raises(ProvisionerError, match="describes i-2 so that it cannot be read"):
        Guarded(Cloud(UNREADABLE)).find(OWNER, "t", 1.0)


def test_offers_and_leftovers_that_cannot_be_read_are_left_out() -> None:
    odd = replace(OFFER, usd_per_hour=float("nan"))
    assert Guarded(Cloud([OFFER, odd, replace(OFFER, zone=None)])).offers(None, 1.0) == [OFFER]  # type: ignore[arg-type]
    disk = Leftover("d", LeftoverKind.DISK, OWNER, "", "r")
    assert Guarded(Cloud([disk, replace(disk, node=None)])).leftovers(OWNER, 1.0) == [disk]  # type: ignore[arg-type]
