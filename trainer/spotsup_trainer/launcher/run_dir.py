"""The launcher's side of the files that it shares with its workers (see worker_files.py). One folder per node.

Every name has its round's number, so that a file of an old round cannot be taken for one of the current round.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from spotsup_trainer.wire import Progress, WireError, decode

_PER_ROUND = ("yield", "session", "parked", "progress")
_OUTCOME = "ended.json"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a launcher ended."""

    # left: in order, and the others go on.
    outcome: Literal["success", "failure", "left"]
    message: str


class RunDir:
    """Files of one node's launcher below `path`, which is created."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)

    def begin(self, number: int) -> None:
        """Remove the files of other rounds."""
        for file in self.path.iterdir():
            kind, _, rest = file.name.partition("-")
            if kind in _PER_ROUND and rest.split("-")[0].split(".")[0] != str(number):
                file.unlink(missing_ok=True)

    def worker_env(self, number: int, local_rank: int) -> dict[str, str]:
        """The environment variables that name a worker's files."""
        return {
            "SPOTSUP_RUN_DIR": str(self.path),
            "SPOTSUP_YIELD_FILE": str(self.path / f"yield-{number}"),
            "SPOTSUP_SESSION_FILE": str(self.path / f"session-{number}-{local_rank}"),
            "SPOTSUP_PARKED_FILE": str(self.path / f"parked-{number}-{local_rank}"),
            "SPOTSUP_PROGRESS_FILE": str(self.path / f"progress-{number}.json"),
        }

    def ask_to_yield(self, number: int, reason: str) -> None:
        """Ask the workers to checkpoint together at the next step, and park."""
        _replace(self.path / f"yield-{number}", json.dumps({"reason": reason}))

    def sessions(self, number: int, ranks: int) -> int:
        """How many local workers have a Session, which will park when asked to."""
        return sum((self.path / f"session-{number}-{rank}").exists() for rank in range(ranks))

    def parked(self, number: int, ranks: int) -> int:
        """How many local workers have completed their checkpoint and wait to be ended."""
        return sum((self.path / f"parked-{number}-{rank}").exists() for rank in range(ranks))

    def write_outcome(self, outcome: Outcome) -> None:
        """How this launcher ended, for the agent that started it."""
        _replace(self.path / _OUTCOME, json.dumps(asdict(outcome)))

    def take_outcome(self) -> Outcome | None:
        """How the launcher ended, once. None if it died without writing it, or wrote something else."""
        file = self.path / _OUTCOME
        try:
            raw = json.loads(file.read_text())
            file.unlink()
            found = Outcome(**raw)
        except (OSError, ValueError, TypeError):
            return None
        return found if found.outcome in {"success", "failure", "left"} else None

    def progress(self) -> Progress | None:
        """The newest progress that rank 0 wrote, if it runs on this node."""
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
