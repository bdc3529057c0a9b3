"""What `spotsupd init --account` makes in an AWS account, and `destroy` deletes: by the real boto3."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import boto3
import pytest

from provisioners.account import Account, Wish
from provisioners.aws.client import Aws
from provisioners.aws.network import check
from provisioners.base import Owner, ProvisionerError
from provisioners.calls import Deadline
from supervisor.cli.account import permissions
from tests.clouds.base import wire_cloud
from tests.support.accounts import account_of, deleted, made
from tests.support.machines import OTHER, OWNER
from tests.unit.test_cloud_docs import granted

pytestmark = pytest.mark.long

REGION = "us-east-1"
WISH = Wish(
    OWNER,
    ssh_from=("198.51.100.7", "2001:db8::7", "10.1.2.3/16"),
    shared_storage=True,
    checkpoints="s3://models/runs",
    permissions=permissions(),
)
BUCKET = "models"
GROUP, STORAGE, DAEMON, NODE = (f"spotsup-test-cluster-{use}" for use in ("nodes", "storage", "daemon", "node"))


@pytest.fixture
def server() -> Iterator[Any]:
    with wire_cloud("aws") as server:
        yield server


def opened(server: Any, wish: Wish = WISH, **settings: Any) -> Account:
    """In two zones: each more is one more mount target, and some calls."""
    zones = [each for each in server.cloud.fleet.backend(REGION).describe_subnets() if each.default_for_az][:2]
    subnets = {each.availability_zone: each.id for each in zones}
    return account_of("aws", server.settings(**{"subnets": subnets, **settings}), wish)


def client(server: Any, service: str) -> Any:
    return boto3.client(service, region_name=REGION, endpoint_url=server.url)


def group(server: Any, name: str = GROUP) -> dict[str, Any]:
    filters = [{"Name": "group-name", "Values": [name]}]
    (found,) = client(server, "ec2").describe_security_groups(Filters=filters)["SecurityGroups"]
    return dict(found)


def changes(server: Any) -> list[str]:
    return [call.action for call in server.cloud.calls if not call.action.startswith(("Describe", "Get", "List"))]


def test_all_is_made_and_nothing_is_made_twice(server: Any) -> None:
    account = opened(server)
    plan = account.missing()
    assert changes(server) == []
    assert made(account) == [str(step) for step in plan.steps]
    assert any(step.cost for step in plan.steps)
    before = len(changes(server))
    assert made(opened(server)) == []
    assert len(changes(server)) == before
    found = account.made()
    assert found.settings == {"security_groups": {REGION: [group(server)["GroupId"]]}, "instance_profile": NODE}
    tags = {tag["Key"]: tag["Value"] for tag in group(server)["Tags"]}
    assert tags.items() >= OWNER.tags.items()
    iam = client(server, "iam")
    for name in (DAEMON, NODE):
        role = iam.get_role(RoleName=name)["Role"]
        assert {tag["Key"]: tag["Value"] for tag in role["Tags"]}.items() >= OWNER.tags.items()
        profile = iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
        assert [each["RoleName"] for each in profile["Roles"]] == [name]
    (system,) = client(server, "efs").describe_file_systems()["FileSystems"]
    assert system["Encrypted"]
    assert any(system["FileSystemId"] in line for line in found.todo)


def test_what_is_made_is_what_check_asks_for(server: Any) -> None:
    account = opened(server)
    made(account)
    settings = server.settings(security_groups={REGION: tuple(account.made().settings["security_groups"][REGION])})
    message = check(Aws(settings), replace_settings(settings, efa=True), REGION, Deadline(30.0))
    assert message.endswith("lets the daemon in, and nodes reach each other")


def replace_settings(settings: Any, **changed: Any) -> Any:
    return settings.model_copy(update=changed)


def test_the_daemons_role_may_do_what_the_policy_says_and_pass_the_nodes_role_alone(server: Any) -> None:
    made(opened(server))
    iam = client(server, "iam")
    policy = iam.get_role_policy(RoleName=DAEMON, PolicyName="spotsup")["PolicyDocument"]
    actions = {name for each in policy["Statement"] for name in [each["Action"]] if isinstance(name, str)}
    actions |= {name for each in policy["Statement"] if not isinstance(each["Action"], str) for name in each["Action"]}
    assert actions == granted()
    (passed,) = [each["Resource"] for each in policy["Statement"] if "iam:PassRole" in each["Action"]]
    assert passed == f"arn:aws:iam::*:role/{NODE}"
    node = iam.get_role_policy(RoleName=NODE, PolicyName="spotsup")["PolicyDocument"]
    assert "arn:aws:s3:::models/runs/*" in json.dumps(node)
    assert "BUCKET" not in json.dumps(node)


def test_without_a_role_for_nodes_the_daemon_may_pass_none(server: Any) -> None:
    account = opened(server, replace(WISH, checkpoints="", shared_storage=False))
    made(account)
    policy = client(server, "iam").get_role_policy(RoleName=DAEMON, PolicyName="spotsup")["PolicyDocument"]
    assert "iam:PassRole" not in json.dumps(policy)
    assert "instance_profile" not in account.made().settings
    assert client(server, "efs").describe_file_systems()["FileSystems"] == []


def test_a_bucket_of_its_own_needs_no_prefix(server: Any) -> None:
    made(opened(server, replace(WISH, checkpoints="s3://models")))
    policy = client(server, "iam").get_role_policy(RoleName=NODE, PolicyName="spotsup")["PolicyDocument"]
    assert policy["Statement"][0]["Resource"] == "arn:aws:s3:::models/*"


NO_BUCKET = replace(WISH, checkpoints="", shared_storage=False)


@pytest.mark.parametrize("by", ["InstanceProfileName", "Arn"])
def test_the_daemon_may_pass_the_role_in_a_profile_of_ones_own_whatever_it_is_called(server: Any, by: str) -> None:
    iam = client(server, "iam")
    role = iam.create_role(RoleName="trainers", AssumeRolePolicyDocument="{}", Path="/ml/")["Role"]["Arn"]
    profile = iam.create_instance_profile(InstanceProfileName="mine", Path="/ml/")["InstanceProfile"]
    iam.add_role_to_instance_profile(InstanceProfileName="mine", RoleName="trainers")
    made(opened(server, NO_BUCKET, instance_profile=profile[by]))
    policy = iam.get_role_policy(RoleName=DAEMON, PolicyName="spotsup")["PolicyDocument"]
    assert [each["Resource"] for each in policy["Statement"] if "iam:PassRole" in each["Action"]] == [role]
    assert opened(server, NO_BUCKET, instance_profile=profile[by]).missing().steps == ()


def test_the_profile_that_init_made_stays_when_it_is_repeated_without_checkpoints(server: Any) -> None:
    made(opened(server, replace(WISH, shared_storage=False)))
    assert opened(server, NO_BUCKET, instance_profile=NODE).missing().steps == ()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere", "the account has no instance profile nowhere: create it, or set aws.instance_profile"),
        ("empty", "the instance profile empty holds no role: put one into it, or set aws.instance_profile"),
        ("arn:aws:iam::999999999999:instance-profile/empty", "the account has no instance profile arn:aws:iam::9999"),
    ],
)
def test_a_profile_with_which_no_machine_can_be_launched_is_refused_first(server: Any, name: str, message: str) -> None:
    client(server, "iam").create_instance_profile(InstanceProfileName="empty")
    before = changes(server)
    with pytest.raises(ProvisionerError, match=message):
        made(opened(server, NO_BUCKET, instance_profile=name))
    assert changes(server) == before


@pytest.mark.nightly
def test_a_role_and_a_group_that_are_unknown_for_a_while_are_waited_for(server: Any) -> None:
    server.cloud.ec2.account.late = 6
    account = opened(server)
    expected = [str(step) for step in account.missing().steps]
    assert sorted(made(account)) == sorted(expected)
    assert account.missing().steps == ()
    said, _ = deleted(opened(server))
    assert len(said) > 5
    assert server.cloud.ec2.account.left() == []


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["drop-reply", "done-but-error", "throttled", "twice", "empty"])
def test_a_lost_or_doubled_answer_makes_nothing_twice(server: Any, how: str) -> None:
    """Of each call that changes something."""
    for action in (
        *("CreateSecurityGroup", "AuthorizeSecurityGroupIngress", "AuthorizeSecurityGroupEgress"),
        *("CreateRole", "PutRolePolicy", "CreateInstanceProfile", "AddRoleToInstanceProfile"),
        *("CreateServiceLinkedRole", "CreateFileSystem", "CreateMountTarget"),
        *("CreateBucket", "PutBucketPublicAccessBlock", "PutLifecycleConfiguration"),
    ):
        server.cloud.fail_next(action, how)
    made(opened(server))
    assert opened(server).missing().steps == ()
    left = server.cloud.ec2.account.left()
    assert sorted(left)[-7:] == sorted([BUCKET, GROUP, STORAGE, DAEMON, NODE, DAEMON, NODE])
    s3 = client(server, "s3")
    s3.put_object(Bucket=BUCKET, Key="runs/a", Body=b"x")
    s3.create_multipart_upload(Bucket=BUCKET, Key="runs/b")
    for action in (
        *("DeleteMountTarget", "DeleteFileSystem", "DeleteSecurityGroup", "DeleteRole", "DeleteRolePolicy"),
        *("DeleteObject", "AbortMultipartUpload", "DeleteBucket"),
    ):
        server.cloud.fail_next(action, how)
    deleted(opened(server))
    assert server.cloud.ec2.account.left() == []


@pytest.mark.nightly
def test_who_is_interrupted_after_any_step_goes_on(server: Any) -> None:
    """A new process each time, which knows nothing of the last."""
    for count in itertools.count():
        account = opened(server)
        steps = account.missing().steps
        if not steps:
            break
        account.take(steps[0])
        assert count < 60
    expected = {DAEMON, NODE, GROUP, STORAGE, BUCKET}
    assert expected <= set(server.cloud.ec2.account.left())
    for count in itertools.count():
        account = opened(server)
        steps = account.remaining(with_data=True).steps
        if not steps:
            break
        account.take(steps[0])
        assert count < 60
    assert server.cloud.ec2.account.left() == []


@pytest.mark.parametrize("whose", [OTHER, None], ids=["another installation", "nobody"])
@pytest.mark.parametrize("what", ["group", "role", "profile", "file system"])
def test_what_is_there_without_our_tags_is_refused_and_never_touched(
    server: Any, what: str, whose: Owner | None
) -> None:
    tags = [{"Key": key, "Value": value} for key, value in (whose.tags if whose else {}).items()]
    if what == "group":
        more = [{"ResourceType": "security-group", "Tags": tags}] if tags else []
        client(server, "ec2").create_security_group(GroupName=GROUP, Description="mine", TagSpecifications=more)
    elif what == "role":
        client(server, "iam").create_role(RoleName=DAEMON, AssumeRolePolicyDocument="{}", Tags=tags)
    elif what == "profile":
        client(server, "iam").create_instance_profile(InstanceProfileName=NODE, Tags=tags)
    else:
        client(server, "efs").create_file_system(CreationToken=STORAGE, Tags=tags)
    before, changed = server.cloud.ec2.account.left(), changes(server)
    with pytest.raises(ProvisionerError, match="nothing was made: give --cluster another name, or delete it"):
        made(opened(server))
    _, plan = deleted(opened(server))
    assert any("stays: it does not have this installation's tags" in each for each in plan.left)
    assert (server.cloud.ec2.account.left(), changes(server)) == (before, changed)


def test_two_installations_with_other_names_share_an_account(server: Any) -> None:
    made(opened(server))
    other = replace(WISH, owner=Owner("other", OTHER.key_mark))
    made(opened(server, other))
    deleted(opened(server, other))
    assert opened(server).missing().steps == ()


def test_a_rule_that_someone_added_stays_and_one_that_is_missing_is_made(server: Any) -> None:
    made(opened(server))
    ec2, found = client(server, "ec2"), group(server)
    everyone = [{"CidrIp": "0.0.0.0/0"}]
    added = {"IpProtocol": "tcp", "FromPort": 8080, "ToPort": 8081, "IpRanges": everyone}
    ec2.authorize_security_group_ingress(GroupId=found["GroupId"], IpPermissions=[added])
    ssh = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "10.1.0.0/16"}]}
    ec2.revoke_security_group_ingress(GroupId=found["GroupId"], IpPermissions=[ssh])
    said = made(opened(server))
    assert said == [f"let the security group {GROUP} ({REGION}) have tcp port 22 from 10.1.0.0/16"]
    assert [each["FromPort"] for each in group(server)["IpPermissions"] if each.get("FromPort") == 8080] == [8080]


@pytest.mark.parametrize(
    "action",
    [
        "ec2:CreateSecurityGroup",
        "iam:CreateRole",
        "iam:PutRolePolicy",
        "iam:PassRole",
        "elasticfilesystem:CreateFileSystem",
        "s3:CreateBucket",
        "s3:TagResource",
        "s3:GetBucketTagging",
        "s3:PutLifecycleConfiguration",
    ],
)
def test_a_missing_permission_is_one_sentence_that_names_the_action(server: Any, action: str) -> None:
    server.cloud.denied = {action}
    with pytest.raises(ProvisionerError) as caught:
        made(opened(server))
    assert action in str(caught.value)
    assert "docs/permissions/aws-account-policy.json" in str(caught.value)
    assert "\n" not in str(caught.value)
    server.cloud.denied = set()
    made(opened(server))
    assert opened(server).missing().steps == ()


def test_a_file_system_stays_with_its_data_and_is_taken_again(server: Any) -> None:
    first = opened(server)
    made(first)
    (system,) = client(server, "efs").describe_file_systems()["FileSystems"]
    _, plan = deleted(opened(server), with_data=False)
    assert [system["FileSystemId"] in plan.left[0], BUCKET in plan.left[1]] == [True, True]
    assert all("--with-data" in left for left in plan.left)
    assert server.cloud.ec2.account.left() == [system["FileSystemId"], BUCKET]
    made(opened(server))
    (again,) = client(server, "efs").describe_file_systems()["FileSystems"]
    assert again["FileSystemId"] == system["FileSystemId"]
    deleted(opened(server))
    assert server.cloud.ec2.account.left() == []


def test_a_group_that_stays_in_use_is_left_after_a_while_in_one_sentence(server: Any) -> None:
    account = opened(server)
    made(account)
    ec2 = client(server, "ec2")
    subnet = ec2.describe_subnets()["Subnets"][0]["SubnetId"]
    ec2.create_network_interface(SubnetId=subnet, Groups=[group(server)["GroupId"]])
    with pytest.raises(ProvisionerError, match="not done after 60 s: could not delete the security group") as caught:
        deleted(opened(server), limit_s=60.0)
    assert "DependencyViolation" in str(caught.value)
    assert GROUP in server.cloud.ec2.account.left()


@pytest.mark.parametrize("verb", ["ingress", "egress"])
def test_a_rule_of_another_group_is_named_with_the_command_before_anything_is_deleted(server: Any, verb: str) -> None:
    """As docs/install.md has the daemon's host let nodes reach etcd."""
    wish = replace(WISH, checkpoints="")
    made(opened(server, wish))
    ec2, nodes = client(server, "ec2"), group(server)["GroupId"]
    host = ec2.create_security_group(GroupName="host", Description="host")["GroupId"]
    pair = {"IpProtocol": "tcp", "FromPort": 2379, "ToPort": 2379, "UserIdGroupPairs": [{"GroupId": nodes}]}
    getattr(ec2, f"authorize_security_group_{verb}")(GroupId=host, IpPermissions=[pair])
    before, changed = server.cloud.ec2.account.left(), changes(server)
    with pytest.raises(ProvisionerError) as caught:
        deleted(opened(server, wish))
    rule = f"'IpProtocol=tcp,FromPort=2379,ToPort=2379,UserIdGroupPairs=[{{GroupId={nodes}}}]'"
    command = f"aws ec2 revoke-security-group-{verb} --region {REGION} --group-id {host} --ip-permissions {rule}"
    said = f"a rule of your security group host ({host}) names {nodes}: run `{command}`, and repeat"
    assert (str(caught.value), server.cloud.ec2.account.left(), changes(server)) == (said, before, changed)
    getattr(ec2, f"revoke_security_group_{verb}")(GroupId=host, IpPermissions=[pair])
    deleted(opened(server, wish))
    assert server.cloud.ec2.account.left() == ["host"]


