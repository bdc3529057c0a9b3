"""The table of what an installation has in an AWS account, in the order in which it is made. S3's rows: buckets.py."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from provisioners.account import Found, Made, NotYetError, Resource, Row, Seen, Wish
from provisioners.aws import network
from provisioners.aws.account import wanted
from provisioners.aws.account.buckets import Buckets
from provisioners.aws.account.calls import ALLOWED, CALL_S, DENIALS, Calls
from provisioners.aws.account.wanted import Network, Rule, canonical, names, region_of
from provisioners.aws.describe import filters, tags_of
from provisioners.aws.settings import AwsSettings
from provisioners.base import CLUSTER_TAG, KEY_TAG, ProvisionerError, owner_of
from provisioners.calls import Deadline
from provisioners.codes import ApiError

ETCD_PORT = 2379
_GOING = frozenset({"deleting", "deleted"})
# A filter that finds the groups whose rules name a group; those rules' key in the answer, and the word in a command.
_REFERENCES = {
    "ip-permission.group-id": ("IpPermissions", "ingress"),
    "egress.ip-permission.group-id": ("IpPermissionsEgress", "egress"),
}


@dataclass(frozen=True, slots=True)
class Group:
    """What is read of a security group: its rules, and others' rules that name it, for people."""

    rules: tuple[Rule, ...]
    against: tuple[str, ...] = ()


