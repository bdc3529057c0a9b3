"""The job file: what a user may ask for, checked strictly; every error is one sentence.

The text below each key is its entry in docs/reference/job-file.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema
from spotsup_trainer.objects import url as urls

from provisioners.base import Market, Offer, OfferQuery
from provisioners.registry import CLOUDS
from supervisor.cron import next_run
from supervisor.deadlines import check_finish_by, why_not, work_of
from supervisor.errors import UsageError
from supervisor.run_line import arguments_of
from supervisor.sealed import check_name
from supervisor.spec_limits import Limits
from supervisor.spec_markets import Markets, dear_of, markets_of, sold_by, why_unsold
from supervisor.spec_places import (
    Alternatives,
    Placement,
    Preference,
    Resources,
    Strict,
    check_places,
    placement_and_places,
)
from supervisor.starting_time import unix_time
from supervisor.validation import first_error

if TYPE_CHECKING:
    from bootstrap.container.image import Image
    from bootstrap.mounts.model import Mount, MountKind

NAME_PATTERN = r"^[a-z][a-z0-9-]{0,38}[a-z0-9]$"
MAX_NODES = 64
MAX_SPARES = 16
# A job's record is written with each of its commits, and etcd takes 1.5 MiB at once.
MAX_SPEC_BYTES = 64 * 1024
MAX_SPEC_DEPTH = 20
NO_CHECKPOINTS = "none"


def _numbers_to_text(value: Any) -> Any:
    """`env: {LR: 0.1}` means the text 0.1."""
    if not isinstance(value, Mapping):
        return value
    return {
        key: str(each) if isinstance(each, int | float) and not isinstance(each, bool) else each
        for key, each in value.items()
    }


class Nodes(Strict):
    """How many nodes the job trains on. A plain number, as in `nodes: 4`, means exactly that many."""

    min: Annotated[int, Field(ge=1, le=MAX_NODES)]
    """Training starts, and goes on, with at least this many nodes."""
    desired: Annotated[int, Field(ge=1, le=MAX_NODES, json_schema_extra={"x-default": "`min`", "x-option": "--nodes"})]
    """How many nodes are asked for, and replaced when lost."""
    max: Annotated[int, Field(ge=1, le=MAX_NODES, json_schema_extra={"x-default": "`desired`"})]
    """The largest number that `spotsupctl scale JOB N` accepts."""
    spares: Annotated[int, Field(ge=0, le=MAX_SPARES)] = 0
    """Extra nodes, beyond `desired` and `max`, that wait prepared and replace a lost node at once. They cost money."""
    multiple_of: Annotated[int, Field(ge=1, le=MAX_NODES)] = 1
    """The job trains on a multiple of this many nodes only: the others wait outside the round until they make up the
    next. `min`, `desired` and `max` must be multiples of it."""

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, value: Any) -> Any:
        """Expand `nodes: 4`, and fill in what is left out."""
        if isinstance(value, int) and not isinstance(value, bool):
            if not 1 <= value <= MAX_NODES:
                raise ValueError(f"it is {value}, and can be 1 to {MAX_NODES}")
            return {"min": value, "desired": value, "max": value}
        if not isinstance(value, dict):
            raise ValueError(  # noqa: TRY004 - pydantic reports ValueError only
                f"{value!r} is not a number; write `nodes: 4`, or a mapping with min, desired and max"
            )
        if "min" in value:
            filled = {"desired": value["min"], **value}
            return {"max": filled["desired"], **filled}
        return value

    @model_validator(mode="after")
    def _ordered(self) -> Nodes:
        check_nodes(self.min, self.desired, self.max, self.spares, self.multiple_of)
        return self


def check_nodes(min_nodes: int, desired: int, max_nodes: int, spares: int, multiple_of: int = 1) -> None:
    """Raise ValueError unless 1 ≤ min ≤ desired ≤ max, all multiples of `multiple_of`, and none is beyond what one job
    may have."""
    for name, value, lowest, highest in (
        ("min", min_nodes, 1, MAX_NODES),
        ("max", max_nodes, 1, MAX_NODES),
        ("spares", spares, 0, MAX_SPARES),
    ):
        if not lowest <= value <= highest:
            raise ValueError(f"{name} is {value}; it can be {lowest} to {highest}")
    if not min_nodes <= desired <= max_nodes:
        raise ValueError(
            f"min ≤ desired ≤ max is needed, but min is {min_nodes}, desired {desired} and max {max_nodes}"
        )
    for name, value in (("min", min_nodes), ("desired", desired), ("max", max_nodes)):
        if value % multiple_of:
            raise ValueError(f"{name} is {value}; it must be a multiple of {multiple_of} (multiple_of)")


class Storage(Strict):
    """A file system mounted on every node. Give exactly one of `nfs`, `filestore`, `lustre` and `scratch: true`.

    Not on the local cloud, whose machines share the host's folders.
    """

    mount: str
    """Where it is mounted: an absolute path, best below /mnt."""
    nfs: str = ""
    """An NFS export as `server:/path`. EFS and Azure Files are recognised by the server's name and get their
    options."""
    filestore: str = ""
    """A Google Filestore share as `address:/share`."""
    lustre: str = ""
    """A Lustre file system, such as FSx, as `address@tcp:/name`."""
    scratch: bool = False
    """The machine's first unused local disk, else a folder of its boot disk. A cache: its content ends with the
    machine."""
    mode: Literal["ro", "rw"] = "rw"
    """Read-only, or read and write."""
    cloud: Annotated[str, Field(json_schema_extra={"enum": list(CLOUDS)})] = ""
    """Of a job with places on several clouds: mounted only where the job is on this one. Empty: on each."""
    zone: str = ""
    """The zone that the file system is in, if it is a zonal one (EFS One Zone, FSx, zonal Filestore): all nodes run
    there. Empty: any zone that can reach it. EFS' mount targets are asked for."""

    @model_validator(mode="after")
    def _mountable(self) -> Storage:
        given = [name for name in ("nfs", "filestore", "lustre", "scratch") if getattr(self, name)]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise ValueError(f"{self.mount} needs one of nfs, filestore, lustre and `scratch: true`; it has {found}")
        self.as_mount()
        return self

    def as_mount(self) -> Mount:
        """Return what bootstrap mounts. Raises ValueError."""
        from bootstrap.mounts.model import Mount

        return Mount(self._kind, self.nfs or self.filestore or self.lustre, self.mount, self.mode)

    @property
    def server(self) -> str:
        """Return the name or address of its server; "" for a local disk."""
        return (self.nfs or self.filestore or self.lustre).partition(":")[0].partition("@")[0]

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


