"""Steps in an account: taken until none is missing, whatever each answers; and the clouds' plans, which are pure."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

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
    Wish,
    carry_out,
    missing,
    remaining,
)
from provisioners.aws.account import wanted as aws
from provisioners.aws.account.table import AwsTable
from provisioners.aws.account.wanted import Network, Rule
from provisioners.aws.settings import AwsSettings
from provisioners.base import Owner, ProvisionerError
from provisioners.descriptor import Descriptor
from provisioners.gcp.account import plan as gcp
from provisioners.gcp.account import wanted as gcp_wanted
from provisioners.gcp.settings import GcpSettings
from provisioners.registry import CLOUDS
from supervisor.cli.account import account_cloud, differing, merged, permissions
from supervisor.config import Config
from supervisor.errors import UsageError
from tests.support.machines import OTHER, OWNER

# -- taking steps ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Put:
    """A step of the account below."""

    name: str
    cost: str = ""

    def __str__(self) -> str:
        return f"put {self.name}"


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
        return Plan(tuple(Put(each) for each in self.wanted if each not in seen))

    def take(self, step: Put) -> None:
        if step.name in self.there:
            raise NotYetError("it is there already")
        self.there.add(step.name)
        self.puts.append(step.name)
        self.lost[step.name] = self.lost.get(step.name, 0) - 1
        if self.lost[step.name] >= 0:
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

    def __init__(self) -> None:
        self.there: dict[Key, Found] = {}
        self.calls: list[str] = []
        self.failure: str | None = None
        self.rows: Sequence[Row] = (
            Row("box", lambda _: self._all("box"), self._put, self._drop),
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


@pytest.mark.parametrize("state", [State.PENDING, State.GOING])
def test_what_is_on_its_way_is_waited_for(state: State) -> None:
    shelf = Shelf()
    shelf.there[BOX.key] = Found(BOX, OWNER, state=state, said="Updating")
    account = Account(shelf, OWNER)
    with pytest.raises(NotYetError, match="it is in the state Updating, which may take minutes"):
        account.take(account.missing().steps[0])
    assert shelf.calls == []


# -- what is compared: all clouds ------------------------------------------------------------------------------

WISH = Wish(OWNER, ("198.51.100.7",), shared_storage=True, checkpoints="s3://models", permissions=permissions())
SETTINGS = AwsSettings(regions=("us-east-1",))
NETWORK = Network("us-east-1", "vpc-1", ("subnet-a", "subnet-b"))
CALLED = aws.names(OWNER.cluster)
TABLES = {
    "aws": (AwsTable(SETTINGS, WISH), aws.wanted(SETTINGS, WISH, [NETWORK])),
}
CLOUDS_OF_TABLES = pytest.mark.parametrize("cloud", TABLES)


def nothing(cloud: str) -> Seen:
    """A look at an account in which all is missing."""
    return Seen(OWNER, TABLES[cloud][1])


def whole(cloud: str, foreign: Container[str] = ()) -> Seen:
    """A look at an account in which nothing is missing. `foreign`: the names of what is another installation's."""
    seen = nothing(cloud)
    seen.add(Found(each, OTHER if (each.of or each).name in foreign else OWNER) for each in seen.wanted)
    return seen


def steps_of(cloud: str, seen: Seen) -> list[Step]:
    plan = missing(TABLES[cloud][0].rows, seen)
    assert plan.problems == ()
    return list(plan.steps)


def deleting(cloud: str, seen: Seen, *, with_data: bool = True) -> Plan:
    return remaining(TABLES[cloud][0].rows, seen, TABLES[cloud][0].marked_by, with_data=with_data)


@CLOUDS_OF_TABLES
def test_nothing_is_missing_where_all_is_there(cloud: str) -> None:
    assert missing(TABLES[cloud][0].rows, whole(cloud)) == Plan()


@CLOUDS_OF_TABLES
def test_each_thing_is_made_after_what_it_is_part_of_or_uses(cloud: str) -> None:
    """And what others need is read before them, and deleted after them."""
    wanted, rows = TABLES[cloud][1], [row.kind for row in TABLES[cloud][0].rows]
    keys = [each.key for each in wanted]
    assert len(keys) == len(set(keys))
    for each in wanted:
        for key in (*each.needs, *([each.of.key] if each.of else ())):
            assert keys.index(key) < keys.index(each.key)
            assert rows.index(key[0]) <= rows.index(each.kind)


@CLOUDS_OF_TABLES
@given(st.data(), st.booleans())
def test_nothing_without_our_tags_is_ever_in_a_plan(cloud: str, data: st.DataObject, with_data: bool) -> None:
    table, wanted = TABLES[cloud]
    shared = {row.kind for row in table.rows if row.shared}
    own = {each.name for each in wanted if each.of is None and each.kind != aws.SPOT}
    foreign = data.draw(st.sets(st.sampled_from(sorted(own))))
    seen = whole(cloud, foreign)
    plan = deleting(cloud, seen, with_data=with_data)
    assert all(step.found is not None and step.found.owner == OWNER for step in plan.steps)
    theirs = {each.what.key for each in seen.found.values() if each.owner == OTHER}
    assert not theirs & {step.what.key for step in plan.steps}
    kept = [each for each in plan.left if f"does not have this installation's {table.marked_by}" in each]
    wholes = [each for each in wanted if each.of is None and each.key in theirs and each.kind not in shared]
    assert len(kept) == len(wholes)
    # What is shared is used as it is; with anything else of another's, nothing is done.
    found = missing(table.rows, seen)
    assert (len(found.problems), found.steps) == (len(wholes), ())


