"""The local cloud's requests, records and replies. All of it is JSON.

Times are UNIX seconds, prices US dollars per hour.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from provisioners.base import EndCause, InstanceState, Market

REGION = "local"

Name = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._-]+$")]
Text = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
Delay = Annotated[float, Field(ge=0, le=3600)]
Port = Annotated[int, Field(ge=0, le=65535)]
Skew = Annotated[float, Field(ge=-86400, le=86400)]


class Fault(StrEnum):
    """A fault of the next launch call. Each is used once.

    throttled, transient, fatal, quota: refused, nothing launched. drop-reply: launched, but the connection breaks in
    the middle of the answer. done-but-error: launched, and answered as a fault of the server. twice: the call reaches
    the cloud twice, and the second answer is the caller's. hang: nothing launched, and never an answer.
    """

    THROTTLED = "throttled"
    TRANSIENT = "transient"
    FATAL = "fatal"
    QUOTA = "quota"
    DROP_REPLY = "drop-reply"
    DONE_BUT_ERROR = "done-but-error"
    TWICE = "twice"
    HANG = "hang"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class InstanceType(_Model):
    """A kind of machine, the same price in every zone."""

    name: Name
    spot_usd_per_hour: Annotated[float, Field(ge=0)]
    on_demand_usd_per_hour: Annotated[float, Field(ge=0)]
    gpu: str = ""
    gpus: Annotated[int, Field(ge=0)] = 0


LOCAL_SMALL = InstanceType(name="local.small", spot_usd_per_hour=0.10, on_demand_usd_per_hour=0.30)


class Settings(_Model):
    """How the cloud behaves. Every change holds at once.

    `capacity`: machines that a zone holds; its keys are the zones. `no_capacity_memory_s`: for how long a refusal
    advises callers not to ask again. `ended_listed_s`: for how long listings still show a machine that ended.
    `ssh_port`: where new machines' sshd listens, 0 for any port. `reuse_addresses`: a new machine gets the address of
    one that ended. `clock_ahead_s`: by how much launch times are later than by our clock; negative where its own is
    behind. `image`: the folder of a machine image; new machines are then virtual ones, and "" makes them process trees.
    `flex_lasts_s`: how long machines of the market flex last; 0: none are sold.
    """

    launch_delay_s: Delay = 1.0
    listing_lag_s: Delay = 0.0
    no_capacity_memory_s: Delay = 5.0
    ended_listed_s: Delay = 3600.0
    capacity: dict[Name, Annotated[int, Field(ge=0, le=4096)]] = {"local-a": 16, "local-b": 16}
    instance_types: tuple[InstanceType, ...] = (LOCAL_SMALL,)
    next_launch_faults: tuple[Fault, ...] = ()
    ssh_port: Port = 0
    reuse_addresses: bool = False
    clock_ahead_s: Skew = 0.0
    image: str = ""
    flex_lasts_s: Delay = 0.0


class SettingsPatch(_Model):
    """A change of the settings. What is None stays; `capacity` is merged, zone by zone."""

    launch_delay_s: Delay | None = None
    listing_lag_s: Delay | None = None
    no_capacity_memory_s: Delay | None = None
    ended_listed_s: Delay | None = None
    capacity: dict[Name, Annotated[int, Field(ge=0, le=4096)]] | None = None
    instance_types: tuple[InstanceType, ...] | None = None
    next_launch_faults: Annotated[tuple[Fault, ...], Field(max_length=1000)] | None = None
    ssh_port: Port | None = None
    reuse_addresses: bool | None = None
    clock_ahead_s: Skew | None = None
    image: str | None = None
    flex_lasts_s: Delay | None = None

    def applied_to(self, settings: Settings) -> Settings:
        """Return the settings after this change."""
        given = {name: getattr(self, name) for name in self.model_fields_set if getattr(self, name) is not None}
        if "capacity" in given:
            given["capacity"] = {**settings.capacity, **given["capacity"]}
        return settings.model_copy(update=given)


class LaunchBody(_Model):
    """A request for one machine. `host_key_private` goes to the machine's folder and nowhere else."""

    token: Text
    cluster: Name
    key_mark: Name
    node: Name
    region: Text
    zone: Text
    instance_type: Text
    market: Market
    host_key_public: Text
    host_key_private: Annotated[str, Field(min_length=1, max_length=16384, repr=False)]
    authorized_keys: Annotated[tuple[Text, ...], Field(min_length=1, max_length=8)]
    tags: dict[str, str] = {}

    def digest(self) -> str:
        """Return a digest, the same for the same request only: a token must not be used for two different ones."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()


class NoticeBody(_Model):
    """A preemption, `notice_s` from now. `false_alarm`: it is announced, and does not come."""

    notice_s: Delay
    false_alarm: bool = False


class Machine(_Model):
    """A machine's record: written before anything is done for it, kept for the cloud's life, because of its token.

    `running_at`: its sshd answered. `ending_at`, `end_cause`: its end was decided; `ended_at`: no process is left.
    `pid`, `started`: its init, once it runs. `frozen_at`: since when all its processes are stopped. `spared`: what is
    announced does not come. `virtual`: it is a virtual machine.
    """

    id: Name
    index: int
    token: str
    digest: str
    cluster: str
    key_mark: str = ""
    node: str
    zone: str
    instance_type: str
    market: Market
    address: str
    virtual: bool = False
    launched_at: float
    due_at: float
    tags: dict[str, str] = {}
    running_at: float | None = None
    pid: int = 0
    started: int = 0
    ssh_port: int = 0
    metadata_port: int = 0
    preempt_announced_at: float | None = None
    preempt_at: float | None = None
    spared: bool = False
    frozen_at: float | None = None
    ending_at: float | None = None
    end_cause: EndCause | None = None
    ended_at: float | None = None
    wiped: bool = False
    message: str = ""


class View(_Model):
    """A machine as an answer shows it; the fields of provisioners.base.Instance, its owner's, and for people whether
    it is frozen: a cloud that is asked for its machines knows nothing of that.
    """

    id: str
    cluster: str
    key_mark: str
    node: str
    token: str
    region: str
    zone: str
    instance_type: str
    market: Market
    state: InstanceState
    launched_at: float
    ssh_host: str = ""
    ssh_port: int = 22
    private_address: str = ""
    metadata_url: str = ""
    end_cause: EndCause | None = None
    preempt_at: float | None = None
    frozen: bool = False
    message: str = ""


class Ping(_Model):
    """Who serves: which process, which cloud."""

    pid: int
    cloud: str


class OfferView(_Model):
    """Something that can be asked for."""

    region: str
    zone: str
    instance_type: str
    market: Market
    usd_per_hour: float
    gpu: str
    gpus: int
    lasts_s: float = 0.0


class Refusal(_Model):
    """Why a call was not carried out. `kind` is a launch outcome, or bad-request, not-found, refused.

    `after_s`: for how long asking again is pointless.
    """

    kind: str
    message: str
    scope: str = ""
    after_s: float = 0.0


class RefusedError(Exception):
    """A call that the cloud refuses."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def sentence(error: ValidationError) -> str:
    """Return what is wrong with a body, in one sentence."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    text = first["msg"][:1].lower() + first["msg"][1:]
    if first["type"] == "extra_forbidden":
        text = "there is no such key"
    return f"{where}: {text}" if where else text
