"""An installation for fault injection: daemons on one etcd of one member or three, and the local cloud.

`Testbed` starts and ends them, one by one; `close` ends all of them.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spotsup.transport import Transport

from provisioners.localcloud import processes
from provisioners.localcloud.control import destroy, start_server
from provisioners.localcloud.machine.spec import MARKER_VARIABLE
from provisioners.localcloud.processes import Identity
from provisioners.localcloud.store import Store
from supervisor.errors import SpotsupError
from supervisor.identity import load_identity
from tests.support.etcd_members import Members, prefix_of
from tests.support.programs import program_env, run_module
from tools.stack import CONFIG, ROOT, StackError

START_TIMEOUT_S = 240.0
STOP_TIMEOUT_S = 30.0
KILL_TIMEOUT_S = 10.0
HEALTH_TIMEOUT_S = 5.0
CALL_TIMEOUT_S = 20.0
TAKEOVER_TIMEOUT_S = 120.0
LOOK_S = 0.05


class Daemon:
    """One spotsupd, with a state folder, a socket and a log of its own."""

    def __init__(self, name: str, folder: Path, socket: Path, environ: Mapping[str, str]) -> None:
        self.name, self.state, self.socket = name, folder / "state", socket
        self.config, self.log = folder / "spotsupd.toml", folder / "log"
        self._environ = dict(environ)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def runs(self) -> bool:
        """Whether its process runs."""
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        """The pid of its last process."""
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        """Start it and wait until it answers. Raises StackError."""
        self.launch()
        wait_for(lambda: bool(self.health()), START_TIMEOUT_S, f"{self.name} to answer", self.log_tail)

    def launch(self) -> None:
        """Start it without waiting."""
        command = [sys.executable, "-m", "supervisor.cli.daemon", "run", "--config", str(self.config)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=self._environ,
                start_new_session=True,
            )

    def kill(self) -> None:
        """kill -9, if it runs."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def health(self, timeout_s: float = HEALTH_TIMEOUT_S) -> dict[str, Any]:
        """Its health; empty if it does not answer."""
        try:
            answer: dict[str, Any] = self.get("/v1/health", timeout_s)
        except SpotsupError:
            return {}
        return answer

    def commits(self) -> int:
        """How many commits it has made. Raises SpotsupError."""
        return int(self.get("/v1/health")["counters"].get("commits", 0))

    def get(self, path: str, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """Call its API. Raises SpotsupError."""
        with contextlib.closing(Transport(self.socket, timeout_s)) as client:
            return client.get(path)

    def post(self, path: str, body: dict[str, Any] | None = None, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """Call its API. Raises SpotsupError."""
        with contextlib.closing(Transport(self.socket, timeout_s)) as client:
            return client.post(path, body)

    def ctl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `spotsupctl` against this daemon."""
        return run_module("supervisor.cli.ctl", "--socket", str(self.socket), *arguments)

    def log_tail(self, lines: int = 5) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


class Testbed:
    """A set of processes; use `open_testbed`."""

    __test__ = False  # for pytest: its name begins like a test's

    def __init__(
        self,
        folder: Path,
        *,
        members: Members,
        daemons: int = 2,
        leader_ttl_s: float = 3.0,
        lease_ttl_s: float = 6.0,
        webhook: str = "",
        last_environ: Mapping[str, str] | None = None,
        state_dirs: Sequence[Path] = (),
        node_endpoints: Sequence[str] = (),
        reach: str = "direct",
    ) -> None:
        """`webhook`: where each alert goes. `last_environ`: for the last daemon only.

        `state_dirs`: the daemons' state folders, if not below `folder`.
        `node_endpoints`: etcd as nodes reach it, if not as the daemons do. `reach`: the local cloud's."""
        self.folder, self.etcd, self.leader_ttl_s = folder, members, leader_ttl_s
        self.cloud_dir = folder / "cloud"
        self._sockets = Path(tempfile.mkdtemp(prefix="spotsup-"))
        self._marker = f"{prefix_of(folder)}9999"
        self.cloud: subprocess.Popen[bytes] | None = None
        ours = {**program_env(), MARKER_VARIABLE: self._marker}
        self.daemons = []
        for number in range(daemons):
            own = folder / f"daemon-{number}"
            own.mkdir(parents=True)
            last = dict(last_environ or {}) if number == daemons - 1 else {}
            daemon = Daemon(f"spotsupd {number}", own, self._sockets / f"{number}.sock", {**ours, **last})
            if state_dirs:
                daemon.state = state_dirs[number]
            text = CONFIG.replace("leader_ttl_s = 3.0", f"leader_ttl_s = {leader_ttl_s}").format(
                cluster="chaos",
                state_dir=json.dumps(str(daemon.state)),
                socket=json.dumps(str(daemon.socket)),
                lease_ttl_s=lease_ttl_s,
            )
            text += f"[etcd]\nendpoints = {json.dumps(members.endpoints)}\nwait_s = 60.0\n"
            text += f"node_endpoints = {json.dumps(list(node_endpoints))}\n"
            text += f'[local]\ndir = {json.dumps(str(self.cloud_dir))}\nreach = "{reach}"\n'
            daemon.config.write_text(text + (_told_by(webhook, own) if webhook else ""))
            self.daemons.append(daemon)

    def start(self) -> None:
        """Start everything. Raises StackError, EtcdFailedError, ServerError."""
        self.etcd.start_all()
        self.start_cloud()
        for daemon in self.daemons:
            daemon.state.mkdir(parents=True, exist_ok=True)
        load_identity(self.daemons[0].state / "cluster.key")
        for daemon in self.daemons[1:]:
            shutil.copy(self.daemons[0].state / "cluster.key", daemon.state / "cluster.key")
        for daemon in self.daemons:
            daemon.start()
        self.wait_for_leader()

    def start_cloud(self) -> None:
        """Start the local cloud's server."""
        self.cloud = start_server(self.cloud_dir, environ=program_env())

    def leader(self) -> Daemon | None:
        """The daemon that reports that it leads."""
        return next((each for each in self.daemons if each.runs and each.health().get("leading")), None)

    def wait_for_leader(self) -> Daemon:
        """The leader, once there is one. Raises StackError."""
        self.wait_for(lambda: self.leader() is not None, TAKEOVER_TIMEOUT_S, "a daemon to lead")
        found = self.leader()
        assert found is not None
        return found

    def wait_for_takeover(self, old: Daemon) -> float:
        """Wait until another daemon leads; returns the seconds. Raises StackError."""
        others = [each for each in self.daemons if each is not old]
        return self.wait_for(
            lambda: any(each.health().get("leading") for each in others), TAKEOVER_TIMEOUT_S, "another daemon to lead"
        )

    def wait_for_step_down(self, old: Daemon) -> None:
        """Wait until a daemon that led is a standby. Raises StackError."""
        self.wait_for(
            lambda: old.health().get("headline", "").startswith("standby"), TAKEOVER_TIMEOUT_S, "it to step down"
        )

    def any(self) -> Daemon:
        """A daemon that answers, preferably the leader. Raises StackError."""
        found = self.leader() or next((each for each in self.daemons if each.runs and each.health()), None)
        if found is None:
            raise StackError(f"no daemon answers; the ends of their logs: {self.log_tails()}")
        return found

    def job(self, name: str) -> dict[str, Any]:
        """A job, from any daemon. Raises StackError and SpotsupError."""
        found: dict[str, Any] = self.any().get(f"/v1/jobs/{name}")
        return found

    def machines(self) -> list[dict[str, Any]]:
        """The local cloud's machines that have not ended, read from its files: its process need not run."""
        found = Store(self.cloud_dir).machines().values()
        return [{"id": each.id, "node": each.node} for each in found if each.ended_at is None]

    def processes_of(self, node: str) -> dict[Identity, str]:
        """The processes on a node's machine, and their command lines."""
        ids = {each["id"] for each in self.machines() if each["node"] == node}
        return {each: command(each.pid) for each in processes.find([], lambda marker: marker in ids)}

    def cloud_ctl(self, *arguments: str) -> None:
        """Run `spotsup-localcloud`. Raises StackError."""
        done = run_module("provisioners.localcloud.main", *arguments, "--dir", str(self.cloud_dir))
        if done.returncode:
            raise StackError(f"spotsup-localcloud {' '.join(arguments)}: {done.stderr.strip()}")

    def log_tails(self) -> str:
        """The ends of all daemons' logs."""
        return "\n".join(daemon.log_tail() for daemon in self.daemons if daemon.log.exists())

    def wait_for(self, predicate: Callable[[], bool], timeout_s: float, what: str) -> float:
        """Wait until the predicate holds; returns the seconds. Raises StackError."""
        return wait_for(predicate, timeout_s, what, self.log_tails)

    def close(self) -> None:
        """End everything, in whatever state it is. Raises ServerError or StoreError, after all else has ended."""
        try:
            self._end_daemons()
            self._end_cloud()
        finally:
            self.etcd.close()
            processes.kill_marked(prefix_of(self.folder), KILL_TIMEOUT_S)
            shutil.rmtree(self._sockets, ignore_errors=True)

    def _end_daemons(self) -> None:
        for daemon in self.daemons:
            if daemon.runs:
                daemon.send(signal.SIGCONT)
                daemon.send(signal.SIGTERM)
        for daemon in self.daemons:
            if daemon.process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    daemon.process.wait(STOP_TIMEOUT_S)
                daemon.kill()

    def _end_cloud(self) -> None:
        if self.cloud is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self.cloud.send_signal(signal.SIGCONT)
        try:
            destroy(self.cloud_dir)
        finally:
            self.cloud.kill()
            self.cloud.wait()


def _told_by(webhook: str, folder: Path) -> str:
    """A channel for programs, which gets each event at once: what people read is gathered."""
    secret = folder / "webhook.secret"
    secret.touch(0o600)
    secret.write_text("the-secret-of-a-testbed")
    settings = {"name": "chaos", "url": webhook, "secret_file": str(secret)}
    return "[[alerts.webhook]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())


@contextmanager
def open_testbed(folder: Path, members: Members, **options: Any) -> Iterator[Testbed]:
    """A running testbed. Nothing of it is left afterwards."""
    made = Testbed(folder, members=members, **options)
    try:
        made.start()
        yield made
    finally:
        made.close()


def wait_for(predicate: Callable[[], bool], timeout_s: float, what: str, logs: Callable[[], str]) -> float:
    """Wait until the predicate holds; returns the seconds. Raises StackError."""
    began = time.monotonic()
    while not predicate():
        if time.monotonic() - began > timeout_s:
            raise StackError(f"waited {timeout_s:g} s for {what}; the ends of the logs: {logs()}")
        time.sleep(LOOK_S)
    return time.monotonic() - began


def command(pid: int) -> str:
    """A process's command line; "" if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def descriptors(pid: int) -> int:
    """How many files a process has open; 0 if it has ended."""
    with contextlib.suppress(OSError):
        return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    return 0