@CLOUDS_OF_TABLES
def test_data_stays_unless_that_is_to_go(cloud: str) -> None:
    rows = {row.kind: row for row in TABLES[cloud][0].rows}
    seen = whole(cloud)
    plan = deleting(cloud, seen, with_data=False)
    assert not [step for step in plan.steps if rows[step.what.kind].data]
    data = [each for each in seen.wanted if rows[each.kind].data]
    assert len([each for each in plan.left if "stays with its data, which is billed: --with-data" in each]) == len(data)
    gone = [step.what for step in deleting(cloud, seen).steps if rows[step.what.kind].data]
    assert sorted(map(str, gone)) == sorted(map(str, data))


@CLOUDS_OF_TABLES
def test_what_a_cloud_gave_up_is_said_and_left_alone(cloud: str) -> None:
    seen = whole(cloud)
    first = next(each for each in seen.found.values() if each.what.kind != aws.SPOT)
    seen.add([replace(first, state=State.BROKEN, said="Failed")])
    plan = missing(TABLES[cloud][0].rows, seen)
    assert plan.steps == ()
    assert plan.problems == (f"{first} is in the state Failed: look at it in the console, or delete it, and repeat",)


# -- AWS -------------------------------------------------------------------------------------------------------


def test_what_others_need_comes_first_and_what_costs_money_last() -> None:
    assert [str(step) for step in steps_of("aws", nothing("aws"))] == [
        "make AWSServiceRoleForEC2Spot, the account's own role for spot machines",
        f"make the security group {CALLED['nodes']} (us-east-1, vpc-1)",
        f"let the security group {CALLED['nodes']} (us-east-1) have tcp port 22 from 198.51.100.7/32",
        f"let the security group {CALLED['nodes']} (us-east-1) have all traffic from {CALLED['nodes']}",
        f"let the security group {CALLED['nodes']} (us-east-1) have all traffic to {CALLED['nodes']}",
        f"make the security group {CALLED['storage']} (us-east-1, vpc-1)",
        f"let the security group {CALLED['storage']} (us-east-1) have tcp port 2049 from {CALLED['nodes']}",
        *(
            f"{each} {CALLED[name]}{end}"
            for name in ("node", "daemon")
            for each, end in (
                ("make the IAM role", ""),
                ("write the policy spotsup of the role", ": docs/permissions"),
                ("make the instance profile", ""),
                ("put the role", " into its instance profile"),
            )
        ),
        "make the S3 bucket models (us-east-1)",
        "block public access to the S3 bucket models",
        "let the S3 bucket models delete uploads that never ended",
        f"make the EFS file system {CALLED['storage']} (us-east-1)",
        f"make a mount target of {CALLED['storage']} in subnet-a (us-east-1)",
        f"make a mount target of {CALLED['storage']} in subnet-b (us-east-1)",
    ]


def test_a_policy_that_differs_is_written_anew() -> None:
    seen = whole("aws")
    found = seen.ours(aws.POLICY)[0]
    seen.add([replace(found, what=replace(found.what, has="{}"))])
    (step,) = steps_of("aws", seen)
    assert (step.verb, step.what.has) == (Verb.CHANGE, found.what.has)
    assert str(step) == f"write the policy spotsup of the role {CALLED['node']}: docs/permissions"


def test_a_profile_of_ours_that_holds_another_role_is_a_problem() -> None:
    seen = whole("aws")
    seen.add([replace(seen.ours(aws.PROFILE)[0], raw=["admin"])])
    plan = missing(TABLES["aws"][0].rows, seen)
    assert (plan.steps, len(plan.problems)) == ((), 1)
    assert "holds the role admin: take it out, and repeat" in plan.problems[0]


def test_what_uses_something_is_deleted_before_it() -> None:
    steps = deleting("aws", whole("aws")).steps
    assert [step.what.kind for step in steps] == [
        *(aws.TARGET, aws.TARGET, aws.FILE_SYSTEM, aws.BUCKET, aws.MEMBER, aws.MEMBER, aws.PROFILE, aws.PROFILE),
        *(aws.POLICY, aws.POLICY, aws.ROLE, aws.ROLE, aws.GROUP, aws.GROUP),
    ]
    groups = [step.what.name for step in steps if step.what.kind == aws.GROUP]
    assert groups == [CALLED["storage"], CALLED["nodes"]]  # a rule of the first names the second


def test_the_names_fit_what_iam_takes() -> None:
    """The longest name of a cluster (supervisor/config.py); a role's has at most 64 characters: CreateRole."""
    assert all(len(name) <= 64 for name in aws.names("c" * 31).values())


