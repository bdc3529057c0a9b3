"""Whether parameters that every rank has whole are the same on all ranks, as DDP keeps them.

A few elements of each are compared after the first steps of a round. Ranks whose model nothing keeps alike, or that
hold parts which the program cut by hand, differ in most elements. Ranks on different processors may differ by rounding.
"""

from __future__ import annotations

import hashlib
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from spotsup_trainer.session.course import SessionError
from spotsup_trainer.session.peers import Peers

_ELEMENTS = 16  # of a tensor, at equal distances
# After the 1st, 2nd, 4th … step of a round: a learning rate may begin at 0, and a GradScaler leave out steps.
_LAST_CHECK = 1024
# Of a tensor's largest element.
_ROUNDING = 1e-4
_ROUNDING_EPS = 8


class Replicas:
    """The modules of a Session's state."""

    def __init__(self, state: Mapping[str, Any], peers: Peers) -> None:
        self._modules = {name: thing for name, thing in state.items() if isinstance(thing, torch.nn.Module)}
        self._peers = peers
        self._steps = 0

    def check(self, step: int) -> None:
        """Call after each step. Raise SessionError, on every rank, if a parameter is not the same. Collective."""
        self._steps += 1
        is_due = self._steps & (self._steps - 1) == 0 and self._steps <= _LAST_CHECK
        if self._peers.world == 1 or not self._modules or not is_due:
            return
        sampled = sample(self._modules)
        number = digest(sampled)
        highest, neg_lowest = self._peers.highest([number, -number])
        if highest == -neg_lowest:
            return
        differs = difference(sampled, self._peers.from_rank_0(sampled))
        (rank,) = self._peers.highest([self._peers.rank if differs else -1])
        if rank >= 0:
            named = self._peers.from_rank(rank, differs)
            raise SessionError(
                f"rank {rank} has other values than rank 0 in {named} after step {step}: nothing keeps the "
                "ranks' models alike. Wrap the model in DistributedDataParallel or fully_shard() and call "
                "what that returns, or average the gradients over all ranks before optimizer.step(). Leave what "
                "should differ between ranks out of the Session's state, or make what is cut over ranks DTensors"
            )


def sample(modules: Mapping[str, torch.nn.Module]) -> dict[str, torch.Tensor]:
    """Dotted name -> some elements, of the parameters of `modules` that are whole on each rank.

    Not of buffers: under DDP each rank has its own statistics of batch normalisation.
    """
    chosen: defaultdict[tuple[torch.device, torch.dtype], dict[str, torch.Tensor]] = defaultdict(dict)
    for name, parameter in _whole(modules):
        chosen[parameter.device, parameter.dtype][name] = _some(parameter.detach())
    sampled: dict[str, torch.Tensor] = {}
    for tensors in chosen.values():
        # one kernel and one transfer, where the tensors are on a GPU
        together = torch.cat(list(tensors.values())).cpu()
        sampled.update(zip(tensors, together.split([each.numel() for each in tensors.values()])))
    return sampled


def digest(sampled: Mapping[str, torch.Tensor]) -> int:
    """Return a number below 2**56, equal for ranks with equal samples."""
    hashed = hashlib.blake2b(digest_size=7)
    for name in sorted(sampled):
        hashed.update(f"{name}/{len(sampled[name])}/".encode() + sampled[name].view(torch.uint8).numpy().tobytes())
    return int.from_bytes(hashed.digest(), "big")


def difference(own: Mapping[str, torch.Tensor], others: Mapping[str, torch.Tensor]) -> str:
    """Return which tensors of the same name differ by more than rounding, for a sentence; empty: none does. Ranks may
    have different names: stages of a pipeline do."""
    names = sorted(name for name in own.keys() & others.keys() if _differs(own[name], others[name]))
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "") if names else ""


def _differs(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype or not one.is_floating_point():
        return not torch.equal(one, other)
    share = max(_ROUNDING, _ROUNDING_EPS * torch.finfo(one.dtype).eps)
    one, other = one.double(), other.double()
    largest = float(torch.cat([one, other]).abs().nan_to_num(posinf=0.0).max())
    return not torch.allclose(one, other, rtol=0.0, atol=share * largest, equal_nan=True)


def _whole(modules: Mapping[str, torch.nn.Module]) -> Iterator[tuple[str, torch.Tensor]]:
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")  # what was never imported is not used
    for name, module in modules.items():
        parts = [each for each in module.modules() if fsdp and isinstance(each, fsdp.FullyShardedDataParallel)]
        cut = {id(parameter) for part in parts for parameter in part.parameters()}
        for path, parameter in module.named_parameters():
            plain = type(parameter) is torch.nn.Parameter and parameter.layout == torch.strided
            if plain and parameter.numel() and parameter.device.type != "meta" and id(parameter) not in cut:
                yield f"{name}.{path}", parameter


def _some(tensor: torch.Tensor) -> torch.Tensor:
    # In the order of the memory: of a tensor in another one, such as channels-last, flattening would copy all.
    in_memory = tensor.permute(sorted(range(tensor.dim()), key=lambda at: -tensor.stride(at)))
    step = -(-tensor.numel() // _ELEMENTS)
    return in_memory.reshape(-1)[::step]
