"""Everything that runs on a node of a spotsup job. Pure Python; torch is imported only by the modules that need it.

Public, for training scripts:

    from spotsup_trainer import Session, SessionError
    from spotsup_trainer.session import Counted, Session, SessionError, load_weights
    from spotsup_trainer.session.audit import analyse, parse
    from spotsup_trainer.callbacks import Parking, SpotsupLightningCallback, SpotsupTrainerCallback

Public, for command lines: `spotsup-agent`, `python -m spotsup_trainer.launcher`,
`python -m spotsup_trainer.launcher.data_job`, and `torchrun --rdzv-backend spotsup`.

Shared with the daemon: `wire` (the messages) and `etcd` (the client). Everything else is internal:

    agent/        one process per node: runs the launcher, reads preemption notices, publishes logs and progress
    launcher/     starts and stops the node's workers
    rendezvous/   which nodes form the next round
    session/      checkpoints, data and progress of a training script
    callbacks/    the same for Lightning and Hugging Face
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spotsup_trainer.session import Session, SessionError

__all__ = ["Session", "SessionError", "__version__"]
# The version of both distributions. Besides, pyproject.toml pins spotsup-trainer to it.
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("spotsup_trainer.session"), name)
