"""What an installation needs in an AWS account, from its settings and the person's wish. Pure.

Sources: "Prepare an EFA-enabled security group" (EC2 guide) for the rules among members, "Using VPC security groups"
(EFS guide) for port 2049, "Instance profiles" (IAM guide): a role gets to an instance through a profile, whose name is
the role's in the console, and here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provisioners.account import Resource, Wish, login_sources
from provisioners.account import network as any_network
from provisioners.aws.settings import AwsSettings
from provisioners.base import ProvisionerError

SPOT, GROUP, RULE, ROLE, POLICY = "role for spot machines", "security group", "rule", "IAM role", "policy"
PROFILE, MEMBER = "instance profile", "role in a profile"
BUCKET, CLOSED, ABORTS = "S3 bucket", "block of public access", "rule for uploads"
FILE_SYSTEM, TARGET = "EFS file system", "mount target"

NFS_PORT = 2049
SPOT_ROLE = "AWSServiceRoleForEC2Spot"
OUR_POLICY = "spotsup"  # the name of a role's one inline policy
# "iam:PassRole" of docs/permissions/aws-iam-policy.json: for the nodes' role alone, or not at all.
_PASS = "GiveNodesTheirRole"  # noqa: S105 - the name of a statement
_BUCKET = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/([A-Za-z0-9!_.*'()/-]*))?")
_S3_COST = "S3 bills what is stored, by the month, and each request"
_EFS_COST = "EFS bills what is stored, by the month, and what is read and written, by the GB"

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
class Network:
    """Where the nodes of a region run: one subnet for each zone."""

    region: str
    vpc: str
    subnets: tuple[str, ...]


def region_of(what: Resource) -> str:
    """Return the region in the place of a resource, or of what it is part of; "" for IAM's."""
    return what.whole.place.partition(",")[0]


def names(cluster: str) -> dict[str, str]:
    """Return what things are called: by their use. The cluster's name has at most 31 characters; a role's, 64."""
    return {use: f"spotsup-{cluster}-{use}" for use in ("nodes", "storage", "daemon", "node")}


# -- each kind, as wanted and as found ---------------------------------------------------------------------


def group(region: str, vpc: str, name: str, rules: Sequence[Rule] = (), description: str = "") -> Resource:
    """Return a security group, by its name in one VPC. Its rules may name groups of ours, which cannot go before it."""
    place = f"{region}, {vpc}"
    peers = {each.peer for each in rules if "/" not in each.peer and not each.peer.startswith("sg-")}
    needs = tuple((GROUP, place, peer) for peer in sorted(peers - {name}))
    return Resource(GROUP, name, place, needs=needs, given=description)


def rule_of(of: Resource, rule: Rule) -> Resource:
    """Return a rule of a group. Rules that someone has added stay."""
    text = f"let the {of.kind} {of.name} ({region_of(of)}) have {rule}"
    return Resource(RULE, str(rule), of=of, given=rule, make_text=text)


def role(name: str, description: str = "") -> Resource:
    """Return a role of instances."""
    return Resource(ROLE, name, given=description)


def policy(of: Resource, name: str, text: str) -> Resource:
    """Return an inline policy of a role: JSON, as `canonical` writes it."""
    made = f"write the policy {name} of the role {of.name}: docs/permissions"
    return Resource(POLICY, name, of=of, has=text, make_text=made)


def profile(name: str) -> Resource:
    """Return the instance profile of the role of the same name."""
    return Resource(PROFILE, name)


def member(of: Resource, name: str) -> Resource:
    """Return a role in a profile: one at most."""
    put, taken = f"put the role {name} into its instance profile", f"take the role {name} out of its profile {of.name}"
    return Resource(MEMBER, name, of=of, make_text=put, delete_text=taken)


def bucket(name: str, region: str) -> Resource:
    """Return a bucket for checkpoints: private, to the account's identities alone, by policies."""
    return Resource(
        BUCKET, name, region, cost=_S3_COST, delete_text=f"delete the {BUCKET} {name} with all objects in it"
    )


def closed(of: Resource) -> Resource:
    """Return the resource by which nothing in a bucket can be made public."""
    return Resource(CLOSED, "all", of=of, make_text=f"block public access to the {BUCKET} {of.name}")


def aborts(of: Resource) -> Resource:
    """Return the resource by which uploads which were never ended are deleted."""
    text = f"let the {BUCKET} {of.name} delete uploads that never ended"
    return Resource(ABORTS, "incomplete", of=of, make_text=text)


def file_system(region: str, name: str) -> Resource:
    """Return an EFS file system. Its creation token is its name."""
    return Resource(FILE_SYSTEM, name, region, cost=_EFS_COST)


def target(of: Resource, subnet: str, within: Resource | None = None) -> Resource:
    """Return a mount target in a subnet. `within`: the security group that it is made in."""
    text = f"make a mount target of {of.name} in {subnet} ({of.place})"
    return Resource(TARGET, subnet, of=of, given=within, make_text=text)