def test_a_zone_without_efs_is_left_out(server: Any) -> None:
    server.cloud.ec2.account.zones_without_efs = {"us-east-1e"}
    made(opened(server, subnets={}))  # the default VPC's
    zones = [each["AvailabilityZoneName"] for each in mount_targets(server)]
    assert "us-east-1e" not in zones
    assert len(zones) >= 2


def mount_targets(server: Any) -> list[dict[str, Any]]:
    efs = client(server, "efs")
    (system,) = efs.describe_file_systems()["FileSystems"]
    return list(efs.describe_mount_targets(FileSystemId=system["FileSystemId"])["MountTargets"])


@pytest.mark.parametrize(
    ("wish", "settings", "message"),
    [
        ({"ssh_from": ("sg-0123",)}, {}, "would admit private addresses only"),
        ({"ssh_from": ("the office",)}, {}, "'the office' is neither an address"),
        ({"checkpoints": "gs://models"}, {}, "'gs://models' is no bucket of S3"),
        ({}, {"instance_profile": "mine"}, "nodes have the instance profile mine already"),
        ({}, {"subnets": {"us-east-1a": "subnet-12345678"}}, "subnet-12345678"),
    ],
)
def test_a_wish_that_cannot_be_fulfilled_is_refused_before_anything_is_made(
    server: Any, wish: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ProvisionerError, match=message):
        made(opened(server, replace(WISH, **wish), **settings))
    assert changes(server) == []


