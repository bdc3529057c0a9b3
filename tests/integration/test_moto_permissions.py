"""A second AWS: moto's own server, with its permissions on, and what each role's commands may do there.

tests/clouds puts our own behaviour before moto, and its permissions are our own table. Here moto alone answers and
judges, in a process of its own. What stands between it and us, each with its reason:

- `sign_without_a_body` (tests/support/moto_server.py): moto refuses every signature of a request without a body.
- `in_motos_words` (tests/support/moto_account.py): the documented policies as moto can read them. It compares the
  `Resource` of a statement with `*`, but for S3's calls and for roles that are there: an ARN grants nothing. And two
  actions have names of its own.
- The account has had a spot machine: moto calls AWSServiceRoleForEC2Spot otherwise, and `init` would wait for it.
- Its network has loopback addresses, which EC2 would refuse: the daemon logs in to none but this computer.

What moto does not judge is in NOT_JUDGED; docs/clouds.md has what else is wrong there.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from botocore.exceptions import ClientError

from provisioners.account import Account, Wish
from provisioners.aws.provisioner import AwsProvisioner
from provisioners.aws.types import read as read_types
from provisioners.base import (
    Denied,
    Instance,
    InstanceState,
    Leftover,
    LeftoverKind,
    Market,
    Offer,
    OfferQuery,
    ProvisionerError,
)
from supervisor.cli.account import permissions
from supervisor.journal.etcd_server import EmbeddedEtcd
from tests.support.accounts import account_of, deleted, made
from tests.support.machines import OWNER, TIMEOUT_S, request_at
from tests.support.moto_account import BUCKET, FILES, MOTOS_NAMES, SPOT_ROLE, Aws, allowing, opened
from tests.support.moto_server import AS_IT_IS, REGION, MotoServer, moto_server
from tests.support.programs import program_env, run_module
from tests.unit.test_cloud_docs import granted
from tools.stack import ROOT

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

_PART = "moto judges a call by its own name, and not what it does besides"
_SWALLOWED = "moto refuses it in XML, which a JSON API's client reads as code 403: that is no missing permission"
_ABSENT = "moto has no such call"
NOT_JUDGED = {
    "person": {
        "ec2:CreateNetworkInterface": _PART,
        "ec2:CreateTags": _PART,
        "ec2:DeleteNetworkInterface": _PART,
        "elasticfilesystem:TagResource": _PART,
        "iam:CreateServiceLinkedRole": "the account has had a spot machine",
        "iam:PassRole": _PART,
        "iam:TagInstanceProfile": _PART,
        "iam:TagRole": _PART,
        "s3:GetBucketTagging": "moto says `Access Denied` alone, as S3 does of another account's bucket",
        "s3:PutBucketOwnershipControls": _PART,
        "s3:PutBucketPublicAccessBlock": "moto takes it for s3:CreateBucket, as its query is not the one it looks for",
        "s3:TagResource": _PART,
    },
    "daemon": {
        "ec2:CreateTags": _PART,
        "ec2:DescribeCapacityReservations": _ABSENT,
        "ec2:GetEbsDefaultKmsKeyId": _ABSENT,
        "elasticfilesystem:DescribeMountTargetSecurityGroups": _SWALLOWED,
        "iam:PassRole": _PART,
        "kms:DescribeKey": "without GetEbsDefaultKmsKeyId there is no key to look at",
        "kms:GetKeyPolicy": "without GetEbsDefaultKmsKeyId there is no key to look at",
        "kms:ListGrants": "without GetEbsDefaultKmsKeyId there is no key to look at",
        "pricing:GetProducts": _ABSENT,
        "servicequotas:GetServiceQuota": _SWALLOWED,
        "ssm:GetParameter": _SWALLOWED,
        "ssm:GetParameters": _PART,
    },
}


@pytest.fixture(scope="module")
def moto() -> Iterator[MotoServer]:
    with moto_server() as server:
        yield server


@pytest.fixture
def aws(moto: MotoServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Aws]:
    for name in [each for each in os.environ if each.startswith("AWS_")]:
        monkeypatch.delenv(name)
    with TemporaryDirectory(prefix="moto-") as folder:  # a short path, for the daemon's socket
        monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", f"{folder}/credentials")
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield opened(moto, Path(folder))


Ctl = Callable[..., subprocess.CompletedProcess[str]]


# -- commands ----------------------------------------------------------------------------------------------


def test_a_person_with_the_documented_policy_makes_and_deletes_all_that_an_account_needs(aws: Aws) -> None:
    aws.refused("person", "ec2:DescribeSubnets", lambda: aws.init("--dry-run"))
    dry = aws.init("--dry-run")
    assert (dry.returncode, dry.stderr, aws.left()) == (0, "", [])
    aws.refused("person", "ec2:CreateSecurityGroup", lambda: aws.init("--yes"))
    done = aws.init("--yes")
    assert (done.returncode, done.stderr) == (0, "")
    would, did = (
        [line.removeprefix(word) for line in text.splitlines() if line.startswith(word)]
        for word, text in (("would ", dry.stdout), ("done: ", done.stdout))
    )
    assert set(did) <= set(would), "each step was announced"
    assert "would " not in aws.init("--dry-run").stdout, "nothing is missing"
    fill(aws)
    aws.refused("person", "ec2:DescribeInstances", lambda: aws.destroy("--dry-run"))
    dry = aws.destroy("--dry-run")
    assert (dry.returncode, dry.stderr) == (0, "")
    kept = aws.destroy("--yes")
    assert (kept.returncode, kept.stderr) == (0, "")
    assert len(aws.left()) == 2, "the bucket and the file system stay with their data"
    gone = aws.destroy("--yes", "--with-data")
    assert (gone.returncode, gone.stderr, aws.left()) == (0, "", [])


def test_the_first_spot_machines_role_is_a_permission_of_its_own(aws: Aws) -> None:
    aws.client("iam").delete_role(RoleName=SPOT_ROLE)
    aws.refused("person", "iam:CreateServiceLinkedRole", lambda: aws.init("--yes"))


def fill(aws: Aws) -> None:
    """What deletes of a bucket: two versions, the mark of a deleted object, and an upload that never ended."""
    s3 = aws.client("s3")
    s3.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
    for text in (b"a", b"b"):
        s3.put_object(Bucket=BUCKET, Key="vision/a", Body=text)
    s3.delete_object(Bucket=BUCKET, Key="vision/a")
    s3.create_multipart_upload(Bucket=BUCKET, Key="vision/b")


def test_a_daemon_with_the_documented_policy_plans_launches_lists_and_ends_machines(aws: Aws) -> None:
    assert aws.init("--yes").returncode == 0
    config = ("--config", str(aws.config))
    check = partial(aws.run, "daemon", "check", "--embedded-etcd", *config)
    aws.refused("daemon", "ec2:DescribeInstances", check)
    (wrong,) = [line for line in check().stdout.splitlines() if line.startswith("not ok")]
    assert "(ParameterNotFound): set aws.image_proprietary" in wrong, "moto has no images of Amazon's for GPUs"
    refresh = partial(aws.run, "daemon", "catalogue", "refresh", *config)
    aws.refused("daemon", "ec2:DescribeInstanceTypes", refresh)
    assert "types with GPUs" in refresh().stdout
    with daemon(aws) as ctl:
        plan = partial(ctl, "plan", *job(aws, "planned", "c5.large"))
        aws.refused("daemon", "ec2:DescribeInstanceTypeOfferings", plan)
        assert (plan().returncode, "c5.large" in plan().stdout) == (0, True)

        aws.allow("daemon", without="ec2:RunInstances")
        assert ctl("submit", *job(aws, "refused", "c5.xlarge")).returncode == 0
        until(lambda: "ec2:RunInstances" in ctl("status", "refused").stdout, "`status` names the permission")
        assert ctl("cancel", "refused").returncode == 0
        aws.allow("daemon")

        begins_and_ends(aws, ctl, "job", "c5.large")
        begins_and_ends(aws, ctl, "other", "c5.2xlarge", denied="ec2:TerminateInstances")

        aws.allow("daemon", without="ec2:DescribeInstances")
        until(lambda: "ec2:DescribeInstances" in ctl("events").stdout, "`events` names the permission")
        aws.allow("daemon")
        until(lambda: "accepts spotsup's requests again" in ctl("events").stdout, "all goes on by itself")


def begins_and_ends(aws: Aws, ctl: Ctl, name: str, kind: str, denied: str = "") -> None:
    """A job of one machine. `denied`: a permission that is missing while it is cancelled."""
    assert ctl("submit", *job(aws, name, kind)).returncode == 0
    until(lambda: machines(aws, kind) == ["running"], "the machine runs")
    until(lambda: states(ctl, name) == ["bootstrapping"], "`nodes` lists it")
    aws.allow("daemon", without=denied)
    assert ctl("cancel", name).returncode == 0
    until(lambda: denied in ctl("nodes").stdout, "`nodes` names the permission")
    aws.allow("daemon")
    until(lambda: machines(aws, kind) == ["terminated"], "the machine has ended")
    until(lambda: states(ctl, name) == ["gone"], "`nodes` says so")


def until(look: Callable[[], bool], what: str) -> None:
    """Wait for it, with a look a second: each starts a program. A missing permission is told after a minute."""
    deadline = time.monotonic() + 150.0
    while not look():
        assert time.monotonic() < deadline, what
        time.sleep(1.0)


@contextmanager
def daemon(aws: Aws) -> Iterator[Ctl]:
    """`spotsupd run`, and `spotsupctl` to it."""
    environ, socket = aws.environ("daemon"), str(aws.state / "spotsupd.sock")
    command = [sys.executable, "-m", "supervisor.cli.daemon", "run", "--embedded-etcd", "--config", str(aws.config)]

    def ctl(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run_module("supervisor.cli.ctl", "--socket", socket, *arguments, environ=environ)

    with (aws.home / "log").open("wb") as log:
        running = subprocess.Popen(command, cwd=ROOT, env={**program_env(), **environ}, stdout=log, stderr=log)
    try:
        until(lambda: ctl("list").returncode == 0, "spotsupd answers")
        yield ctl
    finally:
        running.terminate()
        with suppress(subprocess.TimeoutExpired):
            running.wait(30.0)
        running.kill()
        running.wait()
        EmbeddedEtcd(aws.state / "etcd").stop()


def job(aws: Aws, name: str, instance_type: str) -> list[str]:
    """A job that mounts the file system that `init` has made."""
    code = aws.home / "code"
    code.mkdir(exist_ok=True)
    (code / "train.py").write_text("")
    (system,) = aws.client("efs").describe_file_systems()["FileSystems"]
    mounts = f'{{mount: /mnt/shared, nfs: "{system["FileSystemId"]}.efs.{REGION}.amazonaws.com:/"}}'
    asked = ("--name", name, "--instance-type", instance_type, "--nodes", "1", "--storage", mounts)
    return [*asked, "--code", str(code), "--checkpoints", "none", "--", "train.py"]


def states(ctl: Ctl, name: str) -> list[str]:
    """Of a job's nodes, as they are listed."""
    return [each["state"] for each in json.loads(ctl("nodes", "--all", "-o", "json").stdout) if each["job"] == name]


