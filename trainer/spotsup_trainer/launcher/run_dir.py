"""The launcher's side of the files that it shares with its workers (see worker_files.py). One folder per node.

Every name has its round's number, so that a file of an old round cannot be taken for one of the current round.
"""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from spotsup_trainer.moments import Moments, read_moments
from spotsup_trainer.timing import MAX_YIELD_S, SaveTimes
from spotsup_trainer.wire import Pauses, Progress, RankTimes, WireError, decode, encode
from spotsup_trainer.worker_files import replace_file

_OF_WORKERS = ("session", "parked", "progress", "stacks", "moments", "over", "ranktimes")
_PER_ROUND = (*_OF_WORKERS, "yield", "save", "gpucheck", "gpuverdict")
# Not of one round: a new one takes as long as the one before.
_TIMES = "times.json"
_OUTCOME = "ended.json"
_PAUSES = "pauses.json"


@dataclass(frozen=True)
class Outcome:
    """How a launcher ended."""

    # left: in order, and the others go on.
    outcome: Literal["success", "failure", "left"]
    message: str


class Sign(NamedTuple):
    """A worker's sign of life."""

    # Changes with each sign.
    mark: int
    # It hangs when no sign follows for so long.
    hangs_after_s: float


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
        """Return the environment variables that name a worker's files."""
        return {
            "SPOTSUP_RUN_DIR": str(self.path),
            "SPOTSUP_YIELD_FILE": str(self.path / f"yield-{number}"),
            "SPOTSUP_SESSION_FILE": str(self.path / f"session-{number}-{local_rank}"),
            "SPOTSUP_PARKED_FILE": str(self.path / f"parked-{number}-{local_rank}"),
            "SPOTSUP_PROGRESS_FILE": str(self.path / f"progress-{number}.json"),
            "SPOTSUP_RANK_TIMES_FILE": str(self._rank_times_file(number)),
            "SPOTSUP_SAVE_FILE": str(self.path / f"save-{number}"),
        } | (self._of_first_worker(number) if local_rank == 0 else {})

    def _of_first_worker(self, number: int) -> dict[str, str]:
        return {
            "SPOTSUP_TIMES_FILE": str(self.path / _TIMES),
            "SPOTSUP_MOMENTS_FILE": str(self._moments_file(number)),
        }

    def _moments_file(self, number: int) -> Path:
        return self.path / f"moments-{number}"

    def _rank_times_file(self, number: int) -> Path:
        return self.path / f"ranktimes-{number}.json"

    def ask_to_yield(self, number: int) -> None:
        """Ask the workers to checkpoint together at the next step, and park."""
        (self.path / f"yield-{number}").touch()

    def ask_to_save(self, number: int) -> None:
        """Ask the workers for a checkpoint at the next step; they train on."""
        (self.path / f"save-{number}").touch()

    def times(self) -> SaveTimes:
        """Return what checkpoints and steps take, as the workers measured it."""
        try:
            raw = json.loads((self.path / _TIMES).read_text())
            found = [min(max(float(raw[name]), 0.0), MAX_YIELD_S) for name in ("checkpoint_s", "step_s")]
        except (OSError, ValueError, TypeError, KeyError):
            return SaveTimes()
        return SaveTimes(*found) if all(map(math.isfinite, found)) else SaveTimes()

    def moments(self, number: int) -> Moments:
        """Return how far the node's first worker got in a round, and when."""
        return read_moments(self._moments_file(number))

    def pauses(self) -> Pauses | None:
        """Return the last pauses that this node has measured."""
        try:
            return decode(Pauses, (self.path / _PAUSES).read_bytes())
        except (OSError, WireError):
            return None

    def write_pauses(self, pauses: Pauses) -> None:
        """For the agent, which publishes them. A full disk must not stop training."""
        with contextlib.suppress(OSError):
            replace_file(self.path / _PAUSES, encode(pauses))

    def rank_times(self, number: int) -> RankTimes | None:
        """Return how long the ranks of a round work in a step, as rank 0 last wrote it here."""
        try:
            return decode(RankTimes, self._rank_times_file(number).read_bytes())
        except (OSError, WireError):
            return None

    def sessions(self, number: int, ranks: int) -> int:
        """Return how many local workers have a Session, which will park when asked to."""
        return sum((self.path / f"session-{number}-{rank}").exists() for rank in range(ranks))

    def parked(self, number: int, ranks: int) -> int:
        """Return how many local workers have completed their checkpoint and wait to be ended."""
        return sum((self.path / f"parked-{number}-{rank}").exists() for rank in range(ranks))

    def signs(self, number: int, ranks: int) -> list[Sign]:
        """Return the last sign of life of each local worker whose Session has completed a step, until its training
        ends."""
        return [sign for rank in range(ranks) if (sign := _sign(self.path / f"session-{number}-{rank}"))]

    def stacks(self, number: int, local_rank: int) -> Path:
        """Return where a worker writes its stacks when asked."""
        return self.path / f"stacks-{number}-{local_rank}"

    def over(self, number: int, local_rank: int) -> Path:
        """Return the file that a worker writes once its program has run to its end; its process may still have to
        end."""
        return self.path / f"over-{number}-{local_rank}"

    def ask_for_gpu_check(self, number: int) -> None:
        """Ask the agent whether the GPUs are the reason why a round's workers stopped."""
        (self.path / f"gpucheck-{number}").touch()

    def asked_gpu_check(self) -> int | None:
        """Return the round whose launcher waits for an answer."""
        for file in self.path.glob("gpucheck-*"):
            number = file.name.partition("-")[2]
            if number.isdigit() and not (self.path / f"gpuverdict-{number}.json").exists():
                return int(number)
        return None

    def answer_gpu_check(self, number: int, unhealthy: str) -> None:
        """`unhealthy`: why the GPUs cannot train; "" where they can, or where that is not known."""
        replace_file(self.path / f"gpuverdict-{number}.json", json.dumps({"unhealthy": unhealthy}).encode())

    def gpu_verdict(self, number: int) -> str | None:
        """Return the agent's answer; None while there is none."""
        try:
            return str(json.loads((self.path / f"gpuverdict-{number}.json").read_text())["unhealthy"])
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def write_outcome(self, outcome: Outcome) -> None:
        """Write how this launcher ended, for the agent that started it."""
        replace_file(self.path / _OUTCOME, json.dumps(asdict(outcome)).encode())

    def take_outcome(self) -> Outcome | None:
        """Return how the launcher ended, once. None if it died without writing it, or wrote something else."""
        file = self.path / _OUTCOME
        try:
            raw = json.loads(file.read_text())
            file.unlink()
            found = Outcome(**raw)
        except (OSError, ValueError, TypeError):
            return None
        return found if found.outcome in {"success", "failure", "left"} else None

    def progress(self) -> Progress | None:
        """Return the newest progress that rank 0 wrote, if it runs on this node."""
        newest: Progress | None = None
        for file in self.path.glob("progress-*.json"):
            try:
                found = decode(Progress, file.read_bytes())
            except (OSError, WireError):
                continue  # removed, or written by something else
            if newest is None or found.round > newest.round:
                newest = found
        return newest


def _sign(file: Path) -> Sign | None:
    try:
        return Sign(file.stat().st_mtime_ns, float(file.read_text()))
    except (OSError, ValueError):
        return None  # no step yet, or no more
