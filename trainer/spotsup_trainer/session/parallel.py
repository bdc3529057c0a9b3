"""Which ranks get different samples: as the program says, or else as far as DTensors and their meshes tell.

Ranks along a data dimension (DDP, FSDP2, HSDP) each train on samples of their own. Ranks along any other dimension
(tensor or context parallelism) work on the same samples together; given different ones, they compute nonsense without
an error.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from spotsup_trainer.session.course import SessionError

# The parts of dimensions' names, as torch's documentation and TorchTitan give them ("dp_shard_cp": not data).
_DATA = {"dp", "ddp", "fsdp", "hsdp", "data", "batch", "replicate", "replica", "shard"}
_OTHER = {"tp", "cp", "pp", "sp", "mp", "tensor", "context", "pipeline", "sequence", "model"}


@dataclass(frozen=True)
class Dimension:
    """One dimension of a parameter's mesh."""

    # Empty: the mesh has no names.
    name: str
    # Ranks along it.
    size: int
    # Whether they hold the same part of the parameter.
    replicated: bool

    @property
    def is_data(self) -> bool | None:
        """Return whether its name is that of a data dimension; None: the name does not tell."""
        parts = set(re.split(r"[^a-z]+", self.name.lower()))
        return False if parts & _OTHER else True if parts & _DATA else None


@dataclass(frozen=True)
class Distributed:
    """A parameter that is a DTensor."""

    name: str
    dimensions: tuple[Dimension, ...]
    # Whether it belongs to a module that fully_shard() was called on, or to a part of one.
    by_fsdp: bool

    @property
    def ranks(self) -> int:
        """Return the ranks of its mesh."""
        return prod(dimension.size for dimension in self.dimensions)


def distributed(state: Mapping[str, Any]) -> list[Distributed]:
    """Return the DTensors among the parameters of the modules in `state`. Those of FSDP1 are none."""
    tensors, fsdp = sys.modules.get("torch.distributed.tensor"), sys.modules.get("torch.distributed.fsdp")
    if tensors is None or not hasattr(tensors, "DTensor"):
        return []  # what was never imported is not used, and importing it takes a while
    found = []
    for name, thing in state.items():
        if not isinstance(thing, torch.nn.Module):
            continue
        roots = [part for part in thing.modules() if fsdp is not None and isinstance(part, fsdp.FSDPModule)]
        by_fsdp = {id(parameter) for root in roots for parameter in root.parameters()}
        for parameter_name, parameter in thing.named_parameters():
            if isinstance(parameter, tensors.DTensor):
                mesh = parameter.device_mesh
                names = mesh.mesh_dim_names or ("",) * mesh.ndim
                replicated = [isinstance(placement, tensors.Replicate) for placement in parameter.placements]
                sizes = [mesh.size(at) for at in range(mesh.ndim)]
                dimensions = tuple(map(Dimension, names, sizes, replicated))
                found.append(Distributed(f"{name}.{parameter_name}", dimensions, id(parameter) in by_fsdp))
    return found


def refusal(parameters: Iterable[Distributed], world: int) -> str | None:
    """Return why not all of `world` ranks are data-parallel, in one sentence; None: they are, as far as DTensors tell.

    Where names do not tell, a parameter is data-parallel if FSDP sharded it over one dimension, or replicated it over
    one and sharded it over the next (HSDP): with tensor parallelism below, FSDP's own dimension is a sharded one. A
    mesh that leaves out ranks says nothing about what these hold.
    """
    for parameter in parameters:
        dimensions = [dimension for dimension in parameter.dimensions if dimension.size > 1]
        other = next((one for one in dimensions if one.is_data is False), None)
        if other is None and not all(one.is_data for one in dimensions) and not _is_fsdp(parameter, dimensions):
            other = next(one for one in reversed(dimensions) if not one.is_data)
        if other is not None:
            where = f"the mesh dimension {other.name!r}" if other.name else "a mesh dimension without a name"
            return _sentence(parameter.name, where)
        if parameter.ranks < world:
            named = ", ".join(repr(one.name) for one in parameter.dimensions if one.name)
            where = f"a mesh ({named}) of" if named else "a mesh of"
            return _sentence(parameter.name, f"{where} {parameter.ranks} of the {world} ranks")
    return None


