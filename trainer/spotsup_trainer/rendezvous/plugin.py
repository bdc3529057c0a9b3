"""The plugin that torchrun loads: `torchrun --rdzv-backend spotsup --rdzv-endpoint http://etcd:2379 --rdzv-id JOB ...`

It imports nothing at the top: torch loads it in every process, while its own rendezvous package is half imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous.api import RendezvousParameters

    from spotsup_trainer.rendezvous.handler import SpotsupRendezvousHandler


def create(params: RendezvousParameters) -> SpotsupRendezvousHandler:
    """Return the handler for torchrun's parameters and this process's environment. Raises ValueError."""
    from spotsup_trainer.rendezvous.handler import handler_from

    return handler_from(params, os.environ)


def entry() -> Callable[[RendezvousParameters], SpotsupRendezvousHandler]:
    """Return the entry point `spotsup` in torch's group `torchrun.handlers`."""
    return create
