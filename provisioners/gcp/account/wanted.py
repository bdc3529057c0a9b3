"""What an installation needs in a Google Cloud project, from its settings and the person's wish. Pure.

Firewall rules, service accounts and roles have no labels: their descriptions name the owner.

Sources: "VPC firewall rules" for what a rule may name: a rule's sources are IPv4 or IPv6, and a source tag stands for
internal addresses; "Create and manage custom roles" (role ids: letters, digits, _ and .); the discovery documents of
IAM v1 (ServiceAccount: a description of at most 256 bytes) and Filestore v1.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import yaml

from provisioners.account import Wish
from provisioners.base import CLUSTER_TAG, KEY_TAG, Owner, ProvisionerError, owner_of
from provisioners.gcp import interfaces, names
from provisioners.gcp.settings import GcpSettings

PROJECT = "the project"  # the resource of a binding, for people
ACT_AS = "roles/iam.serviceAccountUser"
SHARE = "share"
CAPACITY_GB = 1024  # the smallest basic instance
TIER = "BASIC_HDD"
_MAX_ACCOUNT = 30
_MAX_DESCRIPTION = 256
_BUCKET = re.compile(r"gs://([a-z0-9][a-z0-9._-]{1,220}[a-z0-9])(?:/([A-Za-z0-9!_.*'()/-]*))?")
_BUCKET_WORD = "bucket"
_WORD = re.compile(r"(\S+?)=(\S+)")


@dataclass(frozen=True, slots=True)
class Rule:
    """A firewall rule that lets something in. `allowed`: as ("tcp", "22"), or ("all", "") for everything. `sources`:
    networks; or `source_tag`."""

    name: str
    network: str
    allowed: tuple[str, str]
    target_tag: str
    sources: tuple[str, ...] = ()
    source_tag: str = ""

    def __str__(self) -> str:
        what = "everything" if self.allowed[0] == "all" else f"{self.allowed[0]} port {self.allowed[1]}"
        return f"{what} from {', '.join(self.sources) or f'machines tagged {self.source_tag}'}"


@dataclass(frozen=True, slots=True)
class Account:
    """A service account; `id` is the part of its address before the @."""

    id: str
    email: str
    title: str


@dataclass(frozen=True, slots=True)
class Role:
    """A role of the project's own. `buckets`: those in whose policies it is."""

    id: str
    title: str
    permissions: frozenset[str]
    buckets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Binding:
    """One member of one role, without a condition. `resource`: PROJECT, a bucket as gs://…, or an account's address."""

    resource: str
    role: str
    member: str

    def __str__(self) -> str:
        return f"{self.member.partition(':')[2]} the role {self.role.rpartition('/')[2]} on {self.resource}"


@dataclass(frozen=True, slots=True)
class FileSystem:
    """A basic Filestore instance. `zone`: where it is made, unless there is one in the region."""

    region: str
    zone: str
    name: str
    network: str


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket that is closed to the public, for checkpoints."""

    region: str
    name: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """All of it."""

    rules: tuple[Rule, ...]
    roles: tuple[Role, ...]
    accounts: tuple[Account, ...]
    bindings: tuple[Binding, ...]
    file_systems: tuple[FileSystem, ...]
    buckets: tuple[Bucket, ...] = ()


@dataclass(frozen=True, slots=True)
class Names:
    """What things are called: by their use. The cluster's name has at most 31 characters of [a-z0-9-]."""

    cluster: str
    project: str

    @property
    def tag(self) -> str:
        """The nodes' network tag."""
        return f"spotsup-{self.cluster}"

    def of(self, use: str) -> str:
        """A firewall rule or a file system."""
        return f"spotsup-{self.cluster}-{use}"

    def account(self, use: str) -> str:
        """A service account, which may have 30 characters: where the cluster's name is too long, its digest."""
        if len(name := self.of(use)) <= _MAX_ACCOUNT:
            return name
        return f"spotsup-{hashlib.sha256(self.cluster.encode()).hexdigest()[:10]}-{use}"

    def email(self, use: str) -> str:
        """A service account's address. The project of a domain, example.com:name, has its parts the other way round."""
        domain, _, name = self.project.rpartition(":")
        return f"{self.account(use)}@{f'{name}.{domain}' if domain else name}.iam.gserviceaccount.com"

    def role(self, use: str) -> str:
        """A role's id."""
        return self.of(use).replace("-", "_")

    def role_path(self, use: str) -> str:
        """A role as policies name it."""
        return f"projects/{self.project}/roles/{self.role(use)}"


RULES = ("ssh", "ssh6", "nodes", "etcd")
ACCOUNTS = ("daemon", "node")
ROLES = ("daemon", "checkpoints")


