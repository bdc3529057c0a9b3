"""A sandbox (tests/support/sandbox.py) behind a real sshd, and a connection to it that fails on request."""

from __future__ import annotations

import getpass
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bootstrap import SshHost
from provisioners.base import HostKey
from provisioners.localcloud.machine.spec import Folder, Spec
from provisioners.localcloud.machine.sshd import config_text
from tests.support.machines import CLIENT_KEY, HOST_KEY, KeyPair, wait_for
from tests.support.programs import find_sshd, free_ports, program_env
from tests.support.sandbox import MOVED, Sandbox

_STARTS = 3

# Runs instead of the login shell: its .bashrc, and the command, with the machine's folders replaced by the sandbox's.
_ENTER = """
import os, re
box, moved = {box!r}, re.compile({pattern!r})
command = os.environ.pop("SSH_ORIGINAL_COMMAND")
command = moved.sub(lambda found: found[0] if command.startswith(box, found.start()) else box + found[0], command)
environ = {{"HOME": box + "/home", "BOX": box, "PATH": box + "/bin:" + {path!r}}}
os.chdir(environ["HOME"])
login = box + "/home/.bashrc"
command = (open(login).read() if os.path.exists(login) else "") + command
os.execve("/bin/bash", ["bash", "-c", command], environ)
"""

# Root's sshd needs files that only its package brings; machines of the local cloud prepare them in the same way.
_SSHD = """
import os, pathlib, sys
from provisioners.localcloud.machine.namespace import prepare
folder, sshd, config = sys.argv[1:]
prepare(pathlib.Path(folder))
os.execv(sshd, [sshd, "-D", "-e", "-f", config])
"""


