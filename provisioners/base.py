"""The contract between the daemon and a cloud. Its docstrings are binding; tests/contract/ runs it on every provider.

A provisioner is thin and stateless: it makes one call, bounded in time, and returns what the cloud answered. It never
retries a launch, keeps no state and makes no decisions. Outcomes of a launch are values: "no capacity" is not an error.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, TypeAlias

CLUSTER_TAG = "spotsup-cluster"
KEY_TAG = "spotsup-key-mark"
NODE_TAG = "spotsup-node"
TOKEN_TAG = "spotsup-token"  # noqa: S105 - a name, not a secret


class Market(StrEnum):
    """How a machine is bought. Spot machines alone may be preempted."""

    SPOT = "spot"
    ON_DEMAND = "on-demand"
    FLEX = "flex"  # for a limited time, which begins when the cloud has one (Google's flex-start)
    RESERVED = "reserved"  # within what the account has reserved, and pays for whether it is used or not


BY_THE_HOUR = (Market.SPOT, Market.ON_DEMAND)
"""The markets on which a cloud sells a type or does not. What is reserved is a matter of the account."""


class InstanceState(StrEnum):
    """A machine's state as its cloud reports it. STOPPED still bills its disks: it counts as a leak."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    TERMINATED = "terminated"
    UNREADABLE = "unreadable"  # its cloud lists it, and its description cannot be read: evidence of nothing


class EndCause(StrEnum):
    """Why a machine ended, as its cloud reports it."""

    PREEMPTED = "preempted"
    USER = "user"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Scope(StrEnum):
    """How far a refusal reaches."""

    TYPE_IN_ZONE = "type-in-zone"
    ZONE = "zone"
    QUOTA = "quota"  # the region's offers that count towards the same quota (Offer.quota)
    REGION = "region"
    GLOBAL = "global"


@dataclass(frozen=True, slots=True)
class Offer:
    """A machine that can be requested. `usd_per_hour` is None where no price is known."""

    cloud: str
    region: str
    zone: str
    instance_type: str
    market: Market
    usd_per_hour: float | None
    gpu: str = ""
    gpus: int = 0
    price_source: str = ""
    quota: str = ""  # the account's quota in this region that it counts towards; "" where that is not known
    alternative: int = 0  # which of the alternatives that a job names it is of (OfferQuery.alternative)
    room: int = 0  # how many machines there are of it, whoever has them; 0 where that is not known
    reservation: str = ""  # what it is within, by the cloud's name; "" on other markets
    ends_at: float = 0.0  # when the cloud ends all machines of it, in UNIX seconds; 0: never
    lasts_s: float = 0.0  # how long after its launch the cloud ends a machine of it; 0: never


@dataclass(frozen=True, slots=True)
class OfferQuery:
    """What a job needs. Empty means any."""

    gpu: str = ""
    gpus_per_node: int = 0
    instance_types: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    market: Market = Market.SPOT
    # Servers of the file systems that nodes mount, by name or address: some are reachable from some zones only.
    file_servers: tuple[str, ...] = ()
    # Which of several alternatives this asks for. The caller marks the offers with it; provisioners leave it alone.
    alternative: int = 0


@dataclass(frozen=True, slots=True)
class HostKey:
    """A machine's SSH identity, made by the daemon and passed at launch: the first connection is already verified.

    `private_openssh` never appears in a log or a repr.
    """

    public: str
    private_openssh: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Owner:
    """The installation that a resource belongs to. Several may share an account, and even the cluster's name."""

    cluster: str
    key_mark: str  # of the cluster's key: 16 hexadecimal digits that do not reveal it

    @property
    def tags(self) -> dict[str, str]:
        """On everything that the installation creates."""
        return {CLUSTER_TAG: self.cluster, KEY_TAG: self.key_mark}

    @property
    def digest(self) -> str:
        """Return what distinguishes the owners in an account, where names allow few characters: 8 of [a-z2-7]."""
        digest = hashlib.sha256(f"{self.key_mark}\n{self.cluster}".encode()).digest()
        return base64.b32encode(digest).decode().lower()[:8]


