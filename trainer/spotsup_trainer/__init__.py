"""What runs on a node of a spotsup job. Pure Python; torch is imported only by the modules that need it.

Public import paths: `from spotsup_trainer import Session`, `spotsup_trainer.session`, `spotsup_trainer.callbacks`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spotsup_trainer.session import MicroBatch, Session, SessionError

__all__ = ["MicroBatch", "Session", "SessionError", "__version__"]
# The version of both distributions. Besides, pyproject.toml pins spotsup-trainer to it.
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("spotsup_trainer.session.session"), name)
