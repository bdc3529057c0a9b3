"""Copies the part of the state that this rank writes to CPU memory, while training goes on with the original.

With plain DDP every rank has the same tensors, and each must be written once. torch lets every rank copy all of them,
and then skip those that another rank writes. Here the ranks divide them before the copy, which divides its time and its
memory by the number of ranks.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.distributed._state_dict_utils import _create_cpu_state_dict
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.tensor import DTensor

from spotsup_trainer.session.memory import Room, aligned, bytes_at, first_place

KeyPath = tuple[Any, ...]

_LEFT_OUT = object()


class Staging:
    """Copies to memory that is allocated once: allocating it takes several times as long as copying into it.

    The next copy to the same memory overwrites the last one. With CUDA its own memory is pinned; a slot's is not: it is
    mapped anew when it grows, and CUDA would go on using the pages of before.
    """

    def __init__(self) -> None:
        self._room = Room()

    def copy(self, captured: dict[str, Any], room: Room | None = None) -> dict[str, Any]:
        """`captured` as it is now, in the memory of `room`, or of its own. Leaves other than tensors are deep-copied,
        and should be small."""
        tensors = _tensors(captured)
        staged = _stage(tensors, self._room if room is None else room)
        return _rebuilt(  # type: ignore[no-any-return]  # a dictionary again
            captured, lambda path, leaf: staged[repr(path)] if repr(path) in staged else copy.deepcopy(leaf)
        )


def room_for(captured: dict[str, Any]) -> int:
    """Bytes that a copy of `captured` takes in a slot."""
    return _places(_tensors(captured))[1]


def _tensors(captured: dict[str, Any]) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}

    def collect(path: KeyPath, leaf: Any) -> None:
        if isinstance(leaf, torch.Tensor):
            tensors[repr(path)] = leaf

    _rebuilt(captured, collect)
    return tensors


def _stage(tensors: dict[str, torch.Tensor], room: Room) -> dict[str, Any]:
    layout = [(name, *_kind(tensor)) for name, tensor in tensors.items()]
    if room.stager is not None and layout == room.layout:
        return room.stager.stage(tensors)  # type: ignore[no-any-return]  # torch is untyped here
    # Not by the stager itself: it always pins, and up to torch 2.6 its first copy of a CPU tensor is that tensor.
    room.layout, room.stager = [], BlockingAsyncStager(cache_staged_state_dict=True)
    pinned = torch.cuda.is_available()
    copies = _create_cpu_state_dict(tensors, pin_memory=pinned and room.memory is None)
    if room.memory is not None:
        places, _ = _places(tensors)
        for name, (at, size) in places.items():
            local = _local(tensors[name])
            view = bytes_at(room.memory, at, size).view(local.dtype).view(local.shape)
            if local is tensors[name]:
                copies[name] = view
            else:
                copies[name]._local_tensor = view  # noqa: SLF001  # as torch itself sets it
    room.stager.state_dict_cache = copies
    staged: dict[str, Any] = room.stager.stage(tensors)
    room.layout = layout
    return staged


def _places(tensors: dict[str, torch.Tensor]) -> tuple[dict[str, tuple[int, int]], int]:
    """Return where in a slot the bytes of which tensors are, and how many bytes they take in all. Only of plain tensors
    and DTensors, which have one part per rank."""
    places, at = {}, first_place()
    for name, tensor in tensors.items():
        local = _local(tensor)
        if local is not None and local.numel() and tensor.dim() and local.layout == torch.strided:
            at = aligned(at)
            places[name] = (at, local.nbytes)
            at += local.nbytes
    return places, at - first_place()


def _local(tensor: Any) -> Any:
    """This rank's part of a tensor; None of a kind that may have several."""
    if isinstance(tensor, DTensor):
        return tensor._local_tensor  # noqa: SLF001  # to_local() would make autograd's nodes
    return tensor if type(tensor) in {torch.Tensor, torch.nn.Parameter} else None


def fingerprint(captured: dict[str, Any]) -> int:
    """Return a number below 2**56, equal for ranks whose state has tensors of the same names and shapes."""
    names = sorted((repr(path), *_kind(tensor)) for path, tensor in replicated(captured))
    return int.from_bytes(hashlib.blake2b(repr(names).encode(), digest_size=7).digest(), "big")


def share(captured: dict[str, Any], rank: int, world: int) -> dict[str, Any]:
    """`captured` without the tensors that other ranks write. All ranks must have the same `fingerprint`.

    Sharded tensors, and leaves other than tensors, stay.
    """
    loads, others = [0] * world, set()
    by_size = sorted(replicated(captured), key=lambda entry: (-entry[1].nbytes, repr(entry[0])))
    for path, tensor in by_size:
        writer = loads.index(min(loads))
        loads[writer] += tensor.nbytes
        if writer != rank:
            others.add(path)
    mine = _rebuilt(captured, lambda path, leaf: _LEFT_OUT if path in others else leaf)
    return {} if mine is _LEFT_OUT else mine


def replicated(value: dict[str, Any], path: KeyPath = ()) -> Iterator[tuple[KeyPath, torch.Tensor]]:
    """Yield the tensors that are whole on every rank; not those in lists, whose indices must not change."""
    for key, leaf in value.items():
        if isinstance(leaf, dict):
            yield from replicated(leaf, (*path, key))
        elif type(leaf) in {torch.Tensor, torch.nn.Parameter}:
            yield (*path, key), leaf


def _rebuilt(value: Any, change: Callable[[KeyPath, Any], Any], path: KeyPath = ()) -> Any:
    """Nested dictionaries and lists with changed leaves. A dictionary that loses all its leaves is left out, too."""
    if isinstance(value, dict) and value:
        parts = {key: _rebuilt(part, change, (*path, key)) for key, part in value.items()}
        return {key: part for key, part in parts.items() if part is not _LEFT_OUT} or _LEFT_OUT
    if type(value) is list:
        return [_rebuilt(part, change, (*path, at)) for at, part in enumerate(value)]
    return change(path, value)


def _kind(tensor: torch.Tensor) -> tuple[str, tuple[int, ...], str, str]:
    return type(tensor).__name__, tuple(tensor.shape), str(tensor.dtype), repr(getattr(tensor, "placements", None))
