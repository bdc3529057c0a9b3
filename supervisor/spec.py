"""The job file: what a user may ask for, checked strictly, every complaint one clear sentence."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from provisioners.base import Market, OfferQuery
from supervisor.errors import UsageError

if TYPE_CHECKING:
    from bootstrap.container.image import Image
    from bootstrap.mounts.model import Mount, MountKind

NAME_PATTERN = r"^[a-z][a-z0-9-]{0,38}[a-z0-9]$"
MAX_NODES = 64
MAX_SPARES = 16


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, str_strip_whitespace=True)


class Nodes(_Strict):
    """How many nodes the job wants: trains from `min` on, asks for `desired`, may be scaled up to `max`.

    `spares` come on top, also on top of `max`: they wait outside the round, and take a lost member's place at once.
    """

    min: Annotated[int, Field(ge=1, le=MAX_NODES)]
    desired: Annotated[int, Field(ge=1, le=MAX_NODES)]
    max: Annotated[int, Field(ge=1, le=MAX_NODES)]
    spares: Annotated[int, Field(ge=0, le=MAX_SPARES)] = 0

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, value: Any) -> Any:
        """`nodes: 4` means exactly four; without `max`, desired is the most; without `desired`, min is."""
        if isinstance(value, int) and not isinstance(value, bool):
            return {"min": value, "desired": value, "max": value}
        if isinstance(value, dict) and "min" in value:
            filled = {"desired": value["min"], **value}
            return {"max": filled["desired"], **filled}
        return value

    @model_validator(mode="after")
    def _ordered(self) -> Nodes:
        check_nodes(self.min, self.desired, self.max, self.spares)
        return self


def check_nodes(min_nodes: int, desired: int, max_nodes: int, spares: int) -> None:
    """Raises ValueError unless 1 ≤ min ≤ desired ≤ max, and none is beyond what one job may have."""
    for name, value, least, most in (
        ("min", min_nodes, 1, MAX_NODES),
        ("max", max_nodes, 1, MAX_NODES),
        ("spares", spares, 0, MAX_SPARES),
    ):
        if not least <= value <= most:
            raise ValueError(f"{name} is {value}; it can be {least} to {most}")
    if not min_nodes <= desired <= max_nodes:
        raise ValueError(
            f"min ≤ desired ≤ max is needed, but min is {min_nodes}, desired {desired} and max {max_nodes}"
        )


class Resources(_Strict):
    """What each node must have: a GPU type and count, or instance types by name."""

    gpu: str = ""
    gpus_per_node: Annotated[int, Field(ge=0, le=16)] = 0
    instance_types: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Resources:
        if self.gpu and not self.gpus_per_node:
            raise ValueError(f"gpu is {self.gpu}, but gpus_per_node is not given: say how many, 1 for instance")
        return self


class Placement(_Strict):
    """Where the job may run. Its nodes share one zone, or with `spread: region` one region."""

    cloud: Literal["local", "aws", "gcp", "azure"] = "local"
    regions: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    spread: Literal["zone", "region"] = "zone"


class Storage(_Strict):
    """A file system to mount on every node: one of `nfs`, `filestore`, `lustre` (what to mount) and `scratch: true`.

    `nfs` is any server's, EFS and Azure Files included: they are known by their names, and get the options they want.
    """

    mount: str
    nfs: str = ""
    filestore: str = ""
    lustre: str = ""
    scratch: bool = False
    mode: Literal["ro", "rw"] = "rw"

    @model_validator(mode="after")
    def _mountable(self) -> Storage:
        given = [name for name in ("nfs", "filestore", "lustre", "scratch") if getattr(self, name)]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise ValueError(f"{self.mount} needs one of nfs, filestore, lustre and `scratch: true`; it has {found}")
        self.as_mount()
        return self

    def as_mount(self) -> Mount:
        """What bootstrap mounts. Raises ValueError."""
        from bootstrap.mounts.model import Mount

        return Mount(self._kind, self.nfs or self.filestore or self.lustre, self.mount, self.mode)

    @property
    def _kind(self) -> MountKind:
        if self.scratch:
            return "scratch"
        if self.filestore:
            return "filestore"
        if self.lustre:
            return "lustre"
        server = self.nfs.partition(":")[0]
        if re.fullmatch(r"fs-[0-9a-f]+\.efs\.[a-z0-9-]+\.amazonaws\.com(\.cn)?", server):
            return "efs"
        return "azure-files" if server.endswith(".file.core.windows.net") else "nfs"


class Limits(_Strict):
    """When to stop by itself. `hours` and `usd` count from the submission; failures are the program's own."""

    hours: Annotated[float, Field(gt=0)] | None = None
    usd: Annotated[float, Field(gt=0)] | None = None
    usd_per_hour: Annotated[float, Field(gt=0)] | None = None
    app_failures: Annotated[int, Field(ge=0, le=1000)] = 3


