"""What is measured before, during and after each fault: steps, journal and cloud, alerts, processes."""

from __future__ import annotations

import contextlib
import http.server
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from spotsup_trainer.etcd import Etcd, EtcdError
from spotsup_trainer.session import audit

from provisioners.localcloud import processes
from supervisor.events import ALERT_KINDS
from tests.chaos import space
from tests.chaos.context import Outcome
from tests.chaos.growth import Sample
from tests.chaos.machine_faults import parent_pids, parts
from tests.chaos.plan import ORDERLY
from tests.chaos.testbed import Testbed, command, descriptors

_GONE = frozenset({"gone", "lost", "failed"})


class Steps:
    """The audit lines of all ranks, read as they are written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._at: defaultdict[tuple[int, int], float] = defaultdict(float)
        self.newest_step = self.newest_round = 0
        self.newest_at = 0.0

    def read(self) -> Steps:
        """Read the new lines."""
        for path in self._folder.glob("*/*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                whole, _, _ = file.read().rpartition(b"\n")
            if whole:
                self._read[path] = self._read.get(path, 0) + len(whole) + 1
                for line in audit.parse(whole.decode() + "\n"):
                    self._take(line)
        return self

    def _take(self, line: audit.Line) -> None:
        at = self._at[line.round, line.step] = max(self._at[line.round, line.step], line.t)
        self.newest_round, self.newest_step = max((line.round, line.step), (self.newest_round, self.newest_step))
        self.newest_at = max(self.newest_at, at)

    def gap_s(self, since: float, until: float) -> float:
        """The longest time without a completed step; `since` and `until` in UNIX seconds."""
        return largest_gap_s(sorted(self._at.values()), since, until)

    def report(self, samples: int, global_batch: int) -> audit.Report:
        """Which samples were repeated or missed. Raises AuditError."""
        files = sorted(self._folder.glob("*/*.jsonl"))
        lines = [line for path in files for line in audit.parse(path.read_text())]
        return audit.analyse(lines, samples=samples, global_batch=global_batch)


def largest_gap_s(times: Iterable[float], since: float, until: float) -> float:
    """The longest time between two completed steps that overlaps the given span; `times` are in order."""
    ordered = [*times, float("inf")]
    return max(
        (min(new, until) - max(old, since) for old, new in pairwise(ordered) if new > since and old < until),
        default=until - since,
    )


def lost_steps(report: audit.Report, outcomes: Sequence[Outcome], began_at: float, most: int) -> list[str]:
    """Changes of round that lost more steps than `most`, or any after an orderly fault. `began_at`: when the run began,
    UNIX seconds."""
    first_at = {span.round: span.first_at for span in report.rounds}
    broken = []
    for change in report.changes:
        faults = [each.planned for each in outcomes if began_at + each.at_s <= first_at[change.after]]
        limit = 0 if faults and faults[-1].kind in ORDERLY else most
        if change.steps_lost > limit:
            cause = f"fault {faults[-1].number}, {faults[-1].kind}" if faults else "before the first fault"
            what = f"{change.steps_lost} steps were lost between rounds {change.before} and {change.after}"
            broken.append(f"{what} ({cause}); at most {limit} may be")
    return broken


class Webhook:
    """Receives alerts. `texts`: the bodies of all requests."""

    def __init__(self) -> None:
        texts: list[str] = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                texts.append(self.rfile.read(int(self.headers.get("Content-Length", 0))).decode())
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"ok")

            def log_message(self, *_: object) -> None:
                pass

        self.texts = texts
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/hook"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop receiving."""
        self._server.shutdown()
        self._server.server_close()


def doubles(testbed: Testbed) -> list[str]:
    """Nodes that have two machines."""
    counts = Counter(str(machine["node"]) for machine in testbed.machines())
    return [f"node {node} has {count} machines" for node, count in counts.items() if count > 1]


def mismatches(testbed: Testbed) -> list[str]:
    """Machines that are not in the journal, and nodes without a machine. Raises SpotsupError, StackError."""
    nodes = testbed.any().get("/v1/nodes")
    machines = {str(machine["node"]) for machine in testbed.machines()}
    known = {str(node["id"]) for node in nodes if node["state"] not in _GONE}
    return [
        *(f"the machine of {node} is not in the journal" for node in sorted(machines - known)),
        *(f"{node} has no machine" for node in sorted(known - machines)),
    ]


def sample(testbed: Testbed, began: float) -> list[Sample]:
    """Memory, threads and descriptors of daemons, agents and the cloud, and the size of etcd's data."""
    now = time.monotonic()
    found = [("spotsupd", daemon.pid) for daemon in testbed.daemons if daemon.runs]
    if testbed.cloud is not None:
        found.append(("cloud", testbed.cloud.pid))
    machines = {machine["id"] for machine in testbed.machines()}
    commands = {each.pid: command(each.pid) for each in processes.find([], lambda marker: marker in machines)}
    found += [(part, pid) for pid, part in parts(commands, parent_pids()).items() if part in ("agent", "launcher")]
    samples = [found_now for role, pid in found if (found_now := _sample(role, pid, now - began))]
    with contextlib.suppress(EtcdError), contextlib.closing(Etcd(testbed.etcd.endpoints, timeout_s=2.0)) as etcd:
        data = float(space.size_bytes(etcd))
        samples.append(Sample("etcd", "data", now - began, now - began, {"data": data}))
    return samples


def _sample(role: str, pid: int, at: float) -> Sample | None:
    process = processes.look(pid)
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        up_s = float(Path("/proc/uptime").read_text().split()[0])
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    if process is None or "VmRSS" not in fields:
        return None
    age_s = up_s - process.identity.started / 100.0
    values = {
        "rss": float(fields["VmRSS"].split()[0]) * 1024,
        "threads": float(fields["Threads"]),
        "files": float(descriptors(pid)),
    }
    return Sample(role, f"{pid}.{process.identity.started}", at, age_s, values)


def undelivered(testbed: Testbed, job: str, texts: list[str]) -> list[str]:
    """Alerts of a job that the webhook has not received. Raises SpotsupError, StackError."""
    received = "\n".join(texts)
    events = testbed.any().get(f"/v1/jobs/{job}/events")
    kinds = {str(kind) for kind in ALERT_KINDS}
    return [
        f"{event['kind']}: {event['text']}"
        for event in events
        if event["kind"] in kinds and event["id"] not in received
    ]