def test_a_group_of_the_daemons_host_is_let_in_where_nodes_have_private_addresses(server: Any) -> None:
    host = client(server, "ec2").create_security_group(GroupName="host", Description="host")["GroupId"]
    account = opened(server, replace(WISH, ssh_from=(host,)), public_address=False)
    made(account)
    assert opened(server, replace(WISH, ssh_from=(host,)), public_address=False).missing().steps == ()
    pairs = [pair["GroupId"] for rule in group(server)["IpPermissions"] for pair in rule["UserIdGroupPairs"]]
    assert host in pairs


def everything(server: Any) -> None:
    """Each call that may be made."""
    opened(server).whose()
    made(opened(server, subnets={}))
    before, s3 = len(server.cloud.calls), client(server, "s3")
    s3.put_object(Bucket=BUCKET, Key="runs/a", Body=b"x")
    s3.create_multipart_upload(Bucket=BUCKET, Key="runs/b")
    del server.cloud.calls[before:]  # this test's own
    opened(server).rented(server.provisioner(), 60.0)
    deleted(opened(server))
    server.cloud.ec2.account.ignores_tags = True
    # Another one: moto keeps the tags of a bucket that is deleted for the next of its name.
    made(opened(server, replace(WISH, checkpoints="s3://untagged/runs")))