# -- all of it ---------------------------------------------------------------------------------------------


def wanted(settings: AwsSettings, wish: Wish, networks: Sequence[Network], passed: str = "") -> list[Resource]:
    """Return what there should be, in order. `passed`: the role of a person's own instance profile, by its ARN. Raises
    ProvisionerError for a wish that cannot be fulfilled."""
    called = names(wish.owner.cluster)
    sources = dict.fromkeys(_peer(each, public=settings.public_address) for each in login_sources(wish))
    found = [Resource(SPOT, SPOT_ROLE, make_text=f"make {SPOT_ROLE}, the account's own role for spot machines")]
    systems = list[Resource]()
    for network in networks:
        nodes, storage = called["nodes"], called["storage"]
        rules = [Rule("tcp", settings.ssh_port, each) for each in sources]
        rules += [Rule("-1", 0, nodes), Rule("-1", 0, nodes, outbound=True)]
        found += _group(network, nodes, "spotsup: nodes", rules)
        if wish.shared_storage:
            inside, *rest = _group(network, storage, "spotsup: the file system", [Rule("tcp", NFS_PORT, nodes)])
            found += [inside, *rest]
            system = file_system(network.region, storage)
            systems += [system, *(target(system, subnet, inside) for subnet in network.subnets)]
    found += _roles(settings, wish, called, passed)
    if wish.checkpoints:
        # Jobs that move to another region pay for what they read from there: the first region is where they begin.
        made = bucket(bucket_of(wish.checkpoints)[0], settings.regions[0])
        found += [made, closed(made), aborts(made)]
    return found + systems


def _group(network: Network, name: str, description: str, rules: Sequence[Rule]) -> list[Resource]:
    made = group(network.region, network.vpc, name, rules, description)
    return [made, *(rule_of(made, each) for each in rules)]


def own_profile(settings: AwsSettings, wish: Wish) -> str:
    """Return the instance profile that a person has made for nodes; "" for none. Only the account knows its role."""
    name = settings.instance_profile
    return "" if name == names(wish.owner.cluster)["node"] else name


def _roles(settings: AwsSettings, wish: Wish, called: Mapping[str, str], passed: str) -> Iterator[Resource]:
    if wish.checkpoints:
        if own_profile(settings, wish):
            raise ProvisionerError(
                f"nodes have the instance profile {settings.instance_profile} already: give its role what "
                "docs/permissions/aws-checkpoints-policy.json lists, and do not ask for a role for checkpoints"
            )
        text = _checkpoints(wish.permissions["aws-checkpoints-policy.json"], wish.checkpoints)
        yield from _role(called["node"], "spotsup: nodes", text)
    if wish.host_identity:
        if not passed and (wish.checkpoints or settings.instance_profile):
            passed = f"arn:aws:iam::*:role/{called['node']}"
        text = _daemon(wish.permissions["aws-iam-policy.json"], passed)
        yield from _role(called["daemon"], "spotsup: the daemon's host", text)


def _role(name: str, description: str, text: str) -> Iterator[Resource]:
    made, inside = role(name, description), profile(name)
    yield from (made, policy(made, OUR_POLICY, text), inside, member(inside, name))


def _daemon(text: str, passed: str) -> str:
    """Return the daemon's policy. `passed`: the ARN of the nodes' role, "" where they have none."""
    document = json.loads(text)
    statements = [each for each in document["Statement"] if passed or each["Sid"] != _PASS]
    for each in statements:
        if each["Sid"] == _PASS:
            each["Resource"] = passed
    return canonical({**document, "Statement": statements})


def bucket_of(url: str) -> tuple[str, str]:
    """(bucket, prefix). Raises ProvisionerError."""
    match = _BUCKET.fullmatch(url)
    if not match:
        raise ProvisionerError(f"{url!r} is no bucket of S3: write s3://BUCKET or s3://BUCKET/PREFIX")
    return match[1], (match[2] or "").strip("/")


def _checkpoints(text: str, url: str) -> str:
    name, prefix = bucket_of(url)
    text = text.replace("PREFIX/", f"{prefix}/" if prefix else "").replace("BUCKET", name)
    return canonical(json.loads(text))


def canonical(document: Mapping[str, Any]) -> str:
    """Return a policy's text, the same for equal policies."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


def _peer(text: str, *, public: bool) -> str:
    """Return a network as EC2 writes it, without the host's bits; or a group's id."""
    if not re.fullmatch(r"sg-[0-9a-f]+", text):
        return any_network(text, ", nor a security group (sg-…)")
    if public:
        # "Security group rules", VPC guide: a group as the source stands for its members' private addresses.
        raise ProvisionerError(
            f"{text} would admit private addresses only, and the daemon logs in to nodes' public ones: give the "
            "public address of the daemon's host, or set public_address=false"
        )
    return text
