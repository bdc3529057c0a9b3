"""Steps in an account: taken until none is missing, whatever each answers; and the clouds' plans, which are pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioners.account import (
    Account,
    Begun,
    Clock,
    Found,
    Key,
    Made,
    NotYetError,
    Plan,
    Resource,
    Row,
    Said,
    Seen,
    State,
    Step,
    Verb,
    carry_out,
)
from provisioners.aws.account.wanted import SPOT
from provisioners.base import Owner, ProvisionerError
from provisioners.descriptor import Descriptor
from provisioners.gcp.settings import GcpSettings
from provisioners.registry import CLOUDS
from supervisor.cli.account import account_cloud, differing, merged
from supervisor.config import Config
from supervisor.errors import UsageError
from tests.support.accounts import TABLES, Tabled, Waits
from tests.support.machines import OTHER, OWNER

# -- taking steps ----------------------------------------------------------------------------------------------


def put(name: str) -> Step:
    """A step of the account below."""
    return Step(Verb.MAKE, Resource("thing", name, make_text=f"put {name}"))


@dataclass
class Slow:
    """An account in which a thing is seen so many looks after it was put, and the first answers to it are lost."""

    wanted: tuple[str, ...]
    unseen: dict[str, int] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)
    there: set[str] = field(default_factory=set)
    puts: list[str] = field(default_factory=list)
    at: float = 0.0

    def look(self) -> Plan:
        seen = set()
        for name in self.there:
            self.unseen[name] = self.unseen.get(name, 0) - 1
            if self.unseen[name] < 0:
                seen.add(name)
        return Plan(tuple(put(each) for each in self.wanted if each not in seen))

    def take(self, step: Step) -> None:
        if step.what.name in self.there:
            raise NotYetError("it is there already")
        self.there.add(step.what.name)
        self.puts.append(step.what.name)
        self.lost[step.what.name] = self.lost.get(step.what.name, 0) - 1
        if self.lost[step.what.name] >= 0:
            raise NotYetError("no answer")

    def wait(self, seconds: float) -> None:
        assert 0 < seconds <= 8.0
        self.at += seconds

    @property
    def clock(self) -> Clock:
        return Clock(lambda: self.at, self.wait)


COUNTS = st.dictionaries(st.sampled_from("abc"), st.integers(0, 9))


@given(COUNTS, COUNTS)
def test_each_thing_is_put_once_however_late_it_is_seen(unseen: dict[str, int], lost: dict[str, int]) -> None:
    account, said = Slow(tuple("abc"), dict(unseen), dict(lost)), list[str]()
    carry_out(account.look, account.take, Said(said.append), account.clock)
    assert account.puts == ["a", "b", "c"]
    assert len(said) == len(set(said))


def test_what_never_comes_ends_in_one_sentence_after_the_limit() -> None:
    account, said, late = Slow(("a",), {"a": 10**6}), list[str](), list[str]()
    with pytest.raises(ProvisionerError, match="not done after 60 s: could not put a: it is there already"):
        carry_out(account.look, account.take, Said(said.append, late.append), account.clock, limit_s=60.0)
    assert 50.0 < account.at <= 60.0
    assert (said, late) == (["put a"], ["could not put a: it is there already"])  # nothing is said twice


def test_a_problem_ends_it_before_any_step() -> None:
    account = Slow(("a",))
    with pytest.raises(ProvisionerError, match="someone else's"):
        carry_out(
            lambda: replace(account.look(), problems=("it is someone else's",)),
            account.take,
            Said(print),
            account.clock,
        )
    assert account.puts == []


# -- a step ----------------------------------------------------------------------------------------------------


class Shelf:
    """A cloud with boxes, in which things are, and a drawer of data: it does as it is told, and counts."""

    marked_by = "tags"
    allowed = "shelf.json"
    denials = frozenset({"NotYours"})

    def __init__(self) -> None:
        self.there: dict[Key, Found] = {}
        self.calls: list[str] = []
        self.in_the_way: list[str] = []
        self.failure: str | None = None
        self.rows: Sequence[Row] = (
            Row("box", lambda _: self._all("box"), self._put, self._drop, blocked=lambda _: self.in_the_way),
            Row("thing", lambda _: self._all("thing"), self._put, self._drop),
            Row("drawer", lambda _: self._all("drawer"), self._begin, self._drop, data=True),
        )

    def _all(self, kind: str) -> list[Found]:
        return [each for each in self.there.values() if each.what.kind == kind]

    def _put(self, what: Resource, _seen: Seen) -> None:
        self.calls.append(f"put {what.name}")
        self.there[what.key] = Found(what, OWNER)

    def _begin(self, what: Resource, _seen: Seen) -> Begun:
        self.calls.append(f"begin {what.name}")
        return Begun(operation="op-1")

    def _drop(self, what: Resource, _seen: Seen) -> None:
        self.calls.append(f"drop {what.name}")
        del self.there[what.key]

    def whose(self) -> str:
        return "the shelf"

    def wanted(self) -> list[Resource]:
        return [BOX, Resource("thing", "t", of=BOX), DRAWER]

    def outcome(self, operation: str) -> str | None:
        assert operation == "op-1"
        return self.failure

    def made(self, seen: Seen) -> Made:
        return Made({"boxes": [each.what.name for each in seen.ours("box")]})


BOX, DRAWER = Resource("box", "b", "here"), Resource("drawer", "d")


def test_an_operation_that_was_begun_is_asked_for_and_not_begun_again() -> None:
    shelf = Shelf()
    account = Account(shelf, OWNER)
    step = account.missing().steps[-1]
    account.take(step)
    for failure, error in ((None, "the cloud is at it"), ("", "does not show it yet")):
        shelf.failure = failure
        with pytest.raises(NotYetError, match=error):
            account.take(step)
    account.take(step)  # it is not shown: again
    shelf.failure = "no more drawers"
    with pytest.raises(ProvisionerError, match="could not make the drawer d: no more drawers"):
        account.take(step)
    assert shelf.calls == ["begin d", "begin d"]


def test_what_something_uses_is_deleted_after_it_and_data_only_if_it_is_still_ours() -> None:
    shelf = Shelf()
    for what in shelf.wanted():
        shelf.there[what.key] = Found(what, OWNER)
    account = Account(shelf, OWNER)
    drawer, thing, box = account.remaining(with_data=True).steps
    assert [str(each) for each in (drawer, thing, box)] == [
        *("delete the drawer d", "delete the thing t of b", "delete the box b (here)")
    ]
    with pytest.raises(NotYetError, match="the thing t still uses it"):
        account.take(box)
    account.take(thing)
    account.take(box)
    shelf.there[DRAWER.key] = Found(DRAWER, OTHER)
    with pytest.raises(ProvisionerError, match="the drawer d does not have this installation's tags any more: nothing"):
        account.take(drawer)
    del shelf.there[DRAWER.key]
    with pytest.raises(NotYetError, match="it is not shown any more"):
        account.take(drawer)
    assert shelf.calls == ["drop t", "drop b"]


def test_what_a_person_has_to_take_away_first_is_said_before_anything_is_deleted() -> None:
    shelf = Shelf()
    shelf.in_the_way = ["a cat is in the box: call it, and repeat"]
    shelf.there[DRAWER.key] = Found(DRAWER, OWNER)
    assert Account(shelf, OWNER).remaining(with_data=True).problems == ()
    for what, owner, problems in ((BOX, OTHER, ()), (BOX, OWNER, tuple(shelf.in_the_way))):
        shelf.there[what.key] = Found(what, owner)
        plan = Account(shelf, OWNER).remaining(with_data=True)
        assert (plan.problems, plan.steps[0].what) == (problems, DRAWER)
    account, waits = Account(shelf, OWNER), Waits()
    with pytest.raises(ProvisionerError, match="a cat is in the box"):
        carry_out(lambda: account.remaining(with_data=True), account.take, Said(print), waits.clock)
    assert (shelf.calls, waits.at) == ([], 0.0)


def test_what_is_not_ours_is_deleted_by_no_step_and_for_no_owner() -> None:
    shelf = Shelf()
    shelf.there[BOX.key] = Found(BOX, OTHER)
    with pytest.raises(ProvisionerError, match=r"the box b \(here\) is not this installation's: nothing was deleted"):
        Account(shelf, OWNER).take(Step(Verb.DELETE, BOX, shelf.there[BOX.key]))
    for owner in (Owner("", ""), Owner("test", ""), Owner("", "0123456789abcdef")):
        with pytest.raises(ProvisionerError, match="everyone's things would count as ours"):
            Account(shelf, owner)
    assert shelf.calls == []


@pytest.mark.parametrize("state", [State.PENDING, State.GOING])
def test_what_is_on_its_way_is_waited_for(state: State) -> None:
    shelf = Shelf()
    shelf.there[BOX.key] = Found(BOX, OWNER, state=state, said="Updating")
    account = Account(shelf, OWNER)
    with pytest.raises(NotYetError, match="it is in the state Updating, which may take minutes"):
        account.take(account.missing().steps[0])
    assert shelf.calls == []


# -- what is compared: all clouds ------------------------------------------------------------------------------

EACH_CLOUD = pytest.mark.parametrize("tabled", TABLES.values(), ids=TABLES)


@EACH_CLOUD
def test_nothing_is_missing_where_all_is_there(tabled: Tabled) -> None:
    assert tabled.missing(tabled.whole()) == Plan()


@EACH_CLOUD
def test_each_thing_is_made_after_what_it_is_part_of_or_uses(tabled: Tabled) -> None:
    """And what others need is read before them, and deleted after them."""
    wanted, rows = tabled.wanted, [row.kind for row in tabled.table.rows]
    keys = [each.key for each in wanted]
    assert len(keys) == len(set(keys))
    for each in wanted:
        for key in (*each.needs, *([each.of.key] if each.of else ())):
            assert keys.index(key) < keys.index(each.key)
            assert rows.index(key[0]) <= rows.index(each.kind)


@EACH_CLOUD
@given(st.data(), st.booleans())
def test_nothing_without_our_tags_is_ever_in_a_plan(tabled: Tabled, data: st.DataObject, with_data: bool) -> None:
    table, wanted = tabled.table, tabled.wanted
    shared = {row.kind for row in table.rows if row.shared}
    own = {each.name for each in wanted if each.of is None and each.kind != SPOT}
    foreign = data.draw(st.sets(st.sampled_from(sorted(own))))
    seen = tabled.whole(foreign)
    plan = tabled.deleting(seen, with_data=with_data)
    assert all(step.found is not None and step.found.owner == OWNER for step in plan.steps)
    theirs = {each.what.key for each in seen.found.values() if each.owner == OTHER}
    assert not theirs & {step.what.key for step in plan.steps}
    kept = [each for each in plan.left if f"does not have this installation's {table.marked_by}" in each]
    wholes = [each for each in wanted if each.of is None and each.key in theirs and each.kind not in shared]
    assert len(kept) == len(wholes)
    # What is shared is used as it is; with anything else of another's, nothing is done.
    found = tabled.missing(seen)
    assert (len(found.problems), found.steps) == (len(wholes), ())


@EACH_CLOUD
def test_data_stays_unless_that_is_to_go(tabled: Tabled) -> None:
    rows = {row.kind: row for row in tabled.table.rows}
    seen = tabled.whole()
    plan = tabled.deleting(seen, with_data=False)
    assert not [step for step in plan.steps if rows[step.what.kind].data]
    data = [each for each in seen.wanted if rows[each.kind].data]
    assert len([each for each in plan.left if "stays with its data, which is billed: --with-data" in each]) == len(data)
    gone = [step.what for step in tabled.deleting(seen).steps if rows[step.what.kind].data]
    assert sorted(map(str, gone)) == sorted(map(str, data))


@EACH_CLOUD
def test_what_a_cloud_gave_up_is_said_and_left_alone(tabled: Tabled) -> None:
    seen = tabled.whole()
    first = next(each for each in seen.found.values() if each.what.kind != SPOT)
    seen.add([replace(first, state=State.BROKEN, said="Failed")])
    plan = tabled.missing(seen)
    assert plan.steps == ()
    assert plan.problems == (f"{first} is in the state Failed: look at it in the console, or delete it, and repeat",)


# -- the configuration -----------------------------------------------------------------------------------------


def test_what_was_made_is_merged_into_the_section_and_wins_key_by_key() -> None:
    section = {"regions": ["a", "b"], "security_groups": {"a": ["sg-old"], "b": ["sg-mine"]}}
    made = {"security_groups": {"a": ["sg-new"]}, "instance_profile": "p"}
    assert merged(section, made) == {
        "regions": ["a", "b"],
        "security_groups": {"a": ["sg-new"], "b": ["sg-mine"]},
        "instance_profile": "p",
    }
    lists = {"network_tags": ["a", "b"], "subnets": {"r": "s"}}
    assert differing(lists, {"network_tags": ("a", "b"), "subnets": {"r": "s"}}) == []
    assert differing(lists, {"network_tags": ("a",)}) == ["network_tags = ['a', 'b']", "subnets.r = s"]
    assert differing(made, section) == ["security_groups.a = ['sg-new']", "instance_profile = p"]
    assert differing(made, merged(section, made)) == []


def test_a_cloud_whose_account_spotsup_cannot_fill_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config.model_validate({"gcp": GcpSettings(project="p", regions=("r",))})
    assert account_cloud(config) == "gcp"
    monkeypatch.setitem(cast("dict[str, Descriptor]", CLOUDS), "gcp", replace(CLOUDS["gcp"], account=None))
    with pytest.raises(UsageError, match="makes nothing in accounts of gcp yet, only of aws"):
        account_cloud(config)