def owner_of(tags: Mapping[str, str]) -> Owner:
    """Return the owner that tags name; "" for what they do not say."""
    return Owner(tags.get(CLUSTER_TAG, ""), tags.get(KEY_TAG, ""))


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """One machine."""

    # Idempotency token: the same token means the same machine. It is journaled before the call.
    token: str
    owner: Owner
    node: str
    offer: Offer
    host_key: HostKey
    # Lines for sshd. The first is the key that the daemon logs in with.
    authorized_keys: tuple[str, ...]
    tags: Mapping[str, str] = field(default_factory=dict)
    disk_gb: int = 0  # boot disk; 0: the provider's setting
    # Of a spot machine: what is paid for it at most. A cloud that takes such a cap gets it with the request, and may
    # end the machine once its price is above. Part of the request: the same with each call under this token.
    max_usd_per_hour: float | None = None
    dead_man_s: float = 0.0  # without contact for so long, the machine ends its own billing; 0: never

    @property
    def own_tags(self) -> dict[str, str]:
        """Return the tags that say whose it is. They win over `tags`."""
        return {**self.owner.tags, NODE_TAG: self.node, TOKEN_TAG: self.token}


@dataclass(frozen=True, slots=True)
class Instance:
    """A machine as its cloud lists it. Times are UNIX seconds on the cloud's clock, which may differ from ours."""

    id: str
    owner: Owner
    node: str
    token: str
    region: str
    zone: str
    instance_type: str
    state: InstanceState
    launched_at: float  # 0 where the cloud does not report it (yet)
    ssh_host: str = ""  # "" until there is one, as `private_address`
    ssh_port: int = 22
    private_address: str = ""
    metadata_url: str = ""  # "" where the cloud's metadata service has one well-known address
    # Set once the cloud reports why the machine ends. PREEMPTED is the provider's evidence of a preemption.
    end_cause: EndCause | None = None
    # Set while the cloud's API announces a preemption; at most the cloud's usual notice from now. The machine may run
    # on after it: an announcement ends nothing.
    preempt_at: float | None = None
    # The cloud's own words about its end, in one line; "" where it has none.
    end_message: str = ""
    # Set where the cloud had accepted the launch, and says only now that it cannot provide the machine: what the launch
    # would have returned.
    refused: Refusal | None = None


@dataclass(frozen=True, slots=True)
class Coverage:
    """Where a cloud is looked at for machines: absence from its listing proves nothing of those elsewhere."""

    account: str = ""  # the account, project or subscription; "" where that cannot be told, or there is but one
    regions: tuple[str, ...] = ()  # empty: all


@dataclass(frozen=True, slots=True)
class Launched:
    """The machine exists (or existed already under this token)."""

    instance: Instance


@dataclass(frozen=True, slots=True)
class NoCapacity:
    """The cloud has no such machine free. `memory_s`: for how long a retry within `scope` is pointless.

    `above_cap`: it has none at the price that the request pays at most. It says nothing about other requests.
    """

    scope: Scope
    memory_s: float
    message: str
    above_cap: bool = False


@dataclass(frozen=True, slots=True)
class Quota:
    """The account's quota is used up. As NoCapacity, with a longer memory; the user is notified."""

    scope: Scope
    memory_s: float
    message: str


@dataclass(frozen=True, slots=True)
class Throttled:
    """Too many requests; nothing was launched."""

    retry_after_s: float
    message: str


@dataclass(frozen=True, slots=True)
class Transient:
    """The cloud had a fault and launched nothing; retry.

    `unknown_code`: a code that is not in the provider's table. It is counted and alerted, so that it can be added.
    """

    message: str
    unknown_code: str = ""


@dataclass(frozen=True, slots=True)
class Fatal:
    """This request can never work: `message` says what has to be fixed. Other requests may work."""

    message: str


@dataclass(frozen=True, slots=True)
class Denied:
    """The account may not: its credentials or permissions do not suffice, or it is blocked. No request is to blame, and
    the same one works once that is fixed: `message` says how. Scope.GLOBAL: nothing works with these credentials.
    """

    scope: Scope
    memory_s: float
    message: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """No answer, or an incomplete one. The machine may exist: look it up by token first (P2)."""

    message: str


Refusal: TypeAlias = NoCapacity | Quota | Fatal | Denied
"""A definite no, which is worth remembering."""

LaunchOutcome: TypeAlias = Launched | NoCapacity | Quota | Throttled | Transient | Fatal | Denied | Unknown


class LeftoverKind(StrEnum):
    """What a machine may leave behind that costs money or a quota."""

    DISK = "disk"
    NETWORK_INTERFACE = "network interface"
    ADDRESS = "address"
    SPOT_REQUEST = "spot request"