def _is_fsdp(parameter: Distributed, dimensions: list[Dimension]) -> bool:
    replicated = [one.replicated for one in dimensions]
    return parameter.by_fsdp and replicated in ([False], [True, False])


def _sentence(parameter: str, where: str) -> str:
    return (
        f"{parameter} is a DTensor over {where}, which looks like tensor or context parallelism, but each rank would "
        "get samples of its own: write Session(..., mesh=mesh, data_dims=(...)) with the mesh of all ranks and the "
        "names of the dimensions along which samples differ, such as ('dp',)"
    )


@dataclass(frozen=True)
class Mesh:
    """The mesh of all ranks, as this rank sees it."""

    # None: it was made without.
    names: tuple[str, ...] | None
    sizes: tuple[int, ...]
    # This rank's place along each dimension; None: it is not in the mesh.
    coordinate: tuple[int, ...] | None

    def __str__(self) -> str:
        return " x ".join(f"{name} {size}" for name, size in zip(self.names or ["?"] * len(self.sizes), self.sizes))

    @classmethod
    def of(cls, mesh: Any) -> Mesh:
        """Return what a torch DeviceMesh says."""
        coordinate = mesh.get_coordinate()
        sizes = tuple(mesh.size(at) for at in range(mesh.ndim))
        return cls(mesh.mesh_dim_names, sizes, None if coordinate is None else tuple(coordinate))


def misfit(mesh: Mesh, data_dims: Sequence[str], world: int) -> str | None:
    """Return why `mesh` and `data_dims` do not tell which of `world` ranks share samples, in one sentence; None: they
    do."""
    if mesh.names is None:
        return "the mesh has no names: make it with init_device_mesh(..., mesh_dim_names=('dp', 'tp'))"
    if unknown := [name for name in data_dims if name not in mesh.names]:
        return f"data_dims has {unknown[0]!r}, but the mesh has the dimensions {', '.join(mesh.names)}"
    ranks = prod(mesh.sizes)
    if ranks == world and mesh.coordinate is not None:
        return None
    together = prod(size for name, size in zip(mesh.names, mesh.sizes) if name not in data_dims)
    if world % together:
        return (
            f"the world size, {world}, is not a multiple of {together}, so the mesh ({mesh}) leaves out ranks: let "
            f"rounds have a multiple of {together} processes, by nodes.multiple_of in the job file"
        )
    return (
        f"the mesh ({mesh}) has {ranks} of the {world} ranks: give the Session the mesh of all ranks, not a part of it"
    )


def place(mesh: Mesh, data_dims: Sequence[str]) -> tuple[int, int]:
    """(rank, number of ranks) along the data dimensions together, the first of the mesh's varying slowest.

    The same rank for all that differ only on other dimensions. Only for a mesh and dimensions without a `misfit`.
    """
    assert mesh.names is not None
    assert mesh.coordinate is not None
    rank, world = 0, 1
    for name, size, at in zip(mesh.names, mesh.sizes, mesh.coordinate):
        if name in data_dims:
            rank, world = rank * size + at, world * size
    return rank, world


def data_place(
    state: Mapping[str, Any], mesh: Any, data_dims: Sequence[str] | None, rank: int, world: int
) -> tuple[int, int]:
    """(rank, number of ranks) among those that get different samples. Raises SessionError if that is unclear."""
    if (mesh is None) != (data_dims is None):
        raise SessionError("a mesh and data_dims tell together which ranks get different samples: give both or none")
    if mesh is None or data_dims is None:
        if reason := refusal(distributed(state), world):
            raise SessionError(reason)
        return rank, world
    seen, names = Mesh.of(mesh), (data_dims,) if isinstance(data_dims, str) else tuple(data_dims)
    if reason := misfit(seen, names, world):
        raise SessionError(reason)
    return place(seen, names)
