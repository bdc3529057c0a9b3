"""Steps in an account: taken until none is missing, whatever each answers; and the clouds' plans, which are pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioners.account import Clock, NotYetError, Plan, Said, Wish, carry_out
from provisioners.aws.account import plan as aws
from provisioners.aws.account.plan import (
    Delete,
    Facts,
    FoundBucket,
    FoundFileSystem,
    FoundGroup,
    FoundProfile,
    FoundRole,
)
from provisioners.aws.account.wanted import POLICY, Network, Role, Rule, Wanted, names, wanted
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


# -- AWS -------------------------------------------------------------------------------------------------------

WISH = Wish(OWNER, ("198.51.100.7",), shared_storage=True, checkpoints="s3://models", permissions=permissions())
SETTINGS = AwsSettings(regions=("us-east-1",))
NETWORK = Network("us-east-1", "vpc-1", ("subnet-a", "subnet-b"))
CALLED = names(OWNER.cluster)
WANTED = wanted(SETTINGS, WISH, [NETWORK])


def whole(needed: Wanted = WANTED) -> Facts:
    """An account in which nothing is missing."""
    return Facts(
        tuple(
            FoundGroup(each.region, each.vpc, each.name, f"sg-{number}", OWNER, frozenset(each.rules))
            for number, each in enumerate(needed.groups)
        ),
        tuple(FoundRole(each.name, OWNER, {POLICY: each.policy}) for each in needed.roles),
        tuple(FoundProfile(each.name, OWNER, (each.name,)) for each in needed.roles),
        tuple(
            FoundFileSystem(
                each.region, each.name, "fs-1", OWNER, {subnet: f"fsmt-{subnet}" for subnet in each.subnets}
            )
            for each in needed.file_systems
        ),
        buckets=tuple(FoundBucket(each.region, each.name, OWNER, closed=True, aborts=True) for each in needed.buckets),
    )


def test_nothing_is_missing_where_all_is_there() -> None:
    assert aws.missing(WANTED, whole(), OWNER) == Plan()


def test_what_others_need_comes_first_and_what_costs_money_last() -> None:
    steps = [str(step) for step in aws.missing(WANTED, Facts(has_spot_role=False), OWNER).steps]
    assert steps == [
        "make AWSServiceRoleForEC2Spot, the account's own role for spot machines",
        f"make the security group {CALLED['nodes']} in vpc-1 (us-east-1)",
        f"let the security group {CALLED['nodes']} (us-east-1) have tcp port 22 from 198.51.100.7/32",
        f"let the security group {CALLED['nodes']} (us-east-1) have all traffic from {CALLED['nodes']}",
        f"let the security group {CALLED['nodes']} (us-east-1) have all traffic to {CALLED['nodes']}",
        f"make the security group {CALLED['storage']} in vpc-1 (us-east-1)",
        f"let the security group {CALLED['storage']} (us-east-1) have tcp port 2049 from {CALLED['nodes']}",
        *(
            f"{each} {CALLED[name]}{end}"
            for name in ("node", "daemon")
            for each, end in (
                ("make the IAM role", ""),
                (f"write the policy {POLICY} of the role", ": docs/permissions"),
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
    facts = whole()
    changed = replace(facts, roles=(replace(facts.roles[0], policies={POLICY: "{}"}), *facts.roles[1:]))
    assert [str(step) for step in aws.missing(WANTED, changed, OWNER).steps] == [
        f"write anew the policy {POLICY} of the role {facts.roles[0].name}: docs/permissions"
    ]


def test_a_profile_of_ours_that_holds_another_role_is_a_problem() -> None:
    facts = whole()
    changed = replace(facts, profiles=(replace(facts.profiles[0], roles=("admin",)),))
    plan = aws.missing(WANTED, changed, OWNER)
    assert (plan.steps, len(plan.problems)) == ((), 1)


def test_what_uses_something_is_deleted_before_it() -> None:
    steps = aws.remaining(whole(), OWNER, with_data=True).steps
    kinds = [step.kind for step in steps if isinstance(step, Delete)]
    assert kinds == [
        *(aws.TARGET, aws.TARGET, aws.FILE_SYSTEM, aws.BUCKET, aws.GROUP, aws.GROUP),
        *(aws.MEMBER, aws.PROFILE, aws.MEMBER, aws.PROFILE),
        *(aws.POLICY_KIND, aws.ROLE, aws.POLICY_KIND, aws.ROLE),
    ]
    groups = [step.name for step in steps if isinstance(step, Delete) and step.kind == aws.GROUP]
    assert groups == [CALLED["storage"], CALLED["nodes"]]  # a rule of the first names the second


@given(st.sets(st.integers(0, 6)), st.booleans())
def test_nothing_without_our_tags_is_ever_in_a_plan(foreign: set[int], with_data: bool) -> None:
    facts = whole()
    things: list[Any] = [*facts.groups, *facts.roles, *facts.profiles, *facts.file_systems, *facts.buckets]
    mixed = [replace(each, owner=OTHER) if number in foreign else each for number, each in enumerate(things)]
    given = Facts(
        tuple(each for each in mixed if isinstance(each, FoundGroup)),
        tuple(each for each in mixed if isinstance(each, FoundRole)),
        tuple(each for each in mixed if isinstance(each, FoundProfile)),
        tuple(each for each in mixed if isinstance(each, FoundFileSystem)),
        buckets=tuple(each for each in mixed if isinstance(each, FoundBucket)),
    )
    plan = aws.remaining(given, OWNER, with_data=with_data)
    kinds = {FoundGroup: aws.GROUP, FoundRole: aws.ROLE, FoundProfile: aws.PROFILE, FoundFileSystem: aws.FILE_SYSTEM}
    kinds |= {FoundBucket: aws.BUCKET}
    theirs = {(kinds[type(each)], getattr(each, "id", each.name)) for each in mixed if each.owner == OTHER}
    assert not theirs & {(step.kind, step.id) for step in plan.steps if isinstance(step, Delete)}
    # A bucket of a person's own is used as it is.
    theirs = {(kind, name) for kind, name in theirs if kind != aws.BUCKET}
    assert len([each for each in plan.left if "does not have this installation's tags" in each]) == len(theirs)
    found = aws.missing(WANTED, given, OWNER)
    assert (bool(found.problems), found.steps) == (bool(theirs), ())


def test_the_names_fit_what_iam_takes() -> None:
    """The longest name of a cluster (supervisor/config.py); a role's has at most 64 characters: CreateRole."""
    assert all(len(name) <= 64 for name in names("c" * 31).values())


def test_a_rule_reads_as_a_sentence() -> None:
    assert str(Rule("tcp", 22, "10.0.0.0/16")) == "tcp port 22 from 10.0.0.0/16"
    assert "secret" not in repr(Role("r", "d", "secret"))


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
