"""The way to a machine: one SSH connection whose host key is known beforehand, bounded in every direction.

fabric and paramiko (0.16 s) are imported when the first connection is made. Nothing of the user's is read: no
~/.ssh, no /etc/ssh, no fabric file, no agent.
"""

from __future__ import annotations

import binascii
import io
import logging
import shlex
import socket
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, TypeAlias

from bootstrap import scripts
from bootstrap.errors import (
    BootstrapError,
    BootstrapTimeoutError,
    CommandError,
    HostKeyMismatchError,
    LoginRefusedError,
    UnreachableError,
)
from bootstrap.model import Run, Upload

CONNECT_TIMEOUT_S = 10.0
RETRY_S = (0.1, 0.2, 0.3, 0.5, 1.0)
LOGIN_PATIENCE_S = 60.0  # sshd answers before cloud-init has installed our key
KEEPALIVE_S = 5
SILENCE_S = 30  # a machine that acknowledges nothing for so long is gone: its TCP connection ends
UPLOAD_TIMEOUT_S = 600.0

_POLL_S = (0.002, 0.005, 0.01, 0.02, 0.05)
_OUTPUT_BYTES = 1 << 18  # of each stream the last so many are kept: a machine cannot fill the daemon's memory
_CHUNK_BYTES = 1 << 17
_LAST_WORDS_S = 1.0
_CUT_OFF_S = 2.0  # beyond a command's limit, which is told of where that can be
_LINE_CHARACTERS = 300


Clock: TypeAlias = Callable[[], float]
"""Seconds since some moment, `time.monotonic` for instance."""


@dataclass(frozen=True, slots=True)
class Target:
    """A machine and the way in. `host_key_public`: one line as in a .pub file; exactly this key is accepted.

    `client_key_openssh`: our private key, as ssh-keygen writes it without a passphrase.
    """

    host: str
    port: int
    user: str
    host_key_public: str
    client_key_openssh: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Output:
    """What a command printed, the end of it."""

    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True)
class _Limit:
    """Until when (of the clock), and what is said of what is not over by then."""

    at: float
    words: str


