"""The instance types with a GPU, by cloud: catalog.toml, and what a user adds to it."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from provisioners.base import BY_THE_HOUR, Market, OfferQuery, ProvisionerError

_BUILT_IN = Path(__file__).with_name("catalog.toml")


class CatalogError(ProvisionerError):
    """The catalog has no such machine, or its file is not valid. The message lists what exists."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Gpu(_Strict):
    """A GPU model. `driver`: which of NVIDIA's kernel modules drives it."""

    memory_gib: Annotated[int, Field(gt=0)]
    driver: Literal["open", "proprietary"] = "open"


class MachineType(_Strict):
    """An instance type."""

    name: str
    gpu: str = ""
    gpus: Annotated[int, Field(ge=0)] = 0  # 0 where only the name is known
    vcpus: int | None = None  # None where the cloud has not published it
    memory_gib: float | None = None  # as `vcpus`
    efa: int = 0  # how many EFA interfaces it supports
    efa_first_card: bool = True  # whether its first network card, which carries IP, supports EFA
    markets: Annotated[tuple[Market, ...], Field(min_length=1)] = BY_THE_HOUR  # of these two, how it can be bought
    arch: Literal["x86_64", "arm64"] = "x86_64"  # of its CPU: the image has to fit
    # Compute Engine's names for a machine with attached GPUs. `name` is then ours: Google has no one name for both.
    machine_type: str = ""
    accelerator: str = ""


class Prices(_Strict):
    """On-demand prices of one region, and their source and date."""

    source: str
    usd_per_hour: Mapping[str, Annotated[float, Field(gt=0)]]


class CloudCatalog(_Strict):
    """One cloud's part."""

    types: tuple[MachineType, ...] = ()
    retired: Mapping[str, str] = {}
    prices: Mapping[str, Prices] = {}


class Catalog(_Strict):
    """The whole catalog."""

    gpus: Mapping[str, Gpu] = {}
    retired: Mapping[str, str] = {}
    # By the cloud's name; in the file, each is a table of its own.
    clouds: Mapping[str, CloudCatalog] = {}

    def cloud(self, name: str) -> CloudCatalog:
        """Return one cloud's part."""
        return self.clouds.get(name, CloudCatalog())

    def select(self, cloud: str, query: OfferQuery) -> tuple[MachineType, ...]:
        """Return the types that a job may run on, smallest GPU count first.

        Where `gpus_per_node` is given, only the smallest machines with at least that many: a job that asks for one GPU
        does not pay for eight because the small ones are sold out. Types that the job names need not be in the
        catalog. Raises CatalogError for a retired type or an unknown GPU.
        """
        listed = self.cloud(cloud)
        if query.instance_types:
            found = [self._named(cloud, name) for name in query.instance_types]
            found = [each for each in found if not query.gpu or not each.gpu or _is_gpu(each.gpu, query.gpu)]
        elif query.gpu:
            found = [each for each in listed.types if _is_gpu(each.gpu, query.gpu)]
            if not found:
                raise CatalogError(self._no_gpu(cloud, query.gpu))
        else:
            found = list(listed.types)
        return tuple(sorted(_smallest(found, query.gpus_per_node), key=lambda each: (each.gpus, each.name)))

    def type_of(self, cloud: str, name: str) -> MachineType:
        """Return a type by its name; only the name is set where the catalog does not have it."""
        return next((each for each in self.cloud(cloud).types if each.name == name), MachineType(name=name))

    def driver_of(self, machine: MachineType) -> Literal["open", "proprietary"]:
        """Return which kernel modules the machine's image needs."""
        return self.gpus[machine.gpu].driver if machine.gpu in self.gpus else "open"

    def price(self, cloud: str, region: str, name: str) -> tuple[float, str] | None:
        """(US dollars per hour on demand, "catalog: source and date"), None where no price is published."""
        prices = self.cloud(cloud).prices.get(region)
        if prices is None or name not in prices.usd_per_hour:
            return None
        return prices.usd_per_hour[name], f"catalog: {prices.source}"

    def _named(self, cloud: str, name: str) -> MachineType:
        why = self.cloud(cloud).retired.get(name)
        if why is not None:
            raise CatalogError(f"{name}: {why}")
        return self.type_of(cloud, name)

    def _no_gpu(self, cloud: str, gpu: str) -> str:
        retired = {name.lower(): (name, why) for name, why in self.retired.items()}
        if gpu.lower() in retired:
            name, why = retired[gpu.lower()]
            return f"{name}: {why}"
        there_are = ", ".join(dict.fromkeys(each.gpu for each in self.cloud(cloud).types))
        return f"no machine with a GPU {gpu!r} is known for {cloud}; there are: {there_are}"


def load_catalog(path: str = "", refreshed: Path | None = None) -> Catalog:
    """Return the built-in catalog; on top of it what a cloud described itself, where the file `refreshed` exists; on
    top of both the user's file, where `path` names one. Raises CatalogError.
    """
    catalog = _parse(_BUILT_IN)
    names = catalog.clouds.keys()  # another table of a file is a mistake
    if refreshed is not None and refreshed.exists():
        catalog = merged(catalog, _parse(refreshed, names))
    return merged(catalog, _parse(Path(path), names)) if path else catalog


def merged(base: Catalog, more: Catalog) -> Catalog:
    """`base` with `more` added; where both have an entry, that of `more` is used."""
    return Catalog(
        gpus={**base.gpus, **more.gpus},
        retired={**base.retired, **more.retired},
        clouds={name: _merged_cloud(base.cloud(name), more.cloud(name)) for name in {**base.clouds, **more.clouds}},
    )


def _merged_cloud(base: CloudCatalog, more: CloudCatalog) -> CloudCatalog:
    types = {each.name: each for each in (*base.types, *more.types)}
    retired = {name: why for name, why in base.retired.items() if name not in {each.name for each in more.types}}
    return CloudCatalog(
        types=tuple(types.values()), retired={**retired, **more.retired}, prices={**base.prices, **more.prices}
    )


def _parse(path: Path, clouds_known: Collection[str] | None = None) -> Catalog:
    """Parse a catalogue. Of the built-in file all tables are clouds, but for those that a Catalog has fields for."""
    try:
        parsed = tomllib.loads(path.read_text(encoding="utf-8"))
        names = parsed.keys() - Catalog.model_fields.keys() if clouds_known is None else clouds_known
        clouds = {name: parsed.pop(name) for name in names if name in parsed}
        return Catalog.model_validate({"clouds": clouds, **parsed}, strict=False)
    except OSError as error:
        raise CatalogError(f"the catalog {path} cannot be read: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise CatalogError(f"the catalog {path} is not TOML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]).removeprefix("clouds.")
        raise CatalogError(f"the catalog {path}: {where}: {first['msg'][:1].lower()}{first['msg'][1:]}") from error


def _is_gpu(name: str, wanted: str) -> bool:
    """A100 matches A100-40GB and A100-80GB."""
    return name.lower() == wanted.lower() or name.lower().startswith(f"{wanted.lower()}-")


def _smallest(types: list[MachineType], gpus: int) -> list[MachineType]:
    unlisted = [each for each in types if not each.gpus]
    enough = [each for each in types if each.gpus >= max(1, gpus)]
    fewest = min((each.gpus for each in enough), default=0)
    return unlisted + (enough if gpus == 0 else [each for each in enough if each.gpus == fewest])