def test_a_rule_reads_as_a_sentence() -> None:
    assert str(Rule("tcp", 22, "10.0.0.0/16")) == "tcp port 22 from 10.0.0.0/16"


# -- Google Cloud ----------------------------------------------------------------------------------------------

GCP_WISH = replace(WISH, checkpoints="gs://models")
GCP_SETTINGS = GcpSettings(project="p", regions=("us-central1",))
GCP_WANTED = gcp_wanted.wanted(GCP_SETTINGS, GCP_WISH, {"us-central1": "us-central1-a"})


def whole_project() -> gcp.Facts:
    """A project in which nothing is missing."""
    needed = GCP_WANTED
    return gcp.Facts(
        tuple(gcp.FoundRule(each, OWNER) for each in needed.rules),
        tuple(gcp.FoundRole(each.id, OWNER, each.permissions, each.buckets) for each in needed.roles),
        tuple(gcp.FoundAccount(each.email, OWNER) for each in needed.accounts),
        frozenset(needed.bindings),
        tuple(gcp.FoundFileSystem(each.region, each.zone, each.name, OWNER) for each in needed.file_systems),
        tuple(gcp.FoundBucket(each.region, each.name, OWNER, closed=True) for each in needed.buckets),
    )


def test_nothing_is_missing_in_a_project_where_all_is_there() -> None:
    assert gcp.missing(GCP_WANTED, whole_project(), OWNER) == Plan()


def test_a_role_is_taken_from_an_account_before_either_goes() -> None:
    steps = gcp.remaining(whole_project(), OWNER, with_data=True).steps
    kinds = [step.kind if isinstance(step, gcp.Delete) else "binding" for step in steps]
    kinds = [each for each in kinds if each in {"binding", gcp.ACCOUNT, gcp.ROLE}]
    assert kinds == sorted(kinds, key=["binding", gcp.ACCOUNT, gcp.ROLE].index)
    assert {*kinds} == {"binding", gcp.ACCOUNT, gcp.ROLE}


@given(st.sets(st.integers(0, 7)), st.booleans())
def test_nothing_in_a_project_without_our_mark_is_ever_in_a_plan(foreign: set[int], with_data: bool) -> None:
    facts = whole_project()
    parts = (facts.rules, facts.roles, facts.accounts, facts.file_systems)
    things: list[Any] = [each for part in parts for each in part]
    mixed = [replace(each, owner=OTHER) if number in foreign else each for number, each in enumerate(things)]
    if 7 in foreign:
        facts = replace(facts, buckets=tuple(replace(each, owner=OTHER) for each in facts.buckets))
    given = gcp.Facts(
        tuple(each for each in mixed if isinstance(each, gcp.FoundRule)),
        tuple(each for each in mixed if isinstance(each, gcp.FoundRole)),
        tuple(each for each in mixed if isinstance(each, gcp.FoundAccount)),
        facts.bindings,
        tuple(each for each in mixed if isinstance(each, gcp.FoundFileSystem)),
        facts.buckets,
    )
    theirs = [each for each in mixed if each.owner == OTHER]
    plan = gcp.remaining(given, OWNER, with_data=with_data)
    text = [str(step) for step in plan.steps if isinstance(step, gcp.Delete)]
    for each in theirs:
        assert f"delete {each}" not in text
    roles = {each.id for each in given.roles if each.owner == OTHER}
    taken = {step.binding.role.rpartition("/")[2] for step in plan.steps if isinstance(step, gcp.Unbind)}
    assert not roles & taken
    assert len([each for each in plan.left if "does not have this installation's mark" in each]) == len(theirs)
    found = gcp.missing(GCP_WANTED, given, OWNER)
    assert (bool(found.problems), found.steps) == (bool(theirs), ())
    deleted = {step.name for step in plan.steps if isinstance(step, gcp.Delete) and step.kind == gcp.BUCKET}
    assert deleted == ({"models"} if with_data and 7 not in foreign else set())


@pytest.mark.parametrize("cluster", ["a", "c" * 31, "a-b-c"])
def test_the_names_fit_what_google_takes(cluster: str) -> None:
    """The forms: docs of firewall rules, service accounts (6 to 30 characters) and custom roles."""
    called = gcp_wanted.Names(cluster, "p")
    assert re.fullmatch(r"[a-z]([-a-z0-9]{4,28}[a-z0-9])", called.account("daemon"))
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", called.of("storage"))
    assert re.fullmatch(r"[a-zA-Z0-9_.]{3,64}", called.role("checkpoints"))
    assert gcp_wanted.Names(cluster, "example.com:p").email("node").endswith("@p.example.com.iam.gserviceaccount.com")


def test_a_description_says_whose_it_is() -> None:
    text = gcp_wanted.described(OWNER, ("models", "more"))
    assert (gcp_wanted.owner_in(text), gcp_wanted.buckets_in(text)) == (OWNER, ("models", "more"))
    assert gcp_wanted.owner_in("made by hand") == Owner("", "")
    with pytest.raises(ProvisionerError, match="too long to be kept"):
        gcp_wanted.described(OWNER, tuple(f"bucket-{number}" * 5 for number in range(9)))


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