class AwsTable:
    """One installation's part of an account."""

    marked_by = "tags"
    allowed = ALLOWED
    denials = DENIALS

    def __init__(self, settings: AwsSettings, wish: Wish) -> None:
        self._calls = Calls(settings)
        self._settings = settings
        self._wish = wish
        self._names = names(wish.owner.cluster)
        self._networks: list[Network] | None = None
        self._passed: str | None = None
        # Subnets in zones where EFS has no mount targets.
        self._without: set[str] = set()
        ec2, iam, efs = (functools.partial(self._calls.does, each) for each in ("ec2", "iam", "efs"))
        tags = self._tags_of
        self.rows: Sequence[Row] = (
            # Everyone's in the account: it is never deleted.
            Row(wanted.SPOT, self._spot_role, iam("create_service_linked_role", AWSServiceName="spot.amazonaws.com")),
            Row(
                wanted.GROUP,
                self._groups,
                ec2(
                    *("create_security_group", "GroupId"),
                    GroupName=_name,
                    Description=_given,
                    VpcId=lambda what, _: what.place.partition(", ")[2],
                    TagSpecifications=lambda what, _: [{"ResourceType": "security-group", "Tags": tags(what, _)}],
                ),
                ec2("delete_security_group", GroupId=_id),
                blocked=lambda found: found.raw.against if found.raw else (),
            ),
            Row(wanted.RULE, _rules, self._allow),
            Row(
                wanted.ROLE,
                self._roles,
                iam(
                    "create_role",
                    RoleName=_name,
                    Description=_given,
                    AssumeRolePolicyDocument=canonical(wanted.TRUST),
                    Tags=tags,
                ),
                iam("delete_role", RoleName=_name),
            ),
            Row(
                wanted.POLICY,
                self._policies,
                iam("put_role_policy", RoleName=_whole, PolicyName=_name, PolicyDocument=lambda what, _: what.has),
                iam("delete_role_policy", RoleName=_whole, PolicyName=_name),
            ),
            Row(
                wanted.PROFILE,
                self._profiles,
                iam("create_instance_profile", InstanceProfileName=_name, Tags=tags),
                iam("delete_instance_profile", InstanceProfileName=_name),
                problem=_holds_another,
            ),
            Row(
                wanted.MEMBER,
                _members,
                iam("add_role_to_instance_profile", InstanceProfileName=_whole, RoleName=_name),
                iam("remove_role_from_instance_profile", InstanceProfileName=_whole, RoleName=_name),
            ),
            *Buckets(self._calls, settings.regions, self._tags()).rows,
            Row(
                wanted.FILE_SYSTEM,
                self._systems,
                # Bursting throughput is for what is stored: a new file system for checkpoints would be slow.
                efs(
                    *("create_file_system", "FileSystemId"),
                    CreationToken=_name,
                    Encrypted=True,
                    ThroughputMode="elastic",
                    Tags=tags,
                ),
                efs("delete_file_system", FileSystemId=_id),
                data=True,
            ),
            Row(wanted.TARGET, self._targets, self._make_target, efs("delete_mount_target", MountTargetId=_id)),
        )

    def whose(self) -> str:
        """As Table says."""
        answer = self._calls.ask("sts", "", "get_caller_identity", want="Account")
        return f"the AWS account {answer['Account']}, as {answer['Arn']}"

    def wanted(self) -> list[Resource]:
        """As Table says."""
        usable = [
            Network(each.region, each.vpc, tuple(subnet for subnet in each.subnets if subnet not in self._without))
            for each in self._in_use()
        ]
        return wanted.wanted(self._settings, self._wish, usable, self._passed_role())

    def _passed_role(self) -> str:
        """Return the ARN of the role in a person's own instance profile, "" where there is none. Raises
        ProvisionerError for a profile with which no machine can be launched."""
        if self._passed is None:
            self._passed = ""
            named = wanted.own_profile(self._settings, self._wish)
            if named and self._wish.host_identity and not self._wish.checkpoints:
                name, remedy = named.rpartition("/")[2], "or set aws.instance_profile to one that nodes can have"
                raw = self._calls.get("iam", "", "get_instance_profile", InstanceProfileName=name)
                if not raw or named not in {name, raw["InstanceProfile"]["Arn"]}:
                    raise ProvisionerError(f"the account has no instance profile {named}: create it, {remedy}")
                if not (roles := raw["InstanceProfile"].get("Roles")):
                    raise ProvisionerError(f"the instance profile {named} holds no role: put one into it, {remedy}")
                self._passed = str(roles[0]["Arn"])
        return self._passed

    def _in_use(self) -> list[Network]:
        if self._networks is None:
            self._networks = []
            for region in self._settings.regions:
                vpc, subnets = network.subnets_of(self._calls.aws, self._settings, region, Deadline(CALL_S))
                self._networks.append(Network(region, vpc, tuple(subnets)))
        return self._networks

    def outcome(self, operation: str) -> str | None:
        """As Table says: AWS's calls begin no operations."""
        raise AssertionError(operation)

    def made(self, seen: Seen) -> Made:
        """As Table says."""
        nodes = {region_of(each.what): each.id for each in seen.ours(wanted.GROUP) if each.what.name == self._nodes}
        found: dict[str, Any] = {"security_groups": {region: [group] for region, group in nodes.items()}}
        if self._wish.checkpoints:
            found["instance_profile"] = self._names["node"]
        return Made(found, tuple(self._todo(nodes, seen)))

    def _todo(self, nodes: Mapping[str, str], seen: Seen) -> Iterator[str]:
        if self._wish.host_identity:
            profile = f"--iam-instance-profile Name={self._names['daemon']}"
            yield f"aws ec2 associate-iam-instance-profile {profile} --instance-id ID     # of the daemon's host"
        if not self._settings.etcd_by_ssh:
            for region, group in nodes.items():
                rule = f"--group-id GROUP --protocol tcp --port {ETCD_PORT} --source-group {group}"
                where = f"# GROUP: the daemon's host's, for nodes in {region}"
                yield f"aws ec2 authorize-security-group-ingress {rule}     {where}"
        for each in seen.ours(wanted.FILE_SYSTEM) if self._wish.shared_storage else ():
            server = f"{each.id}.efs.{each.what.place}.amazonaws.com:/"
            yield f'in job files:  storage: [{{mount: /mnt/shared, nfs: "{server}"}}]'

    @property
    def _nodes(self) -> str:
        return self._names["nodes"]

    def _tags(self, **named: str) -> list[dict[str, str]]:
        tags = {**self._settings.tags, **named, **self._wish.owner.tags}
        return [{"Key": key, "Value": value} for key, value in tags.items()]

    def _tags_of(self, what: Resource, _seen: Seen) -> list[dict[str, str]]:
        return self._tags(Name=what.name)

    # -- EC2 -----------------------------------------------------------------------------------------------

    def _groups(self, seen: Seen) -> Iterator[Found]:
        """Yield the groups by our names: in our VPCs, or in all of them where all is to go; and then by our tags,
        too."""
        ours, named = seen.owner, [self._nodes, self._names["storage"]]
        if seen.wanted:
            for each in self._in_use():
                yield from self._listed(each.region, {"vpc-id": each.vpc}, "group-name", named)
            return
        for region in self._settings.regions:
            tagged = self._listed(region, {f"tag:{CLUSTER_TAG}": ours.cluster}, f"tag:{KEY_TAG}", [ours.key_mark])
            found = {each.id: each for each in (*self._listed(region, {}, "group-name", named), *tagged)}
            yield from (each for each in found.values() if each.owner != ours)
            if mine := {key: each for key, each in found.items() if each.owner == ours}:
                yield from self._against(region, mine)

    def _listed(self, region: str, selected: Mapping[str, str], key: str, values: list[str]) -> Iterator[Found]:
        wish = [*filters(selected), {"Name": key, "Values": values}]
        groups = self._calls.ask("ec2", region, "describe_security_groups", want="SecurityGroups", Filters=wish)
        called = {each["GroupId"]: each["GroupName"] for each in groups["SecurityGroups"]}
        for each in groups["SecurityGroups"]:
            raw = Group(tuple(_rules_in(each, called)))
            what = wanted.group(region, str(each.get("VpcId", "")), each["GroupName"], raw.rules)
            yield Found(what, owner_of(tags_of(each)), str(each["GroupId"]), raw=raw)

    def _against(self, region: str, groups: Mapping[str, Found]) -> Iterator[Found]:
        """Yield these groups, by id, each with the rules of others' groups that name it, as that of the daemon's host:
        EC2 deletes none of them before."""
        named: dict[str, list[str]] = {each: [] for each in groups}
        for key, direction in _REFERENCES.items():
            wish = [{"Name": key, "Values": list(groups)}]
            raw = self._calls.ask("ec2", region, "describe_security_groups", want="SecurityGroups", Filters=wish)
            for other in raw["SecurityGroups"]:
                if other["GroupId"] not in groups:
                    for each in groups:
                        named[each] += _rules_against(each, other, region, direction)
        yield from (replace(found, raw=Group(found.raw.rules, tuple(named[key]))) for key, found in groups.items())

    def _allow(self, what: Resource, seen: Seen) -> None:
        """Have a rule in a group, as EC2 takes it."""
        rule, group = what.given, seen.there(what.whole)
        ports = {} if rule.protocol == "-1" else {"FromPort": rule.port, "ToPort": rule.port}
        if "/" not in rule.peer:
            other = replace(group.what, name=rule.peer)
            named = rule.peer if rule.peer.startswith("sg-") else seen.there(other).id
            peer: dict[str, Any] = {"UserIdGroupPairs": [{"GroupId": named}]}
        elif ":" in rule.peer:
            peer = {"Ipv6Ranges": [{"CidrIpv6": rule.peer}]}
        else:
            peer = {"IpRanges": [{"CidrIp": rule.peer}]}
        operation = f"authorize_security_group_{'egress' if rule.outbound else 'ingress'}"
        permissions = [{"IpProtocol": rule.protocol, **ports, **peer}]
        self._calls.change("ec2", region_of(what.whole), operation, GroupId=group.id, IpPermissions=permissions)

    # -- IAM -----------------------------------------------------------------------------------------------

    def _spot_role(self, seen: Seen) -> Iterator[Found]:
        if self._calls.get("iam", "", "get_role", RoleName=wanted.SPOT_ROLE):
            yield Found(Resource(wanted.SPOT, wanted.SPOT_ROLE), seen.owner)

    def _roles(self, _seen: Seen) -> Iterator[Found]:
        for name in (self._names["daemon"], self._names["node"]):
            if raw := self._calls.get("iam", "", "get_role", RoleName=name):
                yield Found(wanted.role(name), owner_of(tags_of(raw["Role"])))

    def _policies(self, seen: Seen) -> Iterator[Found]:
        for role in seen.all(wanted.ROLE):
            listed = self._calls.get("iam", "", "list_role_policies", RoleName=role.what.name)
            for name in sorted(listed.get("PolicyNames", ())):
                raw = self._calls.get("iam", "", "get_role_policy", RoleName=role.what.name, PolicyName=name)
                yield Found(wanted.policy(role.what, name, _text(raw.get("PolicyDocument"))), role.owner)

    def _profiles(self, _seen: Seen) -> Iterator[Found]:
        for name in (self._names["daemon"], self._names["node"]):
            if raw := self._calls.get("iam", "", "get_instance_profile", InstanceProfileName=name):
                held = [str(each["RoleName"]) for each in raw["InstanceProfile"].get("Roles", ())]
                yield Found(wanted.profile(name), owner_of(tags_of(raw["InstanceProfile"])), raw=held)

    # -- EFS -----------------------------------------------------------------------------------------------

    def _systems(self, _seen: Seen) -> Iterator[Found]:
        for region in self._settings.regions:
            name = self._names["storage"]
            raw = self._calls.get("efs", region, "describe_file_systems", CreationToken=name)
            for each in raw.get("FileSystems", ()):
                if each.get("LifeCycleState") not in _GOING:
                    owner = owner_of(tags_of(each))
                    yield Found(wanted.file_system(region, name), owner, str(each["FileSystemId"]))

    def _targets(self, seen: Seen) -> Iterator[Found]:
        for system in seen.all(wanted.FILE_SYSTEM):
            raw = self._calls.get("efs", system.what.place, "describe_mount_targets", FileSystemId=system.id)
            for each in raw.get("MountTargets", ()):
                if each.get("LifeCycleState") not in _GOING:
                    what = wanted.target(system.what, str(each["SubnetId"]))
                    yield Found(what, system.owner, str(each["MountTargetId"]))

    def _make_target(self, what: Resource, seen: Seen) -> None:
        group, system = seen.there(what.given), seen.there(what.whole)
        named = {"FileSystemId": system.id, "SubnetId": what.name, "SecurityGroups": [group.id]}
        try:
            self._calls.change("efs", what.whole.place, "create_mount_target", **named)
        except ApiError as error:
            if error.reply.code != "UnsupportedAvailabilityZone":
                raise
            self._without.add(what.name)
            raise NotYetError(f"EFS is not in the zone of {what.name}, so that nodes there cannot mount it") from error


