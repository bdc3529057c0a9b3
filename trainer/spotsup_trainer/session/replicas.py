"""Whether tensors that every rank has whole are the same on all ranks: a checkpoint keeps one rank's copy for all.

A few elements of each are compared, bit by bit. Ranks that hold parts which the program cut by hand, or that were never
synchronised, differ in most elements.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from spotsup_trainer.session.staging import replicated

_ELEMENTS = 16  # of a tensor, at equal distances


def sample(state: Mapping[str, Any], captured: Mapping[str, Any]) -> dict[str, bytes]:
    """Dotted name -> some elements, of the parameters and optimizers of `state`, which was captured.

    Not of sharded tensors. Not of buffers either: under DDP each rank has its own statistics of batch normalisation.
    """
    chosen: defaultdict[tuple[torch.device, torch.dtype], list[tuple[str, torch.Tensor]]] = defaultdict(list)
    for name, tensor in _alike(state, captured):
        chosen[tensor.device, tensor.dtype].append((name, _some(tensor.detach())))
    sampled: dict[str, bytes] = {}
    for tensors in chosen.values():
        # one kernel and one transfer, where the tensors are on a GPU
        together = torch.cat([elements for _, elements in tensors]).cpu().contiguous()
        raw = together.view(torch.uint8).numpy().tobytes()
        at = 0
        for name, elements in tensors:
            size = elements.numel() * elements.element_size()
            sampled[name], at = raw[at : at + size], at + size
    return sampled


def digest(sampled: Mapping[str, bytes]) -> int:
    """A number below 2**56, equal for ranks with equal samples."""
    hashed = hashlib.blake2b(digest_size=7)
    for name in sorted(sampled):
        hashed.update(f"{name}/{len(sampled[name])}/".encode() + sampled[name])
    return int.from_bytes(hashed.digest(), "big")


def difference(own: Mapping[str, bytes], others: Mapping[str, bytes]) -> str:
    """Which tensors of the same name differ, for a sentence; empty: none does. Ranks may have different names: stages
    of a pipeline do."""
    names = sorted(name for name in own.keys() & others.keys() if own[name] != others[name])
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "") if names else ""


def _alike(state: Mapping[str, Any], captured: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, thing in state.items():
        if isinstance(thing, torch.nn.Module):
            parameters = {parameter.data_ptr() for parameter in thing.parameters()}
        elif not isinstance(thing, torch.optim.Optimizer):
            continue
        for path, tensor in replicated({name: captured[name]}):
            plain = tensor.layout == torch.strided and tensor.numel()
            if plain and (isinstance(thing, torch.optim.Optimizer) or tensor.data_ptr() in parameters):
                yield ".".join(map(str, path)), tensor


def _some(tensor: torch.Tensor) -> torch.Tensor:
    # In the order of the memory: of a tensor in another one, such as channels-last, flattening would copy all.
    in_memory = tensor.permute(sorted(range(tensor.dim()), key=lambda at: -tensor.stride(at)))
    step = -(-tensor.numel() // _ELEMENTS)
    return in_memory.reshape(-1)[::step]