def machines(aws: Aws, instance_type: str) -> list[str]:
    """The states of all of a type, as root sees them."""
    filters = [{"Name": "instance-type", "Values": [instance_type]}]
    found = aws.client("ec2").describe_instances(Filters=filters)["Reservations"]
    return [each["State"]["Name"] for reservation in found for each in reservation["Instances"]]


# -- each permission, one after the other ------------------------------------------------------------------


def named_one_by_one(aws: Aws, role: str, calls: Sequence[Callable[[], object]], *begin: str) -> set[str]:
    """Begin with these permissions, and give what a refusal names until nothing is refused: those that were named."""
    given = set(begin)
    ours = {motos: name for name, motos in MOTOS_NAMES.items()}
    aws.allow(role, given)
    for call in calls:
        while said := refusal(call):
            assert "\n" not in said
            names = [ours.get(each, each) for each in re.findall(r"\b[a-z0-9-]+:[A-Z]\w+", said)]
            missing = {each for each in names if each in granted(FILES[role])} - given
            assert missing, f"no permission of the documents that is missing is named: {said}"
            given |= missing
            aws.allow(role, given)
    return given - set(begin)


def refusal(call: Callable[[], object]) -> str:
    """What a person reads; "" where all is granted."""
    try:
        outcome = call()
    except ProvisionerError as error:
        return str(error)
    return outcome.message if isinstance(outcome, Denied) else ""


