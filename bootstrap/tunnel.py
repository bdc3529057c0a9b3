"""Carries TCP connections from a machine's loopback to addresses that only this computer reaches, over SSH.

One thread per machine, and for some seconds one per connection that begins. When the SSH connection breaks it is made
again, at most every RETRY_S[-1] seconds, until `close`.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from bootstrap.connect import Clock, Shell, SshHost, connected
from bootstrap.errors import BootstrapError, CommandError
from bootstrap.model import Run
from bootstrap.templates import fill

CONNECT_S = 15.0
RETRY_S = (0.1, 0.5, 1.0, 2.0)
# An agent and its launcher have six connections to etcd.
MAX_CONNECTIONS = 64
LOCAL_CONNECT_S = 5.0
# A peer that takes nothing for so long loses its connection: it would hold up the others of this machine.
STALLED_S = 5.0
FREE_PORT_S = 10.0
# sshd is asked something so often, and has to answer within so long: its host's kernel may acknowledge what is sent,
# which is all that TCP asks for, although sshd itself, or what is between, passes nothing on.
ASK_S = 5.0
UNANSWERED_S = 20.0
_CHUNK_BYTES = 1 << 16
_LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class Forward:
    """Connections to `port` on the machine's 127.0.0.1 go to `host:to_port` from here."""

    port: int
    host: str
    to_port: int


class TunnelError(Exception):
    """The machine's sshd does not forward; one sentence."""


