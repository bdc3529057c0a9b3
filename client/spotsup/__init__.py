"""Submit and watch spotsup jobs: `Client().submit("train.py", name="my-job")`. Standard library only."""

from spotsup.client import Client
from spotsup.errors import (
    ConflictError,
    ForbiddenError,
    JobFailedError,
    NotFoundError,
    SpotsupError,
    UnreachableError,
    UsageError,
)
from spotsup.job import Event, Job, Status
from spotsup.sweep import Sweep, SweepStatus, Trial

__version__ = "0.1.0"
__all__ = [
    "Client",
    "ConflictError",
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
    "UnreachableError",
    "UsageError",
]
