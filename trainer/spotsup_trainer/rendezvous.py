"""The plugins that torchrun loads: `torchrun --rdzv-backend spotsup --rdzv-endpoint http://etcd:2379 --rdzv-id JOB ...`
and `--rdzv-backend etcd-v3`, which is torch's own handler with etcd behind it.

It imports nothing: torch loads it while its own rendezvous package is half imported, in all processes that import that.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous.api import RendezvousParameters
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

    from spotsup_trainer.handler import SpotsupRendezvousHandler


def create(params: RendezvousParameters) -> SpotsupRendezvousHandler:
    """The handler for torchrun's parameters and this process's environment. Raises ValueError."""
    from spotsup_trainer.handler import handler_from

    return handler_from(params, os.environ)


def create_etcd_v3(params: RendezvousParameters) -> DynamicRendezvousHandler:
    """torch's own handler, on etcd v3. Raises ValueError."""
    # With a shared store, torch 2.13's survivors keep the old round's address and a replacement never trains.
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")

    from spotsup_trainer.dynamic import handler_from

    return handler_from(params, os.environ)


def entry() -> Callable[[RendezvousParameters], SpotsupRendezvousHandler]:
    """What torch's entry point group `torchrun.handlers` calls for `spotsup`."""
    return create


def entry_etcd_v3() -> Callable[[RendezvousParameters], DynamicRendezvousHandler]:
    """The same for `etcd-v3`."""
    return create_etcd_v3
