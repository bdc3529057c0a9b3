"""Submit and watch spotsup jobs: `Client().submit("train.py", name="my-job")`. Standard library only."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spotsup.client import Client
    from spotsup.errors import (
        CommandRefusedError,
        DaemonUnreachableError,
        ForbiddenError,
        JobFailedError,
        NotFoundError,
        SpotsupError,
        UsageError,
    )
    from spotsup.job import Event, Job, Status
    from spotsup.sweep import Sweep, SweepStatus, Trial

__version__ = "0.1.0"
__all__ = [
    "Client",
    "CommandRefusedError",
    "DaemonUnreachableError",
    "Event",
    "ForbiddenError",
    "Job",
    "JobFailedError",
    "NotFoundError",
    "SpotsupError",
    "Status",
    "Sweep",
    "SweepStatus",
    "Trial",
    "UsageError",
]
# Loaded when it is used: most commands of `spotsupctl` need the transport alone.
_MODULES = {
    "spotsup.client": ("Client",),
    "spotsup.errors": (
        "CommandRefusedError",
        "DaemonUnreachableError",
        "ForbiddenError",
        "JobFailedError",
        "NotFoundError",
        "SpotsupError",
        "UsageError",
    ),
    "spotsup.job": ("Event", "Job", "Status"),
    "spotsup.sweep": ("Sweep", "SweepStatus", "Trial"),
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)