def test_a_person_is_told_each_permission_that_is_missing(aws: Aws) -> None:
    wish = Wish(OWNER, ("127.0.0.1",), shared_storage=True, checkpoints=f"s3://{BUCKET}", permissions=permissions())
    settings = aws.settings("person", subnets={})

    def account() -> Account:
        return account_of("aws", settings, wish)

    def make() -> None:
        try:
            made(account())
        except ProvisionerError as error:
            if f"delete it (`aws s3 rb s3://{BUCKET}`), and repeat" in str(error):
                aws.client("s3").delete_bucket(Bucket=BUCKET)
            raise

    def destroy() -> None:
        assert account().rented(AwsProvisioner(settings), TIMEOUT_S) == []
        deleted(account())

    given = named_one_by_one(aws, "person", [make, lambda: fill(aws), destroy], "s3:GetBucketTagging")
    assert given == granted(FILES["person"]) - {*NOT_JUDGED["person"]}
    assert aws.left() == []


def test_a_daemon_is_told_each_permission_that_is_missing(aws: Aws) -> None:
    cloud = AwsProvisioner(aws.settings("daemon"))
    # Its machine has several interfaces and a public address: the first and its address are made before it.
    wide = AwsProvisioner(aws.settings("daemon", efa=True, public_address=True))
    ours = AwsProvisioner(aws.settings("daemon", subnets={}))
    request = request_at(Offer("aws", REGION, f"{REGION}a", "p4d.24xlarge", Market.SPOT, None), "n1")
    system = aws.client("efs").create_file_system(CreationToken="ours")["FileSystemId"]
    aws.client("efs").create_mount_target(FileSystemId=system, SubnetId=aws.subnet)
    query = OfferQuery(file_servers=(f"{system}.efs.{REGION}.amazonaws.com",))

    def check(of: AwsProvisioner) -> None:
        denials = [each.message for each in of.check(TIMEOUT_S) if FILES["daemon"] in each.message]
        if denials:
            raise ProvisionerError("; ".join(denials))

    def machine() -> Instance:
        found = cloud.find(OWNER, request.token, TIMEOUT_S)
        assert found is not None
        return found

    def sweep() -> None:
        for each in (*cloud.leftovers(OWNER, TIMEOUT_S), *spot_requests):
            cloud.remove(each, TIMEOUT_S)

    spot_requests = leave_behind(aws)
    calls: list[Callable[[], object]] = [
        lambda: cloud.coverage(TIMEOUT_S),
        lambda: read_types(aws.settings("daemon"), TIMEOUT_S),
        *(partial(check, each) for each in (cloud, wide, ours)),
        lambda: cloud.offers(query, TIMEOUT_S),
        lambda: wide.launch(request, TIMEOUT_S),
        lambda: cloud.instances(OWNER, TIMEOUT_S),
        lambda: cloud.console(machine().id, TIMEOUT_S),
        lambda: cloud.terminate(machine().id, TIMEOUT_S),
        sweep,
    ]
    given = named_one_by_one(aws, "daemon", calls)
    assert given == granted(FILES["daemon"]) - {*NOT_JUDGED["daemon"]}
    assert (machine().state, cloud.leftovers(OWNER, TIMEOUT_S)) == (InstanceState.TERMINATED, [])


