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

KeyPath = tuple[Any, ...]

_LEFT_OUT = object()


class Staging:
    """Copies to memory that is allocated once: allocating it takes several times as long as copying into it.

    The next copy overwrites the last one. With CUDA the memory is pinned.
    """

    def __init__(self) -> None:
        self._layout: list[Any] = []
        self._stager = BlockingAsyncStager()

    def copy(self, captured: dict[str, Any]) -> dict[str, Any]:
        """`captured` as it is now. Leaves other than tensors are deep-copied, and should be small."""
        tensors: dict[str, torch.Tensor] = {}

        def collect(path: KeyPath, leaf: Any) -> None:
            if isinstance(leaf, torch.Tensor):
                tensors[repr(path)] = leaf

        _rebuilt(captured, collect)
        staged = self._stage(tensors)
        return _rebuilt(  # type: ignore[no-any-return]  # a dictionary again
            captured, lambda path, leaf: staged[repr(path)] if repr(path) in staged else copy.deepcopy(leaf)
        )

    def _stage(self, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
        layout = [(name, *_kind(tensor)) for name, tensor in tensors.items()]
        if layout == self._layout:
            return self._stager.stage(tensors)  # type: ignore[no-any-return]  # torch is untyped here
        # Not by the stager itself: it always pins, and up to torch 2.6 its first copy of a CPU tensor is that tensor.
        self._layout, self._stager = [], BlockingAsyncStager(cache_staged_state_dict=True)
        self._stager.state_dict_cache = _create_cpu_state_dict(tensors, pin_memory=torch.cuda.is_available())
        staged: dict[str, Any] = self._stager.stage(tensors)
        self._layout = layout
        return staged


def fingerprint(captured: dict[str, Any]) -> int:
    """A number below 2**56, equal for ranks whose state has tensors of the same names and shapes."""
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
    """The tensors that are whole on every rank; not those in lists, whose indices must not change."""
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
