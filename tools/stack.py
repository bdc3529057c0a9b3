"""A whole installation in one folder: daemon, etcd and local cloud, used as users use them: by their command lines.

The demo, the benchmarks and the end-to-end tests stand on it. `close` leaves no process and says what was left.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provisioners.localcloud import processes
from provisioners.localcloud.control import destroy
from provisioners.localcloud.processes import Identity
from provisioners.localcloud.store import Store
from supervisor.config import MAX_SOCKET_PATH_BYTES
from supervisor.journal.etcd_server import EmbeddedEtcd

ROOT = Path(__file__).resolve().parent.parent
CALL_TIMEOUT_S = 120.0
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0
LOOK_S = 0.05

CONFIG = """\
cluster = "{cluster}"
state_dir = {state_dir}
[api]
socket = {socket}
[node]
lease_ttl_s = {lease_ttl_s}
[timing]
listing_s = 1.0
consistency_s = 15.0
orphan_grace_s = 10.0
leader_ttl_s = 3.0
leave_margin_s = 8.0
gather_s = 20.0
"""
SECURE = """\
[etcd]
secure = true
"""


class StackError(Exception):
    """A part of the stack failed; names it and quotes its output."""


class GaveUpError(StackError):
    """What was waited for did not happen in time. Nothing need be broken: the machine may be slow."""


class InterruptedByUserError(Exception):
    """Ctrl-C was pressed; raised between two steps, so that nothing is left half started."""


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What a stack left behind before it was cleaned: machines not released, processes not ended."""

    machines: tuple[str, ...]
    processes: tuple[str, ...]


class Patience:
    """Decides how long to wait: `limit_s` from the last progress on, which is another `seen` than before."""

    def __init__(self, limit_s: float, now: float) -> None:
        self._limit_s = limit_s
        self._seen: object = None
        self._since = now

    def is_over(self, seen: object, now: float) -> bool:
        """True if nothing else has been seen for longer than the limit."""
        if seen != self._seen:
            self._seen, self._since = seen, now
        return now - self._since > self._limit_s


