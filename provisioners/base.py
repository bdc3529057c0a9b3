"""The contract between the daemon and a cloud: its docstrings. tests/contract/ holds every provider to it.

A provisioner is thin and stateless: it makes one call, bounded in time, and says what the cloud answered. It never
retries a launch, never remembers, never decides. Outcomes of a launch are values: "no capacity" is not an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, TypeAlias

CLUSTER_TAG = "spotsup-cluster"
NODE_TAG = "spotsup-node"


class Market(StrEnum):
    """How a machine is paid for."""

    SPOT = "spot"
    ON_DEMAND = "on-demand"


class InstanceState(StrEnum):
    """A machine's state by its cloud's word. STOPPED still bills its disks: it counts as a leak."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    TERMINATED = "terminated"


class EndCause(StrEnum):
    """Why the cloud says that a machine ended."""

    PREEMPTED = "preempted"
    USER = "user"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Scope(StrEnum):
    """How far a refusal reaches."""

    TYPE_IN_ZONE = "type-in-zone"
    ZONE = "zone"
    REGION = "region"
    GLOBAL = "global"


@dataclass(frozen=True, slots=True)
class Offer:
    """Something that could be asked for. `usd_per_hour` is None where no price is known."""

    cloud: str
    region: str
    zone: str
    instance_type: str
    market: Market
    usd_per_hour: float | None
    gpu: str = ""
    gpus: int = 0
    price_source: str = ""


@dataclass(frozen=True, slots=True)
class OfferQuery:
    """What a job needs. Empty means any."""

    gpu: str = ""
    gpus_per_node: int = 0
    instance_types: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    market: Market = Market.SPOT


@dataclass(frozen=True, slots=True)
class HostKey:
    """A machine's SSH identity, made by us and handed in at launch, so that the first connection is already verified.

    `private_openssh` never appears in a log or a repr.
    """

    public: str
    private_openssh: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """One machine. The same `token` twice means the same machine: the token was journaled before the call.

    `disk_gb`: the boot disk, 0 for the provider's setting. `dead_man_s`: a machine that hears nothing from its cluster
    for so long ends its own billing, 0 for never.
    """

    token: str
    cluster: str
    node: str
    offer: Offer
    host_key: HostKey
    ssh_public_key: str
    tags: Mapping[str, str] = field(default_factory=dict)
    disk_gb: int = 0
    dead_man_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Instance:
    """A machine as its cloud's listing tells. Times are UNIX seconds, by the cloud's clock, which may differ from ours.

    `launched_at` is 0 where the cloud does not tell it (yet), an address "" while there is none.
    `end_cause` is set once the cloud says why it ends; PREEMPTED is the provider's evidence of a preemption.
    `preempt_at` is set while the cloud's API announces one; it is never later than now and the cloud's usual notice.
    It may pass, and the machine run on: an announcement ends nothing. `metadata_url` is "" where all machines of this
    cloud find their metadata service at one well-known address.
    """

    id: str
    cluster: str
    node: str
    token: str
    region: str
    zone: str
    instance_type: str
    state: InstanceState
    launched_at: float
    ssh_host: str = ""
    ssh_port: int = 22
    private_address: str = ""
    metadata_url: str = ""
    end_cause: EndCause | None = None
    preempt_at: float | None = None


@dataclass(frozen=True, slots=True)
class Launched:
    """The machine exists (or existed already under this token)."""

    instance: Instance


@dataclass(frozen=True, slots=True)
class NoCapacity:
    """Not here, not now. `memory_s`: for how long it is pointless to ask again within `scope`."""

    scope: Scope
    memory_s: float
    message: str


@dataclass(frozen=True, slots=True)
class Quota:
    """The account may not have more. As NoCapacity, with a longer memory; the user should hear of it."""

    scope: Scope
    memory_s: float
    message: str


@dataclass(frozen=True, slots=True)
class Throttled:
    """Asked too often; nothing was launched."""

    retry_after_s: float
    message: str


