"""The launcher's side of the files by which it speaks with its workers, see worker_files.py. One folder per node.

Every name ends in its round's number, so that nothing of an old round can be taken for the current one's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from spotsup_trainer.wire import Progress, WireError, decode

_PER_ROUND = ("yield", "session", "parked", "progress")
_ENDED = "ended.json"


class RunDir:
    """Files of one node's launcher below `path`, which is created."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)

    def begin(self, number: int) -> None:
        """Remove what other rounds left."""
        for file in self.path.iterdir():
            kind, _, rest = file.name.partition("-")
            if kind in _PER_ROUND and rest.split("-")[0].split(".")[0] != str(number):
                file.unlink(missing_ok=True)

    def worker_env(self, number: int, local_rank: int) -> dict[str, str]:
        """The variables by which a worker finds its files."""
        return {
            "SPOTSUP_RUN_DIR": str(self.path),
            "SPOTSUP_YIELD_FILE": str(self.path / f"yield-{number}"),
            "SPOTSUP_SESSION_FILE": str(self.path / f"session-{number}-{local_rank}"),
            "SPOTSUP_PARKED_FILE": str(self.path / f"parked-{number}-{local_rank}"),
            "SPOTSUP_PROGRESS_FILE": str(self.path / f"progress-{number}.json"),
        }

    def ask_to_yield(self, number: int, reason: str) -> None:
        """Tell the workers to checkpoint together at the next step, and park."""
        _replace(self.path / f"yield-{number}", json.dumps({"reason": reason}))

    def sessions(self, number: int, ranks: int) -> int:
        """How many local workers have a Session, which will park when asked to."""
        return sum((self.path / f"session-{number}-{rank}").exists() for rank in range(ranks))

    def parked(self, number: int, ranks: int) -> int:
        """How many local workers have completed their checkpoint and only wait to be ended."""
        return sum((self.path / f"parked-{number}-{rank}").exists() for rank in range(ranks))

    def write_ended(self, outcome: Literal["success", "failure", "left"], message: str) -> None:
        """How this launcher ends, for the agent that started it."""
        _replace(self.path / _ENDED, json.dumps({"outcome": outcome, "message": message}))

    def take_ended(self) -> tuple[str, str] | None:
        """Outcome and message of the launcher that ended, once. None when it died without a word."""
        file = self.path / _ENDED
        try:
            word = json.loads(file.read_text())
            file.unlink()
        except (OSError, ValueError):
            return None
        return str(word["outcome"]), str(word["message"])

    def progress(self) -> Progress | None:
        """What rank 0 last said, if its Session runs on this node."""
        newest: Progress | None = None
        for file in self.path.glob("progress-*.json"):
            try:
                found = decode(Progress, file.read_bytes())
            except (OSError, WireError):
                continue  # removed, or written by something else
            if newest is None or found.round > newest.round:
                newest = found
        return newest


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(text)
    temporary.replace(path)
