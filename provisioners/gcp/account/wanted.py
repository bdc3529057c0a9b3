"""What an installation needs in a Google Cloud project, from its settings and the person's wish. Pure.

Firewall rules, service accounts and roles have no labels: their descriptions name the owner.

Sources: "VPC firewall rules" for what a rule may name: a rule's sources are IPv4 or IPv6, and a source tag stands for
internal addresses; "Create and manage custom roles" (role ids: letters, digits, _ and .); the discovery documents of
IAM v1 (ServiceAccount: a description of at most 256 bytes) and Filestore v1.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import yaml

from provisioners import account
from provisioners.account import Resource, Wish, by_family, joined, login_sources
from provisioners.base import Owner, ProvisionerError
from provisioners.gcp import interfaces, names
from provisioners.gcp.settings import GcpSettings

RULE, ROLE, ACCOUNT, BINDING = "firewall rule", "role", "service account", "binding"
BUCKET, FILE_SYSTEM = "bucket", "Filestore instance"

PROJECT = "the project"  # the resource of a binding, for people
# Preview ones, which Google may refuse in a project's own role: "Support levels for permissions in custom roles".
OPTIONAL = frozenset({"compute.advice.capacity", "compute.advice.capacityHistory"})
ACT_AS = "roles/iam.serviceAccountUser"
SHARE = "share"
CAPACITY_GB = 1024  # the smallest basic instance
TIER = "BASIC_HDD"
_MAX_ACCOUNT = 30
_MAX_DESCRIPTION = 256
_BUCKET = re.compile(r"gs://([a-z0-9][a-z0-9._-]{1,220}[a-z0-9])(?:/([A-Za-z0-9!_.*'()/-]*))?")
_BUCKET_WORD = "bucket"
_STORAGE_COST = (
    "Cloud Storage bills what is stored, and each request; what was deleted is kept and billed for 7 days more"
)
_FILESTORE_COST = f"Filestore bills all of its {CAPACITY_GB} GB, by the hour, used or not"


@dataclass(frozen=True, slots=True)
class Rule:
    """A firewall rule that lets something in. `allowed`: as ("tcp", "22"), or ("all", "") for everything. `sources`:
    networks; or `source_tag`. `plain`: whether nothing else is in it."""

    network: str
    allowed: tuple[str, str]
    target_tag: str
    sources: tuple[str, ...] = ()
    source_tag: str = ""
    plain: bool = True

    def __str__(self) -> str:
        what = "everything" if self.allowed[0] == "all" else f"{self.allowed[0]} port {self.allowed[1]}"
        return f"{what} from {', '.join(self.sources) or f'machines tagged {self.source_tag}'}"


@dataclass(frozen=True, slots=True)
class Role:
    """What a role of the project's own lets do. `buckets`: those in whose policies it is."""

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

    @property
    def email(self) -> str:
        """Return the member's address: deleted:serviceAccount:EMAIL?uid=1 is that of an account that someone has
        deleted before."""
        return self.member.partition("serviceAccount:")[2].partition("?")[0]


@dataclass(frozen=True, slots=True)
class Names:
    """What things are called: by their use. The cluster's name has at most 31 characters of [a-z0-9-]."""

    cluster: str
    project: str

    @property
    def tag(self) -> str:
        """Return the nodes' network tag."""
        return f"spotsup-{self.cluster}"

    def of(self, use: str) -> str:
        """Return the name of a firewall rule or a file system."""
        return f"spotsup-{self.cluster}-{use}"

    def account(self, use: str) -> str:
        """Return the name of a service account, which may have 30 characters: where the cluster's name is too long, its
        digest."""
        if len(name := self.of(use)) <= _MAX_ACCOUNT:
            return name
        return f"spotsup-{hashlib.sha256(self.cluster.encode()).hexdigest()[:10]}-{use}"

    def email(self, use: str) -> str:
        """Return a service account's address. The project of a domain, example.com:name, has its parts the other way
        round."""
        domain, _, name = self.project.rpartition(":")
        return f"{self.account(use)}@{f'{name}.{domain}' if domain else name}.iam.gserviceaccount.com"

    def role(self, use: str) -> str:
        """Return a role's id."""
        return self.of(use).replace("-", "_")

    def role_path(self, use: str) -> str:
        """Return a role as policies name it."""
        return f"projects/{self.project}/roles/{self.role(use)}"


# -- each kind, as wanted and as found ---------------------------------------------------------------------


def firewall(name: str, rule: Rule) -> Resource:
    """Return a firewall rule."""
    return Resource(RULE, name, has=rule, detail=f": {rule}")


def with_sources(what: Resource, found: account.Found) -> Resource:
    """Return the rule as it should be: further sources that someone has added stay."""
    wish, have = what.has, found.what.has
    return firewall(what.name, replace(wish, sources=joined(have.sources, wish.sources) if wish.sources else ()))


def role(name: str, has: Role, title: str = "") -> Resource:
    """Return a role of the project's own."""
    buckets = f", for {', '.join(has.buckets)}" if has.buckets else ""
    return Resource(ROLE, name, has=has, given=title, detail=f": docs/permissions{buckets}")


def as_it_can_be(what: Resource, found: account.Found) -> Resource:
    """Return the role as it should be: buckets of before stay, so that their policies are put right at the end; and one
    that lacks nothing but what Google may refuse is not written anew each time."""
    has, want = found.what.has, what.has.permissions
    permissions = has.permissions if want - OPTIONAL <= has.permissions <= want else want
    return role(what.name, Role(permissions, joined(has.buckets, what.has.buckets)), what.given)


