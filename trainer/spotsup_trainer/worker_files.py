"""The files through which a worker and its launcher communicate. An environment variable names each; all are optional.

Why not signals: Python runs a signal handler between two steps at best, and torchrun's SIGTERM also ends the data
loading workers. Why not a thread: the worker checks for one file per step, which costs microseconds.
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
    """Paths for one worker; None for a file that the launcher did not name."""

    # Written by the launcher: all ranks should checkpoint and park.
    yield_: Path | None = None
    # Written by this worker: it will park when asked.
    session: Path | None = None
    # Written by this worker: it has parked.
    parked: Path | None = None
    # Written by rank 0: how far training is.
    progress: Path | None = None

    @classmethod
    def named_by(cls, environ: Mapping[str, str]) -> WorkerFiles:
        """The files that the launcher named. Outside a spotsup job it names none, and every method does nothing."""

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
        """A sign of life, for the machine's dead-man switch (agent/dead_man_switch.py)."""
        if self.session is not None:
            with contextlib.suppress(OSError):  # a read-only disk must not stop training
                self.session.touch()

    def write_progress(self, progress: wire.Progress) -> None:
        """Replace the progress file atomically."""
        if self.progress is not None:
            _replace(self.progress, wire.encode(progress))

    def park(self, step: int, saved: bool, timeout_s: float) -> None:
        """Report that the step is saved (or that it could not be), and wait to be ended. Does not return.

        Raises SystemExit after `timeout_s` if the launcher has not ended this process by then.
        """
        if self.parked is not None:
            _replace(self.parked, json.dumps({"step": step, "saved": saved}).encode())
        time.sleep(timeout_s)
        raise SystemExit(
            f"spotsup: parked after step {step}; the launcher did not end this process in {timeout_s:.0f} s"
        )


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_bytes(content)
    temporary.replace(path)
