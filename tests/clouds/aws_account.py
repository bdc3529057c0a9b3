"""IAM, EFS, S3 and security groups for tests: moto, and what it lacks of the real ones' slowness and refusals.

Sources: "Changes that I make are not always immediately visible" (IAM guide, Troubleshoot IAM) and
terraform-provider-aws#6079: a new role is unknown for seconds; "Eventual consistency" (EC2 API): so is a new group;
botocore's models of CreateMountTarget, DeleteMountTarget, DeleteFileSystem and DeleteSecurityGroup for the others.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from moto.core import DEFAULT_ACCOUNT_ID
from moto.efs.models import efs_backends
from moto.iam.models import iam_backends
from moto.s3.models import s3_backends

from tests.clouds.aws_wire import XML, Call, FakeAwsError
from tests.clouds.base import Answer

SPOT_ROLE = "AWSServiceRoleForEC2Spot"
_ROLE_CALLS = ("GetRole", "PutRolePolicy", "ListRolePolicies", "GetRolePolicy", "AddRoleToInstanceProfile")
# Further permissions that calls need: each operation's documentation, and "Actions, resources, and condition keys".
NEEDS = {
    "CreateSecurityGroup": ("ec2:CreateTags",),
    "CreateRole": ("iam:TagRole",),
    "CreateInstanceProfile": ("iam:TagInstanceProfile",),
    "AddRoleToInstanceProfile": ("iam:PassRole",),
    "CreateFileSystem": ("elasticfilesystem:TagResource",),
    "CreateMountTarget": ("ec2:DescribeSubnets", "ec2:DescribeNetworkInterfaces", "ec2:CreateNetworkInterface"),
    "DeleteMountTarget": ("ec2:DeleteNetworkInterface",),
    "CreateBucket": ("s3:TagResource", "s3:PutBucketOwnershipControls"),
    "DeleteObject": ("s3:DeleteObjectVersion",),
}


class Account:
    """What can be set: for how many calls what is new is unknown, and what is going still in use (`late`); the zones
    without EFS; whether a new bucket gets no tags. Callers hold the fleet's lock.
    """

    def __init__(self, by_moto: Callable[[Call], Answer], backend: Callable[[str], Any]) -> None:
        self.late = 0
        self.zones_without_efs: set[str] = set()
        self.ignores_tags = False
        self.has_spot_role = False
        self._by_moto = by_moto
        self._backend = backend
        self._young: Counter[str] = Counter()
        self._in_use: Counter[str] = Counter()
        # Buckets of other accounts, whose names are taken.
        self.others_buckets: set[str] = set()
        for accounts in (iam_backends, efs_backends, s3_backends):
            for account in accounts.values():
                for each in list(account.values()):
                    each.reset()
        self.handlers: dict[str, Callable[[Call], Answer]] = {
            **dict.fromkeys(_ROLE_CALLS, self._about_role),
            "CreateRole": lambda call: self._make(call, f"role {call.form['RoleName']}"),
            "CreateInstanceProfile": lambda call: self._make(call, f"profile {call.form['InstanceProfileName']}"),
            "GetInstanceProfile": self._get_profile,
            "CreateServiceLinkedRole": self._make_spot_role,
            "CreateSecurityGroup": self._make_group,
            "AuthorizeSecurityGroupIngress": self._allow,
            "AuthorizeSecurityGroupEgress": self._allow,
            "DescribeSecurityGroups": self._groups,
            "DeleteSecurityGroup": self._delete_group,
            "CreateFileSystem": self._make_file_system,
            "CreateMountTarget": self._make_target,
            "DeleteMountTarget": self._delete_target,
            "DeleteFileSystem": self._delete_file_system,
            "CreateBucket": self._make_bucket,
            "GetBucketTagging": self._about_bucket,
            "GetResources": self._tagged,
        }

    def left(self) -> list[str]:
        """What is in the account: roles, profiles, file systems, mount targets; groups but those of VPCs."""
        iam = iam_backends[DEFAULT_ACCOUNT_ID]["aws"]
        efs = efs_backends[DEFAULT_ACCOUNT_ID]["us-east-1"]
        groups = [each.name for each in self._backend("us-east-1").describe_security_groups() if each.name != "default"]
        roles = [each.name for each in iam.roles.values()]
        profiles = [each.name for each in iam.instance_profiles.values()]
        return [*groups, *roles, *profiles, *efs.file_systems_by_id, *efs.mount_targets_by_id, *self.buckets]

    @property
    def buckets(self) -> Mapping[str, Any]:
        """Moto's, by name."""
        found: Mapping[str, Any] = s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets
        return found

    def _is_late(self, counts: Counter[str], name: str) -> bool:
        counts[name] -= 1
        return counts[name] >= 0

    def _make(self, call: Call, name: str) -> Answer:
        answer = self._by_moto(call)
        if answer.status == 200:
            self._young[name] = self.late
        return answer

    # -- IAM -----------------------------------------------------------------------------------------------

    def _about_role(self, call: Call) -> Answer:
        name = call.form["RoleName"]
        if name == SPOT_ROLE and self.has_spot_role:
            role = (
                f"<RoleName>{SPOT_ROLE}</RoleName><RoleId>AROAEXAMPLE0123456789</RoleId><Path>/aws-service-role/</Path>"
            )
            role += "<Arn>arn:aws:iam::123456789012:role/x</Arn><CreateDate>2026-01-01T00:00:00Z</CreateDate>"
            text = f"<GetRoleResponse><GetRoleResult><Role>{role}</Role></GetRoleResult></GetRoleResponse>"
            return Answer(200, text.encode(), XML)
        if self._is_late(self._young, f"role {name}"):
            raise FakeAwsError("NoSuchEntity", f"The role with name {name} cannot be found.")
        return self._by_moto(call)

    def _get_profile(self, call: Call) -> Answer:
        name = call.form["InstanceProfileName"]
        if self._is_late(self._young, f"profile {name}"):
            raise FakeAwsError("NoSuchEntity", f"Instance Profile {name} cannot be found.")
        return self._by_moto(call)

    def _make_spot_role(self, call: Call) -> Answer:
        assert call.form["AWSServiceName"] == "spot.amazonaws.com"
        if self.has_spot_role:
            message = f"Service role name {SPOT_ROLE} has been taken in this account, please try a different suffix."
            raise FakeAwsError("InvalidInput", message)
        self.has_spot_role = True
        text = "<CreateServiceLinkedRoleResponse><CreateServiceLinkedRoleResult/></CreateServiceLinkedRoleResponse>"
        return Answer(200, text.encode(), XML)

    # -- security groups -----------------------------------------------------------------------------------

    def _make_group(self, call: Call) -> Answer:
        before = {each.id for each in self._backend(call.region).describe_security_groups()}
        answer = self._by_moto(call)
        for each in self._backend(call.region).describe_security_groups():
            if each.id not in before:
                self._young[each.id] = self.late
        return answer

    def _allow(self, call: Call) -> Answer:
        group = call.form["GroupId"]
        if self._is_late(self._young, group):
            raise FakeAwsError("InvalidGroup.NotFound", f"The security group '{group}' does not exist")
        return self._by_moto(call)

    def _groups(self, call: Call) -> Answer:
        groups = [each.id for each in self._backend(call.region).describe_security_groups()]
        with self._hidden(call.region, {each for each in groups if self._is_late(self._young, each)}):
            return self._by_moto(call)

    @contextmanager
    def _hidden(self, region: str, groups: set[str]) -> Iterator[None]:
        known = self._backend(region).groups
        taken = [(vpc, known[vpc].pop(each)) for vpc in list(known) for each in groups & set(known[vpc])]
        try:
            yield
        finally:
            for vpc, group in taken:
                known[vpc][group.id] = group

    def _delete_group(self, call: Call) -> Answer:
        group, backend = call.form["GroupId"], self._backend(call.region)
        rules = [
            rule for each in backend.describe_security_groups() for rule in (*each.ingress_rules, *each.egress_rules)
        ]
        named = any(rule.source_group.get("GroupId") == group != rule.group_id for rule in rules)
        used = any(group in [each.id for each in nic.group_set] for nic in backend.get_all_network_interfaces())
        if named or used or self._is_late(self._in_use, "interface"):
            raise FakeAwsError("DependencyViolation", f"resource {group} has a dependent object")
        return self._by_moto(call)

    # -- EFS -----------------------------------------------------------------------------------------------

    def _make_file_system(self, call: Call) -> Answer:
        answer = self._by_moto(call)
        if answer.status == 201:
            self._young["file system"] = self.late
        return answer

    def _make_target(self, call: Call) -> Answer:
        if self._is_late(self._young, "file system"):
            raise FakeAwsError("IncorrectFileSystemLifeCycleState", "The file system is not available")
        zones = {each.id: each.availability_zone for each in self._backend(call.region).describe_subnets()}
        if zones[call.form["SubnetId"]] in self.zones_without_efs:
            raise FakeAwsError("UnsupportedAvailabilityZone", "Mount targets cannot be made in this zone")
        return self._by_moto(call)

    def _delete_target(self, call: Call) -> Answer:
        self._in_use.update(["interface", "file system"] * self.late)
        return self._by_moto(call)

    def _delete_file_system(self, call: Call) -> Answer:
        if self._is_late(self._in_use, "file system"):
            raise FakeAwsError("FileSystemInUse", "The file system has mount targets")
        return self._by_moto(call)

    # -- S3 ------------------------------------------------------------------------------------------------

    def _make_bucket(self, call: Call) -> Answer:
        """A region's endpoint wants its region as LocationConstraint, and only the first region none ("CreateBucket").

        Tags come with the bucket, which moto does not know.
        """
        name, text = call.form["Bucket"], call.body.decode()
        place = re.search(r"<LocationConstraint>(.*?)</LocationConstraint>", text)
        if (place[1] if place else "us-east-1") != call.region:
            raise FakeAwsError("IllegalLocationConstraintException", f"The location constraint is not {call.region}")
        if name in self.others_buckets:
            raise FakeAwsError("BucketAlreadyExists", "The requested bucket name is not available.")
        tags = dict(re.findall(r"<Tag><Key>(.*?)</Key><Value>(.*?)</Value></Tag>", text))
        before = name in self.buckets
        plain = re.sub(r"<Tags>.*</Tags>", "", text) if place else ""  # moto takes none without a place
        answer = self._by_moto(replace(call, body=plain.encode()))
        if answer.status == 200 and not before:
            if not self.ignores_tags:
                s3_backends[DEFAULT_ACCOUNT_ID]["aws"].put_bucket_tagging(name, tags)
            self._young["bucket"] = self.late
        return answer

    def _about_bucket(self, call: Call) -> Answer:
        if call.form["Bucket"] in self.others_buckets:
            raise FakeAwsError("AccessDenied", "Access Denied")
        return self._by_moto(call)

    def _tagged(self, call: Call) -> Answer:
        """The tagging API shows a new bucket late."""
        if self._is_late(self._young, "bucket"):
            return Answer(200, {"ResourceTagMappingList": [], "PaginationToken": ""})
        return self._by_moto(call)