def wanted(settings: GcpSettings, wish: Wish, zones: Mapping[str, str]) -> Wanted:
    """What there should be. `zones`: one of each region. Raises ProvisionerError for what cannot be fulfilled."""
    called = Names(wish.owner.cluster, settings.project)
    network = _own_network(settings)
    roles, accounts, bindings = list[Role](), list[Account](), list[Binding]()
    if wish.checkpoints:
        bucket = _bucket(wish.checkpoints)
        if settings.service_account not in {"", called.email("node")}:
            raise ProvisionerError(
                f"nodes have the service account {settings.service_account} already: give it what "
                "docs/permissions/gcp-checkpoints-role.yaml lists, and do not ask for an account for checkpoints"
            )
        granted = _permissions(wish.permissions["gcp-checkpoints-role.yaml"])
        roles.append(Role(called.role("checkpoints"), "spotsup: checkpoints", granted, (bucket,)))
        accounts.append(Account(called.account("node"), called.email("node"), "spotsup: nodes"))
        member = f"serviceAccount:{called.email('node')}"
        bindings.append(Binding(f"gs://{bucket}", called.role_path("checkpoints"), member))
    if wish.host_identity:
        granted = _permissions(wish.permissions["gcp-role.yaml"])
        roles.append(Role(called.role("daemon"), "spotsup: the daemon", granted))
        accounts.append(Account(called.account("daemon"), called.email("daemon"), "spotsup: the daemon's host"))
        member = f"serviceAccount:{called.email('daemon')}"
        bindings.append(Binding(PROJECT, called.role_path("daemon"), member))
        if wish.checkpoints:
            bindings.append(Binding(called.email("node"), ACT_AS, member))
    systems = [FileSystem(region, zone, called.of("storage"), network) for region, zone in zones.items()]
    return Wanted(
        tuple(_rules(settings, wish.ssh_from, called, network)),
        tuple(roles),
        tuple(accounts),
        tuple(bindings),
        tuple(systems) if wish.shared_storage else (),
        # Jobs that move to another region pay for what they read from there: the first region is where they begin.
        (Bucket(settings.regions[0], _bucket(wish.checkpoints)),) if wish.checkpoints else (),
    )


def _rules(settings: GcpSettings, ssh_from: Sequence[str], called: Names, network: str) -> list[Rule]:
    if not ssh_from:
        raise ProvisionerError("nothing says from where the daemon logs in to nodes")
    sources = list(dict.fromkeys(_network(each) for each in ssh_from))
    ssh = ("tcp", str(settings.ssh_port))
    found = []
    for use, wide in (("ssh", False), ("ssh6", True)):
        if these := tuple(each for each in sources if (":" in each) is wide):
            found.append(Rule(called.of(use), network, ssh, called.tag, sources=these))
    return [*found, Rule(called.of("nodes"), network, ("all", ""), called.tag, source_tag=called.tag)]


def _own_network(settings: GcpSettings) -> str:
    """Where the rules are for. Raises ProvisionerError."""
    path = interfaces.network_of(settings)
    if settings.subnetworks and not settings.network:
        raise ProvisionerError(
            "set gcp.network to the network of gcp.subnetworks: the firewall rules are for a network"
        )
    if path.startswith("projects/") and path.split("/")[1] != settings.project:
        raise ProvisionerError(
            f"{path} is another project's: have its firewall rules made there, as docs/clouds.md says"
        )
    return f"global/networks/{names.last_of(path)}"


def _network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text, strict=False))
    except ValueError:
        raise ProvisionerError(f"{text!r} is neither an address, nor a network as 10.0.0.0/16") from None


def _bucket(url: str) -> str:
    """A prefix is not enforced: a condition on it would have to cover listing, which has no object."""
    match = _BUCKET.fullmatch(url)
    if not match:
        raise ProvisionerError(f"{url!r} is no bucket of Cloud Storage: write gs://BUCKET or gs://BUCKET/PREFIX")
    return match[1]


def _permissions(text: str) -> frozenset[str]:
    return frozenset(yaml.safe_load(text)["includedPermissions"])


# -- whose -------------------------------------------------------------------------------------------------


def described(owner: Owner, buckets: Sequence[str] = ()) -> str:
    """The description of what has no labels. Raises ProvisionerError for more buckets than fit."""
    words = [*owner.tags.items(), *((_BUCKET_WORD, each) for each in buckets)]
    text = " ".join(f"{key}={value}" for key, value in words)
    if len(text) > _MAX_DESCRIPTION:
        raise ProvisionerError(f"the names of the buckets {', '.join(buckets)} are too long to be kept at a role")
    return text


def owner_in(description: str) -> Owner:
    """The owner that a description names; "" for what it does not say."""
    found = dict(_WORD.findall(description))
    return owner_of({key: found.get(key, "") for key in (CLUSTER_TAG, KEY_TAG)})


def buckets_in(description: str) -> tuple[str, ...]:
    """The buckets that a role's description names."""
    return tuple(value for key, value in _WORD.findall(description) if key == _BUCKET_WORD)