class Shell:
    """An open connection. `step` is what its errors name. For one thread."""

    def __init__(self, connection: Any, node: str, clock: Clock, deadline: float) -> None:
        self._connection = connection
        self._node = node
        self._clock = clock
        self._deadline = deadline
        self.step = ""

    def run(self, command: Run) -> Output:
        """Run it to its end. Raises CommandError, BootstrapTimeoutError, UnreachableError."""
        script, timeout_s = command.script, command.timeout_s
        if command.as_root:
            script, timeout_s = scripts.as_root(script, self._node, timeout_s), timeout_s + scripts.ROOT_GRACE_S
        limit = self._limit(timeout_s)
        with self._faults(str(command), limit), self._cut_off(limit):
            channel = self._connection.create_session()
            with channel:
                # The login shell may be any; ours is sh. exec: one process less to outlive a broken connection.
                channel.exec_command(f"exec /bin/sh -c {shlex.quote(script)}")
                self._send(channel, command.stdin, limit)
                output = self._drain(channel, str(command), limit)
                status = channel.recv_exit_status()
        if status == -1:  # paramiko's word for a channel that ended without a status
            message = f"the connection broke while `{command}` ran"
            raise self._error(UnreachableError, message, str(command), output.stderr)
        if status != 0:
            raise CommandError(
                f"`{command}` ended with status {status}{_last_line(output.stderr)}",
                node=self._node,
                step=self.step,
                command=str(command),
                exit_status=status,
                stderr=output.stderr,
            )
        return output

    def upload(self, uploads: Sequence[Upload], nonce: str) -> None:
        """Write each beside its place, under a name with `nonce`, check it there, move it. Raises as `run` does.

        All in one round trip. Where the connection breaks, the machine itself removes what is half written.
        """
        script = scripts.put([(each.path, each.mode, each.data) for each in uploads], nonce)
        what = "; ".join(map(str, uploads))
        self.run(Run(what, script, UPLOAD_TIMEOUT_S, stdin=b"".join(each.data for each in uploads)))

    def _limit(self, timeout_s: float) -> _Limit:
        at = self._clock() + timeout_s
        if at <= self._deadline:
            return _Limit(at, f"did not end within {timeout_s:g} s")
        return _Limit(self._deadline, "was still at work when the time for all of the bootstrap was over")

    @contextmanager
    def _cut_off(self, limit: _Limit) -> Iterator[None]:
        """paramiko waits for some of a server's answers for ever: a machine that does not give them is hung up on."""
        timer = threading.Timer(max(0.0, limit.at - self._clock()) + _CUT_OFF_S, self._connection.transport.close)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _send(self, channel: Any, data: bytes, limit: _Limit) -> None:
        """What a command that has ended did not read, it did not need: why it ended is told elsewhere."""
        try:
            for start in range(0, len(data), _CHUNK_BYTES):
                channel.settimeout(max(0.001, limit.at - self._clock()))
                channel.sendall(data[start : start + _CHUNK_BYTES])
            channel.shutdown_write()
        except TimeoutError:
            raise
        except OSError:
            if not channel.closed:
                raise

    def _drain(self, channel: Any, command: str, limit: _Limit) -> Output:
        stdout, stderr = bytearray(), bytearray()
        idle = 0
        ended_at: float | None = None
        while True:
            if ended_at is None and channel.exit_status_ready():
                ended_at = self._clock()
            # Its status may come before its last words; what it left behind may keep those from ever ending.
            said_all = ended_at is not None and (channel.eof_received or self._clock() > ended_at + _LAST_WORDS_S)
            ended = said_all or channel.closed
            got = False
            for kept, ready, receive in (
                (stdout, channel.recv_ready, channel.recv),
                (stderr, channel.recv_stderr_ready, channel.recv_stderr),
            ):
                while ready():
                    kept.extend(receive(1 << 16))
                    del kept[:-_OUTPUT_BYTES]
                    got = True
            if ended and not got:
                return Output(stdout.decode(errors="replace"), stderr.decode(errors="replace"))
            if self._clock() > limit.at:
                message = f"`{command}` {limit.words}"
                raise self._error(BootstrapTimeoutError, message, command, stderr.decode(errors="replace"))
            idle = 0 if got else idle + 1
            if ended_at is not None:
                time.sleep(_POLL_S[0])
            elif idle:
                channel.status_event.wait(_POLL_S[min(idle, len(_POLL_S)) - 1])

    @contextmanager
    def _faults(self, command: str, limit: _Limit) -> Iterator[None]:
        """Faults of the connection as errors that name node, step and command."""
        import paramiko

        try:
            yield
        except BootstrapError:
            raise
        except TimeoutError as error:
            raise self._error(BootstrapTimeoutError, f"`{command}` {limit.words}", command) from error
        except (paramiko.SSHException, OSError, EOFError) as error:
            message = f"the connection broke at `{command}`: {error or type(error).__name__}"
            raise self._error(UnreachableError, message, command) from error

    def _error(self, kind: type[BootstrapError], message: str, command: str, stderr: str = "") -> BootstrapError:
        return kind(message, node=self._node, step=self.step, command=command, stderr=stderr)


@contextmanager
def connected(target: Target, node: str, clock: Clock, deadline: float) -> Iterator[Shell]:
    """A shell on the machine, waited for until `deadline` (of `clock`) while its sshd is not up yet.

    Raises HostKeyMismatchError at once, LoginRefusedError after LOGIN_PATIENCE_S of refusals, else UnreachableError.
    """
    connection = _connect(target, node, clock, deadline)
    try:
        yield Shell(connection, node, clock, deadline)
    finally:
        connection.close()


