"""The files by which a worker process and its launcher speak: each is named by an environment variable, all optional.

No signals: Python runs a signal handler only between two steps at best, and torchrun's SIGTERM also ends the data
loading workers. No threads either: the worker looks for one file per step, which costs microseconds.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spotsup_trainer import wire


@dataclass(frozen=True, slots=True)
class WorkerFiles:
    """`yield_` is the launcher's: it exists once all ranks should checkpoint and park. The others are this worker's:
    `session` says that it will, `parked` that it did, `progress` (rank 0's) how far training is.
    """

    yield_: Path | None = None
    session: Path | None = None
    parked: Path | None = None
    progress: Path | None = None

    @classmethod
    def named_by(cls, environ: Mapping[str, str]) -> WorkerFiles:
        """The files that the launcher named. Outside a spotsup job there are none, and every method does nothing."""

        def path(variable: str) -> Path | None:
            return Path(environ[variable]) if environ.get(variable) else None

        return cls(
            yield_=path("SPOTSUP_YIELD_FILE"),
            session=path("SPOTSUP_SESSION_FILE"),
            parked=path("SPOTSUP_PARKED_FILE"),
            progress=path("SPOTSUP_PROGRESS_FILE"),
        )

    def yield_wanted(self) -> bool:
        """Whether the launcher asks to checkpoint and park."""
        return self.yield_ is not None and self.yield_.exists()

    def announce(self) -> None:
        """From now on the launcher waits for `parked`, instead of sending SIGTERM."""
        if self.session is not None:
            self.session.touch()

    def renew(self) -> None:
        """A sign of life, for the machine's dead-man switch (agent/heard.py)."""
        if self.session is not None:
            with contextlib.suppress(OSError):  # a disk that became read-only is no reason to stop training
                self.session.touch()

    def write_progress(self, progress: wire.Progress) -> None:
        """Replace the progress file in one go: a reader never sees half of it."""
        if self.progress is not None:
            _replace(self.progress, wire.encode(progress))

    def park(self, step: int, saved: bool, timeout_s: float) -> None:
        """Say that the step is safe (or that it could not be saved), and wait for the end. Does not return.

        Raises SystemExit after `timeout_s`, should nobody end this process.
        """
        if self.parked is not None:
            _replace(self.parked, json.dumps({"step": step, "saved": saved}).encode())
        time.sleep(timeout_s)
        raise SystemExit(f"spotsup: parked after step {step}, but nobody ended this process for {timeout_s:.0f} s")


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_bytes(content)
    temporary.replace(path)
