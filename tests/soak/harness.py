"""etcd, nodes and a job in one folder; and what is left of them after the end."""

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
from tests.soak.fleet import Fleet
from tests.soak.job import KEYS, Job, eventually
from tests.soak.nodes import JOB, Network, SoakError, listening
from tests.soak.plan import Cluster
from tests.support import audited_worker
from tests.support.etcd_members import Members

CHECKPOINT_STEPS = 20
STEP_TIME_S = 0.03
WORKER = Path(audited_worker.__file__)
_ALONE_TIMEOUT_S = 600.0
_LEASES_TIMEOUT_S = 15.0
_TORCH_CACHE = "torchinductor_"  # torch never removes it
# Bounded by the number of nodes; the daemon removes them with the job.
_EXPECTED_KEYS = (
    *(KEYS.hint(JOB), KEYS.round(JOB), KEYS.result(JOB), KEYS.progress(JOB)),
    *(KEYS.tombstone(JOB, ""), KEYS.notice(JOB, "")),
)


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What an ended job has left behind. All but `keys`, a count, must be empty."""

    processes: tuple[str, ...]
    ports: tuple[int, ...]
    temporary: tuple[str, ...]
    unexpected_keys: tuple[str, ...]
    keys: int

    def violations(self) -> list[str]:
        """What should not be left, one sentence each."""
        parts = {
            "processes": self.processes,
            "listening ports": self.ports,
            "temporary files": self.temporary,
            "keys": self.unexpected_keys,
        }
        return [f"{what} left behind: {', '.join(map(str, found[:5]))}" for what, found in parts.items() if found]


class Harness:
    """Everything that one soak needs; see `harness`."""

    def __init__(self, folder: Path, cluster: Cluster, *, lease_ttl_s: float) -> None:
        self.folder = folder
        self.audit = folder / "nodes" / "audit"
        self._until = folder / "nodes" / "until"
        self._weights = folder / "nodes" / "weights.pt"
        self.etcd = Members(folder / "etcd")
        command = [str(WORKER), *self._arguments(self.audit, self._weights)]
        command += ["--step-time", str(STEP_TIME_S), "--every", str(CHECKPOINT_STEPS)]
        self.network = Network(folder / "nodes", self.etcd.endpoints, command, lease_ttl_s=lease_ttl_s)
        self.job = Job(self.etcd.endpoints, self.audit)
        self.fleet = Fleet(self.network, self.job, cluster)

    def finish(self) -> None:
        """End the job successfully at the end of an epoch. Raises SoakError."""
        self.fleet.finish(self._end_after)

    def report(self) -> audit.Report:
        """Which samples were repeated or missed, and each pause. Raises AuditError."""
        lines = [line for path in sorted(self.audit.rglob("*.jsonl")) for line in audit.parse(path.read_text())]
        return audit.analyse(lines, samples=audited_worker.SAMPLES, global_batch=audited_worker.GLOBAL_BATCH)

    def difference(self) -> float:
        """The largest difference between the job's weights and those of one undisturbed process."""
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
        """What is left after every launcher has ended and every lease may have ended."""
        keys = self.job.keys
        eventually("the members' leases to end", lambda: not _unexpected(keys()), _LEASES_TIMEOUT_S)
        found = keys()
        return Leftovers(
            processes=tuple(sorted(map(_describe, self.network.processes()))),
            ports=tuple(sorted(listening(self.network.address))),
            temporary=tuple(
                str(path.relative_to(self.folder))
                for node in self.network.nodes.values()
                for path in sorted((node.folder / "tmp").iterdir())
                if not path.name.startswith(_TORCH_CACHE)
            ),
            unexpected_keys=tuple(_unexpected(found)),
            keys=len(found),
        )

    def log_tails(self, lines: int = 6) -> str:
        """The end of every node's log."""
        logs = sorted(self.folder.glob("nodes/*/node.log"), key=lambda path: path.stat().st_mtime)
        return "\n".join(f"--- {log}\n{_tail(log, lines)}" for log in logs)

    def _arguments(self, audit_dir: Path, weights: Path) -> list[str]:
        return ["--audit", str(audit_dir), "--until", str(self._until), "--weights", str(weights)]

    def _end_after(self, step: int) -> None:
        """End with the epoch after the current one: every rank reads the file before it gets there."""
        epochs = step // audited_worker.STEPS_PER_EPOCH + 2
        temporary = self._until.with_suffix(".tmp")
        temporary.write_text(str(epochs * audited_worker.STEPS_PER_EPOCH))
        temporary.replace(self._until)


@contextmanager
def harness(folder: Path, cluster: Cluster, *, lease_ttl_s: float) -> Iterator[Harness]:
    """A job whose first round trains; at the end no process is left. Raises SoakError."""
    made = Harness(folder, cluster, lease_ttl_s=lease_ttl_s)
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
        raise SoakError(f"processes survive SIGKILL: {sorted(each.pid for each in left)}")


def _unexpected(keys: list[str]) -> list[str]:
    return [key for key in keys if not key.startswith(_EXPECTED_KEYS)]


def _describe(identity: processes.Identity) -> str:
    try:
        command = Path(f"/proc/{identity.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        command = "(ended)"
    return f"{identity.pid} {command.strip()[:120]}"


def _tail(path: Path, lines: int) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