@dataclass(frozen=True, slots=True)
class Transient:
    """The cloud had a fault and says that nothing was launched; ask again.

    `unknown_code`: a code that the provider's table does not have; it is counted and alerted, so that the table grows.
    """

    message: str
    unknown_code: str = ""


@dataclass(frozen=True, slots=True)
class Fatal:
    """Asking again will not help: `message` tells the user what to mend."""

    message: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """No answer, or half of one. The machine may exist: look it up by token before anything else (P2)."""

    message: str


LaunchOutcome: TypeAlias = Launched | NoCapacity | Quota | Throttled | Transient | Fatal | Unknown


class LeftoverKind(StrEnum):
    """What a machine may leave behind that costs money or a quota."""

    DISK = "disk"
    NETWORK_INTERFACE = "network interface"
    ADDRESS = "address"
    SPOT_REQUEST = "spot request"


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something with our cluster's tag that belongs to no machine any more. `node`: whose it was, as far as known."""

    id: str
    kind: LeftoverKind
    cluster: str
    node: str
    region: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that `spotsupd check` looked at. `message`: what was found and, where not `ok`, how to mend it."""

    what: str
    ok: bool
    message: str


class ProvisionerError(Exception):
    """A cloud could not be asked, or did not answer as a cloud should. Says which, and what would be right."""


class UnreachableError(ProvisionerError):
    """No answer in time. Says nothing about machines: an unreachable status is not evidence (P4)."""


class DeniedError(ProvisionerError):
    """Credentials or permissions do not suffice; the message names what is missing."""


class Provisioner(Protocol):
    """One cloud. Every method may be called from any thread and returns within `timeout_s`, or raises UnreachableError.

    None of them retries beyond `timeout_s`, and none keeps state between calls: the journal is the only memory.
    """

    @property
    def name(self) -> str:
        """The cloud's name in job files: local, aws, gcp, azure."""
        ...

    def offers(self, query: OfferQuery, timeout_s: float) -> Sequence[Offer]:
        """What could be asked for, whether or not there is capacity now: cheapest first, without a known price last.

        Where nothing fits: empty, or a ProvisionerError that says why and what would.
        """
        ...

    def launch(self, request: LaunchRequest, timeout_s: float) -> LaunchOutcome:
        """Ask for one machine, once, tagged at birth with cluster and node.

        Idempotent by token: a second call with the same request returns the first machine, also if it has ended since,
        for as long as the cloud still knows of it; after that it launches nothing and is Transient.
        A timeout after sending is Unknown, never "not launched". Never raises ProvisionerError.
        """
        ...

    def find(self, token: str, timeout_s: float) -> Instance | None:
        """The machine that was launched under this token, whatever its state. None where the cloud knows of none;
        on an eventually consistent cloud that says nothing within the first minutes."""
        ...

    def instances(self, cluster: str, timeout_s: float) -> Sequence[Instance]:
        """All machines with our cluster's tag in every configured region, by filtered listings, not one per machine.

        Eventually consistent: a machine may be missing for a while after its launch and be listed for an hour or two
        after its end. Absence from one listing is not a death.
        """
        ...

    def terminate(self, instance_id: str, timeout_s: float) -> None:
        """Ask for the end of a machine and of all that it brought. Idempotent; an unknown id is fine.

        Returns when the cloud accepted; the machine is gone only once a listing says TERMINATED or stops to list it.
        """
        ...

    def leftovers(self, cluster: str, timeout_s: float) -> Sequence[Leftover]:
        """What has our cluster's tag, costs money or quota, and belongs to no machine any more; by filtered listings.

        What a machine has that is only just being made may be among them: who removes one has seen it for a while.
        """
        ...

    def remove(self, leftover: Leftover, timeout_s: float) -> None:
        """Delete it. Idempotent; what is gone already is fine."""
        ...

    def console(self, instance_id: str, timeout_s: float) -> str:
        """The last words of its console, for whoever asks why it did not come up; "" where the cloud has none (yet)."""
        ...

    def check(self, timeout_s: float) -> Sequence[Finding]:
        """What can be known before money is spent: credentials, permissions, images, network, quota.

        Never raises for what it finds: a cloud that cannot be reached is a finding, too.
        """
        ...
