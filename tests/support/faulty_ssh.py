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

from bootstrap import Target
from provisioners.base import HostKey
from provisioners.localcloud.machine.spec import Folder, Spec
from provisioners.localcloud.machine.sshd import config_text
from tests.support.machines import CLIENT_KEY, HOST_KEY, KeyPair, wait_for
from tests.support.programs import find_sshd, free_ports, program_env
from tests.support.sandbox import MOVED, Sandbox

_STARTS = 3

# In place of the login shell: the command as it came, but for the machine's own folders, which are the box's.
_ENTER = """
import os, re
box, moved = {box!r}, re.compile({pattern!r})
command = os.environ.pop("SSH_ORIGINAL_COMMAND")
command = moved.sub(lambda found: found[0] if command.startswith(box, found.start()) else box + found[0], command)
environ = {{"HOME": box + "/home", "BOX": box, "PATH": box + "/bin:" + {path!r}}}
os.chdir(environ["HOME"])
os.execve("/bin/sh", ["sh", "-c", command], environ)
"""

# Root's sshd wants to find things that only its package brings: as machines of the local cloud do it.
_SSHD = """
import os, pathlib, sys
from provisioners.localcloud.machine.namespace import prepare
folder, sshd, config = sys.argv[1:]
prepare(pathlib.Path(folder))
os.execv(sshd, [sshd, "-D", "-e", "-f", config])
"""


class Wire:
    """TCP to a machine. `reset`: whoever is connected gets a RST. `stall`: nothing is passed on any more."""

    def __init__(self, address: str, port: int) -> None:
        self._machine = (address, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._fault: Literal["", "reset", "stall", "end"] = ""
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def reset(self) -> None:
        """Who connects from now on is served again, once those who are connected have been cut off."""
        self._fault = "reset"

    def refuse_all(self) -> None:
        """Whoever connects gets a RST before a word is said."""
        self._machine = ("", 0)

    def stall(self) -> None:
        """Connections are taken, and nothing is said."""
        self._fault = "stall"

    def close(self) -> None:
        """All of it."""
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
    """A sandbox with an sshd, a wire to it, and programs that, once, fail just when they are told to.

    `clock` is real time until a program hangs: then it is much later at once. `hurry_s`: what each look at it costs.
    """

    target: Target = field(init=False)
    wire: Wire = field(init=False)
    on_strike: Callable[[], None] | None = None
    skipped_s: float = 0.0
    hurry_s: float = 0.0
    _hangs: Path = field(init=False)

    @property
    def struck(self) -> Path:
        """Is there once the fault has struck."""
        return self.box / "state/struck"

    def clock(self) -> float:
        """For bootstrap."""
        if self.on_strike and self.struck.exists():
            strike, self.on_strike = self.on_strike, None
            strike()
        self.skipped_s += self.hurry_s
        return time.monotonic() + self.skipped_s

    def much_later(self) -> None:
        """Later than any limit."""
        self.skipped_s += 1e6

    def hang(self, program: str, when: str, strike: Callable[[], None]) -> None:
        """`program` hangs when it is called with arguments that match `when` (a pattern of sh); then `strike`."""
        here = self.box / "bin" / program
        real = str(here.rename(here.with_suffix(".real"))) if here.exists() else _found(program)
        hang = f'case "$*" in {when}) touch "$BOX/state/struck"; sleep 600; exit 1 ;; esac'
        self.program(program, f'{hang}\nexec {real} "$@"')
        self.on_strike, self._hangs = strike, here

    def repair(self) -> None:
        """Nothing hangs any more, and who hung is gone."""
        self.on_strike = None
        self.struck.unlink(missing_ok=True)
        self._hangs.unlink()
        if (moved := self._hangs.with_suffix(".real")).exists():
            moved.rename(self._hangs)
        self.kill_those_in_it(("sleep",))

    def those_in_it(self) -> dict[int, str]:
        """Who runs in this box: pid -> name."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if f"HOME={self.home}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found[int(folder.name)] = (folder / "comm").read_text().strip()
        return found

    def kill_those_in_it(self, names: tuple[str, ...] = ()) -> None:
        """All, or those of some names."""
        for pid, name in self.those_in_it().items():
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
    """Made for the node n1. Leaves nothing that runs."""
    machine = Machine(folder / "box")
    enter = machine.write(
        "enter.py", _ENTER.format(box=str(machine.box), pattern=MOVED.pattern, path=os.environ["PATH"])
    )
    sshd, port = _start(folder / "sshd", f"exec '{sys.executable}' -I -S '{enter}'", host_key, client_key)
    machine.wire = Wire("127.0.0.1", port)
    machine.target = Target(
        "127.0.0.1", machine.wire.port, getpass.getuser(), host_key.public, client_key.private_openssh
    )
    try:
        yield machine
    finally:
        machine.wire.close()
        machine.kill_those_in_it()
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
