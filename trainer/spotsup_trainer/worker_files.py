"""The files through which a worker and its launcher communicate. An environment variable names each; all are optional.

Why not signals: Python runs a signal handler between two steps at best, and torchrun's SIGTERM also ends the data
loading workers. Why not a thread: the worker checks for one file per step, which costs microseconds.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from spotsup_trainer import wire
from spotsup_trainer.moments import MomentFile
from spotsup_trainer.objects import url as urls
from spotsup_trainer.timing import SaveTimes


def earlier_places(environ: Mapping[str, str]) -> list[str]:
    """Return where checkpoints of earlier jobs are, folders and addresses, the newest first (`spotsupctl submit
    --resume-from`)."""
    # the colon of an address separates nothing
    return [place for place in re.split(r":(?!//)", environ.get("SPOTSUP_RESUME_FROM", "")) if place]


def earlier_folders(environ: Mapping[str, str]) -> list[Path]:
    """Return those of `earlier_places` that are folders."""
    return [Path(place) for place in earlier_places(environ) if not urls.is_url(place)]


@dataclass(frozen=True)
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
    # Written by rank 0: how long each rank works in a step.
    rank_times: Path | None = None
    # Written by this node's first worker: how long checkpoints and steps take.
    times: Path | None = None
    # Written by the launcher, removed by the workers: all ranks should checkpoint, and train on.
    save: Path | None = None
    # Written by this node's first worker: when it got how far.
    moments: MomentFile = field(default_factory=lambda: MomentFile(None))

    @classmethod
    def named_by(cls, environ: Mapping[str, str]) -> WorkerFiles:
        """Return the files that the launcher named. Outside a spotsup job it names none, and every method does
        nothing."""

        def path(variable: str) -> Path | None:
            return Path(environ[variable]) if environ.get(variable) else None

        return cls(
            yield_=path("SPOTSUP_YIELD_FILE"),
            session=path("SPOTSUP_SESSION_FILE"),
            parked=path("SPOTSUP_PARKED_FILE"),
            progress=path("SPOTSUP_PROGRESS_FILE"),
            rank_times=path("SPOTSUP_RANK_TIMES_FILE"),
            times=path("SPOTSUP_TIMES_FILE"),
            save=path("SPOTSUP_SAVE_FILE"),
            moments=MomentFile(path("SPOTSUP_MOMENTS_FILE")),
        )

    def yield_wanted(self) -> bool:
        """True if the launcher asks to checkpoint and park."""
        return self.yield_ is not None and self.yield_.exists()

    def save_wanted(self) -> bool:
        """True if the launcher asks for a checkpoint now."""
        return self.save is not None and self.save.exists()

    def save_begun(self) -> None:
        """Take note that the checkpoint that the launcher asked for has begun."""
        if self.save is not None:
            with contextlib.suppress(OSError):
                self.save.unlink(missing_ok=True)

    def write_times(self, times: SaveTimes) -> None:
        """For the launcher and the agent, which have to know how long leaving takes."""
        if self.times is not None:
            with contextlib.suppress(OSError):  # a full disk must not stop training
                replace_file(self.times, json.dumps(asdict(times)).encode())

    def announce(self) -> None:
        """From now on the launcher waits for `parked`, instead of sending SIGTERM."""
        if self.session is not None:
            self.session.touch()

    def renew(self, hangs_after_s: float | None = None) -> None:
        """Give a sign of life, for the launcher and for the machine's dead-man switch (agent/dead_man_switch.py).

        If no other follows within `hangs_after_s`, this worker hangs; None: it may take any time.
        """
        if self.session is not None:
            with contextlib.suppress(OSError):  # a read-only disk must not stop training
                replace_file(self.session, b"" if hangs_after_s is None else f"{hangs_after_s:.1f}".encode())

    def write_progress(self, progress: wire.Progress) -> str:
        """Replace the progress file atomically. Returns why it could not, or "": a full disk must not stop training."""
        if self.progress is not None:
            try:
                replace_file(self.progress, wire.encode(progress))
            except OSError as error:
                return str(error)
        return ""

    def write_rank_times(self, times: wire.RankTimes) -> None:
        """For the agent, which publishes them."""
        if self.rank_times is not None:
            with contextlib.suppress(OSError):  # a full disk must not stop training
                replace_file(self.rank_times, wire.encode(times))

    def park(self, step: int, saved: bool, timeout_s: float) -> None:
        """Report that the step is saved (or that it could not be), and wait to be ended. Does not return.

        Raises SystemExit after `timeout_s` if the launcher has not ended this process by then.
        """
        if self.parked is not None:
            replace_file(self.parked, json.dumps({"step": step, "saved": saved}).encode())
        time.sleep(timeout_s)
        raise SystemExit(
            f"spotsup: parked after step {step}; the launcher did not end this process in {timeout_s:.0f} s"
        )


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that whoever reads it finds it whole. For one writer at a time. Raises OSError."""
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_bytes(content)
    temporary.replace(path)
