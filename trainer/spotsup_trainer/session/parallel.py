"""Which ranks may get different samples. Read from DTensors and their meshes: plain tensors do not tell.

Ranks along a data dimension (DDP, FSDP2, HSDP) each train on samples of their own. Ranks along any other dimension
(tensor or context parallelism) work on the same samples together; given different ones, they compute nonsense without
an error.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

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
        """Whether its name is that of a data dimension; None: the name does not tell."""
        words = set(re.split(r"[^a-z]+", self.name.lower()))
        return False if words & _OTHER else True if words & _DATA else None


@dataclass(frozen=True)
class Distributed:
    """A parameter that is a DTensor."""

    name: str
    dimensions: tuple[Dimension, ...]
    # Whether it belongs to a module that fully_shard() was called on, or to a part of one.
    by_fsdp: bool

    @property
    def ranks(self) -> int:
        """Of its mesh."""
        size = 1
        for dimension in self.dimensions:
            size *= dimension.size
        return size


def distributed(state: Mapping[str, Any]) -> list[Distributed]:
    """The DTensors among the parameters of the modules in `state`. Those of FSDP1 are none."""
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
    """Why not all of `world` ranks are data-parallel, in one sentence; None: they are, as far as DTensors tell.

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
        f"{parameter} is a DTensor over {where}, which looks like tensor or context parallelism, but a Session gives "
        "each rank samples of its own: it supports DDP, and FSDP2 or HSDP over all ranks, with mesh dimensions named "
        "like dp_replicate and dp_shard"
    )