def service_account(email: str, title: str = "") -> Resource:
    """Return a service account without keys."""
    return Resource(ACCOUNT, email, given=title)


def bound(binding: Binding) -> Resource:
    """Return a binding: it belongs to its role, or to the account in whose policy it is, with which it goes."""
    own = binding.role != ACT_AS
    of = role(binding.role.rpartition("/")[2], Role(frozenset())) if own else service_account(binding.resource)
    return Resource(
        *(BINDING, f"{binding.member} {binding.role}", binding.resource),
        of=of,
        given=binding,
        needs=(service_account(binding.email).key,) if own else (),
        make_text=f"give {binding}",
        delete_text=f"take from {binding}",
    )


def bucket(name: str, region: str, *, is_closed: bool = True) -> Resource:
    """Return a bucket for checkpoints, wherever it is: closed to the public, with rights on the whole of it alone."""
    return Resource(
        *(BUCKET, name),
        has=is_closed,
        given=region,
        make_text=f"make the bucket {name} ({region})",
        delete_text=f"delete the bucket {name} with all objects in it",
        cost=_STORAGE_COST,
    )


def closed(what: Resource, _found: account.Found) -> Resource:
    """Return the bucket as it should be: only that differs."""
    return replace(what, make_text=f"close the bucket {what.name} to the public")


def file_system(name: str, region: str, zone: str = "", network: str = "") -> Resource:
    """Return a basic Filestore instance. `zone`: where it is made, unless there is one in the region."""
    return Resource(FILE_SYSTEM, name, region, given=(zone, network), detail=f" in {zone}", cost=_FILESTORE_COST)


# -- all of it ---------------------------------------------------------------------------------------------

RULES = ("ssh", "ssh6", "nodes", "etcd")
ACCOUNTS = ("daemon", "node")
ROLES = ("daemon", "checkpoints")


def wanted(settings: GcpSettings, wish: Wish, zones: Mapping[str, str]) -> list[Resource]:
    """Return what there should be, in order. `zones`: one of each region. Raises ProvisionerError for what cannot be
    fulfilled."""
    called = Names(wish.owner.cluster, settings.project)
    network = _own_network(settings)
    found = list(_rules(settings, wish, called, network))
    roles, accounts, buckets, bindings = list[Resource](), list[Resource](), list[Resource](), list[Binding]()
    if wish.checkpoints:
        name = _bucket(wish.checkpoints)
        if settings.service_account not in {"", called.email("node")}:
            raise ProvisionerError(
                f"nodes have the service account {settings.service_account} already: give it what "
                "docs/permissions/gcp-checkpoints-role.yaml lists, and do not ask for an account for checkpoints"
            )
        granted = Role(_permissions(wish.permissions["gcp-checkpoints-role.yaml"]), (name,))
        roles.append(role(called.role("checkpoints"), granted, "spotsup: checkpoints"))
        accounts.append(service_account(called.email("node"), "spotsup: nodes"))
        # Jobs that move to another region pay for what they read from there: the first region is where they begin.
        buckets.append(bucket(name, settings.regions[0]))
        member = f"serviceAccount:{called.email('node')}"
        bindings.append(Binding(f"gs://{name}", called.role_path("checkpoints"), member))
    if wish.host_identity:
        granted = Role(_permissions(wish.permissions["gcp-role.yaml"]))
        roles.append(role(called.role("daemon"), granted, "spotsup: the daemon"))
        accounts.append(service_account(called.email("daemon"), "spotsup: the daemon's host"))
        member = f"serviceAccount:{called.email('daemon')}"
        bindings.append(Binding(PROJECT, called.role_path("daemon"), member))
        if wish.checkpoints:
            bindings.append(Binding(called.email("node"), ACT_AS, member))
    # A role is given on a bucket that is there.
    found += [*roles, *accounts, *buckets, *map(bound, bindings)]
    regions = zones.items() if wish.shared_storage else ()
    return found + [file_system(called.of("storage"), region, zone, network) for region, zone in regions]


def _rules(settings: GcpSettings, wish: Wish, called: Names, network: str) -> Iterator[Resource]:
    ssh = ("tcp", str(settings.ssh_port))
    for family, sources in by_family(login_sources(wish)):
        yield firewall(called.of(f"ssh{family}"), Rule(network, ssh, called.tag, sources))
    yield firewall(called.of("nodes"), Rule(network, ("all", ""), called.tag, source_tag=called.tag))


def _own_network(settings: GcpSettings) -> str:
    """Return where the rules are for. Raises ProvisionerError."""
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


def _bucket(url: str) -> str:
    """Return the bucket. A prefix is not enforced: a condition on it would have to cover listing, which has no
    object."""
    match = _BUCKET.fullmatch(url)
    if not match:
        raise ProvisionerError(f"{url!r} is no bucket of Cloud Storage: write gs://BUCKET or gs://BUCKET/PREFIX")
    return match[1]


def _permissions(text: str) -> frozenset[str]:
    return frozenset(yaml.safe_load(text)["includedPermissions"])


def described(owner: Owner, buckets: Sequence[str] = ()) -> str:
    """Return the description of what has no labels. Raises ProvisionerError for more buckets than fit."""
    text = " ".join([account.described(owner), *(f"{_BUCKET_WORD}={each}" for each in buckets)])
    if len(text) > _MAX_DESCRIPTION:
        raise ProvisionerError(f"the names of the buckets {', '.join(buckets)} are too long to be kept at a role")
    return text


def buckets_in(description: str) -> tuple[str, ...]:
    """Return the buckets that a role's description names."""
    return account.values_in(description, _BUCKET_WORD)
