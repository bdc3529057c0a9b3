"""Looks at an AWS account, and changes it by one step: as CloudAccount says."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from provisioners.account import Made, NotYetError, Plan, Wish
from provisioners.aws import network
from provisioners.aws.account import plan
from provisioners.aws.account.buckets import Buckets
from provisioners.aws.account.plan import (
    AbortUploads,
    Allow,
    CloseBucket,
    Delete,
    Facts,
    FoundFileSystem,
    FoundGroup,
    FoundProfile,
    FoundRole,
    JoinProfile,
    MakeBucket,
    MakeFileSystem,
    MakeGroup,
    MakeProfile,
    MakeRole,
    MakeSpotRole,
    MakeTarget,
    SetPolicy,
)
from provisioners.aws.account.wanted import POLICY, SPOT_ROLE, TRUST, Network, Rule, Wanted, canonical, names, wanted
from provisioners.aws.client import CREDENTIALS_HINT, Aws
from provisioners.aws.describe import filters, tags_of
from provisioners.aws.errors import ERRORS
from provisioners.aws.settings import AwsSettings
from provisioners.base import CLUSTER_TAG, KEY_TAG, DeniedError, ProvisionerError, owner_of
from provisioners.calls import Deadline, NoAnswerError, NoCredentialsError, NotSentError
from provisioners.codes import ApiError

CALL_S = 20.0
ETCD_PORT = 2379
NAME_TAG = "Name"
# What is there already, not there yet, or still in use: the next look decides. Sources: the errors of each operation in
# botocore's service models; terraform-provider-aws#6079: a new role is not found for seconds; EC2 API, Eventual
# consistency: InvalidGroup.NotFound of a new group; DeleteSecurityGroup: DependencyViolation while an interface, as of
# a mount target that is going, or another group's rule uses it.
NOT_YET = frozenset(
    {
        *("InvalidGroup.Duplicate", "InvalidPermission.Duplicate", "InvalidGroup.NotFound"),
        *("InvalidSecurityGroupID.NotFound", "DependencyViolation"),
        *("EntityAlreadyExists", "NoSuchEntity", "DeleteConflict", "ConcurrentModification", "ServiceFailure"),
        *("FileSystemAlreadyExists", "FileSystemNotFound", "FileSystemInUse", "IncorrectFileSystemLifeCycleState"),
        *("MountTargetConflict", "MountTargetNotFound", "SecurityGroupNotFound", "DependencyTimeout"),
        "InternalServerError",
        *("BucketAlreadyOwnedByYou", "OperationAborted", "NoSuchBucket", "BucketNotEmpty", "NoSuchUpload"),
    }
)
# The same, by a part of the message: AWS's own role is there; a profile has its one role.
_TAKEN = (("InvalidInput", "has been taken"), ("LimitExceeded", "PerInstanceProfile"))
_PERMISSION = frozenset({"UnauthorizedOperation", "AccessDenied", "AccessDeniedException"})
_ACTIONS = {"efs": "elasticfilesystem", "resourcegroupstaggingapi": "tag"}  # where policies do not use boto3's name
_GOING = frozenset({"deleting", "deleted"})


class AwsAccount:
    """One installation's part of an account."""

    def __init__(self, settings: AwsSettings, wish: Wish) -> None:
        self._aws = Aws(settings)
        self._settings = settings
        self._wish = wish
        self._names = names(wish.owner.cluster)
        self._networks: list[Network] | None = None
        self._buckets = Buckets(self._ask, self._change, wish.owner, self._tags(""))
        # Ids by (region, name), as the last look and the steps after it showed them.
        self._groups: dict[tuple[str, str], str] = {}
        self._systems: dict[tuple[str, str], str] = {}
        # Subnets in zones where EFS has no mount targets.
        self._without: set[str] = set()

    @property
    def _home(self) -> str:
        """The region by whose clients IAM and STS are called; IAM is global."""
        return self._settings.regions[0]

    def whose(self) -> str:
        """As CloudAccount says."""
        answer = self._ask("sts", self._home, "get_caller_identity", want="Account")
        return f"the AWS account {answer['Account']}, as {answer['Arn']}"

    def missing(self) -> Plan:
        """As CloudAccount says."""
        needed = self._wanted()
        groups = [
            group
            for each in self._networks or ()
            for group in self._found_groups(each.region, {"vpc-id": each.vpc}, "group-name", self._used_groups())
        ]
        buckets = [(each.name, each.region) for each in needed.buckets]
        facts = self._facts(groups, buckets, storage=self._wish.shared_storage)
        return plan.missing(needed, facts, self._wish.owner)

    def remaining(self, *, with_data: bool) -> Plan:
        """As CloudAccount says: by tags, and by names for what has none of them."""
        owner, groups = self._wish.owner, dict[str, FoundGroup]()
        for region in self._settings.regions:
            tagged = self._found_groups(
                region, {f"tag:{CLUSTER_TAG}": owner.cluster}, f"tag:{KEY_TAG}", [owner.key_mark]
            )
            named = self._found_groups(region, {}, "group-name", self._used_groups())
            groups |= {each.id: each for each in (*tagged, *named)}
        buckets = [(name, region) for region in self._settings.regions for name in self._buckets.ours(region)]
        return plan.remaining(self._facts(list(groups.values()), buckets, storage=True), owner, with_data=with_data)

    def made(self) -> Made:
        """As CloudAccount says."""
        groups = {each.region: self._groups[each.region, self._names["nodes"]] for each in self._networks or ()}
        found: dict[str, Any] = {"security_groups": {region: [group] for region, group in groups.items()}}
        if self._wish.checkpoints:
            found["instance_profile"] = self._names["node"]
        return Made(found, tuple(self._todo(groups)))

    def take(self, step: Any) -> None:
        """As CloudAccount says."""
        match step:
            case MakeSpotRole():
                self._change("iam", self._home, "create_service_linked_role", AWSServiceName="spot.amazonaws.com")
            case MakeBucket() | CloseBucket() | AbortUploads():
                self._buckets.take(step)
            case MakeGroup() | Allow() | MakeFileSystem() | MakeTarget():
                self._take_regional(step)
            case MakeRole(role):
                self._change(
                    *("iam", self._home, "create_role"),
                    RoleName=role.name,
                    Description=role.description,
                    AssumeRolePolicyDocument=canonical(TRUST),
                    Tags=self._tags(role.name),
                )
            case SetPolicy(role):
                policy = {"RoleName": role.name, "PolicyName": POLICY, "PolicyDocument": role.policy}
                self._change("iam", self._home, "put_role_policy", **policy)
            case MakeProfile(name):
                called = {"InstanceProfileName": name, "Tags": self._tags(name)}
                self._change("iam", self._home, "create_instance_profile", **called)
            case JoinProfile(name):
                self._change("iam", self._home, "add_role_to_instance_profile", InstanceProfileName=name, RoleName=name)
            case Delete():
                self._delete(step)
            case _:
                raise AssertionError(step)

    def _take_regional(self, step: MakeGroup | Allow | MakeFileSystem | MakeTarget) -> None:
        match step:
            case MakeGroup(group):
                answer = self._change(
                    *("ec2", group.region, "create_security_group"),
                    GroupName=group.name,
                    Description=group.description,
                    VpcId=group.vpc,
                    TagSpecifications=[{"ResourceType": "security-group", "Tags": self._tags(group.name)}],
                )
                self._groups[group.region, group.name] = _id(answer, "GroupId")
            case Allow(group, rule):
                way = "egress" if rule.outbound else "ingress"
                permission = self._permission(group.region, rule)
                called = {"GroupId": self._group(group.region, group.name), "IpPermissions": [permission]}
                self._change("ec2", group.region, f"authorize_security_group_{way}", **called)
            case MakeFileSystem(system):
                answer = self._change(
                    *("efs", system.region, "create_file_system"),
                    CreationToken=system.name,
                    Encrypted=True,
                    # Bursting throughput is for what is stored: a new file system for checkpoints would be slow.
                    ThroughputMode="elastic",
                    Tags=self._tags(system.name),
                )
                self._systems[system.region, system.name] = _id(answer, "FileSystemId")
            case MakeTarget(system, subnet):
                self._make_target(system.region, system.name, subnet, self._group(system.region, system.group))

    def _make_target(self, region: str, name: str, subnet: str, group: str) -> None:
        system = self._systems.get((region, name))
        if system is None:
            raise NotYetError(f"the file system {name} is not there yet")
        try:
            self._change(
                "efs", region, "create_mount_target", FileSystemId=system, SubnetId=subnet, SecurityGroups=[group]
            )
        except ApiError as error:
            if error.reply.code != "UnsupportedAvailabilityZone":
                raise
            self._without.add(subnet)
            raise NotYetError(f"EFS is not in the zone of {subnet}, so that nodes there cannot mount it") from error

    def _delete(self, step: Delete) -> None:
        region = step.region or self._home
        if step.kind == plan.BUCKET:
            self._buckets.delete(step.id, region)
            return
        calls: Mapping[str, tuple[str, str, dict[str, str]]] = {
            plan.TARGET: ("efs", "delete_mount_target", {"MountTargetId": step.id}),
            plan.FILE_SYSTEM: ("efs", "delete_file_system", {"FileSystemId": step.id}),
            plan.GROUP: ("ec2", "delete_security_group", {"GroupId": step.id}),
            plan.MEMBER: (
                *("iam", "remove_role_from_instance_profile"),
                {"InstanceProfileName": step.inside, "RoleName": step.id},
            ),
            plan.PROFILE: ("iam", "delete_instance_profile", {"InstanceProfileName": step.id}),
            plan.POLICY_KIND: ("iam", "delete_role_policy", {"RoleName": step.inside, "PolicyName": step.id}),
            plan.ROLE: ("iam", "delete_role", {"RoleName": step.id}),
        }
        service, operation, parameters = calls[step.kind]
        self._change(service, region, operation, **parameters)

    # -- looking -------------------------------------------------------------------------------------------

    def _wanted(self) -> Wanted:
        if self._networks is None:
            self._networks = []
            for region in self._settings.regions:
                vpc, subnets = network.subnets_of(self._aws, self._settings, region, Deadline(CALL_S))
                self._networks.append(Network(region, vpc, tuple(subnets)))
        usable = [
            Network(each.region, each.vpc, tuple(subnet for subnet in each.subnets if subnet not in self._without))
            for each in self._networks
        ]
        return wanted(self._settings, self._wish, usable)

    def _used_groups(self) -> list[str]:
        return [self._names["nodes"], self._names["storage"]]

    def _facts(self, groups: Sequence[FoundGroup], buckets: Iterable[tuple[str, str]], *, storage: bool) -> Facts:
        """`buckets`: names and regions."""
        systems = [each for region in self._settings.regions for each in self._file_systems(region)] if storage else []
        self._groups |= {(each.region, each.name): each.id for each in groups if each.owner == self._wish.owner}
        self._systems |= {(each.region, each.name): each.id for each in systems}
        called = (self._names["daemon"], self._names["node"])
        roles = [role for name in called if (role := self._role(name))]
        profiles = [profile for name in called if (profile := self._profile(name))]
        spot = self._get("iam", "get_role", RoleName=SPOT_ROLE) is not None
        found = tuple(each for name, region in buckets if (each := self._buckets.found(name, region)))
        return Facts(tuple(groups), tuple(roles), tuple(profiles), tuple(systems), spot, found)

    def _found_groups(
        self, region: str, wanted: Mapping[str, str], key: str, values: Sequence[str]
    ) -> list[FoundGroup]:
        selected = [*filters(wanted), {"Name": key, "Values": list(values)}]
        raw = self._ask("ec2", region, "describe_security_groups", want="SecurityGroups", Filters=selected)
        groups = raw["SecurityGroups"]
        called = {each["GroupId"]: each["GroupName"] for each in groups}
        return [
            FoundGroup(
                region,
                str(each.get("VpcId", "")),
                each["GroupName"],
                each["GroupId"],
                owner_of(tags_of(each)),
                frozenset(_rules(each, called)),
            )
            for each in groups
        ]

    def _role(self, name: str) -> FoundRole | None:
        if (raw := self._get("iam", "get_role", RoleName=name)) is None:
            return None
        policies = {}
        listed = self._get("iam", "list_role_policies", RoleName=name) or {}
        for policy in listed.get("PolicyNames", ()):
            document = self._get("iam", "get_role_policy", RoleName=name, PolicyName=policy) or {}
            policies[str(policy)] = _text(document.get("PolicyDocument"))
        return FoundRole(name, owner_of(tags_of(raw["Role"])), policies)

    def _profile(self, name: str) -> FoundProfile | None:
        if (raw := self._get("iam", "get_instance_profile", InstanceProfileName=name)) is None:
            return None
        found = raw["InstanceProfile"]
        roles = tuple(str(each["RoleName"]) for each in found.get("Roles", ()))
        return FoundProfile(name, owner_of(tags_of(found)), roles)

    def _file_systems(self, region: str) -> Iterator[FoundFileSystem]:
        name = self._names["storage"]
        raw = self._get("efs", "describe_file_systems", region=region, CreationToken=name) or {}
        for each in raw.get("FileSystems", ()):
            if each.get("LifeCycleState") in _GOING:
                continue
            system = str(each["FileSystemId"])
            targets = self._get("efs", "describe_mount_targets", region=region, FileSystemId=system) or {}
            found = {
                str(target["SubnetId"]): str(target["MountTargetId"])
                for target in targets.get("MountTargets", ())
                if target.get("LifeCycleState") not in _GOING
            }
            yield FoundFileSystem(region, name, system, owner_of(tags_of(each)), found)

    def _get(self, service: str, operation: str, *, region: str = "", **parameters: Any) -> dict[str, Any] | None:
        """What a call shows; None where there is no such thing."""
        try:
            return self._ask(service, region or self._home, operation, **parameters)
        except ApiError as error:
            if error.reply.code in {"NoSuchEntity", "FileSystemNotFound"}:
                return None
            raise

    # -- calls ---------------------------------------------------------------------------------------------

    def _ask(self, service: str, region: str, operation: str, want: str = "", **parameters: Any) -> dict[str, Any]:
        """A call that changes nothing. Raises ApiError, ProvisionerError."""
        ask = functools.partial(self._aws.ask, service, region, operation, Deadline(CALL_S), want=want, **parameters)
        return self._permitted(ask, service, operation)

    def _change(self, service: str, region: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """A call that changes something: once. Raises NotYetError, ApiError, ProvisionerError."""
        once = functools.partial(self._aws.once, service, region, operation, CALL_S, **parameters)
        try:
            return self._permitted(once, service, operation)
        except ApiError as error:
            taken = any(error.reply.code == code and part in error.reply.message for code, part in _TAKEN)
            if taken or error.reply.code in NOT_YET or ERRORS.is_retryable(error.reply):
                raise NotYetError(str(error)) from error
            raise
        except (NoAnswerError, NotSentError) as error:
            raise NotYetError(str(error)) from error
        except NoCredentialsError as error:
            raise DeniedError(f"{error}{CREDENTIALS_HINT}") from error

    def _permitted(self, call: Callable[[], dict[str, Any]], service: str, operation: str) -> dict[str, Any]:
        """A missing permission is named by its action: AWS's own message does not always have it."""
        try:
            return call()
        except ProvisionerError as error:
            cause = error if isinstance(error, ApiError) else error.__cause__
            if not isinstance(cause, ApiError) or cause.reply.code not in _PERMISSION:
                raise
            action = "".join(part.capitalize() for part in operation.split("_"))
            raise DeniedError(
                f"{cause}; who runs this lacks {_ACTIONS.get(service, service)}:{action}, or what that needs: "
                "docs/permissions/aws-account-policy.json has all of it"
            ) from error

    def _tags(self, name: str) -> list[dict[str, str]]:
        named = {NAME_TAG: name} if name else {}
        tags = {**self._settings.tags, **named, **self._wish.owner.tags}
        return [{"Key": key, "Value": value} for key, value in tags.items()]

    def _group(self, region: str, name: str) -> str:
        try:
            return self._groups[region, name]
        except KeyError:
            raise NotYetError(f"the security group {name} is not there yet") from None

    def _permission(self, region: str, rule: Rule) -> dict[str, Any]:
        """The rule as EC2 takes it."""
        ports = {} if rule.protocol == "-1" else {"FromPort": rule.port, "ToPort": rule.port}
        if "/" not in rule.peer:
            group = rule.peer if rule.peer.startswith("sg-") else self._group(region, rule.peer)
            peer: dict[str, Any] = {"UserIdGroupPairs": [{"GroupId": group}]}
        elif ":" in rule.peer:
            peer = {"Ipv6Ranges": [{"CidrIpv6": rule.peer}]}
        else:
            peer = {"IpRanges": [{"CidrIp": rule.peer}]}
        return {"IpProtocol": rule.protocol, **ports, **peer}

    def _todo(self, groups: Mapping[str, str]) -> Iterator[str]:
        if self._wish.host_identity:
            profile = f"--iam-instance-profile Name={self._names['daemon']}"
            yield f"aws ec2 associate-iam-instance-profile {profile} --instance-id ID     # of the daemon's host"
        if not self._settings.etcd_by_ssh:
            for region, group in groups.items():
                rule = f"--group-id GROUP --protocol tcp --port {ETCD_PORT} --source-group {group}"
                where = f"# GROUP: the daemon's host's, for nodes in {region}"
                yield f"aws ec2 authorize-security-group-ingress {rule}     {where}"
        for region in groups if self._wish.shared_storage else ():
            server = f"{self._systems[region, self._names['storage']]}.efs.{region}.amazonaws.com:/"
            yield f'in job files:  storage: [{{mount: /mnt/shared, nfs: "{server}"}}]'


def _id(answer: Mapping[str, Any], key: str) -> str:
    """The id of what was made. An answer without one is not AWS's but, say, a proxy's page. Raises NotYetError."""
    if key not in answer:
        raise NotYetError(f"the answer has no {key}")
    return str(answer[key])


def _rules(raw: Mapping[str, Any], called: Mapping[str, str]) -> Iterator[Rule]:
    """A group's rules, one for each peer. Rules for several ports are no rules of ours."""
    for key, outbound in (("IpPermissions", False), ("IpPermissionsEgress", True)):
        for each in raw.get(key, ()):
            first, last = each.get("FromPort", 0), each.get("ToPort", 0)
            everything = each.get("IpProtocol") == "-1"
            if first != last and not everything:
                continue
            peers = [str(pair.get("GroupId", "")) for pair in each.get("UserIdGroupPairs", ())]
            peers = [called.get(peer, peer) for peer in peers]
            peers += [str(found["CidrIp"]) for found in each.get("IpRanges", ())]
            peers += [str(found["CidrIpv6"]) for found in each.get("Ipv6Ranges", ())]
            for peer in peers:
                yield Rule(str(each.get("IpProtocol")), 0 if everything else first, peer, outbound)


def _text(document: Any) -> str:
    """A policy as boto3 shows it: decoded, or as text."""
    try:
        return canonical(json.loads(document) if isinstance(document, str) else document or {})
    except ValueError:
        return ""
