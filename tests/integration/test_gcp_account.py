"""What `spotsupd init --account` makes in a Google Cloud project, and `destroy` deletes: by the real SDK and REST."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import yaml
from google.auth import compute_engine
from google.oauth2 import credentials

from provisioners.account import Account, NotYetError, Wish
from provisioners.base import Owner, ProvisionerError
from provisioners.gcp.account.calls import MAX_PAGES
from provisioners.gcp.account.wanted import Names, described
from provisioners.gcp.auth import quota_project
from supervisor.cli.account import permissions
from tests.clouds.base import wire_cloud
from tests.clouds.gcp_compute import PROJECT, rule
from tests.support.accounts import account_of, deleted, made
from tests.support.combinations import sampled
from tests.support.machines import OTHER, OWNER

pytestmark = pytest.mark.nightly  # CI has test_aws_account

BUCKET = "models"
WISH = Wish(
    OWNER,
    ssh_from=("198.51.100.7", "2001:db8::7", "10.1.2.3/16"),
    shared_storage=True,
    checkpoints=f"gs://{BUCKET}/runs",
    permissions=permissions(),
)
CALLED = Names(OWNER.cluster, PROJECT)
NODES, SSH, SSH6 = (CALLED.of(use) for use in ("nodes", "ssh", "ssh6"))
DAEMON, NODE = CALLED.email("daemon"), CALLED.email("node")
ROLE, CHECKPOINTS = CALLED.role("daemon"), CALLED.role("checkpoints")
CHANGES = ("create", "insert", "update", "patch", "undelete", "delete", "setIamPolicy")


def granted_on_gcp(file: str) -> set[str]:
    return set(yaml.safe_load(permissions()[file])["includedPermissions"])


@pytest.fixture
def server() -> Iterator[Any]:
    with wire_cloud("gcp") as server:
        account = server.cloud.compute.account
        account.add_bucket(BUCKET)
        account.grant(PROJECT, "roles/owner", "user:boss@example.com")
        account.grant(
            PROJECT,
            "roles/editor",
            "user:guest@example.com",
            condition={"title": "t", "expression": "request.time < x"},
        )
        yield server


def opened(server: Any, wish: Wish = WISH, **settings: Any) -> Account:
    return account_of("gcp", server.settings(**settings), wish)


def project(server: Any) -> Any:
    return server.cloud.compute.account


def firewall(server: Any, name: str) -> dict[str, Any]:
    (found,) = [each for each in server.cloud.compute.firewalls if each["name"] == name]
    return dict(found)


def changes(server: Any) -> list[str]:
    return [call.action for call in server.cloud.calls if call.action.rpartition(".")[2] in CHANGES]


def others(server: Any) -> list[Any]:
    """What belongs to others in the policies."""
    account = project(server)
    return [
        [each for each in account.policies[name].versions[-1] if "spotsup" not in str(each)]
        for name in (PROJECT, BUCKET)
    ]


def test_all_is_made_and_nothing_is_made_twice(server: Any) -> None:
    account, before = opened(server), others(server)
    plan = account.missing()
    assert changes(server) == []
    assert made(account) == [str(step) for step in plan.steps]
    assert any(step.cost for step in plan.steps)
    count = len(changes(server))
    assert made(opened(server)) == []
    assert len(changes(server)) == count
    found = account.made()
    assert found.settings == {"network_tags": [CALLED.tag], "service_account": NODE}
    assert firewall(server, SSH)["sourceRanges"] == ["198.51.100.7/32", "10.1.0.0/16"]
    assert firewall(server, SSH6)["sourceRanges"] == ["2001:db8::7/128"]
    assert firewall(server, NODES)["sourceTags"] == firewall(server, NODES)["targetTags"] == [CALLED.tag]
    for each in (SSH, SSH6, NODES):
        assert firewall(server, each)["description"] == described(OWNER)
    for email in (DAEMON, NODE):
        assert project(server).accounts[email]["description"] == described(OWNER)
    (system,) = project(server).file_systems.values()
    assert system["labels"].items() >= OWNER.tags.items()
    assert any("10.9.8.2:/share" in line for line in found.todo)
    assert others(server) == before


def test_what_is_made_is_what_check_asks_for(server: Any) -> None:
    server.cloud.compute.firewalls.clear()
    made(opened(server))
    found = opened(server).made().settings
    cloud = server.provisioner(**{**found, "network_tags": tuple(found["network_tags"])})
    (found,) = [each for each in cloud.check(30.0) if each.what == "network"]
    assert (found.ok, found.message) == (True, "network default lets the daemon in, and nodes reach each other")


def test_each_account_has_exactly_the_roles_that_are_documented(server: Any) -> None:
    made(opened(server))
    account = project(server)
    assert set(account.roles[ROLE]["includedPermissions"]) == granted_on_gcp("gcp-role.yaml")
    assert set(account.roles[CHECKPOINTS]["includedPermissions"]) == granted_on_gcp("gcp-checkpoints-role.yaml")
    mine = {name: [each for each in account.members(name) if "spotsup-" in each] for name in (PROJECT, BUCKET, NODE)}
    assert mine == {
        PROJECT: [f"projects/{PROJECT}/roles/{ROLE} serviceAccount:{DAEMON}"],
        BUCKET: [f"projects/{PROJECT}/roles/{CHECKPOINTS} serviceAccount:{NODE}"],
        NODE: [f"roles/iam.serviceAccountUser serviceAccount:{DAEMON}"],
    }


def test_without_checkpoints_there_is_no_account_for_nodes(server: Any) -> None:
    account = opened(server, replace(WISH, checkpoints="", shared_storage=False))
    made(account)
    assert list(project(server).accounts) == [DAEMON]
    assert account.made().settings == {"network_tags": [CALLED.tag]}
    assert project(server).file_systems == {}


def test_who_has_credentials_of_their_own_needs_no_accounts_at_all(server: Any) -> None:
    made(opened(server, Wish(OWNER, ssh_from=("198.51.100.7",), host_identity=False)))
    assert project(server).left() == [SSH, NODES]


def test_what_google_knows_late_is_waited_for(server: Any) -> None:
    """Accounts, roles, policies, rules and the instance, each for some calls after it was made or deleted."""
    project(server).late, before = 4, others(server)
    account = opened(server)
    expected = [str(step) for step in account.missing().steps]
    assert sorted(made(account)) == sorted(expected)
    assert opened(server).missing().steps == ()
    assert others(server) == before
    deleted(opened(server))
    assert (project(server).left(), others(server)) == ([], before)


@pytest.mark.parametrize("how", ["drop-reply", "done-but-error", "throttled", "twice", "empty", "garbage"])
def test_a_lost_or_doubled_answer_makes_nothing_twice(server: Any, how: str) -> None:
    """Of each call that changes something, and of each policy that is read: none of it costs others their rights."""
    before = others(server)
    makes = (
        *("firewalls.insert", "iam.projects.roles.create", "iam.projects.serviceAccounts.create"),
        *("cloudresourcemanager.projects.getIamPolicy", "cloudresourcemanager.projects.setIamPolicy"),
        *("storage.buckets.getIamPolicy", "storage.buckets.setIamPolicy"),
        *("iam.projects.serviceAccounts.setIamPolicy", "file.projects.locations.instances.create"),
    )
    for action in makes:
        server.cloud.fail_next(action, how)
    made(opened(server))
    assert opened(server).missing().steps == ()
    assert sorted(project(server).accounts) == [DAEMON, NODE]
    assert others(server) == before
    for action in ("firewalls.delete", "iam.projects.roles.delete", "iam.projects.serviceAccounts.delete"):
        server.cloud.fail_next(action, how)
    for action in ("cloudresourcemanager.projects.setIamPolicy", "file.projects.locations.instances.delete"):
        server.cloud.fail_next(action, how)
    deleted(opened(server))
    assert (project(server).left(), others(server)) == ([], before)


def test_who_is_interrupted_after_any_step_goes_on(server: Any) -> None:
    """A new process each time, which knows nothing of the last."""
    for count in itertools.count():
        account = opened(server)
        steps = account.missing().steps
        if not steps:
            break
        account.take(steps[0])
        assert count < 30
    assert opened(server).missing().steps == ()
    for count in itertools.count():
        account = opened(server)
        steps = account.remaining(with_data=True).steps
        if not steps:
            break
        account.take(steps[0])
        assert count < 30
    assert project(server).left() == []


def test_a_colleague_who_changes_a_policy_meanwhile_loses_nothing(server: Any) -> None:
    project(server).races = 3
    made(opened(server))
    everything = [each for name in (PROJECT, BUCKET, NODE) for each in project(server).members(name)]
    for number in range(3):
        assert f"roles/viewer user:colleague{number}@example.com" in everything


@pytest.mark.parametrize("whose", [OTHER, None], ids=["another installation", "nobody"])
@pytest.mark.parametrize("what", ["rule", "role", "deleted role", "account", "file system"])
def test_what_is_there_without_our_mark_is_refused_and_never_touched(
    server: Any, what: str, whose: Owner | None
) -> None:
    text, account = described(whose) if whose else "mine", project(server)
    if what == "rule":
        server.cloud.compute.firewalls.append({**rule(SSH, ports=("22",)), "description": text})
    elif what == "account":
        account.accounts[DAEMON] = {"email": DAEMON, "description": text, "uniqueId": "1"}
    elif what == "file system":
        name = f"projects/{PROJECT}/locations/us-central1-b/instances/{CALLED.of('storage')}"
        account.file_systems[name] = {"name": name, "state": "READY", "labels": whose.tags if whose else {}}
    else:
        gone = {"deleted": True} if what == "deleted role" else {}
        account.roles[ROLE] = {"name": f"projects/{PROJECT}/roles/{ROLE}", "description": text, **gone}
    before, changed = account.left(), changes(server)
    with pytest.raises(ProvisionerError, match="nothing was made: give --cluster another name"):
        made(opened(server))
    _, plan = deleted(opened(server))
    stays = [each for each in plan.left if "stays: it does not have this installation's mark" in each]
    assert len(stays) == (0 if what == "deleted role" else 1)
    assert (account.left(), changes(server)) == (before, changed)


def test_two_installations_with_other_names_share_a_project(server: Any) -> None:
    made(opened(server))
    other = replace(WISH, owner=Owner("other", OTHER.key_mark))
    made(opened(server, other))
    deleted(opened(server, other))
    assert opened(server).missing().steps == ()


def test_a_source_that_someone_added_stays_and_what_differs_is_put_right(server: Any) -> None:
    made(opened(server))
    (ours,) = [each for each in server.cloud.compute.firewalls if each["name"] == SSH]
    ours["sourceRanges"] = ["192.0.2.0/24", "198.51.100.7/32"]
    ours["disabled"] = True
    del project(server).roles[ROLE]["includedPermissions"][3:]
    said = made(opened(server))
    assert said == [
        f"write the firewall rule {SSH} anew: tcp port 22 from 192.0.2.0/24, 198.51.100.7/32, 10.1.0.0/16",
        f"write the role {ROLE} anew: docs/permissions",
    ]
    assert opened(server).missing().steps == ()


# -- a bucket of the installation's own ------------------------------------------------------------------------

OURS = replace(WISH, checkpoints="gs://fresh/runs", shared_storage=False)


def test_a_bucket_that_nobody_has_is_made_and_closed_and_nodes_may_write_there(server: Any) -> None:
    account = opened(server, OURS)
    assert any("Cloud Storage bills" in step.cost for step in account.missing().steps)
    said = made(account)
    assert "make the bucket fresh (us-central1)" in said
    assert opened(server, OURS).missing().steps == ()
    bucket = project(server).buckets["fresh"]
    assert bucket["location"] == "US-CENTRAL1"
    assert bucket["labels"].items() >= OWNER.tags.items()
    access = bucket["iamConfiguration"]
    assert access == {"uniformBucketLevelAccess": {"enabled": True}, "publicAccessPrevention": "enforced"}
    (rule,) = bucket["lifecycle"]["rule"]
    assert rule == {"action": {"type": "AbortIncompleteMultipartUpload"}, "condition": {"age": 7}}
    role = f"projects/{PROJECT}/roles/{CHECKPOINTS} serviceAccount:{NODE}"
    assert [each for each in project(server).members("fresh") if "spotsup" in each] == [role]
    bucket["iamConfiguration"] = {"publicAccessPrevention": "inherited"}
    assert made(opened(server, OURS)) == ["close the bucket fresh to the public"]


@pytest.mark.parametrize("how", ["drop-reply", "done-but-error", "throttled", "twice", "empty", "garbage"])
def test_a_lost_or_doubled_answer_about_a_bucket_changes_nothing(server: Any, how: str) -> None:
    for action in ("storage.buckets.get", "storage.buckets.insert", "storage.buckets.setIamPolicy"):
        server.cloud.fail_next(action, how)
    made(opened(server, OURS))
    assert opened(server, OURS).missing().steps == ()
    for number in range(5):
        project(server).objects["fresh", f"runs/a b/{number}", "1"] = b"x"
    for action in ("list", "delete"):
        server.cloud.fail_next(f"storage.objects.{action}", how)
    for action in ("list", "delete"):
        server.cloud.fail_next(f"storage.buckets.{action}", how)
    deleted(opened(server, OURS))
    assert (project(server).left(), project(server).objects) == ([], {})
    assert "fresh" not in project(server).buckets


def test_checkpoints_stay_until_a_person_says_otherwise(server: Any) -> None:
    made(opened(server, OURS))
    for name in (BUCKET, "fresh"):
        project(server).objects[name, "runs/a", "1"] = b"x"
        project(server).objects[name, "runs/a", "2"] = b"y"
    _, plan = deleted(opened(server, Wish(OWNER)), with_data=False)
    assert any("the bucket fresh (us-central1) stays with its data" in each for each in plan.left)
    assert len(project(server).objects) == 4
    said, _ = deleted(opened(server, Wish(OWNER)))
    assert said == ["delete the bucket fresh with all objects in it"]
    assert {bucket for bucket, _, _ in project(server).objects} == {BUCKET}, "a person's own is theirs"


def test_a_bucket_that_lost_our_labels_after_the_look_is_not_emptied(server: Any) -> None:
    made(opened(server, OURS))
    project(server).objects["fresh", "runs/a", "1"] = b"x"
    account = opened(server, OURS)
    step = next(step for step in account.remaining(with_data=True).steps if "bucket" in str(step))
    project(server).buckets["fresh"]["labels"] = {}
    with pytest.raises(ProvisionerError, match="nothing in it was deleted"):
        account.take(step)
    assert len(project(server).objects) == 1


def test_a_bucket_of_another_project_that_does_not_let_us_look_is_one_sentence(server: Any) -> None:
    project(server).others_buckets = {"fresh"}
    with pytest.raises(ProvisionerError, match="or gs://fresh is someone else's: names are unique"):
        made(opened(server, OURS))
    assert changes(server) == []


def test_a_second_bucket_is_added_and_both_lose_the_binding_at_the_end(server: Any) -> None:
    made(opened(server))
    project(server).add_bucket("more")
    wish = replace(WISH, checkpoints="gs://more")
    made(opened(server, wish))
    assert any(NODE in each for each in project(server).members(BUCKET))
    assert any(NODE in each for each in project(server).members("more"))
    deleted(opened(server))
    assert project(server).left() == []


def test_a_deleted_role_is_restored_and_a_deleted_account_is_made_anew(server: Any) -> None:
    """Google keeps a deleted role's name, and a deleted account's membership under another name."""
    made(opened(server))
    deleted(opened(server), with_data=False)
    said = made(opened(server))
    assert f"restore the role {ROLE}, which was deleted" in said
    assert opened(server).missing().steps == ()
    account = project(server)
    account.handlers["iam.projects.serviceAccounts.delete"](_call({"serviceAccountsId": DAEMON}))
    assert any(f"deleted:serviceAccount:{DAEMON}?uid=" in each for each in account.members(PROJECT))
    made(opened(server))
    assert not any("deleted:" in each for each in account.members(PROJECT))
    deleted(opened(server))
    assert account.left() == []


def _call(path: dict[str, str]) -> Any:
    from tests.clouds.gcp_wire import Call

    return Call("", path, {}, {}, "", "iam")


def test_a_role_whose_name_is_kept_is_one_sentence(server: Any) -> None:
    project(server).purged = {ROLE}
    with pytest.raises(ProvisionerError, match="keeps the name of a deleted role for 37 days; give --cluster another"):
        made(opened(server))


@pytest.mark.parametrize("refused", [{"capacity"}, {"capacity", "capacityHistory"}], ids=["one", "both"])
def test_a_role_that_google_refuses_for_a_preview_permission_is_made_without_and_that_is_said(
    server: Any, refused: set[str]
) -> None:
    project(server).unsupported = {f"compute.advice.{each}" for each in refused}
    opening = opened(server)
    made(opening)
    rest = {each for each in granted_on_gcp("gcp-role.yaml") if ".advice." not in each}
    assert set(project(server).roles[ROLE]["includedPermissions"]) == rest
    (said,) = [each for each in opening.made().todo if "[prices]" in each]
    assert f"Google took no compute.advice.capacity and no compute.advice.capacityHistory into the role {ROLE}" in said
    assert opened(server).missing().steps == ()
    del project(server).roles[ROLE]["includedPermissions"][3:]
    made(opened(server))
    assert set(project(server).roles[ROLE]["includedPermissions"]) == rest


def test_a_role_that_google_refuses_for_another_permission_is_not_made(server: Any) -> None:
    project(server).unsupported = {"compute.instances.create"}
    with pytest.raises(ProvisionerError, match=r"Permission compute\.instances\.create is not valid"):
        made(opened(server))
    assert ROLE not in project(server).roles


ALLOWED = "docs/permissions/gcp-account-role.yaml"
# People's credentials use a project's quota: "Troubleshoot your ADC setup". The test cloud has a service account's.
FOR_PEOPLE = {"serviceusage.services.use"}


def everything(server: Any) -> None:
    """Each call that may be made: twice, for what is deleted is restored, and what differs is put right."""
    opened(server).whose()
    made(opened(server, OURS))
    project(server).buckets["fresh"]["iamConfiguration"] = {}
    made(opened(server, OURS))
    project(server).objects["fresh", "runs/a", "1"] = b"x"
    opened(server).rented(server.provisioner(), 60.0)
    deleted(opened(server))
    for _ in range(2):
        made(opened(server))
        (ours,) = [each for each in server.cloud.compute.firewalls if each["name"] == SSH]
        ours["disabled"] = True
        project(server).roles[ROLE]["includedPermissions"] = []
        made(opened(server))
        deleted(opened(server))
    for steps in (opened(server).missing().steps, opened(server).remaining(with_data=True).steps):
        account = opened(server)
        for step in steps:
            account.take(step)
            with suppress(NotYetError):
                account.take(step)  # asks what became of its operation
    made(opened(server))


@pytest.mark.parametrize("name", sampled(sorted(granted_on_gcp("gcp-account-role.yaml") - FOR_PEOPLE), every=4))
def test_a_missing_permission_is_one_sentence_that_names_it(server: Any, name: str) -> None:
    server.cloud.denied = {name}
    with pytest.raises(ProvisionerError) as caught:
        everything(server)
    # Where a call needs two, its own is named, and Google's message has the other; and all of those of machines.
    if not name.startswith(("compute.disks.", "compute.instances.", "compute.globalOperations.list")):
        assert f"lacks {'compute.firewalls.create' if name == 'compute.networks.updatePolicy' else name}" in str(
            caught.value
        )
    assert name in str(caught.value)
    assert ALLOWED in str(caught.value)
    assert "\n" not in str(caught.value)
    server.cloud.denied = set()
    made(opened(server))
    assert opened(server).missing().steps == ()


@pytest.mark.parametrize("api", ["compute", "iam", "cloudresourcemanager", "storage", "file"])
def test_an_api_that_is_not_enabled_is_one_sentence_with_the_command(server: Any, api: str) -> None:
    project(server).disabled = {api}
    with pytest.raises(ProvisionerError, match=f"gcloud services enable {api}.googleapis.com --project {PROJECT}") as c:
        made(opened(server))
    assert "\n" not in str(c.value)
    project(server).disabled = set()
    made(opened(server))
    assert opened(server).missing().steps == ()


def test_without_filestore_all_else_is_deleted(server: Any) -> None:
    made(opened(server, replace(WISH, shared_storage=False)))
    project(server).disabled = {"file"}
    deleted(opened(server))
    assert project(server).left() == []


def test_a_file_system_stays_with_its_data_and_is_taken_again(server: Any) -> None:
    made(opened(server))
    _, plan = deleted(opened(server), with_data=False)
    (left,) = plan.left
    assert "--with-data" in left
    assert project(server).left() == list(project(server).file_systems)
    made(opened(server))
    assert len(project(server).file_systems) == 1
    deleted(opened(server))
    assert project(server).left() == []


@pytest.mark.parametrize("action", ["firewalls.insert", "file.projects.locations.instances.create"])
def test_an_operation_that_fails_is_one_sentence(server: Any, action: str) -> None:
    """Google accepts first, and says later why it could not."""
    account = opened(server, WISH if action.startswith("file") else replace(WISH, shared_storage=False))
    steps = [each for each in account.missing().steps if ("Filestore" in str(each)) is action.startswith("file")]
    project(server).failure = "Quota 'X' exceeded.  Limit: 0.0"
    account.take(steps[0])
    with pytest.raises(ProvisionerError, match=r"could not make the .*: .*Quota 'X' exceeded"):
        made(account)
    made(opened(server))
    assert opened(server).missing().steps == ()


def test_a_listing_with_gaps_is_no_evidence(server: Any) -> None:
    project(server).unreachable = [f"projects/{PROJECT}/locations/us-central1-b"]
    with pytest.raises(ProvisionerError, match=r"a listing of instances lacks .*us-central1-b"):
        opened(server).remaining(with_data=True)
    project(server).unreachable = [f"projects/{PROJECT}/locations/asia-east1-b"]
    opened(server).remaining(with_data=True)


def test_a_listing_without_end_is_given_up(server: Any) -> None:
    endless = {"accounts": [{"email": "x@y.z"}], "nextPageToken": "more"}
    project(server).handlers["iam.projects.serviceAccounts.list"] = lambda _: endless
    server.cloud.compute._handlers |= project(server).handlers
    with pytest.raises(ProvisionerError, match="more than 100 pages of accounts"):
        opened(server).missing()
    assert server.cloud.counted()["iam.projects.serviceAccounts.list"] == MAX_PAGES


def test_a_bucket_that_is_gone_does_not_hold_up_the_end(server: Any) -> None:
    made(opened(server))
    del project(server).policies[BUCKET], project(server).buckets[BUCKET]
    deleted(opened(server))
    assert project(server).left() == []


@pytest.mark.parametrize(
    ("wish", "settings", "message"),
    [
        ({"ssh_from": ("the office",)}, {}, "'the office' is neither an address"),
        ({"ssh_from": ()}, {}, "nothing says from where"),
        ({"checkpoints": "s3://models"}, {}, "'s3://models' is no bucket of Cloud Storage"),
        ({}, {"service_account": "mine@x.iam.gserviceaccount.com"}, "nodes have the service account mine@x"),
        ({}, {"regions": ("us-nowhere1",)}, "us-nowhere1"),
        ({}, {"subnetworks": {"us-central1": "gpu"}}, "set gcp.network to the network of gcp.subnetworks"),
        ({}, {"network": "projects/other/global/networks/default"}, "is another project's"),
    ],
)
def test_a_wish_that_cannot_be_fulfilled_is_one_sentence(
    server: Any, wish: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ProvisionerError, match=message):
        made(opened(server, replace(WISH, **wish), **settings))
    assert changes(server) == []


def test_who_runs_this_is_said(server: Any) -> None:
    assert opened(server).whose() == f"the Google Cloud project {PROJECT}, as daemon@{PROJECT}.iam.gserviceaccount.com"


@pytest.mark.parametrize("wrong", ["wrong", "expired"])
def test_wrong_credentials_are_one_sentence(server: Any, wrong: str) -> None:
    server.cloud.credentials = wrong
    with pytest.raises(ProvisionerError, match="renew") as caught:
        opened(server).missing()
    assert "\n" not in str(caught.value)


def test_a_persons_credentials_say_whose_quota_they_use_and_a_service_accounts_do_not() -> None:
    person = credentials.Credentials("token")
    assert quota_project(person, PROJECT) == PROJECT
    assert quota_project(person.with_quota_project("mine"), PROJECT) == "mine"
    assert quota_project(compute_engine.Credentials(), PROJECT) == ""