def test_the_policy_of_who_runs_it_changes_only_what_is_ours() -> None:
    statements = json.loads(permissions()["aws-account-policy.json"])["Statement"]
    # To delete, and to change what is there, only where it has the tag.
    for each in statements:
        for name in each["Action"]:
            if name.startswith(("ec2:Delete", "ec2:Authorize", "elasticfilesystem:Delete")) and "Interface" not in name:
                assert "aws:ResourceTag/spotsup-cluster" in json.dumps(each["Condition"]), name
            if name in {"ec2:CreateSecurityGroup", "elasticfilesystem:CreateFileSystem"} and ":vpc/" not in json.dumps(
                each["Resource"]
            ):
                assert "aws:RequestTag/spotsup-cluster" in json.dumps(each.get("Condition")), name
            if name.startswith("iam:") and "ServiceLinked" not in name and name != "iam:GetInstanceProfile":
                assert "spotsup-" in json.dumps(each["Resource"]), name


# -- the bucket for checkpoints --------------------------------------------------------------------------------


def test_the_bucket_is_private_and_deletes_uploads_that_never_ended(server: Any) -> None:
    made(opened(server))
    s3 = client(server, "s3")
    tags = {tag["Key"]: tag["Value"] for tag in s3.get_bucket_tagging(Bucket=BUCKET)["TagSet"]}
    assert tags.items() >= OWNER.tags.items()
    assert all(s3.get_public_access_block(Bucket=BUCKET)["PublicAccessBlockConfiguration"].values())
    (rule,) = s3.get_bucket_lifecycle_configuration(Bucket=BUCKET)["Rules"]
    assert (rule["Status"], rule["AbortIncompleteMultipartUpload"]) == ("Enabled", {"DaysAfterInitiation": 7})
    assert "Expiration" not in rule, "no checkpoint ends by itself"


