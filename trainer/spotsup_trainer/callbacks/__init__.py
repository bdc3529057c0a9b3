"""For scripts that write their own checkpoints, or whose framework does: save by these means, and park.

    from spotsup_trainer.callbacks import Parking                      # for a loop of your own; needs torch only
    from spotsup_trainer.callbacks import SpotsupLightningCallback     # needs lightning, or pytorch_lightning
    from spotsup_trainer.callbacks import SpotsupTrainerCallback       # needs transformers

These names are public. Each framework is imported when its callback is first used.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["Parking", "SpotsupLightningCallback", "SpotsupTrainerCallback"]

_MODULES = {
    "Parking": "spotsup_trainer.callbacks.parking",
    "SpotsupLightningCallback": "spotsup_trainer.callbacks.lightning",
    "SpotsupTrainerCallback": "spotsup_trainer.callbacks.hugging_face",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
