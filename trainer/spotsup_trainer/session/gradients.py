"""Gradients that are those of the mean over the whole global batch, over any number of ranks and micro-batches."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from spotsup_trainer.session.course import SessionError
from spotsup_trainer.session.peers import Peers

# Gradients of counted losses are summed up as if each micro-batch of all ranks together had so many items, until their
# number is known. A power of two: scaling by it and back changes no digit.
_PROVISIONAL = 1024
_TINY = 1e-20


class Gradients:
    """Backward passes through the modules of a Session's state."""

    def __init__(self, state: Mapping[str, Any], peers: Peers) -> None:
        self._peers = peers
        self._modules = [thing for thing in state.values() if isinstance(thing, torch.nn.Module)]
        parts = [part for module in self._modules for part in module.modules()]
        replicated = [part for part in parts if isinstance(part, torch.nn.parallel.DistributedDataParallel)]
        # One of a static graph must not be switched: it averages each micro-batch, which is as exact.
        self._replicated = [part for part in replicated if not part.static_graph]
        fsdp: Any = sys.modules.get("torch.distributed.fsdp")  # what was never imported is not used
        self._sharded = [part for part in parts if hasattr(fsdp, "FSDPModule") and isinstance(part, fsdp.FSDPModule)]
        # True if the ranks meet in each forward or backward pass, so that all need as many micro-batches.
        by_fsdp1 = [part for part in parts if fsdp is not None and isinstance(part, fsdp.FullyShardedDataParallel)]
        self.meets_in_each_pass = bool(self._sharded or by_fsdp1) or len(self._replicated) < len(replicated)
        # The modules whose ranks meet only where gradients are averaged.
        self.replicas = [] if self._sharded or by_fsdp1 else self._modules
        self._synchronises = True
        self._begin()

    def _begin(self) -> None:
        self._loss: Any = 0.0
        self._weight: Any = 0.0
        self._count: Any = None
        self._pieces = 0
        self._complete = self._divided = False

    def before(self, first: bool, last: bool) -> None:  # called back with two values
        """Before the forward pass of a micro-batch, which is the first or last of its step, or between.

        What is known of a step that the program left out is forgotten. Gradients are averaged over ranks with the last
        one: DDP averages the sum of all micro-batches then, HSDP over the replicas. FSDP reduces those of each
        micro-batch: whole gradients of all parameters would not fit.
        """
        if first:
            self._begin()
        if last == self._synchronises:
            return
        self._synchronises = last
        for part in self._replicated:
            part.require_backward_grad_sync = last
        for part in self._sharded:
            part.set_requires_all_reduce(last)

    def backward(self, loss: torch.Tensor, weight: float, count: Any, scaler: Any, *, last: bool) -> None:
        """As Session.backward says."""
        if self._complete:
            self._begin()
        if self._divided:
            raise SessionError(
                "backward() with a `count` was called again after the step's last micro-batch: add up the losses of a "
                "batch first, and let session.loader() make the micro-batches"
            )
        if self._pieces and (count is None) != (self._count is None):
            raise SessionError("backward() got a `count` for some micro-batches of a step only: give it to all or none")
        self._pieces += 1
        if count is not None:
            count = count if weight else 0 * count  # a sample that is repeated counts for another rank
            self._count = count if self._count is None else self._count + count
            weight = count / _PROVISIONAL
        # a loss of weight 0 is shown where there is no other
        share = weight.detach().clamp(min=_TINY) if isinstance(weight, torch.Tensor) else max(weight, _TINY)
        shown = loss.detach().float()
        if count is not None:  # a mean over nothing is not a number
            shown = torch.where(torch.as_tensor(count, device=shown.device) > 0, shown, torch.zeros_like(shown))
        self._loss, self._weight = self._loss + share * shown, self._weight + share
        scaled = weight * loss
        (scaler.scale(scaled) if scaler is not None else scaled).backward()
        if last and count is not None:
            self._divide_by_count()

    def complete(self) -> None:
        """Take note that the optimizer's step is done."""
        self._complete = True

    @property
    def mean_loss(self) -> Any:
        """Return the mean loss of this rank's samples, of the current step or the last one; None without backward()."""
        return self._loss / self._weight if self._pieces else None

    def _divide_by_count(self) -> None:
        """Turn what the ranks have averaged, of sums, into the mean over all ranks' items."""
        self._divided = True
        factor = self._peers.world * _PROVISIONAL / self._total(self._count)
        parameters = {id(each): each for module in self._modules for each in module.parameters()}
        found = [each.grad for each in parameters.values() if each.grad is not None]
        alike: defaultdict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = defaultdict(list)
        for gradient in [each.to_local() if hasattr(each, "to_local") else each for each in found]:
            alike[gradient.device, gradient.dtype].append(gradient)
        for kind, gradients in alike.items():  # one kernel for many
            torch._foreach_mul_(gradients, factor.to(*kind) if isinstance(factor, torch.Tensor) else factor)

    def _total(self, count: Any) -> Any:
        """Return the sum of all ranks' counts; of at least one item. A tensor on a GPU stays there: nothing waits for
        it."""
        if isinstance(count, torch.Tensor) and count.device.type != "cpu":
            total = count.detach().double().reshape(()) if count.device.type != "mps" else count.detach().float()
            if self._peers.world > 1:
                dist.all_reduce(total)
            return total.clamp(min=1.0)
        return max(1.0, self._peers.total(float(count)))