def test_a_bucket_that_was_made_without_our_tags_gets_them(server: Any) -> None:
    server.cloud.ec2.account.ignores_tags = True
    wish = replace(WISH, shared_storage=False)
    made(opened(server, wish))
    tags = {tag["Key"]: tag["Value"] for tag in client(server, "s3").get_bucket_tagging(Bucket=BUCKET)["TagSet"]}
    assert tags.items() >= OWNER.tags.items()
    deleted(opened(server, wish))
    assert server.cloud.ec2.account.left() == []


def test_a_bucket_that_gets_no_tags_is_named_with_the_command_that_deletes_it(server: Any) -> None:
    server.cloud.ec2.account.ignores_tags = True
    server.cloud.denied = {"s3:PutBucketTagging"}
    with pytest.raises(ProvisionerError, match=r"lacks s3:PutBucketTagging.*`aws s3 rb s3://models`") as caught:
        made(opened(server, replace(WISH, shared_storage=False)))
    assert "\n" not in str(caught.value)


def test_a_bucket_is_made_in_the_first_region(server: Any) -> None:
    wish = replace(WISH, shared_storage=False)
    made(opened(server, wish, regions=("eu-west-1", "us-east-1"), subnets={}))
    found = client(server, "s3").get_bucket_location(Bucket=BUCKET)
    assert found["LocationConstraint"] == "eu-west-1"


