"""Stock Debian machines: a root file system from Debian's packages alone, booted by systemd-nspawn.

    .tools/stock/stock-HASH/   root file system; HASH is that of the recipe
    .tools/stock/wheels/       what pip downloads with its own settings, for machines without an index

A machine has its own systemd, cloud-init, sshd and users, a disk in memory that vanishes with it, and a bridge of its
own. Its firewall admits SSH, and the other machines, as a cloud's security group does. It has python3 as Debian brings
it: no pip, no venv module, no torch. It shares no path with the daemon. Needs root.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType

import pytest

from tests.acceptance.image import CLOUD_INIT, mirror
from tools.setup.errors import SetupError, output_tail, run
from tools.setup.programs import ensure_installed

PROGRAMS = {"mmdebstrap": "mmdebstrap", "systemd-nspawn": "systemd-container"}
SUITE = "bookworm"
PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "udev", "procps", "iproute2", "sudo", "openssh-server", "python3"),
    *("libnss-myhostname", "ca-certificates", "unattended-upgrades", "nftables", "cloud-init"),
    # As images of clouds have it: what logs in by SSH is a session of logind, whose end has consequences.
    *("libpam-systemd",),
)
BUILD_TIMEOUT_S = 1800.0
DOWNLOAD_TIMEOUT_S = 900.0
BOOT_TIMEOUT_S = 300.0
USER = "researcher"
# What the jobs of these tests need, as torch's local build and the checkpoints in an object store do.
REQUIREMENTS = ("torch==2.13.0", "numpy", "obstore")

_FINISH = r"""
set -eu
systemctl enable systemd-networkd nftables ssh
systemctl disable systemd-networkd-wait-online.service || :
rm -f /etc/ssh/ssh_host_* /etc/machine-id /var/lib/dbus/machine-id /etc/resolv.conf
: >/etc/machine-id
"""
_FIREWALL = """\
flush ruleset
table inet filter {{
    chain input {{
        type filter hook input priority 0; policy drop;
        ct state established,related accept
        iif lo accept
        tcp dport 22 accept
        {more}
    }}
}}
"""
# A cloud's metadata service answers at this address on every machine; here the host does.
METADATA_ADDRESS = "169.254.169.254"
_METADATA = """\
table ip metadata {{
    chain output {{
        type nat hook output priority -100;
        ip daddr {address} tcp dport 80 dnat to {host}:{port}
    }}
}}
"""
# As apt itself holds it: a POSIX lock, at the first boot.


def why_not() -> str:
    """Why no such machine can run here, "" where one can."""
    if os.geteuid() != 0:
        return "booting a root file system with systemd-nspawn takes root"
    if not Path("/sys/fs/cgroup/systemd").exists() and not Path("/sys/fs/cgroup/cgroup.controllers").exists():
        return "there are no cgroups that systemd-nspawn could use"
    missing = [package for program, package in PROGRAMS.items() if shutil.which(program) is None]
    if missing and not asked_for():  # tests change nothing on a computer unless asked
        return f"{' and '.join(missing)} are not installed; make acceptance installs them"
    return ""


def asked_for() -> bool:
    """Whether this is `make acceptance`, which may install programs and take its time."""
    return bool(os.environ.get("SPOTSUP_MAY_INSTALL"))


@contextmanager
def skipped_where_impossible() -> Iterator[None]:
    """Skips the test where its machines cannot be made here; who has asked for it learns that by a failure."""
    try:
        yield
    except SetupError as error:
        if asked_for():
            raise
        pytest.skip(f"no such machine can be made here: {error}")


def ensure_root(clone: Path, more: Sequence[str] = ()) -> Path:
    """The root file system, with `more` packages, built where this recipe's is not there. Raises SetupError."""
    packages = (*PACKAGES, *more)
    digest = hashlib.sha256(repr((SUITE, packages, CLOUD_INIT, _FINISH)).encode()).hexdigest()[:16]
    folder = clone / ".tools" / "stock" / f"stock-{digest}"
    with one_builder(clone):
        if folder.is_dir():
            return folder
        ensure_installed(PROGRAMS, clone)
        scratch = folder.with_name(f"new-{digest}")
        shutil.rmtree(scratch, ignore_errors=True)
        include = f"--include={','.join(packages)}"
        _must(["mmdebstrap", "--quiet", "--variant=minbase", include, SUITE, str(scratch), mirror()], BUILD_TIMEOUT_S)
        (scratch / "etc/cloud/cloud.cfg.d/90-stock.cfg").write_text(CLOUD_INIT)
        _must(["chroot", str(scratch), "/bin/sh", "-c", _FINISH], 120.0)
        scratch.rename(folder)
    return folder


@contextmanager
def one_builder(clone: Path) -> Iterator[None]:
    """One process at a time makes what tests share in a clone; another waits, and finds it."""
    shared = clone / ".tools" / "stock"
    shared.mkdir(parents=True, exist_ok=True)
    with (clone / ".tools" / "stock.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def ensure_wheels(clone: Path, requirements: Sequence[str]) -> Path:
    """A wheelhouse with these packages and their dependencies, for the machines' Python. Raises SetupError."""
    folder = clone / ".tools" / "stock" / "wheels"
    with one_builder(clone):
        if not all(any(folder.glob(f"{each.partition('=')[0]}-*.whl")) for each in requirements):
            version = ["--python-version", "3.11", "--only-binary", ":all:"]
            _must(
                [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder), *version, *requirements],
                DOWNLOAD_TIMEOUT_S,
            )
    return folder