_MARKETS = {
    "spot": (Market.SPOT,),
    "on-demand": (Market.ON_DEMAND,),
    "spot-then-on-demand": (Market.SPOT, Market.ON_DEMAND),
}


class JobSpec(_Strict):
    """A job file. `run` is the training script with its arguments, as torchrun would take it; a line for bash of a data
    job, which is one node without a GPU.
    """

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    kind: Literal["training", "data"] = "training"
    nodes: Nodes
    resources: Resources = Resources()
    market: Literal["spot", "on-demand", "spot-then-on-demand"] = "spot"
    placement: Placement = Placement()
    storage: tuple[Storage, ...] = ()
    code: str = "."
    environment: str = "image"
    setup: str = ""
    run: Annotated[str, Field(min_length=1)]
    env: Mapping[str, str] = {}
    limits: Limits = Limits()
    checkpoint_dir: str = ""

    @model_validator(mode="after")
    def _fits_its_kind(self) -> JobSpec:
        if self.kind == "data":
            if (self.nodes.max, self.nodes.spares) != (1, 0):
                raise ValueError("a data job is one node: leave `nodes` out")
            if self.resources.gpu or self.resources.gpus_per_node:
                raise ValueError("a data job gets no GPU: leave `gpu` and `gpus_per_node` out of `resources`")
            if self.placement.cloud != "local" and not self.resources.instance_types:
                raise ValueError(
                    "a data job needs no GPU, and the catalogue knows machines with GPUs only: name some without one, "
                    "such as `resources: {instance_types: [m7i.2xlarge]}`"
                )
        return self

    @field_validator("env")
    @classmethod
    def _variables(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        for name, text in value.items():
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                raise ValueError(f"{name!r} is no variable name; use letters, digits and _, no digit first")
            if "\0" in text:
                raise ValueError(f"the value of {name} contains a NUL character")
        return value

    @field_validator("environment")
    @classmethod
    def _known_environment(cls, value: str) -> str:
        from bootstrap.container.image import image_of

        if image_of(value) is not None:
            return value
        parts = value.split("/")
        if value not in ("image", "uv") and (not value.endswith(".txt") or {"", ".", ".."} & set(parts)):
            raise ValueError(
                f"{value!r} is no environment; use image (the machine's own interpreter), uv (uv.lock at the top of "
                "the code), a requirements file in the code, such as requirements.txt, or a container image, "
                "docker://registry/image:tag"
            )
        return value

    @model_validator(mode="after")
    def _nothing_beside_an_image(self) -> JobSpec:
        if self.image is not None and self.setup:
            raise ValueError(
                "`setup` cannot change a container image, which is the same at every start: build it in there"
            )
        return self

    @model_validator(mode="after")
    def _storage_fits(self) -> JobSpec:
        if self.storage:
            from bootstrap.mounts.model import check_mounts

            check_mounts([storage.as_mount() for storage in self.storage])
        for storage in self.storage:
            if f"{self.checkpoint_dir}/".startswith(f"{storage.mount}/") and (storage.scratch or storage.mode == "ro"):
                why = "scratch, which ends with its machine" if storage.scratch else "mounted read-only"
                raise ValueError(f"checkpoint_dir is {self.checkpoint_dir}, but {storage.mount} is {why}")
        return self

    @field_validator("run")
    @classmethod
    def _splits(cls, value: str, info: ValidationInfo) -> str:
        if info.data.get("kind") != "data":
            shlex.split(value)  # raises ValueError on an open quote
        return value

    @property
    def command(self) -> tuple[str, ...]:
        """The script and its arguments; of a data job its one line."""
        return (self.run,) if self.kind == "data" else tuple(shlex.split(self.run))

    @property
    def image(self) -> Image | None:
        """The container image that it trains in, None for none."""
        from bootstrap.container.image import image_of

        return image_of(self.environment)

    @property
    def shared(self) -> str:
        """Where storage that all nodes share and may write to is mounted, the first of it; "" where there is none."""
        return next((each.mount for each in self.storage if each.mode == "rw" and not each.scratch), "")

    @property
    def nproc_per_node(self) -> int:
        """One worker per GPU, or one where there are none."""
        return max(1, self.resources.gpus_per_node)

    @property
    def offer_queries(self) -> tuple[OfferQuery, ...]:
        """What its cloud is asked for: one query per market, in the order in which they are wanted."""
        query = OfferQuery(
            gpu=self.resources.gpu,
            gpus_per_node=self.resources.gpus_per_node,
            instance_types=self.resources.instance_types,
            regions=self.placement.regions,
            zones=self.placement.zones,
        )
        return tuple(replace(query, market=market) for market in _MARKETS[self.market])


def parse_spec(value: Any) -> JobSpec:
    """A job file's content as a spec. Raises UsageError: one sentence that names the key and what would be right."""
    if not isinstance(value, dict):
        raise UsageError("a job file is a mapping of keys, such as `name: my-job`; this one is not")
    if value.get("kind") == "data":
        value = {"nodes": 1, **value}  # there is no other number
    try:
        return JobSpec.model_validate(_lists_to_tuples(value))
    except ValidationError as error:
        raise UsageError(first_complaint(error, "the job file", JobSpec)) from error


def _lists_to_tuples(value: Any) -> Any:
    # Strict models take no list for a tuple, but YAML and JSON know only lists.
    if isinstance(value, dict):
        return {key: _lists_to_tuples(item) for key, item in value.items()}
    if isinstance(value, list):
        return tuple(_lists_to_tuples(item) for item in value)
    return value


def first_complaint(error: ValidationError, what: str, model: type[BaseModel]) -> str:
    """The first of pydantic's complaints as one sentence; how many more there are."""
    complaints = error.errors(include_url=False)
    first = complaints[0]
    where = ".".join(str(part) for part in first["loc"]) or "as a whole"
    more = f" ({len(complaints) - 1} more)" if len(complaints) > 1 else ""
    return f"{what}: {_sentence(first, where, model)}{more}"


def _sentence(complaint: Any, where: str, model: type[BaseModel]) -> str:
    kind, given = complaint["type"], complaint.get("input")
    if kind == "extra_forbidden":
        known = _known_keys(model, complaint["loc"][:-1])
        return f"unknown key `{where}`" + (f"; known here: {', '.join(known)}" if known else "")
    if kind == "missing":
        return f"`{where}` is missing"
    if kind == "value_error":
        return f"`{where}`: {complaint['ctx']['error']}"
    if kind == "string_pattern_mismatch" and where == "name":
        return f"`name` is {given!r}; use 2 to 40 of a-z, 0-9 and -, beginning with a letter, not ending with -"
    message = complaint["msg"][0].lower() + complaint["msg"][1:]
    return f"`{where}` is {given!r}: {message}"


def _known_keys(model: type[BaseModel], path: tuple[Any, ...]) -> list[str]:
    for part in path:
        spec = model.model_fields.get(str(part))
        inner = spec.annotation if spec else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        model = inner
    return list(model.model_fields)