class Tunnel:
    """`start` it; `problem()` says why it does not carry anything now. Any thread may call."""

    def __init__(
        self,
        ssh: SshHost,
        node: str,
        forwards: Sequence[Forward],
        clock: Clock,
        log: Callable[[str], None],
        unanswered_s: float = UNANSWERED_S,
    ) -> None:
        """`log` gets each new problem, and "" when it carries again."""
        self._ssh = ssh
        self._node = node
        self._forwards = {each.port: each for each in forwards}
        self._clock = clock
        self._log = log
        self._unanswered_s = unanswered_s
        self._problem = "not connected yet"
        self._answered_at = self._carries_since = 0.0
        self._closing = threading.Event()
        self._new: deque[tuple[Any, int]] = deque()
        # Channels and their other ends. A host that says nothing at all takes LOCAL_CONNECT_S; the others do not wait.
        self._begun: deque[_Pair] = deque()
        self._beginning = 0
        self._lock = threading.Lock()
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_write.setblocking(False)
        self._thread = threading.Thread(target=self._run, name=f"tunnel {node}", daemon=True)

    def start(self) -> None:
        """Begin to connect."""
        self._thread.start()

    def close(self) -> None:
        """Break it; returns within seconds."""
        self._closing.set()
        self._wake()
        if self._thread.ident is not None:
            self._thread.join(timeout=5.0)

    def problem(self, carried_s: float = 0.0) -> str:
        """Return why it has not carried without a break for so long; "" where it has."""
        if not self._problem and time.monotonic() - self._carries_since < carried_s:
            return "its connection was made again just now"
        return self._problem

    def alive(self) -> bool:
        """True if its thread runs."""
        return self._thread.is_alive()

    def _run(self) -> None:
        failures = 0
        while not self._closing.is_set():
            began = time.monotonic()
            try:
                self._carry()
                problem = "the connection broke"
            except (BootstrapError, TunnelError) as error:
                problem = str(error)
            except Exception as error:  # noqa: BLE001 - whatever it is: without this thread the node has no etcd
                problem = f"{type(error).__name__}: {error}"
            if self._closing.is_set():
                break
            if time.monotonic() - began > RETRY_S[-1] and not self._problem:
                failures = 0
            self._say(problem)
            self._closing.wait(RETRY_S[min(failures, len(RETRY_S) - 1)])
            failures += 1
        self._drop_begun()
        self._wake_read.close()
        self._wake_write.close()

    def _say(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self._log(problem)

    def _carry(self) -> None:
        """Connect, and forward until the connection ends."""
        with connected(self._ssh, self._node, self._clock, self._clock() + CONNECT_S) as shell:
            shell.step = "tunnel"
            transport = shell.transport
            self._listen(shell, transport)
            self._answered_at = self._carries_since = time.monotonic()
            self._say("")
            threading.Thread(target=self._ask, args=(transport,), name=f"ask {self._node}", daemon=True).start()
            with selectors.DefaultSelector() as selector:
                selector.register(self._wake_read, selectors.EVENT_READ)
                try:
                    while transport.is_active() and not self._closing.is_set():
                        self._step(selector)
                        if time.monotonic() - self._answered_at > self._unanswered_s:
                            raise TunnelError(f"sshd of {self._node} is connected, but answers nothing")
                finally:
                    for key in list(selector.get_map().values()):
                        if key.data is not None:
                            key.data.end(selector)

    def _ask(self, transport: Any) -> None:
        """Until the connection ends. That sshd refuses what it does not know is an answer."""
        import paramiko

        while transport.is_active() and not self._closing.is_set():
            try:
                transport.global_request("keepalive@openssh.com", wait=True)
            except (paramiko.SSHException, OSError, EOFError):
                return  # it has ended
            if transport.is_active():
                self._answered_at = time.monotonic()
            self._closing.wait(min(ASK_S, self._unanswered_s / 4))

    def _listen(self, shell: Shell, transport: Any) -> None:
        for port in self._forwards:
            if self._asked(transport, port):
                continue
            # The sshd of an earlier connection, whose end it has not noticed: this computer was cut off, or is another.
            # As root, too, where that is allowed: sshd hides its files from its own user.
            for as_root in (False, True):
                with suppress(CommandError):
                    script = fill("reach/free_port.sh", port=port)
                    shell.run(Run(f"free port {port}", script, FREE_PORT_S, as_root=as_root))
                if self._asked(transport, port):
                    break
            else:
                raise TunnelError(
                    f"sshd of {self._node} does not forward port {port} of its loopback: it needs `AllowTcpForwarding "
                    "yes`, and no other program on that port"
                )

    def _asked(self, transport: Any, port: int) -> bool:
        """True if sshd agreed to forward a port."""
        import paramiko

        try:
            transport.request_port_forward("127.0.0.1", port, self._accept)
        except paramiko.SSHException:
            return False
        return True

    def _accept(self, channel: Any, _origin: Any, server: tuple[str, int]) -> None:
        """Called by the transport's thread for each connection on the machine."""
        self._new.append((channel, server[1]))
        self._wake()

    def _wake(self) -> None:
        with suppress(OSError):  # full: it wakes anyway; closed: no thread is left to wake
            self._wake_write.send(b"x")

    def _step(self, selector: selectors.BaseSelector) -> None:
        for key, _ in selector.select(_LOOK_S):
            if key.data is None:
                self._wake_read.recv(1 << 10)
            else:
                key.data.pump(selector, key.fileobj)
        while self._new:
            channel, port = self._new.popleft()
            if len(selector.get_map()) + 2 * self._beginning > 2 * MAX_CONNECTIONS:
                channel.close()
                continue
            with self._lock:
                self._beginning += 1
            begin = threading.Thread(target=self._begin, args=(channel, self._forwards[port]), daemon=True)
            begin.start()
        while self._begun:
            pair = self._begun.popleft()
            selector.register(pair.near, selectors.EVENT_READ, pair)
            selector.register(pair.channel, selectors.EVENT_READ, pair)

    def _begin(self, channel: Any, forward: Forward) -> None:
        """Connect to the other end."""
        try:
            near = socket.create_connection((forward.host, forward.to_port), timeout=LOCAL_CONNECT_S)
        except OSError:
            channel.close()  # as an etcd that is away
        else:
            near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            near.settimeout(STALLED_S)
            channel.settimeout(STALLED_S)
            self._begun.append(_Pair(near, channel))
            if self._closing.is_set():
                self._drop_begun()
        with self._lock:
            self._beginning -= 1
        self._wake()

    def _drop_begun(self) -> None:
        with suppress(IndexError):
            while True:
                self._begun.popleft().close()


@dataclass(slots=True, eq=False)
class _Pair:
    near: socket.socket
    channel: Any
    ended: bool = False

    def pump(self, selector: selectors.BaseSelector, source: Any) -> None:
        """Pass on what has arrived from one side; the end of one side is the end of both."""
        if self.ended:
            return
        other = self.channel if source is self.near else self.near
        try:
            data = source.recv(_CHUNK_BYTES)
            if data:
                other.sendall(data)
                return
        except (OSError, EOFError):
            pass
        self.end(selector)

    def end(self, selector: selectors.BaseSelector) -> None:
        """Close both sides."""
        if self.ended:
            return
        self.ended = True
        for side in (self.near, self.channel):
            selector.unregister(side)
        self.close()

    def close(self) -> None:
        """Close both sides; they are in no selector."""
        for side in (self.near, self.channel):
            with suppress(OSError, EOFError):
                side.close()