@pytest.mark.parametrize("tags", [{}, OTHER.tags], ids=["nobody's", "another installation's"])
def test_a_bucket_that_is_there_is_used_as_it_is_and_stays(server: Any, tags: dict[str, str]) -> None:
    s3 = client(server, "s3")
    s3.create_bucket(Bucket=BUCKET)
    if tags:
        listed = [{"Key": key, "Value": value} for key, value in tags.items()]
        s3.put_bucket_tagging(Bucket=BUCKET, Tagging={"TagSet": listed})
    s3.put_object(Bucket=BUCKET, Key="theirs", Body=b"x")
    said = made(opened(server))
    assert not any("bucket" in each for each in said)
    deleted(opened(server))
    assert server.cloud.ec2.account.left() == [BUCKET]
    assert s3.get_object(Bucket=BUCKET, Key="theirs")["Body"].read() == b"x"


def test_another_accounts_bucket_is_left_to_it(server: Any) -> None:
    """Its policy may let the nodes' role in: nobody here can know that."""
    server.cloud.ec2.account.others_buckets = {BUCKET}
    assert not any("bucket" in each for each in made(opened(server)))


def test_a_name_that_somebody_takes_meanwhile_is_said(server: Any) -> None:
    account = opened(server)
    step = next(step for step in account.missing().steps if "make the S3 bucket" in str(step))
    server.cloud.ec2.account.others_buckets = {BUCKET}
    with pytest.raises(ProvisionerError, match="someone else has a bucket models, and names are unique"):
        account.take(step)


