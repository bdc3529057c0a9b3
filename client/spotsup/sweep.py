"""A sweep, as a user sees it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from spotsup import job as jobs
from spotsup.job import Job
from spotsup.transport import Transport


@dataclass(frozen=True)
class Trial:
    """One job of a sweep, and what came of it so far. `raw` has all that the daemon says of it."""

    name: str
    parameters: Mapping[str, Any]
    state: str
    step: int
    loss: float | None
    # By which trials are compared: the sweep's metric, or the loss. None while there is nothing.
    value: float | None
    usd: float
    raw: Mapping[str, Any] = field(repr=False, compare=False)


@dataclass(frozen=True)
class SweepStatus:
    """How a sweep is. `raw` has all that the daemon says of it."""

    name: str
    # running, finished, cancelling or cancelled.
    state: str
    metric: str
    mode: str
    # The name of the best job of those that have ended, None while there is none.
    best: str | None
    usd: float
    # Why its next job cannot begin just now, empty if it can.
    problem: str
    # By score, the best first; those without one last.
    trials: tuple[Trial, ...]
    raw: Mapping[str, Any] = field(repr=False, compare=False)

    @property
    def ended(self) -> bool:
        """True if no job runs, or is to."""
        return self.state in {"finished", "cancelled"}

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> SweepStatus:
        """Make a status from the API's row."""
        key = "loss" if row["metric"] == "loss" else "value"
        sign = -1.0 if row["mode"] == "max" else 1.0
        trials = [
            Trial(
                each["name"],
                each["parameters"],
                each["state"],
                each["step"],
                each["loss"],
                each[key],
                each["usd"],
                each,
            )
            for each in row["members"]
        ]
        trials.sort(key=lambda each: (each.value is None, sign * (each.value or 0.0)))
        return cls(
            row["name"],
            row["state"],
            row["metric"],
            row["mode"],
            row["best"],
            row["usd"],
            row["problem"] or "",
            tuple(trials),
            row,
        )


class Sweep:
    """A sweep of a daemon. Every method asks it anew, and raises SpotsupError."""

    def __init__(self, transport: Transport, name: str) -> None:
        self._transport = transport
        self.name = name

    def __repr__(self) -> str:
        return f"Sweep({self.name!r})"

    def status(self) -> SweepStatus:
        """Return how it is."""
        return SweepStatus.of(self._transport.get(self._path))

    def results(self) -> tuple[Trial, ...]:
        """Return its jobs with their parameters and scores, the best first."""
        return self.status().trials

    def job(self, trial: Trial | str) -> Job:
        """Return one of its jobs."""
        return Job(self._transport, trial if isinstance(trial, str) else trial.name)

    def wait(self, timeout_s: float | None = None) -> SweepStatus:
        """Until all of its jobs have ended. Raises TimeoutError."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not (status := self.status()).ended:
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"{self.name} is {status.state} after {timeout_s:g} s")
            time.sleep(jobs.POLL_S)
        return status

    def cancel(self) -> SweepStatus:
        """End its jobs, and begin no more of them."""
        return SweepStatus.of(self._transport.post(f"{self._path}/cancel"))

    @property
    def _path(self) -> str:
        return f"/v1/sweeps/{quote(self.name, safe='')}"
