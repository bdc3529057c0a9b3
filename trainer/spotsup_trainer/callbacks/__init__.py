"""For scripts whose training loop is a framework's: a callback that checkpoints by the framework's means, and parks.

    from spotsup_trainer.callbacks import SpotsupLightningCallback     # needs lightning, or pytorch_lightning
    from spotsup_trainer.callbacks import SpotsupTrainerCallback       # needs transformers

Each framework is imported when its callback is first asked for, and never otherwise.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "SpotsupLightningCallback": "spotsup_trainer.callbacks.lightning",
    "SpotsupTrainerCallback": "spotsup_trainer.callbacks.hugging_face",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