class Wire:
    """TCP to a machine, with faults on request."""

    def __init__(self, address: str, port: int) -> None:
        self._machine = (address, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._fault: Literal["", "reset", "stall", "end"] = ""
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def reset(self) -> None:
        """Open connections get a RST. Later ones are served again."""
        self._fault = "reset"

    def refuse_all(self) -> None:
        """Every new connection gets a RST at once."""
        self._machine = ("", 0)

    def stall(self) -> None:
        """Connections are accepted, and nothing is passed on."""
        self._fault = "stall"

    def close(self) -> None:
        """Close everything."""
        self._fault = "end"
        self._thread.join()

    def _serve(self) -> None:
        pairs: dict[socket.socket, socket.socket] = {}
        while self._fault != "end":
            ready = select.select([self._listener, *pairs], [], [], 0.01)[0]
            if self._fault == "reset" and pairs:
                _cut(pairs)
                self._fault = ""
                continue
            for each in ready:
                if each is self._listener:
                    self._connect(pairs)
                elif each in pairs:
                    _pass_on(each, pairs, stalled=self._fault == "stall")
        _cut(pairs)
        self._listener.close()

    def _connect(self, pairs: dict[socket.socket, socket.socket]) -> None:
        inner, _ = self._listener.accept()
        address, port = self._machine
        if not port:
            _cut({inner: inner})
            return
        outer = socket.create_connection((address, port))
        pairs |= {inner: outer, outer: inner}


def _pass_on(source: socket.socket, pairs: dict[socket.socket, socket.socket], *, stalled: bool) -> None:
    sink = pairs[source]
    with suppress(OSError):
        if chunk := source.recv(1 << 16):
            if not stalled:
                sink.sendall(chunk)
            return
    for each in (source, sink):
        del pairs[each]
        each.close()


def _cut(pairs: dict[socket.socket, socket.socket]) -> None:
    for each in pairs:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        each.close()
    pairs.clear()


@dataclass
class Machine(Sandbox):
    """A sandbox with an sshd, a connection to it, and a program that fails on request."""

    target: SshHost = field(init=False)
    wire: Wire = field(init=False)
    on_fault: Callable[[], None] | None = None
    skipped_s: float = 0.0
    """Added to real time by `clock`."""
    read_costs_s: float = 0.0
    """How much each read of `clock` adds."""
    _hangs: Path = field(init=False)

    @property
    def fault_marker(self) -> Path:
        """Exists once the fault has happened."""
        return self.box / "state/fault"

    def clock(self) -> float:
        """The clock of bootstrap: real time, and what was skipped."""
        if self.on_fault and self.fault_marker.exists():
            on_fault, self.on_fault = self.on_fault, None
            on_fault()
        self.skipped_s += self.read_costs_s
        return time.monotonic() + self.skipped_s

    def much_later(self) -> None:
        """Skip beyond any limit."""
        self.skipped_s += 1e6

    def hang(self, program: str, when: str, on_fault: Callable[[], None]) -> None:
        """`program` hangs when its arguments match `when` (a pattern of sh); then `on_fault` is called."""
        here = self.box / "bin" / program
        real = str(here.rename(here.with_suffix(".real"))) if here.exists() else _found(program)
        hang = f'case "$*" in {when}) touch "$BOX/state/fault"; sleep 600; exit 1 ;; esac'
        self.program(program, f'{hang}\nexec {real} "$@"')
        self.on_fault, self._hangs = on_fault, here

    def repair(self) -> None:
        """Nothing hangs any more, and hanging processes are killed."""
        self.on_fault = None
        self.fault_marker.unlink(missing_ok=True)
        self._hangs.unlink()
        if (moved := self._hangs.with_suffix(".real")).exists():
            moved.rename(self._hangs)
        self.kill_processes(("sleep",))

    def processes(self) -> dict[int, str]:
        """The processes of this sandbox: pid -> name."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if f"HOME={self.home}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found[int(folder.name)] = (folder / "comm").read_text().strip()
        return found

    def kill_processes(self, names: tuple[str, ...] = ()) -> None:
        """Kill all of them, or those with these names."""
        for pid, name in self.processes().items():
            if not names or name in names:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _found(program: str) -> str:
    places = (f"{folder}/{program}" for folder in os.environ["PATH"].split(":"))
    return next((place for place in places if os.access(place, os.X_OK)), "true")


@contextmanager
def machine_with_sshd(
    folder: Path, host_key: KeyPair | HostKey = HOST_KEY, client_key: KeyPair | HostKey = CLIENT_KEY
) -> Iterator[Machine]:
    """A machine made for the node n1. Leaves no process behind."""
    machine = Machine(folder / "box")
    enter = machine.write(
        "enter.py", _ENTER.format(box=str(machine.box), pattern=MOVED.pattern, path=os.environ["PATH"])
    )
    sshd, port = _start(folder / "sshd", f"exec '{sys.executable}' -I -S '{enter}'", host_key, client_key)
    machine.wire = Wire("127.0.0.1", port)
    machine.target = SshHost(
        "127.0.0.1", machine.wire.port, getpass.getuser(), host_key.public, client_key.private_openssh
    )
    try:
        yield machine
    finally:
        machine.wire.close()
        machine.kill_processes()
        sshd.kill()
        sshd.wait()


def _start(
    folder: Path, command: str, host_key: KeyPair | HostKey, client_key: KeyPair | HostKey
) -> tuple[subprocess.Popen[bytes], int]:
    folder.mkdir()
    place, programs = Folder(folder), find_sshd()
    place.host_key.write_text(host_key.private_openssh)
    place.host_key.chmod(0o600)
    place.authorized_keys.write_text(client_key.public)
    spec = Spec(
        *("m", "z", "t", "127.0.0.1", str(programs.sshd), programs.version, str(programs.sftp_server)),
        sshd_session=str(programs.session or ""),
        sshd_auth=str(programs.auth or ""),
    )
    for _ in range(_STARTS):
        (port,) = free_ports(1)
        lines = config_text(spec, place, port).splitlines()
        kept = [line for line in lines if not line.startswith(("ForceCommand", "Subsystem"))]
        config = folder / "sshd_config"
        config.write_text("\n".join([*kept, f"ForceCommand {command}", ""]))
        with (folder / "log").open("ab") as log:
            command_line = [sys.executable, "-c", _SSHD, str(folder), str(programs.sshd), str(config)]
            sshd = subprocess.Popen(command_line, stderr=log, env=program_env())
        if wait_for(lambda: _state(sshd, port), "sshd answers, or ends") == "answers":  # noqa: B023 - awaited here
            return sshd, port
    raise RuntimeError((folder / "log").read_text())


def _state(sshd: subprocess.Popen[bytes], port: int) -> str:
    if sshd.poll() is not None:
        return "ended"
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0) as connection:
        return "answers" if connection.recv(4) == b"SSH-" else ""
    return ""
