"""The parts of a job file that say on which machines a job runs, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from provisioners.base import BY_THE_HOUR, Market, Offer
from provisioners.registry import CLOUDS
from supervisor.errors import UsageError

# Each costs its cloud a query, and all of a job's queries share one time limit.
MAX_ALTERNATIVES = 4
MAX_PLACES = 4


class Strict(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        str_strip_whitespace=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,  # `env` is of it
    )


@dataclass(frozen=True, slots=True)
class Preference:
    """In which order the alternatives of a job are asked for."""

    listed: bool = True  # as its file lists them; else the cheapest first
    speeds: tuple[float, ...] = (1.0,)  # of a node of each, compared with the others
    markets: tuple[Market, ...] = BY_THE_HOUR  # in the order of wish

    def rank(self, offer: Offer) -> int:
        """Lower ones come first, whatever they cost."""
        return offer.alternative if self.listed else 0

    def market_rank(self, market: Market) -> int:
        """Lower ones come first, whatever they cost."""
        return self.markets.index(market) if market in self.markets else len(self.markets)

    def speed(self, offer: Offer) -> float:
        """Return what its price is divided by."""
        return 1.0 if self.listed else self.speeds[min(offer.alternative, len(self.speeds) - 1)]


NO_PREFERENCE = Preference()


class Resources(Strict):
    """What each node must have: a GPU type and count, or instance types by name.

    A list of up to 4 such mappings names alternatives: all nodes of the job are of one of them at a time, and `prefer`
    says of which ([alternatives](../operations.md#alternatives)).
    """

    gpu: str = ""
    """GPU type by its name in the catalog, such as V100, A100 or H100. Empty: any, or none."""
    gpus_per_node: Annotated[int, Field(ge=0, le=16)] = 0
    """GPUs on each node; one worker process runs per GPU. 0: one worker, on CPUs."""
    instance_types: tuple[str, ...] = ()
    """Only these instance types are asked for, by the cloud's own names. Empty: every type that fits."""
    disk_gb: Annotated[int, Field(ge=0, le=16384)] = 0
    """Size of each node's boot disk, in GB. 0: `disk_gb` of the cloud's table in the daemon's configuration. Of
    alternatives, the largest is that of all."""
    speed: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Of alternatives: how much such a node does in an hour, compared with the others. With `prefer: cheapest`, prices
    are divided by it; spotsup does not measure it."""

    @model_validator(mode="after")
    def _consistent(self) -> Resources:
        if self.gpu and not self.gpus_per_node:
            raise ValueError(f"gpu is {self.gpu}, but gpus_per_node is not given: say how many, 1 for instance")
        return self

    @property
    def label(self) -> str:
        """Return a label for people; alternatives of one job have different ones."""
        parts = [f"{self.gpus_per_node} × {self.gpu or 'GPU'}"] if self.gpus_per_node else []
        return " ".join([*parts, *([" or ".join(self.instance_types)] if self.instance_types else [])]) or "any machine"


def _listed(value: Any) -> Any:
    """`resources: {…}` means a list of one. Lists become tuples, as strict models refuse them here even in JSON."""
    entries = value if isinstance(value, list | tuple) else (value,)
    return tuple(
        {key: tuple(item) if isinstance(item, list) else item for key, item in each.items()}
        if isinstance(each, dict)
        else each
        for each in entries
    )


def _distinct(value: Sequence[Resources]) -> Sequence[Resources]:
    if not 1 <= len(value) <= MAX_ALTERNATIVES:
        raise ValueError(f"it has {len(value)} alternatives, and can have 1 to {MAX_ALTERNATIVES}")
    labels = [each.label for each in value]
    for each in labels:
        if labels.count(each) > 1:
            raise ValueError(f"two alternatives ask for the same, {each}: leave one out")
    return value


Alternatives = Annotated[tuple[Resources, ...], BeforeValidator(_listed), AfterValidator(_distinct)]
"""What each node must have; several in order of wish."""


class Placement(Strict):
    """Where the job may run. All its nodes run in one zone, or with `spread: region` in one region.

    A list of up to 4 such mappings names places, on one cloud or several: the job is in one of them at a time
    ([places](../operations.md#places)).
    """

    cloud: Annotated[str, Field(json_schema_extra={"enum": list(CLOUDS)})] = ""
    """The cloud to rent from. The daemon's configuration must have a table for it. Empty: the only one that it has."""
    regions: tuple[str, ...] = ()
    """Regions to use, out of those in the daemon's configuration. Empty: all of them."""
    zones: tuple[str, ...] = ()
    """Zones to use. Empty: every zone of the regions."""
    spread: Literal["zone", "region"] = "zone"
    """Whether all nodes share one zone (faster network) or only one region (more capacity)."""

    @field_validator("cloud")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in {"", *CLOUDS}:
            raise ValueError(f"{value!r} is no cloud; there are: {', '.join(CLOUDS)}")
        return value

    def __str__(self) -> str:
        """Return a text for people; the places of one job have different ones."""
        where = ", ".join(self.zones or self.regions)
        return f"{self.cloud} ({where})" if where else self.cloud


def placement_and_places(value: dict[str, Any]) -> dict[str, Any]:
    """Return a job file in which `placement: […]` is the first of these places, and `places` are all. Raises
    UsageError."""
    listed = value.get("placement")
    if not isinstance(listed, list | tuple):
        return value
    if "places" in value:
        raise UsageError("the job file: leave `places` out: it is filled in from a list of `placement`")
    if not 1 <= len(listed) <= MAX_PLACES:
        raise UsageError(f"the job file: `placement` has {len(listed)} places, and can have 1 to {MAX_PLACES}")
    return {**value, "placement": listed[0], "places": listed if len(listed) > 1 else ()}


def check_places(places: Sequence[Placement], now_in: Placement) -> None:
    """Raise ValueError."""
    if not places:
        return
    if now_in not in places or len(places) > MAX_PLACES:
        raise ValueError("leave `places` out: it is filled in from a list of `placement`")
    if not all(each.cloud for each in places):
        raise ValueError("a place of `placement` names no cloud: of several, each has to")
    for each in places:
        if [str(other) for other in places].count(str(each)) > 1:
            raise ValueError(f"two places of `placement` are the same, {each}: leave one out")
