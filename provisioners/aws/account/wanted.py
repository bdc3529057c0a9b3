"""What an installation needs in an AWS account, from its settings and the person's wish. Pure.

Sources: "Prepare an EFA-enabled security group" (EC2 guide) for the rules among members, "Using VPC security groups"
(EFS guide) for port 2049, "Instance profiles" (IAM guide): a role gets to an instance through a profile, whose name is
the role's in the console, and here.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from provisioners.account import Wish
from provisioners.aws.settings import AwsSettings
from provisioners.base import ProvisionerError

NFS_PORT = 2049
SPOT_ROLE = "AWSServiceRoleForEC2Spot"
POLICY = "spotsup"  # the name of a role's one inline policy
# "iam:PassRole" of docs/permissions/aws-iam-policy.json: for the nodes' role alone, or not at all.
_PASS = "GiveNodesTheirRole"  # noqa: S105 - the name of a statement
_BUCKET = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/([A-Za-z0-9!_.*'()/-]*))?")

TRUST = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}],
}


@dataclass(frozen=True, slots=True, order=True)
class Rule:
    """One rule of a security group. `protocol`: tcp, or -1 for all traffic, of any port. `peer`: a network, the name of
    a group of ours, or another group's id."""

    protocol: str
    port: int
    peer: str
    outbound: bool = False

    def __str__(self) -> str:
        what = "all traffic" if self.protocol == "-1" else f"{self.protocol} port {self.port}"
        return f"{what} {'to' if self.outbound else 'from'} {self.peer}"


@dataclass(frozen=True, slots=True)
class Group:
    """A security group, by its name in one VPC."""

    region: str
    vpc: str
    name: str
    description: str
    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class Role:
    """A role of instances with one inline policy, and the instance profile of the same name."""

    name: str
    description: str
    policy: str = field(repr=False)  # JSON, as `canonical` writes it


@dataclass(frozen=True, slots=True)
class FileSystem:
    """An EFS file system with a mount target in each of these subnets, in one group. Its creation token is its name."""

    region: str
    name: str
    group: str
    subnets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Bucket:
    """A private bucket of S3, for checkpoints."""

    region: str
    name: str


@dataclass(frozen=True, slots=True)
class Network:
    """Where the nodes of a region run: one subnet for each zone."""

    region: str
    vpc: str
    subnets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """All of it."""

    groups: tuple[Group, ...]
    roles: tuple[Role, ...]
    file_systems: tuple[FileSystem, ...]
    buckets: tuple[Bucket, ...] = ()


def names(cluster: str) -> dict[str, str]:
    """What things are called: by their use. The cluster's name has at most 31 characters; a role's, 64."""
    return {use: f"spotsup-{cluster}-{use}" for use in ("nodes", "storage", "daemon", "node")}


def wanted(settings: AwsSettings, wish: Wish, networks: Sequence[Network]) -> Wanted:
    """What there should be. Raises ProvisionerError for a wish that cannot be fulfilled."""
    called = names(wish.owner.cluster)
    sources = [_peer(each, public=settings.public_address) for each in wish.ssh_from]
    if not sources:
        raise ProvisionerError("nothing says from where the daemon logs in to nodes")
    groups, file_systems = [], []
    for network in networks:
        groups.append(_nodes(network, called["nodes"], sources, settings.ssh_port))
        if wish.shared_storage:
            rules = (Rule("tcp", NFS_PORT, called["nodes"]),)
            groups.append(Group(network.region, network.vpc, called["storage"], "spotsup: the file system", rules))
            file_systems.append(FileSystem(network.region, called["storage"], called["storage"], network.subnets))
    # Jobs that move to another region pay for what they read from there: the first region is where they begin.
    buckets = (Bucket(settings.regions[0], bucket_of(wish.checkpoints)[0]),) if wish.checkpoints else ()
    return Wanted(tuple(groups), tuple(_roles(settings, wish, called)), tuple(file_systems), buckets)


def _nodes(network: Network, name: str, sources: Sequence[str], ssh_port: int) -> Group:
    rules = [Rule("tcp", ssh_port, each) for each in dict.fromkeys(sources)]
    rules += [Rule("-1", 0, name), Rule("-1", 0, name, outbound=True)]
    return Group(network.region, network.vpc, name, "spotsup: nodes", tuple(rules))


def _roles(settings: AwsSettings, wish: Wish, called: Mapping[str, str]) -> list[Role]:
    roles = []
    if wish.checkpoints:
        if settings.instance_profile not in {"", called["node"]}:
            raise ProvisionerError(
                f"nodes have the instance profile {settings.instance_profile} already: give its role what "
                "docs/permissions/aws-checkpoints-policy.json lists, and do not ask for a role for checkpoints"
            )
        text = _checkpoints(wish.permissions["aws-checkpoints-policy.json"], wish.checkpoints)
        roles.append(Role(called["node"], "spotsup: nodes", text))
    if wish.host_identity:
        passed = called["node"] if wish.checkpoints else settings.instance_profile
        text = _daemon(wish.permissions["aws-iam-policy.json"], passed)
        roles.append(Role(called["daemon"], "spotsup: the daemon's host", text))
    return roles


def _daemon(text: str, passed: str) -> str:
    """The daemon's policy. `passed`: the nodes' role, "" where they have none."""
    policy = json.loads(text)
    statements = [each for each in policy["Statement"] if passed or each["Sid"] != _PASS]
    for each in statements:
        if each["Sid"] == _PASS:
            each["Resource"] = f"arn:aws:iam::*:role/{passed}"
    return canonical({**policy, "Statement": statements})


def bucket_of(url: str) -> tuple[str, str]:
    """(bucket, prefix). Raises ProvisionerError."""
    match = _BUCKET.fullmatch(url)
    if not match:
        raise ProvisionerError(f"{url!r} is no bucket of S3: write s3://BUCKET or s3://BUCKET/PREFIX")
    return match[1], (match[2] or "").strip("/")


def _checkpoints(text: str, url: str) -> str:
    bucket, prefix = bucket_of(url)
    text = text.replace("PREFIX/", f"{prefix}/" if prefix else "").replace("BUCKET", bucket)
    return canonical(json.loads(text))


def canonical(policy: Mapping[str, Any]) -> str:
    """A policy's text, the same for equal policies."""
    return json.dumps(policy, sort_keys=True, separators=(",", ":"))


def _peer(text: str, *, public: bool) -> str:
    """A network as EC2 writes it, without the host's bits; or a group's id."""
    if re.fullmatch(r"sg-[0-9a-f]+", text):
        if public:
            # "Security group rules", VPC guide: a group as the source stands for its members' private addresses.
            raise ProvisionerError(
                f"{text} would admit private addresses only, and the daemon logs in to nodes' public ones: give the "
                "public address of the daemon's host, or set public_address=false"
            )
        return text
    try:
        return str(ipaddress.ip_network(text, strict=False))
    except ValueError:
        raise ProvisionerError(
            f"{text!r} is neither an address, nor a network as 10.0.0.0/16, nor a security group (sg-…)"
        ) from None