class JobSpec(Strict):
    """A job file: what to run, on how many nodes of which kind, and within which limits."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    """The job's name, unique among jobs that have not ended: 2 to 40 lower-case letters, digits and hyphens."""
    kind: Literal["training", "data"] = "training"
    """`training` runs a PyTorch script on all nodes; `data` runs one shell line on one node without a GPU."""
    nodes: Nodes
    """How many nodes: a number, or a mapping ([nodes](#nodes)). A data job has one node; leave `nodes` out there."""
    resources: Alternatives = (Resources(),)
    """What each node must have ([resources](#resources)): a mapping, or a list of alternatives."""
    prefer: Literal["listed", "cheapest"] = "listed"
    """Of several `resources`: `listed` takes the first in the list that is to be had, and goes back to an earlier one
    later; `cheapest` takes the one whose node-hours cost least, divided by its `speed`. Of several places of
    `placement`: their order, as listed, or by what each asked first when the job was submitted."""
    priority: Annotated[int, Field(ge=-100, le=100)] = 0
    """Jobs of a higher priority come first where the operator's limits leave too little for all; `spotsupctl queue`
    shows the order. Of equal ones, the user's who has fewer GPUs comes first."""
    start_after: str = ""
    """No node is asked for before this time, written with its time zone: `2026-12-24T22:00Z`, or with `+01:00`. The job
    waits in the queue until then. Empty, or in the past: at once."""
    schedule: str = ""
    """A cron expression in UTC, such as `0 22 * * 1-5`: the job begins at its next time, and when a run has ended, well
    or not, the job is submitted again for the next one, from the beginning. Times that pass while a run lasts are left
    out. `spotsupctl cancel` ends it."""
    finish_by: str = ""
    """A deadline: a time with its time zone, or a duration after the job may begin (`90m`, `52h`, `3d`). With `market:
    spot-then-on-demand`, on-demand nodes are asked for only as far as the deadline needs them: when the job is behind
    even progress, or its time is nearly used up ([deadlines](../operations.md#deadlines)). Needs `work`."""
    work: str = ""
    """What has to be done by `finish_by`: `48h`, the time that it trains on all `nodes.desired` nodes, or `90000
    steps`, as a `Session` counts them."""
    market: Markets = "spot"
    """How nodes are bought: `spot`, `on-demand`, `flex` (Google's flex-start: days without preemption) or `reserved`
    (within [what you have reserved](../operations.md#reserved-capacity)); or several in the order of wish, as a list or
    as `spot-then-on-demand`. What stands after `spot` is asked for once every place refused spot, and replaced by spot
    nodes, without a loss of steps, once those are there again."""
    placement: Placement = Placement()
    """Where nodes may run ([placement](#placement)): a mapping, or a list of places in order of wish or price."""
    places: SkipJsonSchema[tuple[Placement, ...]] = ()
    """Not for job files: the list of `placement`, whose entry that the job is in is `placement` then."""
    storage: tuple[Storage, ...] = ()
    """File systems to mount on every node ([storage](#storage))."""
    code: str = "."
    """The folder that is packed and copied to every node, relative to the job file. `.spotsupignore` leaves files
    out."""
    environment: str = "image"
    """The Python environment: `image`, the machine's own interpreter; `uv`, from `uv.lock` in the code; a path such as
    `requirements.txt`, from that file of the code; or `docker://…`, a container image."""
    setup: str = ""
    """A shell line that runs once on each node before training starts. Not possible with a container image."""
    run: Annotated[str, Field(min_length=1)]
    """The training script, relative to `code`, with its arguments; `-m module` works too, and a leading `python`,
    `torchrun` or `accelerate launch` without options is dropped. It is no shell line: variables, `>`, `|`, `&&` and
    further lines are refused, unless they are within single quotes. Of a data job: a line for bash."""
    preload: tuple[str, ...] | None = None
    """Modules that a node imports once, before it is in a round: its workers have them at their start. By default those
    that the program's text [imports first](../training/workers.md#what-is-imported-before-a-worker-starts); `[]` for
    none."""
    env: Annotated[Mapping[str, str], BeforeValidator(_numbers_to_text)] = Field(default={}, repr=False)
    """Environment variables for `setup` and `run`: texts, as they are written (3.10 stays 3.10). `PATH` and
    `LD_LIBRARY_PATH` may name the machine's own, as in `/opt/bin:$PATH`; no other variable is expanded. They are stored
    in etcd and visible on the nodes."""
    secrets: Annotated[tuple[str, ...], Field(max_length=32)] = ()
    """Names of [secrets](../secrets.md) of the job's owner: variables for `setup` and `run`, as `env` has them, whose
    values are in no job file and no record. `spotsupctl secret set` brings a value. One that is changed reaches nodes
    that are prepared from then on."""
    limits: Limits = Limits()
    """What the job may use: hours, dollars, failures ([limits](#limits))."""
    checkpoints: str = ""
    """Where checkpoints go: a folder on shared `storage`; an object store (`s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`,
    `abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX`), for programs with a `Session`; or `none`. Each run gets a
    folder of its own there, named after the job, from which `submit --resume-from` goes on. Empty: `spotsup` on the
    first writable shared `storage`; without such storage a training job on a rented cloud has to name a place, or say
    `none`, while the local cloud keeps checkpoints on its host."""

    @model_validator(mode="after")
    def _places_agree(self) -> JobSpec:
        check_places(self.places, self.placement)
        for each in self.storage:
            if each.cloud and each.cloud not in self.clouds:
                raise ValueError(f"{each.mount} is on {each.cloud}, and the job runs on {', '.join(self.clouds)}")
        if (
            len(self.clouds) > 1
            and self.kind == "training"
            and not (self.checkpoints == NO_CHECKPOINTS or urls.is_url(self.checkpoints))
        ):
            raise ValueError(
                f"its places are on {' and '.join(self.clouds)}, and checkpoints have to be in reach of each: write "
                f"`checkpoints` as an object store ({urls.FORMS}), or {NO_CHECKPOINTS}"
            )
        return self

    @model_validator(mode="after")
    def _fits_its_kind(self) -> JobSpec:
        if self.kind == "data":
            if (self.nodes.max, self.nodes.spares) != (1, 0):
                raise ValueError("a data job is one node: leave `nodes` out")
            if any(each.gpu or each.gpus_per_node for each in self.resources):
                raise ValueError("a data job gets no GPU: leave `gpu` and `gpus_per_node` out of `resources`")
            unnamed = not all(each.instance_types for each in self.resources)
            if self.placement.cloud and CLOUDS[self.placement.cloud].has_catalog and unnamed:
                raise ValueError(
                    "a data job needs instance types without a GPU, and the catalog has only types with one: name "
                    "some, such as `resources: {instance_types: [m7i.2xlarge]}`"
                )
            if self.checkpoints:
                raise ValueError("a data job has no checkpoints: leave `checkpoints` out")
            if self.preload is not None:
                raise ValueError("a data job has no workers: leave `preload` out")
        return self

    @field_validator("start_after")
    @classmethod
    def _moment(cls, value: str) -> str:
        if value:
            unix_time(value)
        return value

    @field_validator("finish_by", "work")
    @classmethod
    def _deadline(cls, value: str, info: ValidationInfo) -> str:
        if value:
            (check_finish_by if info.field_name == "finish_by" else work_of)(value)
        return value

    @model_validator(mode="after")
    def _deadline_fits(self) -> JobSpec:
        keys = (self.kind, self.market, self.checkpoints, self.schedule, self.finish_by, self.work)
        if why := why_not(*keys):
            raise ValueError(why)
        return self

    @model_validator(mode="after")
    def _markets_are_sold(self) -> JobSpec:
        if why := why_unsold(self.markets, [place.cloud for place in self.all_places]):
            raise ValueError(why)
        return self

    @field_validator("schedule")
    @classmethod
    def _cron(cls, value: str) -> str:
        if value:
            next_run(value, 0.0)
        return value

    @field_validator("env")
    @classmethod
    def _variables(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        from bootstrap.variables import SEARCH_PATHS, unexpanded

        for name, text in value.items():
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                raise ValueError(f"{name!r} is not a variable name; use letters, digits and _, no digit first")
            if "\0" in text:
                raise ValueError(f"the value of {name} contains a NUL character")
            if reference := unexpanded(name, text):
                raise ValueError(
                    f"the value of {name} has {reference}, which nothing expands: write the value itself. Only "
                    f"{' and '.join(SEARCH_PATHS)} may name the machine's own, as in PATH: /opt/bin:$PATH"
                )
        return value

    @field_validator("secrets")
    @classmethod
    def _names_of_secrets(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        for name in value:
            if check_name(name) in info.data.get("env", ()):
                raise ValueError(f"{name} is in `env`, too: leave it out of one of them")
        return tuple(dict.fromkeys(value))

    @field_validator("preload")
    @classmethod
    def _modules(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for name in value or ():
            if not all(part.isidentifier() for part in name.split(".")):
                raise ValueError(
                    f"{name!r} is no module; write one as in an import statement, such as `torchvision.io`"
                )
        return value

    @field_validator("checkpoints")
    @classmethod
    def _place(cls, value: str) -> str:
        if value in ("", NO_CHECKPOINTS):
            return value
        if urls.is_url(value):
            return urls.checked(value)
        if not value.startswith(("/", "~/")) or {".", ".."} & set(value.split("/")) or "\n" in value or ":" in value:
            raise ValueError(
                f"{value!r} is no place for checkpoints; write an absolute folder, {urls.FORMS}, or {NO_CHECKPOINTS}"
            )
        return value.rstrip("/")

    @field_validator("environment")
    @classmethod
    def _known_environment(cls, value: str) -> str:
        from bootstrap.container.image import image_of

        if image_of(value) is not None:
            return value
        parts = value.split("/")
        if value not in ("image", "uv") and (not value.endswith(".txt") or {"", ".", ".."} & set(parts)):
            raise ValueError(
                f"{value!r} is not an environment; use image (the machine's own interpreter), uv (uv.lock at the top "
                "of the code), a requirements file in the code, such as requirements.txt, or a container image, "
                "docker://registry/image:tag"
            )
        return value

    @model_validator(mode="after")
    def _no_setup_with_an_image(self) -> JobSpec:
        if self.image is not None and self.setup:
            raise ValueError(
                "`setup` has no effect on a container image, which is the same at every start: build it into the image"
            )
        return self

    @model_validator(mode="after")
    def _zones_of_storage_agree(self) -> JobSpec:
        for place in self.all_places:
            zones = self.at(place)._storage_zones  # noqa: SLF001 - of the same class
            if len(zones) > 1:
                raise ValueError(
                    f"its file systems are in several zones ({', '.join(zones)}), and its nodes run in one"
                )
            if zones and place.zones and zones[0] not in place.zones:
                raise ValueError(
                    f"its file system is in {zones[0]}, which is not one of `placement.zones` "
                    f"({', '.join(place.zones)})"
                )
        return self

    @model_validator(mode="after")
    def _storage_fits(self) -> JobSpec:
        if self.storage:
            from bootstrap.mounts.model import check_mounts

            for place in self.all_places:
                check_mounts([storage.as_mount() for storage in self.at(place).mounted])
        for storage in self.storage:
            if f"{self.checkpoints}/".startswith(f"{storage.mount}/") and (storage.scratch or storage.mode == "ro"):
                why = "scratch, which ends with its machine" if storage.scratch else "mounted read-only"
                raise ValueError(f"checkpoints is {self.checkpoints}, but {storage.mount} is {why}")
        return self

    @field_validator("run")
    @classmethod
    def _splits(cls, value: str, info: ValidationInfo) -> str:
        if info.data.get("kind") != "data":
            arguments_of(value)
        return value

    @property
    def command(self) -> tuple[str, ...]:
        """Return the script and its arguments; of a data job its one line."""
        return (self.run,) if self.kind == "data" else arguments_of(self.run)

    @property
    def image(self) -> Image | None:
        """Return the container image that the job trains in, None without one."""
        from bootstrap.container.image import image_of

        return image_of(self.environment)

    @property
    def all_places(self) -> tuple[Placement, ...]:
        """Return the places in the order in which it goes to them; of most jobs there is one."""
        return self.places or (self.placement,)

    @property
    def clouds(self) -> tuple[str, ...]:
        """Return the clouds of all its places."""
        return tuple(dict.fromkeys(each.cloud for each in self.all_places))

    @property
    def mounted(self) -> tuple[Storage, ...]:
        """Return the file systems of the cloud that the job is on."""
        return tuple(each for each in self.storage if each.cloud in {"", self.placement.cloud})

    def at(self, place: Placement) -> JobSpec:
        """Return the same job in another of its places."""
        return self.model_copy(update={"placement": place})

    @property
    def shared(self) -> str:
        """Return where the first storage that all nodes share and may write to is mounted, "" without any."""
        return next((each.mount for each in self.mounted if each.mode == "rw" and not each.scratch), "")

    def resources_of(self, offer: Offer | None) -> Resources:
        """Return the alternative that an offer is of; the first one without an offer."""
        return self.resources[min(offer.alternative, len(self.resources) - 1) if offer else 0]

    def nproc_on(self, offer: Offer | None) -> int:
        """Return one worker per GPU, one without GPUs."""
        return max(1, self.resources_of(offer).gpus_per_node)

    @property
    def disk_gb(self) -> int:
        """Return the disk of each node, whatever alternative it is of: a machine may serve another one later."""
        return max(each.disk_gb for each in self.resources)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return what its alternatives are called; none where there is only one."""
        return tuple(each.label for each in self.resources) if len(self.resources) > 1 else ()

    @property
    def preference(self) -> Preference:
        """Return in which order its alternatives are asked for."""
        speeds = tuple(each.speed for each in self.resources)
        return Preference(listed=self.prefer == "listed", speeds=speeds, markets=self.markets)

    @property
    def markets(self) -> tuple[Market, ...]:
        """Return on which markets its nodes are bought, in the order of wish."""
        return markets_of(self.market)

    @property
    def dear_markets(self) -> frozenset[Market]:
        """Return those that are asked for only once spot was refused."""
        return dear_of(self.markets)

    @property
    def _storage_zones(self) -> list[str]:
        """Return the zone that zonal file systems pin the job to; none where there are none."""
        return list(dict.fromkeys(each.zone for each in self.mounted if each.zone))

    @property
    def offer_queries(self) -> tuple[OfferQuery, ...]:
        """Return what the cloud is asked for: one query per market and alternative, in order of preference."""
        return tuple(
            OfferQuery(
                gpu=each.gpu,
                gpus_per_node=each.gpus_per_node,
                instance_types=each.instance_types,
                regions=self.placement.regions,
                zones=tuple(self._storage_zones) or self.placement.zones,
                market=market,
                file_servers=tuple(dict.fromkeys(each.server for each in self.mounted if each.server)),
                alternative=number,
            )
            for market in self.markets
            if market in sold_by(self.placement.cloud)
            for number, each in enumerate(self.resources)
        )


def parse_spec(value: Any) -> JobSpec:
    """Return a job file's content as a spec. Raises UsageError: one sentence that names the key and what would be
    right."""
    if not isinstance(value, dict):
        raise UsageError("a job file is a mapping of keys, such as `name: my-job`; this one is not")
    _check_size(value)
    if value.get("kind") == "data":
        value = {"nodes": 1, **value}  # the only possible number
    value = placement_and_places(value)
    try:
        return JobSpec.model_validate(_lists_to_tuples(value))
    except ValidationError as error:
        # Of `resources: {…}`, which is a list of one, people do not count entries.
        alone = frozenset() if isinstance(value.get("resources"), list | tuple) else frozenset({"resources"})
        raise UsageError(first_error(error, "the job file", JobSpec, alone)) from error


def _check_size(value: dict[Any, Any]) -> None:
    """Before anything walks it: YAML's aliases make a small file a huge or an endless value."""
    rest: list[tuple[Any, int]] = [(value, 1)]
    count = 0
    while rest:
        each, depth = rest.pop()
        count += 1
        if depth > MAX_SPEC_DEPTH:
            raise UsageError(f"the job file is nested too deeply: at most {MAX_SPEC_DEPTH} levels are accepted")
        if count > MAX_SPEC_BYTES:
            raise UsageError(f"the job file has too many values: at most {MAX_SPEC_BYTES} bytes are accepted")
        inside = each.values() if isinstance(each, dict) else each if isinstance(each, list | tuple) else ()
        rest += [(item, depth + 1) for item in inside]
    total = _bytes_of(value)
    if total > MAX_SPEC_BYTES:
        largest = max(value, key=lambda key: _bytes_of(value[key]))
        where, found = str(largest), value[largest]
        if isinstance(found, dict):
            deeper, found = max(found.items(), key=lambda item: _bytes_of(item[1]))
            where = f"{where}.{deeper}"
        raise UsageError(
            f"the job file has {total} bytes, and at most {MAX_SPEC_BYTES} are accepted; `{where[:80]}` alone has "
            f"{_bytes_of(found)}: put it into a file beside the code"
        )


def _bytes_of(value: Any) -> int:
    return len(json.dumps(value, default=str, skipkeys=True))


def _lists_to_tuples(value: Any) -> Any:
    # Strict models refuse a list for a tuple, and YAML and JSON have only lists.
    if isinstance(value, dict):
        return {key: _lists_to_tuples(item) for key, item in value.items()}
    if isinstance(value, list):
        return tuple(_lists_to_tuples(item) for item in value)
    return value