def leave_behind(aws: Aws) -> list[Leftover]:
    """A disk, an interface and an address of ours; and a spot request, which is none to be listed: moto grants it."""
    ec2, tags = aws.client("ec2"), [{"Key": key, "Value": value} for key, value in OWNER.tags.items()]

    def tagged(kind: str) -> list[dict[str, Any]]:
        return [{"ResourceType": kind, "Tags": tags}]

    ec2.create_volume(AvailabilityZone=f"{REGION}a", Size=8, TagSpecifications=tagged("volume"))
    ec2.create_network_interface(SubnetId=aws.subnet, TagSpecifications=tagged("network-interface"))
    ec2.allocate_address(Domain="vpc", TagSpecifications=tagged("elastic-ip"))
    machine = {"ImageId": aws.image, "InstanceType": "c5.large"}
    (made,) = ec2.request_spot_instances(LaunchSpecification=machine)["SpotInstanceRequests"]
    name = f"{REGION}:{made['SpotInstanceRequestId']}"
    return [Leftover(name, LeftoverKind.SPOT_REQUEST, OWNER, "n1", REGION)]


# -- moto's faults -----------------------------------------------------------------------------------------


def test_what_is_made_up_for_is_still_motos_fault(aws: Aws, tmp_path: Path) -> None:
    """Where one of these fails, what makes up for it can go."""
    # A statement with an ARN allows nothing, and a condition forbids nothing.
    aws.write_policy("daemon", permissions()[FILES["daemon"]])
    theirs = aws.client("ec2", "daemon")
    with pytest.raises(ClientError, match="ec2:AllocateAddress"):
        theirs.allocate_address(Domain="vpc")
    aws.allow("daemon")
    theirs.release_address(AllocationId=theirs.allocate_address(Domain="vpc")["AllocationId"])
    # Two actions have other names.
    aws.client("s3").create_bucket(Bucket=BUCKET)
    aws.write_policy("person", allowing(*MOTOS_NAMES))
    with pytest.raises(ClientError, match="AccessDenied"):
        aws.client("s3", "person").get_public_access_block(Bucket=BUCKET)
    with pytest.raises(ClientError, match="tagging:GetResources") as caught:
        aws.client("resourcegroupstaggingapi", "person").get_resources()
    # A JSON API refuses in XML, without a code.
    assert caught.value.response["Error"]["Code"] == "403"
    # The role of spot machines has another name.
    made = aws.client("iam").create_service_linked_role(AWSServiceName="spot.amazonaws.com")
    assert made["Role"]["RoleName"] != SPOT_ROLE
    # No request without a body has a good signature.
    with moto_server(AS_IT_IS) as plain, pytest.raises(ClientError, match="SignatureDoesNotMatch"):
        opened(plain, tmp_path).client("efs").describe_file_systems(CreationToken="ours")
