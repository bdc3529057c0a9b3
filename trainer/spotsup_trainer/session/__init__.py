"""What a training script uses: `Session`, its errors, data without a position, and weights out of a checkpoint.

Public: the names in `__all__`, and the module `audit`. torch is imported when a name is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spotsup_trainer.session.counted import Counted
    from spotsup_trainer.session.course import SessionError
    from spotsup_trainer.session.session import Session
    from spotsup_trainer.session.weights import load_weights

__all__ = ["Counted", "Session", "SessionError", "load_weights"]

_MODULES = {"Counted": "counted", "Session": "session", "SessionError": "course", "load_weights": "weights"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