def test_rules_that_a_person_added_stay_and_what_is_missing_is_set_again(server: Any) -> None:
    made(opened(server))
    s3 = client(server, "s3")
    theirs = {"ID": "mine", "Status": "Enabled", "Filter": {"Prefix": "tmp/"}, "Expiration": {"Days": 3}}
    s3.put_bucket_lifecycle_configuration(Bucket=BUCKET, LifecycleConfiguration={"Rules": [theirs]})
    s3.delete_public_access_block(Bucket=BUCKET)
    assert made(opened(server)) == [
        f"block public access to the S3 bucket {BUCKET}",
        f"let the S3 bucket {BUCKET} delete uploads that never ended",
    ]
    rules = s3.get_bucket_lifecycle_configuration(Bucket=BUCKET)["Rules"]
    assert [rule["ID"] for rule in rules] == ["mine", "spotsup: incomplete uploads"]


def test_checkpoints_stay_until_a_person_says_otherwise_and_then_all_versions_go(server: Any) -> None:
    made(opened(server))
    s3 = client(server, "s3")
    s3.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
    for number in range(3):
        s3.put_object(Bucket=BUCKET, Key="runs/a", Body=str(number).encode())
    s3.delete_object(Bucket=BUCKET, Key="runs/a")
    s3.create_multipart_upload(Bucket=BUCKET, Key="runs/b")
    _, plan = deleted(opened(server), with_data=False)
    assert any("the S3 bucket models (us-east-1) stays with its data" in each for each in plan.left)
    assert len(s3.list_object_versions(Bucket=BUCKET)["Versions"]) == 3
    said, _ = deleted(opened(server))
    assert any("delete the S3 bucket models with all objects in it" in each for each in said)
    assert server.cloud.ec2.account.left() == []


def test_a_bucket_that_may_not_be_looked_at_does_not_stay_in_silence(server: Any) -> None:
    made(opened(server))
    server.cloud.denied = {"s3:GetBucketTagging"}
    with pytest.raises(ProvisionerError, match="who runs this lacks s3:GetBucketTagging"):
        deleted(opened(server))


@pytest.mark.parametrize(
    ("what", "action"),
    [("made", "s3:PutBucketPublicAccessBlock"), ("deleted", "s3:ListBucketVersions"), ("deleted", "s3:DeleteBucket")],
)
def test_permissions_of_s3_have_their_own_names(server: Any, what: str, action: str) -> None:
    assert action in granted("aws-account-policy.json")
    if what == "deleted":
        made(opened(server))
    server.cloud.denied = {action}
    with pytest.raises(ProvisionerError, match=f"who runs this lacks {action}, "):
        (made if what == "made" else deleted)(opened(server))


def test_a_bucket_that_lost_our_tags_after_the_look_is_not_emptied(server: Any) -> None:
    made(opened(server))
    s3 = client(server, "s3")
    s3.put_object(Bucket=BUCKET, Key="runs/a", Body=b"x")
    account = opened(server)
    step = next(step for step in account.remaining(with_data=True).steps if "S3 bucket" in str(step))
    s3.delete_bucket_tagging(Bucket=BUCKET)
    with pytest.raises(ProvisionerError, match="nothing in it was deleted"):
        account.take(step)
    assert s3.get_object(Bucket=BUCKET, Key="runs/a")["Body"].read() == b"x"
