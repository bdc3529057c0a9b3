"""What each cloud's table says of its own resources. All of it is pure."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioners.account import Found, Plan, State, Verb, owner_in
from provisioners.account import described as described_by
from provisioners.aws.account import wanted as aws
from provisioners.aws.account.wanted import Rule
from provisioners.azure.account import wanted as azure
from provisioners.base import Owner, ProvisionerError
from provisioners.gcp.account import wanted as gcp
from tests.support.accounts import AZURE as AZURE_SETTINGS
from tests.support.accounts import TABLES
from tests.support.machines import OTHER, OWNER

AWS, GCP, AZURE = TABLES["aws"], TABLES["gcp"], TABLES["azure"]
CALLED = aws.names(OWNER.cluster)

# -- AWS -------------------------------------------------------------------------------------------------------


def test_what_others_need_comes_first_and_what_costs_money_last() -> None:
    assert [str(step) for step in AWS.making(AWS.nothing())] == [
        "make AWSServiceRoleForEC2Spot, the account's own role for spot machines",
        f"make the security group {CALLED['nodes']} (us-east-1, vpc-1)",
        f"let the security group {CALLED['nodes']} (us-east-1) have tcp port 22 from 198.51.100.7/32",
        f"let the security group {CALLED['nodes']} (us-east-1) have tcp port 22 from 2001:db8::7/128",
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
    seen = AWS.whole()
    found = seen.ours(aws.POLICY)[0]
    seen.add([replace(found, what=replace(found.what, has="{}"))])
    (step,) = AWS.making(seen)
    assert (step.verb, step.what.has) == (Verb.CHANGE, found.what.has)
    assert str(step) == f"write the policy spotsup of the role {CALLED['node']}: docs/permissions"


def test_a_profile_of_ours_that_holds_another_role_is_a_problem() -> None:
    seen = AWS.whole()
    seen.add([replace(seen.ours(aws.PROFILE)[0], raw=["admin"])])
    plan = AWS.missing(seen)
    assert (plan.steps, len(plan.problems)) == ((), 1)
    assert "holds the role admin: take it out, and repeat" in plan.problems[0]


def test_what_uses_something_is_deleted_before_it() -> None:
    steps = AWS.deleting(AWS.whole()).steps
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


def test_a_role_is_taken_from_an_account_before_either_goes() -> None:
    kinds = [step.what.kind for step in GCP.deleting(GCP.whole()).steps]
    kinds = [each for each in kinds if each in {gcp.BINDING, gcp.ACCOUNT, gcp.ROLE}]
    assert kinds == sorted(kinds, key=[gcp.BINDING, gcp.ACCOUNT, gcp.ROLE].index)
    assert {*kinds} == {gcp.BINDING, gcp.ACCOUNT, gcp.ROLE}


def test_what_others_added_stays_and_what_differs_is_written_anew() -> None:
    seen = GCP.whole()
    ssh, role = seen.ours(gcp.RULE)[0], seen.ours(gcp.ROLE)[0]
    more = replace(ssh.what.has, sources=("192.0.2.0/24",), plain=False)
    fewer = replace(role.what.has, permissions=frozenset(), buckets=("before",))
    seen.add([replace(ssh, what=replace(ssh.what, has=more)), replace(role, what=replace(role.what, has=fewer))])
    assert [str(step) for step in GCP.making(seen)] == [
        f"write the firewall rule {ssh.what.name} anew: tcp port 22 from 192.0.2.0/24, 198.51.100.7/32",
        f"write the role {role.what.name} anew: docs/permissions, for before, models",
    ]


def test_a_deleted_role_of_ours_is_restored_and_of_anothers_its_name_is_said() -> None:
    seen = GCP.whole()
    role = replace(seen.ours(gcp.ROLE)[0], state=State.DELETED)
    seen.add([role])
    (step,) = GCP.making(seen)
    assert str(step) == f"restore the role {role.what.name}, which was deleted"
    assert role.what not in [step.what for step in GCP.deleting(seen).steps]
    seen.add([replace(role, owner=OTHER)])
    (problem,) = GCP.missing(seen).problems
    assert "its name stays taken for weeks; nothing was made: give --cluster another name" in problem


def test_a_rule_of_another_network_is_said() -> None:
    seen = GCP.whole()
    rule = seen.ours(gcp.RULE)[0]
    seen.add([replace(rule, what=replace(rule.what, has=replace(rule.what.has, network="global/networks/old")))])
    (problem,) = GCP.missing(seen).problems
    assert problem.endswith(
        "is of the network global/networks/old, and not of global/networks/default: delete it, and repeat"
    )


@pytest.mark.parametrize("cluster", ["a", "c" * 31, "a-b-c"])
def test_the_names_fit_what_google_takes(cluster: str) -> None:
    """The forms: docs of firewall rules, service accounts (6 to 30 characters) and custom roles."""
    called = gcp.Names(cluster, "p")
    assert re.fullmatch(r"[a-z]([-a-z0-9]{4,28}[a-z0-9])", called.account("daemon"))
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", called.of("storage"))
    assert re.fullmatch(r"[a-zA-Z0-9_.]{3,64}", called.role("checkpoints"))
    assert gcp.Names(cluster, "example.com:p").email("node").endswith("@p.example.com.iam.gserviceaccount.com")


def test_a_description_says_whose_it_is() -> None:
    text = gcp.described(OWNER, ("models", "more"))
    assert (owner_in(text), gcp.buckets_in(text)) == (OWNER, ("models", "more"))
    assert owner_in("made by hand") == Owner("", "")
    with pytest.raises(ProvisionerError, match="too long to be kept"):
        gcp.described(OWNER, tuple(f"bucket-{number}" * 5 for number in range(9)))


# -- Azure -----------------------------------------------------------------------------------------------------


def test_what_others_need_comes_first() -> None:
    kinds = [step.what.kind for step in AZURE.making(AZURE.nothing())]
    order = [azure.NETWORK, azure.STORAGE, azure.INSIDE, azure.IDENTITY, azure.ROLE, azure.GRANT]
    accounts = [number for number, kind in enumerate(kinds) if kind == azure.STORAGE]
    grants = [number for number, kind in enumerate(kinds) if kind == azure.GRANT]
    assert accounts[0] < min(grants) <= max(grants) < accounts[1]  # what costs most comes last
    later = [kind for kind in kinds[: accounts[1]] if kind in order]
    assert later == sorted(later, key=order.index)
    assert {*kinds} == {azure.GROUP, azure.RULE, *order}


def test_ids_in_other_letters_are_the_same_ids() -> None:
    seen = AZURE.whole()
    for each in AZURE.wanted:
        if each.kind == azure.GRANT:
            grant = replace(each.given, role=each.given.role.upper(), scope=each.given.scope.upper())
            assert azure.granted(AZURE_SETTINGS, OWNER, grant).key == each.key
    assert AZURE.missing(seen) == Plan()


def test_an_identity_keeps_no_role_when_it_goes() -> None:
    kinds = [step.what.kind for step in AZURE.deleting(AZURE.whole()).steps]
    assert max(number for number, kind in enumerate(kinds) if kind == azure.GRANT) < kinds.index(azure.IDENTITY)
    assert kinds.count(azure.GRANT) == len([each for each in AZURE.wanted if each.kind == azure.GRANT])


@given(st.sets(st.integers(200, 204)))
def test_a_rule_gets_a_priority_that_no_other_one_has(others: set[int]) -> None:
    """Azure refuses two inbound rules of one priority."""
    taken = {f"other-{each}": each for each in others}
    priorities = [azure.priority_of(each, taken) for each in azure.RULES]
    assert len({*priorities}) == 2
    assert not {*priorities} & others
    kept = {**taken, azure.RULES[1]: 200}
    assert azure.priority_of(azure.RULES[1], kept) == 200 != azure.priority_of(azure.RULES[0], kept)


def test_sources_that_others_added_to_a_group_stay() -> None:
    seen = AZURE.whole()
    found = seen.ours(azure.RULE)[0]
    assert found.what.of is not None
    more = replace(found.what.has, sources=("192.0.2.0/24",))
    seen.add([replace(found, what=replace(found.what, has=more))])
    (step,) = AZURE.making(seen)
    begin = f"let the network security group {found.what.of.name} (eastus) admit TCP port 22 from"
    assert str(step) == f"{begin} 192.0.2.0/24, 198.51.100.7/32"


def test_a_share_that_nodes_cannot_mount_is_put_right_or_said() -> None:
    seen = AZURE.whole()
    share = next(each for each in seen.ours(azure.STORAGE) if each.what.given.kind == azure.FILES)
    seen.add([replace(share, what=replace(share.what, has=False))])
    (step,) = AZURE.making(seen)
    assert (step.verb, str(step)) == (
        Verb.CHANGE,
        f"let nodes in {share.what.given.subnet} mount from the storage account {share.what.name}, by NFS",
    )
    seen.add([Found(azure.content(share.what, fits=False), OWNER)])
    (problem,) = AZURE.missing(seen).problems
    assert "is not one for NFS: delete it, and repeat" in problem


def test_what_is_in_another_region_is_said() -> None:
    seen = AZURE.whole()
    network = seen.ours(azure.NETWORK)[0]
    seen.add([replace(network, id="westeurope")])
    assert AZURE.missing(seen).problems == (
        f"{replace(network, id='westeurope')} is not in eastus: delete it, and repeat",
    )


def test_ids_are_the_same_for_the_same_owner_and_principal_alone() -> None:
    ours, name = azure.role_id(AZURE_SETTINGS, OWNER, "node"), azure.assignment_name
    assert ours == azure.role_id(AZURE_SETTINGS, OWNER, "node") != azure.role_id(AZURE_SETTINGS, OTHER, "node")
    assert name("R", "p", "/S") == name("r", "p", "/s") != name("r", "q", "/s")


def test_the_daemon_may_assign_the_role_of_a_node_alone() -> None:
    (grant,) = [each.given for each in AZURE.wanted if each.kind == azure.GRANT and each.given.condition]
    guid = azure.role_id(AZURE_SETTINGS, OWNER, "node").rpartition("/")[2]
    assert re.search(rf"RoleDefinitionId\] ForAnyOfAnyValues:GuidEquals \{{{guid}\}}\)\)$", grant.condition)
    assert grant.scope == "/subscriptions/s/resourceGroups/g"


def test_the_names_fit_what_azure_takes() -> None:
    """A security group's and a network's: 80 and 64 characters; an identity's: 128; a role's: 128."""
    assert len(azure.called("c" * 31, "southeastasiastage")) <= 64
    assert all(len(each.name) <= 128 for each in AZURE.wanted if each.kind == azure.ROLE)
    assert owner_in(described_by(OWNER)) == OWNER