def _connect(target: Target, node: str, clock: Clock, deadline: float) -> Any:
    import paramiko

    host_key, client_key = _public_key(target.host_key_public), _private_key(target.client_key_openssh)
    where = f"{target.user}@{target.host}:{target.port}"
    refused_since: float | None = None
    refusal = ""
    attempts = 0
    while True:
        left_s = deadline - clock()
        try:
            return _open(target, host_key, client_key, max(0.1, min(CONNECT_TIMEOUT_S, left_s)))
        except paramiko.BadHostKeyException as error:
            raise HostKeyMismatchError(
                f"{where} has the host key {_fingerprint(error.key)}, not {_fingerprint(host_key)} as it was given "
                "at its launch; another machine answers at this address",
                node=node,
            ) from error
        except paramiko.AuthenticationException as error:
            now = clock()
            refused_since = now if refused_since is None else refused_since
            refusal = f"{where} refuses our key ({error}); is {target.user} the image's user?"
            if min(deadline, refused_since + LOGIN_PATIENCE_S) <= now:
                raise LoginRefusedError(refusal, node=node) from error
        except (paramiko.SSHException, OSError, EOFError) as error:
            if clock() >= deadline and refusal:  # the last try was cut short; what was said before it is the reason
                raise LoginRefusedError(refusal, node=node) from error
            if clock() >= deadline:
                reason = str(error) or type(error).__name__
                raise UnreachableError(f"sshd at {where} did not answer in time: {reason}", node=node) from error
        attempts += 1
        wait_s = min(RETRY_S[min(attempts, len(RETRY_S)) - 1], deadline - clock())
        if wait_s > 0:
            time.sleep(wait_s)


def _open(target: Target, host_key: Any, client_key: Any, timeout_s: float) -> Any:
    import fabric
    import paramiko

    connection = fabric.Connection(
        target.host,
        user=target.user,
        port=target.port,
        config=fabric.Config(lazy=True, ssh_config=paramiko.SSHConfig()),
        connect_kwargs={
            "pkey": client_key,
            "look_for_keys": False,
            "allow_agent": False,
            # Not fabric's connect_timeout: that one is cut to whole seconds.
            "timeout": timeout_s,
            "banner_timeout": timeout_s,
            "auth_timeout": timeout_s,
            "channel_timeout": CONNECT_TIMEOUT_S,
        },
    )
    client = connection.client
    known_as = target.host if target.port == paramiko.config.SSH_PORT else f"[{target.host}]:{target.port}"
    client.get_host_keys().add(known_as, host_key.get_name(), host_key)
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    client.set_log_channel(_quiet_log().name)
    try:
        connection.open()
    except BaseException:
        client.close()  # fabric only closes what it has seen open
        raise
    transport = connection.transport
    transport.set_keepalive(KEEPALIVE_S)
    transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_S * 1000)
    return connection


def _quiet_log() -> logging.Logger:
    """paramiko logs each refused connection with a traceback; all of it reaches us as exceptions anyway."""
    log = logging.getLogger("bootstrap.ssh")
    log.setLevel(logging.CRITICAL)
    return log


def _public_key(line: str) -> Any:
    import paramiko

    try:
        kind, body, *_ = line.split()
        return paramiko.PKey.from_type_string(kind, b64decode(body, validate=True))
    except (ValueError, binascii.Error, paramiko.SSHException, paramiko.pkey.UnknownKeyType) as error:
        raise ValueError(f"host_key_public is no public key in OpenSSH's format: {line[:60]!r}") from error


def _private_key(text: str) -> Any:
    import paramiko

    kinds: tuple[Callable[[io.StringIO], Any], ...] = tuple(kind.from_private_key for kind in paramiko.key_classes)
    for read in kinds:
        try:
            return read(io.StringIO(text))
        except (paramiko.SSHException, ValueError):
            continue
    raise ValueError("client_key_openssh is no private key in OpenSSH's format without a passphrase")


def _fingerprint(key: Any) -> str:
    """As ssh-keygen -l prints it."""
    digest = binascii.b2a_base64(sha256(key.asbytes()).digest(), newline=False).decode().rstrip("=")
    return f"SHA256:{digest} ({key.get_name()})"


def _last_line(stderr: str) -> str:
    """What programs say last is why they ended."""
    lines = stderr.rstrip().splitlines()
    return f": {lines[-1].strip()[:_LINE_CHARACTERS]}" if lines else ""