@dataclass(frozen=True, slots=True)
class Leftover:
    """A resource with an owner's tags that belongs to no machine any more. `node`: its former node, if known."""

    id: str
    kind: LeftoverKind
    owner: Owner
    node: str
    region: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of `spotsupd check`. `message`: what was found and, where not `ok`, how to fix it."""

    what: str
    ok: bool
    message: str


class ProvisionerError(Exception):
    """A cloud could not be called, or gave no usable answer. The message says which, and what to do."""


class UnreachableError(ProvisionerError):
    """No answer in time. It proves nothing about machines: an unreachable status is not evidence (P4)."""


class PartialListingError(ProvisionerError):
    """Some regions did not answer a listing. `found`: the machines of the others; `silent`: why, by region."""

    def __init__(self, found: Sequence[Instance], silent: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{region} is not listed: {why}" for region, why in silent.items()))
        self.found = tuple(found)
        self.silent = silent


class DeniedError(ProvisionerError):
    """Credentials or permissions do not suffice; the message names what is missing. `scope`: as of Denied."""

    def __init__(self, message: str, scope: Scope = Scope.GLOBAL) -> None:
        super().__init__(message)
        self.scope = scope


class Provisioner(Protocol):
    """One cloud. Every method may be called from any thread and returns within `timeout_s`, or raises UnreachableError.

    None of them retries beyond `timeout_s`, and none keeps state between calls: the journal is the only memory.
    """

    @property
    def name(self) -> str:
        """Return the cloud's name in job files: a key of `provisioners.registry.CLOUDS`."""
        ...

    def offers(self, query: OfferQuery, timeout_s: float) -> Sequence[Offer]:
        """Return what can be requested, with or without capacity now: cheapest first, offers without a known price
        last.

        Where nothing fits: empty, or a ProvisionerError that says why, and what would fit.
        """
        ...

    def launch(self, request: LaunchRequest, timeout_s: float) -> LaunchOutcome:
        """Request one machine, once. The same call tags it, and all that is created with it, with owner and node.

        Idempotent by owner and token: a second call with the same request returns the first machine, even if it has
        ended since, for as long as the cloud has a record of it; after that the call launches nothing and is Transient.
        A timeout after sending is Unknown, never "not launched". Never raises ProvisionerError.
        """
        ...

    def find(self, owner: Owner, token: str, timeout_s: float) -> Instance | None:
        """Return the owner's machine that was launched under this token, whatever its state. None where the cloud has
        no record of one; on an eventually consistent cloud, None proves nothing within the first minutes."""
        ...

    def instances(self, owner: Owner | None, timeout_s: float) -> Sequence[Instance]:
        """Return all machines with the owner's tags in every configured region, by filtered listings, not one per
        machine. None: those of every owner, for `spotsupd check`; ended ones may be missing.

        Raises PartialListingError, with what the others have, where some regions do not answer. Eventually consistent:
        a machine may be missing for a while after its launch and be listed for an hour or two after its end. Absence
        from one listing is not a death. One that the cloud accepted and could not provide may be
        listed as TERMINATED, with `refused`.
        """
        ...

    def coverage(self, timeout_s: float) -> Coverage:
        """Return what `instances` covers: of which account the credentials are, and the configured regions."""
        ...

    def terminate(self, instance_id: str, timeout_s: float) -> None:
        """Terminate a machine and all resources that were created with it. Idempotent; an unknown id is no error.

        Returns when the cloud accepted; the machine is gone once a listing reports TERMINATED or no longer has it.
        """
        ...

    def leftovers(self, owner: Owner, timeout_s: float) -> Sequence[Leftover]:
        """Resources with the owner's tags that use money or quota and belong to no machine; by filtered listings.

        Resources of a machine that is just being created may be among them: remove one only after repeated sightings.
        """
        ...

    def remove(self, leftover: Leftover, timeout_s: float) -> None:
        """Delete it. Idempotent; a resource that is already gone is no error."""
        ...

    def console(self, instance_id: str, timeout_s: float) -> str:
        """Return the tail of its console, which shows why it did not boot; "" where the cloud has none (yet)."""
        ...

    def check(self, timeout_s: float) -> Sequence[Finding]:
        """Return what can be checked before money is spent: credentials, permissions, images, network, quota.

        Never raises for what it finds: an unreachable cloud is a finding, too.
        """
        ...
