"""Azure's plan for an account, which is pure."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from provisioners.account import Plan, Wish
from provisioners.azure.account import plan as azure
from provisioners.azure.account.wanted import (
    Grant,
    Rule,
    Wanted,
    assignment_name,
    called,
    described,
    owner_in,
    role_id,
    wanted,
)
from provisioners.azure.settings import AzureSettings
from provisioners.base import Owner
from supervisor.cli.account import permissions
from tests.support.machines import OTHER, OWNER

SETTINGS = AzureSettings(subscription="s", resource_group="g", regions=("eastus", "westus2"), reach="ssh")
WISH = Wish(
    OWNER,
    ("198.51.100.7", "2001:db8::7"),
    shared_storage=True,
    checkpoints="abfs://runs@models.dfs.core.windows.net",
    permissions=permissions(),
)
WANTED = wanted(SETTINGS, WISH, "/subscriptions/s/container", is_there=False)


def whole(needed: Wanted = WANTED) -> azure.Facts:
    """A resource group in which nothing is missing; ids in other letters than they were written in."""
    return azure.Facts(
        tuple(
            azure.FoundGroup(
                each.region,
                each.name,
                OWNER,
                rules={rule.name: (rule, True) for rule in each.rules},
                taken={rule.name: 200 + number for number, rule in enumerate(each.rules)},
            )
            for each in needed.groups
        ),
        tuple(azure.FoundNetwork(each.region, each.name, OWNER) for each in needed.networks),
        tuple(azure.FoundIdentity(each.name, OWNER, f"principal of {each.name}") for each in needed.identities),
        tuple(
            azure.FoundRole(
                each.id.upper(), each.path, each.name, OWNER, each.actions, each.data_actions, (each.scope.lower(),)
            )
            for each in needed.roles
        ),
        tuple(
            azure.FoundGrant(f"/assignments/{number}", replace(each, role=each.role.upper(), scope=each.scope.upper()))
            for number, each in enumerate(needed.grants)
        ),
        tuple(
            azure.FoundStorage(
                each.region,
                each.name,
                f"/accounts/{each.name}",
                OWNER,
                subnets=frozenset({each.subnet.lower()}),
                inside={each.inside: True},
            )
            for each in needed.storage
        ),
        tuple(azure.FoundSubnet(each.subnet, frozenset({"Microsoft.Storage"})) for each in needed.storage),
    )


def test_nothing_is_missing_where_all_is_there() -> None:
    assert azure.missing(WANTED, whole(), OWNER) == Plan()


def test_what_others_need_comes_first() -> None:
    kinds = [type(step) for step in azure.missing(WANTED, azure.Facts(), OWNER).steps]
    order = [azure.MakeGroup, azure.SetRule, azure.MakeNetwork, azure.MakeIdentity, azure.SetRole, azure.Assign]
    blobs, *files = [n for n, kind in enumerate(kinds) if kind is azure.MakeStorage]
    assert kinds.index(azure.MakeNetwork) < blobs < kinds.index(azure.Assign)
    assert min(files) > max(n for n, kind in enumerate(kinds) if kind is azure.Assign)
    later = [kind for kind in kinds if kind in order[2:]]
    assert later == sorted(later, key=order.index)
    assert {*kinds} == {*order, azure.MakeStorage, azure.MakeInside}


def test_an_identity_keeps_no_role_when_it_goes() -> None:
    steps = azure.remaining(whole(), OWNER, with_data=True).steps
    kinds = [step.kind for step in steps if isinstance(step, azure.Delete)]
    assert max(number for number, kind in enumerate(kinds) if kind == azure.ASSIGNMENT) < kinds.index(azure.IDENTITY)
    assert kinds.count(azure.ASSIGNMENT) == len(WANTED.grants)


@given(st.sets(st.integers(0, 12)))
def test_nothing_without_our_tags_is_ever_in_a_plan(foreign: set[int]) -> None:
    facts = whole()
    things: list[Any] = [*facts.groups, *facts.networks, *facts.identities, *facts.roles, *facts.storage]
    mixed = [replace(each, owner=OTHER) if number in foreign else each for number, each in enumerate(things)]
    given = azure.Facts(
        tuple(each for each in mixed if isinstance(each, azure.FoundGroup)),
        tuple(each for each in mixed if isinstance(each, azure.FoundNetwork)),
        tuple(each for each in mixed if isinstance(each, azure.FoundIdentity)),
        tuple(each for each in mixed if isinstance(each, azure.FoundRole)),
        facts.grants,
        tuple(each for each in mixed if isinstance(each, azure.FoundStorage)),
    )
    theirs = [each for each in mixed if each.owner == OTHER]
    plan = azure.remaining(given, OWNER, with_data=True)
    said = {str(step) for step in plan.steps}
    assert not said & {f"delete {each}" for each in theirs}
    names = {each.name for each in given.identities if each.owner == OTHER}
    gone = {step.id for step in plan.steps if isinstance(step, azure.Delete) and step.kind == azure.ASSIGNMENT}
    assert not gone & {each.id for each in facts.grants if each.grant.identity in names}
    assert len(plan.left) == len(theirs)
    assert bool(azure.missing(WANTED, given, OWNER).problems) is bool(theirs)


@given(st.sets(st.integers(200, 204)))
def test_a_rule_gets_a_priority_that_no_other_one_has(others: set[int]) -> None:
    """Azure refuses two inbound rules of one priority."""
    facts, taken = whole(), {f"other-{each}": each for each in others}
    groups = tuple(replace(each, rules={}, taken=taken) for each in facts.groups)
    steps = azure.missing(WANTED, replace(facts, groups=groups), OWNER).steps
    for name in {each.name for each in groups}:
        priorities = [step.priority for step in steps if isinstance(step, azure.SetRule) and step.group == name]
        assert len(priorities) == len({*priorities}) == 2
        assert not {*priorities} & others


def test_a_group_that_is_going_is_made_again_and_sources_stay() -> None:
    facts = whole()
    more = Rule("spotsup-ssh", 22, ("192.0.2.0/24",))
    first = replace(facts.groups[0], state=azure.GOING, rules={**facts.groups[0].rules, more.name: (more, True)})
    steps = azure.missing(WANTED, replace(facts, groups=(first, *facts.groups[1:])), OWNER).steps
    assert [str(step) for step in steps] == [
        f"make the network security group {first.name} (eastus)",
        f"let the network security group {first.name} (eastus) admit TCP port 22 from 192.0.2.0/24, 198.51.100.7/32",
    ]


def test_a_file_system_stays_with_its_data_unless_that_is_to_go() -> None:
    plan = azure.remaining(whole(), OWNER, with_data=False)
    assert not [step for step in plan.steps if isinstance(step, azure.Delete) and step.kind == azure.STORAGE]
    assert [each for each in plan.left if "stays with its data, which is billed: --with-data" in each] == list(
        plan.left
    )
    assert len(plan.left) == len(WANTED.storage) == 3
    steps = azure.remaining(whole(), OWNER, with_data=True).steps
    assert [step.kind for step in steps if isinstance(step, azure.Delete)][-3:] == [azure.STORAGE] * 3


def test_a_share_that_nodes_cannot_mount_is_put_right_or_said() -> None:
    facts = whole()
    share = facts.storage[1]
    for wrong in (replace(share, open=False), replace(share, closed=False), replace(share, subnets=frozenset())):
        changed = replace(facts, storage=(facts.storage[0], wrong, facts.storage[2]))
        (step,) = azure.missing(WANTED, changed, OWNER).steps
        assert isinstance(step, azure.OpenStorage)
    changed = replace(facts, storage=(facts.storage[0], replace(share, inside={"share": False}), facts.storage[2]))
    (problem,) = azure.missing(WANTED, changed, OWNER).problems
    assert "is not one for NFS: delete it, and repeat" in problem
    bare = replace(facts.subnets[1], endpoints=frozenset({"Microsoft.Sql"}))
    (problem,) = azure.missing(WANTED, replace(facts, subnets=(bare,)), OWNER).problems
    assert f"--ids {bare.id} --service-endpoints Microsoft.Sql Microsoft.Storage" in problem


def test_what_azure_could_not_make_is_said_and_left_alone() -> None:
    facts = whole()
    broken = replace(facts.groups[0], state="Failed")
    plan = azure.missing(WANTED, replace(facts, groups=(broken, *facts.groups[1:])), OWNER)
    assert (plan.steps, len(plan.problems)) == ((), 1)
    assert "is in the state Failed: look at it in the portal" in plan.problems[0]


def test_ids_are_the_same_for_the_same_owner_and_principal_alone() -> None:
    assert role_id(SETTINGS, OWNER, "node") == role_id(SETTINGS, OWNER, "node")
    assert role_id(SETTINGS, OWNER, "node") != role_id(SETTINGS, OTHER, "node")
    assert assignment_name("R", "p", "/S") == assignment_name("r", "p", "/s") != assignment_name("r", "q", "/s")


def test_the_daemon_may_assign_the_role_of_a_node_alone() -> None:
    (grant,) = [each for each in WANTED.grants if each.condition]
    assert isinstance(grant, Grant)
    guid = role_id(SETTINGS, OWNER, "node").rpartition("/")[2]
    assert re.search(rf"RoleDefinitionId\] ForAnyOfAnyValues:GuidEquals \{{{guid}\}}\)\)$", grant.condition)
    assert grant.scope == "/subscriptions/s/resourceGroups/g"


def test_the_names_fit_and_a_description_says_whose_it_is() -> None:
    """A security group's and a network's: 80 and 64 characters; an identity's: 128; a role's: 128."""
    assert len(called("c" * 31, "southeastasiastage")) <= 64
    assert all(len(each.name) <= 128 for each in WANTED.roles)
    assert owner_in(described(OWNER)) == OWNER
    assert owner_in("mine") == Owner("", "")
