"""A job to be disturbed: etcd, nodes and their words in one folder; and what is left of it once it has ended."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from spotsup_trainer.session import audit

from provisioners.localcloud import processes
from tests.soak import worker
from tests.soak.etcd import Members
from tests.soak.fleet import Fleet
from tests.soak.job import KEYS, Job, eventually
from tests.soak.nodes import JOB, Network, SoakError, listening
from tests.soak.plan import Cluster

CHECKPOINT_STEPS = 20
STEP_TIME_S = 0.03
WORKER = Path(worker.__file__)
_ALONE_TIMEOUT_S = 600.0
_LEASES_TIMEOUT_S = 15.0
_TORCHS_OWN = "torchinductor_"  # a cache for all processes of a user, which torch makes and never removes
# As many as there were nodes, at most; the daemon removes them with the job.
_KEPT = (
    *(KEYS.hint(JOB), KEYS.round(JOB), KEYS.result(JOB), KEYS.progress(JOB)),
    *(KEYS.tombstone(JOB, ""), KEYS.notice(JOB, "")),
)


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What a job that has ended left behind. All but `keys` must be empty; `keys`: how many there are."""

    processes: tuple[str, ...]
    ports: tuple[int, ...]
    temporary: tuple[str, ...]
    strange_keys: tuple[str, ...]
    keys: int

    def in_words(self) -> list[str]:
        """What should not be there."""
        parts = {
            "processes": self.processes,
            "ports that somebody listens on": self.ports,
            "temporary files": self.temporary,
            "keys": self.strange_keys,
        }
        return [f"{what} left behind: {', '.join(map(str, found[:5]))}" for what, found in parts.items() if found]


class Bed:
    """Use `bed`."""

    def __init__(self, folder: Path, cluster: Cluster, *, etcds: int = 1, lease_ttl_s: float) -> None:
        self.folder = folder
        self.audit = folder / "nodes" / "audit"
        self._until = folder / "nodes" / "until"
        self._weights = folder / "nodes" / "weights.pt"
        self.etcd = Members(folder / "etcd", etcds)
        command = [str(WORKER), *self._arguments(self.audit, self._weights)]
        command += ["--step-time", str(STEP_TIME_S), "--every", str(CHECKPOINT_STEPS)]
        self.network = Network(folder / "nodes", self.etcd.endpoints, command, lease_ttl_s=lease_ttl_s)
        self.job = Job(self.etcd.endpoints, self.audit)
        self.fleet = Fleet(self.network, self.job, cluster)

    def finish(self) -> None:
        """Have the job end with the end of an epoch, well. Raises SoakError."""
        self.fleet.finish(self._end_after)

    def lines(self) -> list[audit.Line]:
        """What every rank has written per completed step."""
        return [line for path in sorted(self.audit.rglob("*.jsonl")) for line in audit.parse(path.read_text())]

    def report(self) -> audit.Report:
        """The verdict on the data. Raises AuditError."""
        return audit.analyse(self.lines(), samples=worker.SAMPLES, global_batch=worker.GLOBAL_BATCH)

    def difference(self) -> float:
        """The largest between the weights of the job and those of one process that nothing has disturbed."""
        import torch

        alone = self.folder / "alone"
        alone.mkdir()
        weights = alone / "weights.pt"
        environ = {name: value for name, value in os.environ.items() if not name.startswith("SPOTSUP_")}
        with (alone / "log").open("wb") as log:
            subprocess.run(
                [sys.executable, str(WORKER), *self._arguments(alone, weights)],
                env=environ,
                stdout=log,
                stderr=log,
                timeout=_ALONE_TIMEOUT_S,
                check=True,
            )
        pairs = zip(torch.load(self._weights), torch.load(weights), strict=True)
        return max(float((one - other).abs().max()) for one, other in pairs)

    def leftovers(self) -> Leftovers:
        """What is there still, now that every launcher has ended; leases are given their time."""
        keys = self.job.keys
        eventually("the members' leases to end", lambda: not _strange(keys()), _LEASES_TIMEOUT_S)
        found = keys()
        return Leftovers(
            processes=tuple(sorted(map(_told, self.network.processes()))),
            ports=tuple(sorted(listening(self.network.address))),
            temporary=tuple(
                str(path.relative_to(self.folder))
                for node in self.network.nodes.values()
                for path in sorted((node.folder / "tmp").iterdir())
                if not path.name.startswith(_TORCHS_OWN)
            ),
            strange_keys=tuple(_strange(found)),
            keys=len(found),
        )

    def last_words(self, lines: int = 6) -> str:
        """The end of every log."""
        logs = sorted(self.folder.glob("nodes/*/node.log"), key=lambda path: path.stat().st_mtime)
        return "\n".join(f"--- {log}\n{_tail(log, lines)}" for log in logs)

    def _arguments(self, audit_dir: Path, weights: Path) -> list[str]:
        return ["--audit", str(audit_dir), "--until", str(self._until), "--weights", str(weights)]

    def _end_after(self, step: int) -> None:
        """With the epoch after the current one: every rank reads of it before it comes there."""
        epochs = step // worker.STEPS_PER_EPOCH + 2
        temporary = self._until.with_suffix(".tmp")
        temporary.write_text(str(epochs * worker.STEPS_PER_EPOCH))
        temporary.replace(self._until)


@contextmanager
def bed(folder: Path, cluster: Cluster, *, etcds: int = 1, lease_ttl_s: float) -> Iterator[Bed]:
    """A job whose first round trains; at the end no process is left, whatever happened. Raises SoakError."""
    made = Bed(folder, cluster, etcds=etcds, lease_ttl_s=lease_ttl_s)
    made.etcd.end_leftovers()
    made.network.close()
    shutil.rmtree(folder, ignore_errors=True)
    try:
        made.etcd.start_all()
        made.job.open()
        made.fleet.begin()
        yield made
    finally:
        left = made.network.close()
        made.job.close()
        made.etcd.close()
    if left:
        raise SoakError(f"processes withstand SIGKILL: {sorted(each.pid for each in left)}")


def _strange(keys: list[str]) -> list[str]:
    return [key for key in keys if not key.startswith(_KEPT)]


def _told(identity: processes.Identity) -> str:
    try:
        words = Path(f"/proc/{identity.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        words = "(ended)"
    return f"{identity.pid} {words.strip()[:120]}"


def _tail(path: Path, lines: int) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