def _must(command: Sequence[str], timeout_s: float) -> None:
    done = run(list(command), cwd=Path("/"), timeout_s=timeout_s)
    if done.returncode != 0:
        raise SetupError(f"{command[0]} failed: {output_tail(done)}")


class Network:
    """A bridge of this test, with the host at .1, the daemon's host at .10 and machines from .130 on."""

    def __init__(self, number: int) -> None:
        """`number`: 0 to 255, such that no other test has it."""
        self.bridge = f"spotsup{number}"
        self.prefix = f"10.231.{number}"
        self.host = f"{self.prefix}.1"
        self.members = f"{self.prefix}.128/25"

    def up(self) -> None:
        """Make the bridge."""
        _must(["ip", "link", "add", self.bridge, "type", "bridge"], 30.0)
        _must(["ip", "address", "add", f"{self.host}/24", "dev", self.bridge], 30.0)
        _must(["ip", "link", "set", self.bridge, "up"], 30.0)

    def down(self) -> None:
        """Remove it."""
        run(["ip", "link", "delete", self.bridge], cwd=Path("/"), timeout_s=30.0)


class StockMachine:
    """A machine, called `node`. Its address ends in 130 + `number`."""

    def __init__(self, root: Path, network: Network, folder: Path, node: str, number: int) -> None:
        self.node, self.address = node, f"{network.prefix}.{130 + number}"
        self._root, self._network, self._folder = root, network, folder
        self._process: subprocess.Popen[bytes] | None = None

    def boot(
        self,
        user_data: str,
        *,
        admits: str = "",
        metadata_port: int = 0,
        binds: Mapping[Path, str] = MappingProxyType({}),
    ) -> None:
        """With this user data. `admits`: a rule of its firewall beside that for SSH; without: all from its peers.
        `metadata_port`: of the host, where the metadata service of its cloud answers. `binds`: folders, read-only.
        """
        seed = self._folder / "seed"
        seed.mkdir(parents=True)
        (seed / "user-data").write_text(user_data)
        (seed / "meta-data").write_text(f'{{"instance-id": "{self.node}", "local-hostname": "{self.node}"}}')
        link = self._folder / "host0.network"
        link.write_text(
            f"[Match]\nName=host0\n[Network]\nAddress={self.address}/24\nLinkLocalAddressing=no\n"
            f"[Route]\nDestination={METADATA_ADDRESS}/32\nGateway={self._network.host}\n"
        )
        firewall = self._folder / "nftables.conf"
        rules = _FIREWALL.format(more=admits or f"ip saddr {self._network.members} accept")
        if metadata_port:
            rules += _METADATA.format(address=METADATA_ADDRESS, host=self._network.host, port=metadata_port)
        firewall.write_text(rules)
        places = {
            seed: "/var/lib/cloud/seed/nocloud",
            link: "/etc/systemd/network/10-host0.network",
            firewall: "/etc/nftables.conf",
            **binds,
        }
        command = [
            *("systemd-nspawn", "--quiet", "--keep-unit", "--register=no", "--boot", "--volatile=overlay"),
            *("--directory", str(self._root), "--machine", f"{self._network.bridge}-{self.node}"),
            *("--network-bridge", self._network.bridge, "--resolv-conf=off", "--link-journal=no"),
            *(f"--bind-ro={source}:{place}" for source, place in places.items()),
        ]
        env = {**os.environ, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"}
        with (self._folder / "console.log").open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, start_new_session=True
            )

    def await_sshd(self) -> None:
        """Until somebody answers at its port 22. Raises SetupError: such machines do not boot on this host."""
        deadline = time.monotonic() + BOOT_TIMEOUT_S
        while self.runs and time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection((self.address, 22), timeout=1.0):
                return
            time.sleep(0.2)
        raise SetupError(f"systemd-nspawn does not boot it: {self.console[-500:]}")

    @property
    def runs(self) -> bool:
        """Whether it is there."""
        return self._process is not None and self._process.poll() is None

    @property
    def console(self) -> str:
        """The end of what it has written to its console."""
        return (self._folder / "console.log").read_text(errors="replace")[-3000:]

    def read(self, path: str) -> str:
        """A file of it, read from outside, without a session."""
        (init,) = self._children()
        return Path(f"/proc/{init}/root{path}").read_text()

    def _children(self) -> list[str]:
        """Its init, with which the kernel ends all that is in its namespace."""
        assert self._process is not None
        return Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()

    def kill(self) -> None:
        """As a cloud takes a machine: at once, without a word."""
        if self._process is None:
            return
        with contextlib.suppress(OSError):
            for child in self._children():
                os.kill(int(child), signal.SIGKILL)
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10.0)


class _Quiet(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing on the terminal."""


class _Files(_Quiet, SimpleHTTPRequestHandler):
    """The files of a folder, and a page with links to them."""


class _NoNotice(_Quiet):
    """The local cloud's metadata service, on a machine that is not announced to go."""

    def do_GET(self) -> None:
        """Answer every question after a second: the agent asks again at once."""
        time.sleep(1.0)
        body = b'{"preempted": false}'
        with contextlib.suppress(ConnectionError):  # the machine has just been killed
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)


def wheels_served(folder: Path, host: str) -> AbstractContextManager[str]:
    """The URL of a page with links to all files of a folder."""
    return _serving(partial(_Files, directory=str(folder)), host)


def metadata_served(host: str) -> AbstractContextManager[str]:
    """The URL of a metadata service."""
    return _serving(_NoNotice, host)


@contextmanager
def _serving(handler: Callable[..., BaseHTTPRequestHandler], host: str) -> Iterator[str]:
    with ThreadingHTTPServer((host, 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        thread.start()
        try:
            yield f"http://{host}:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
