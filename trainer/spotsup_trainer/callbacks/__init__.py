"""For scripts whose framework runs the training loop: a callback that saves by the framework's means, and parks.

    from spotsup_trainer.callbacks import SpotsupLightningCallback     # needs lightning, or pytorch_lightning
    from spotsup_trainer.callbacks import SpotsupTrainerCallback       # needs transformers

Both names are public. Each framework is imported when its callback is first used.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["SpotsupLightningCallback", "SpotsupTrainerCallback"]

_MODULES = {
    "SpotsupLightningCallback": "spotsup_trainer.callbacks.lightning",
    "SpotsupTrainerCallback": "spotsup_trainer.callbacks.hugging_face",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
