"""Finds and starts the real programs that tests run against."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from spotsup_trainer.etcd import Etcd

from provisioners.local import LocalProvisioner
from provisioners.localcloud.control import destroy, start_server
from provisioners.localcloud.programs import (
    SshPrograms,
    find_ssh_programs,
    library_path,
    tools_root,
)
from provisioners.localcloud.programs import find_program as _find_program
from tools.stack import ROOT

_STARTS = 3
# Below those that Linux gives to clients and to servers that name none (ip_local_port_range), and not those of tunnels.
_PORTS = (*range(10_000, 20_000), *range(30_000, 32_768))
_ETCD_START_TIMEOUT_S = 30.0


def find_program(name: str) -> Path:
    """The program `name`: on the PATH, in the system's folders, else unpacked in the clone."""
    return _find_program(name, tools_root())


def find_sshd() -> SshPrograms:
    """sshd with its helpers."""
    return find_ssh_programs(tools_root())


def program_env() -> dict[str, str]:
    """The environment in which unpacked programs find their libraries, and our own find unpacked programs."""
    env = dict(os.environ)
    root = tools_root()
    if root is None:
        return env
    known = [folder for folder in (library_path(root), env.get("LD_LIBRARY_PATH", "")) if folder]
    return env | {"SPOTSUP_TOOLS": str(root)} | ({"LD_LIBRARY_PATH": ":".join(known)} if known else {})


def run_module(
    module: str, *arguments: str, timeout_s: float = 120.0, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one of our programs to its end, whatever its exit status is."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        cwd=ROOT,
        env={**program_env(), **(environ or {})},
    )


def run_at_a_terminal(
    module: str, *arguments: str, typed: str, folder: Path = ROOT, environ: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Run one of our programs as a person does who types something. Returns its exit code, and the screen."""
    ours, its = os.openpty()
    command = [sys.executable, "-m", module, *arguments]
    env = {**program_env(), "PYTHONPATH": str(ROOT), **(environ or {})}
    running = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, cwd=folder, env=env, start_new_session=True)
    os.close(its)
    os.write(ours, f"{typed}\n".encode())
    screen = b""
    with suppress(OSError):  # Linux says so when the other end is closed
        while read := os.read(ours, 4096):
            screen += read
    os.close(ours)
    return running.wait(60.0), screen.decode()


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Ports without a listener now, which nobody gets who asks the kernel for any: a server finds its own again after a
    restart. Another test may be given one before you use it: start again on failure."""
    found: list[int] = []
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            found.append(port)
        if len(found) == count:
            break
    return found


@contextmanager
def running_etcd(folder: Path) -> Iterator[str]:
    """A real etcd of its own below `folder`, healthy; yields its endpoint, kills it by pid after."""
    folder.mkdir(parents=True, exist_ok=True)
    for attempt in range(_STARTS):
        process, endpoint = _start_etcd(folder, attempt)
        try:
            if _wait_healthy(process, endpoint):
                yield endpoint
                return
        finally:
            process.kill()
            process.wait()
    log = (folder / f"etcd-{_STARTS - 1}.log").read_text(errors="replace")
    raise RuntimeError(f"etcd did not become healthy in {_STARTS} starts: {log[-1000:]}")


def empty_etcd(endpoint: str) -> None:
    """Delete all keys and revoke all leases."""
    with closing(Etcd([endpoint], timeout_s=10.0)) as etcd:
        etcd.call("/v3/kv/deleterange", {"key": "AA==", "range_end": "AA=="})
        for lease in etcd.call("/v3/lease/leases", {}).get("leases", ()):
            etcd.revoke(int(lease["ID"]))  # one may end by itself meanwhile


def _start_etcd(folder: Path, attempt: int) -> tuple[subprocess.Popen[bytes], str]:
    client, peer = (f"http://127.0.0.1:{port}" for port in free_ports(2))
    arguments = [
        str(find_program("etcd")),
        *("--name", "test", "--data-dir", str(folder / f"etcd-{attempt}")),
        *("--listen-client-urls", client, "--advertise-client-urls", client),
        *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
        *("--initial-cluster", f"test={peer}", "--log-level", "warn"),
    ]
    with (folder / f"etcd-{attempt}.log").open("wb") as log:
        # On one core: its threads would wake each other for each request, which takes half as much CPU again.
        environ = program_env() | {"GOMAXPROCS": "1"}
        process = subprocess.Popen(arguments, env=environ, stdout=log, stderr=subprocess.STDOUT)
    return process, client


def _wait_healthy(process: subprocess.Popen[bytes], endpoint: str) -> bool:
    """False when etcd ended, as it does when somebody else took its port."""
    deadline = time.monotonic() + _ETCD_START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{endpoint}/health", timeout=1.0) as answer:  # noqa: S310 - our own URL
                if b'"true"' in answer.read():
                    return process.poll() is None
        except OSError:
            time.sleep(0.02)
    return False


@dataclass(slots=True)
class LocalCloud:
    """A real local cloud in `directory`, and its server's process."""

    directory: Path
    server: subprocess.Popen[bytes]

    @property
    def provisioner(self) -> LocalProvisioner:
        """The cloud, as the daemon sees it."""
        return LocalProvisioner(self.directory)

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `spotsup-localcloud` on this cloud."""
        command = [sys.executable, "-m", "provisioners.localcloud.main", *arguments, "--dir", str(self.directory)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    def set(self, *options: str) -> None:
        """Change how it behaves: `set("--capacity", "local-a=0")`."""
        done = self.cli("set", *options)
        assert done.returncode == 0, done.stderr

    def kill_server(self) -> None:
        """kill -9: nothing is put in order."""
        self.server.kill()
        self.server.wait()

    def restart_server(self) -> None:
        """Start the server again; its behaviour is as it was."""
        self.server = start_server(self.directory, environ=program_env())


@contextmanager
def running_local_cloud(directory: Path, *, launch_delay_s: float = 0.0) -> Iterator[LocalCloud]:
    """A local cloud with a server of its own; at the end all its machines and the server are gone, or this fails."""
    server = start_server(directory, launch_delay_s=launch_delay_s, environ=program_env())
    cloud = LocalCloud(directory, server)
    try:
        yield cloud
    finally:
        done = destroy(directory)
        cloud.server.wait()
    assert not done.processes_left, f"{done.processes_left} survived {directory}"