# -- parameters of calls -----------------------------------------------------------------------------------


def _name(what: Resource, _seen: Seen) -> str:
    return what.name


def _given(what: Resource, _seen: Seen) -> Any:
    return what.given


def _whole(what: Resource, _seen: Seen) -> str:
    """Return the name of what it is part of."""
    return what.whole.name


def _id(what: Resource, seen: Seen) -> str:
    return seen.there(what).id


# -- from descriptions -------------------------------------------------------------------------------------


def _rules(seen: Seen) -> Iterator[Found]:
    for group in seen.all(wanted.GROUP):
        yield from (Found(wanted.rule_of(group.what, each), group.owner) for each in group.raw.rules)


def _rules_in(raw: Mapping[str, Any], called: Mapping[str, str]) -> Iterator[Rule]:
    """Yield a group's rules, one for each peer. Rules for several ports are no rules of ours."""
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


def _rules_against(group: str, other: Mapping[str, Any], region: str, direction: tuple[str, str]) -> Iterator[str]:
    """Yield the rules of another group that name this one, each with the command that takes it away."""
    key, verb = direction
    for each in other.get(key, ()):
        if group in [pair.get("GroupId") for pair in each.get("UserIdGroupPairs", ())]:
            ports = "".join(f",{port}={each[port]}" for port in ("FromPort", "ToPort") if port in each)
            pair = f"IpProtocol={each.get('IpProtocol')}{ports},UserIdGroupPairs=[{{GroupId={group}}}]"
            command = f"revoke-security-group-{verb} --region {region} --group-id {other['GroupId']}"
            yield (
                f"a rule of your security group {other['GroupName']} ({other['GroupId']}) names {group}: run "
                f"`aws ec2 {command} --ip-permissions '{pair}'`, and repeat"
            )


def _members(seen: Seen) -> Iterator[Found]:
    for profile in seen.all(wanted.PROFILE):
        yield from (Found(wanted.member(profile.what, each), profile.owner) for each in profile.raw)


def _holds_another(what: Resource, found: Found) -> str:
    others = [each for each in found.raw or () if each != what.name]
    return f"{found} holds the role {others[0]}: take it out, and repeat" if others else ""


def _text(document: Any) -> str:
    """Return a policy as boto3 shows it: decoded, or as text."""
    try:
        return canonical(json.loads(document) if isinstance(document, str) else document or {})
    except ValueError:
        return ""