class Stack:
    """Everything in `folder`; nothing outside it but a short folder for the socket where the path is too long."""

    def __init__(
        self,
        folder: Path,
        *,
        cluster: str = "demo",
        environ: Mapping[str, str] | None = None,
        lease_ttl_s: float = 4.0,
        secure: bool = False,
    ) -> None:
        """`secure`: etcd has TLS and users."""
        self.folder = folder
        self.state = folder / "state"
        self.cloud_dir = self.state / "localcloud"
        self.log = folder / "spotsupd.log"
        self._cluster = cluster
        self._lease_ttl_s = lease_ttl_s
        self._secure = secure
        self._environ = {**os.environ, **(environ or {})}
        self._daemon: subprocess.Popen[bytes] | None = None
        self._short: Path | None = None
        self._interrupted = False

    # -- life ----------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Clean up what an earlier stack in this folder left, and write the configuration."""
        if self.folder.exists():
            self.close()
            shutil.rmtree(self.folder)
        self.state.mkdir(parents=True)
        socket = self.state / "spotsupd.sock"
        if len(os.fsencode(socket)) > MAX_SOCKET_PATH_BYTES:
            self._short = Path(tempfile.mkdtemp(prefix="spotsup-"))
            socket = self._short / "spotsupd.sock"
        (self.folder / "socket").write_text(str(socket))
        text = CONFIG.format(
            cluster=self._cluster,
            state_dir=json.dumps(str(self.state)),
            socket=json.dumps(str(socket)),
            lease_ttl_s=self._lease_ttl_s,
        )
        (self.folder / "spotsupd.toml").write_text(text + (SECURE if self._secure else ""))

    def configure(self, toml: str, environ: Mapping[str, str], *, node: str = "") -> None:
        """Add configuration, and set the whole environment, for what is started from now on.

        `node`: lines for the table `[node]`, which is there already.
        """
        file = self.folder / "spotsupd.toml"
        file.write_text(file.read_text().replace("[node]\n", f"[node]\n{node}") + toml)
        self._environ = dict(environ)

    @property
    def environ(self) -> Mapping[str, str]:
        """Return the environment of what is started from now on."""
        return self._environ

    @property
    def socket(self) -> Path:
        """Return the daemon's socket."""
        return Path((self.folder / "socket").read_text())

    def start_daemon(self) -> None:
        """Start `spotsupd run --embedded-etcd`; returns when it answers."""
        command = [sys.executable, "-m", "supervisor.cli.daemon", "run", "--embedded-etcd"]
        with self.log.open("ab") as log:
            self._daemon = subprocess.Popen(
                [*command, "--config", str(self.folder / "spotsupd.toml")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environ,
                cwd=ROOT,
                start_new_session=True,
            )
        self._remember(self._daemon.pid)
        self.wait_for(self._answers, START_TIMEOUT_S, "spotsupd to answer")

    def _remember(self, pid: int) -> None:
        """Record the daemon's process, for a later clean-up should this process be killed."""
        identity = processes.identity_of(pid)
        (self.folder / "spotsupd.pid").write_text(json.dumps([identity.pid, identity.started]))

    def _end_orphan(self) -> None:
        """End the daemon of an earlier stack in this folder that was killed before it stopped its daemon."""
        try:
            pid, started = json.loads((self.folder / "spotsupd.pid").read_text())
        except FileNotFoundError:
            return
        orphan = processes.Identity(pid, started)
        processes.send(orphan, signal.SIGTERM)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while processes.is_alive(orphan):
            if time.monotonic() > deadline:
                processes.send(orphan, signal.SIGKILL)
            time.sleep(LOOK_S)

    def _answers(self) -> bool:
        if self._daemon is not None and self._daemon.poll() is not None:
            raise StackError(f"spotsupd ended with {self._daemon.returncode}: {self.log_tail()}")
        return self.ctl("list").returncode == 0

    def daemon_pid(self) -> int:
        """Return the daemon's process."""
        assert self._daemon is not None
        return self._daemon.pid

    def reap(self) -> int:
        """Wait for a daemon that another process stops. Returns its exit status."""
        assert self._daemon is not None
        return self._daemon.wait(STOP_TIMEOUT_S)

    def kill_daemon(self) -> None:
        """kill -9."""
        assert self._daemon is not None
        self._daemon.kill()
        self._daemon.wait()

    def stop_daemon(self) -> None:
        """SIGTERM, as systemd does."""
        if self._daemon is None or self._daemon.poll() is not None:
            return
        self._daemon.send_signal(signal.SIGTERM)
        try:
            self._daemon.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._daemon.kill()
            self._daemon.wait()
            raise StackError(f"spotsupd did not stop within {STOP_TIMEOUT_S:g} s: {self.log_tail()}") from None

    def close(self) -> Leftovers:
        """End everything, in whatever state. Returns what had not been released."""
        if self._daemon is not None and self._daemon.poll() is None:
            self._daemon.terminate()
            try:
                self._daemon.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill_daemon()
        self._end_orphan()
        machines: tuple[str, ...] = ()
        if Store(self.cloud_dir).birth() is not None:
            gone = destroy(self.cloud_dir)
            machines = gone.machines
        EmbeddedEtcd(self.state / "etcd").stop()
        left = tuple(sorted(self.processes()))
        for pid, _ in left:
            with suppress(ProcessLookupError):  # it may end with the one before it
                os.kill(pid, signal.SIGKILL)
        if self._short is not None:
            shutil.rmtree(self._short, ignore_errors=True)
        return Leftovers(machines, tuple(f"{pid} {name}" for pid, name in left))

    # -- use -----------------------------------------------------------------------------------------------

    def ctl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `spotsupctl`."""
        return self._run("supervisor.cli.ctl", "--socket", str(self.socket), *arguments)

    def ask(self, *arguments: str) -> Any:
        """Run `spotsupctl … -o json` and decode its output. Raises StackError where it fails."""
        done = self.ctl(*arguments, "-o", "json")
        if done.returncode:
            raise StackError(f"spotsupctl {' '.join(arguments)} ended with {done.returncode}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def cloud(self, *arguments: str) -> Any:
        """Run `spotsup-localcloud … -o json` and decode its output."""
        done = self._run("provisioners.localcloud.main", *arguments, "--dir", str(self.cloud_dir), "-o", "json")
        if done.returncode:
            raise StackError(f"spotsup-localcloud {' '.join(arguments)}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def machines(self) -> list[dict[str, Any]]:
        """Return the local cloud's machines that have not ended."""
        return [machine for machine in self.cloud("list") if machine["state"] != "terminated"]

    def processes(self) -> set[tuple[int, str]]:
        """(pid, command) of everything that runs on the local cloud's machines."""
        birth = Store(self.cloud_dir).birth()
        if birth is None:
            return set()
        found = processes.find([], lambda marker: marker.startswith(birth.machine_prefix))
        return {(identity.pid, _command(identity.pid)[:120]) for identity in found}

    def processes_of(self, node: str) -> dict[Identity, str]:
        """Everything that runs on the machine of one node, and its command. Raises StackError where it has none."""
        machine = next((str(each["id"]) for each in self.machines() if each["node"] == node), "")
        if not machine:
            raise StackError(f"node {node} has no machine that runs")
        return {each: _command(each.pid) for each in processes.find([], lambda marker: marker == machine)}

    def log_tail(self, lines: int = 5) -> str:
        """Return the end of the daemon's log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    # -- waiting -------------------------------------------------------------------------------------------

    def interrupt(self) -> None:
        """Called by a signal handler: the next wait raises InterruptedByUserError."""
        self._interrupted = True

    def wait_for(
        self,
        predicate: Callable[[], bool],
        timeout_s: float,
        what: str,
        each: Callable[[], None] = lambda: None,
        progress: Callable[[], object] | None = None,
    ) -> float:
        """Wait until `predicate` holds. Returns the seconds it took; raises GaveUpError `timeout_s` after the result of
        `progress`, if given, changed last."""
        began = time.monotonic()
        patience = Patience(timeout_s, began)
        while True:
            if self._interrupted:
                raise InterruptedByUserError
            if predicate():
                return time.monotonic() - began
            if patience.is_over(progress() if progress else None, time.monotonic()):
                limit = f"{timeout_s:g} s of the last progress" if progress else f"{timeout_s:g} s"
                raise GaveUpError(f"{what} did not happen within {limit}; the end of spotsupd's log: {self.log_tail()}")
            each()
            time.sleep(LOOK_S)

    def _run(self, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        # In a session of its own: Ctrl-C at the terminal is handled here.
        try:
            return subprocess.run(
                [sys.executable, "-m", module, *arguments],
                capture_output=True,
                text=True,
                env=self._environ,
                cwd=ROOT,
                timeout=CALL_TIMEOUT_S,
                check=False,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired as error:
            raise GaveUpError(f"`{module} {' '.join(arguments)}` did not end within {CALL_TIMEOUT_S:g} s") from error


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "(ended)"
