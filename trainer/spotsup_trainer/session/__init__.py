"""What a training script uses: `Session` and its errors. Public: the names in `__all__`, and the module `audit`.

torch is imported when a name is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spotsup_trainer.session.course import SessionError
    from spotsup_trainer.session.session import Session

__all__ = ["Session", "SessionError"]

_MODULES = {"Session": "session", "SessionError": "course"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
