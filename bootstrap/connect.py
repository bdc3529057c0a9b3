"""One SSH connection to a machine, its host key known beforehand. Time, memory and retries are bounded.

fabric and paramiko (0.16 s) are imported when the first connection is made. None of the user's settings are read: no
~/.ssh, /etc/ssh, fabric file or SSH agent.
"""

from __future__ import annotations

import binascii
import io
import logging
import re
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

from bootstrap.errors import (
    BootstrapError,
    BootstrapTimeoutError,
    CommandError,
    HostKeyMismatchError,
    LoginRefusedError,
    LoginShellError,
    UnreachableError,
)
from bootstrap.model import Run, Upload
from bootstrap.system.facts import BORN_FILE
from bootstrap.templates import fill

CONNECT_TIMEOUT_S = 10.0
RETRY_S = (0.1, 0.2, 0.3, 0.5, 1.0)
LOGIN_PATIENCE_S = 60.0  # sshd answers before cloud-init has installed our key
KEEPALIVE_S = 5
SILENCE_S = 30  # after so long without an acknowledgement the TCP connection is closed
UPLOAD_TIMEOUT_S = 600.0
LOGIN_TIMEOUT_S = 60.0  # a login shell may start from a cold disk
ROOT_GRACE_S = 20.0  # beyond the limit of a command that runs as root: until it is killed, and has said so

_POLL_S = (0.002, 0.005, 0.01, 0.02, 0.05)
_OUTPUT_BYTES = 1 << 18  # kept of the end of each stream: a machine cannot fill the daemon's memory
_CHUNK_BYTES = 1 << 17
_FINAL_OUTPUT_S = 1.0  # after a command's status, for what it printed last
_CUT_OFF_S = 2.0  # beyond a command's limit, whose own error comes first where it can
_LINE_CHARACTERS = 300
_PROBE_BYTES = 64
_OTHER_USER = re.compile(r"login as the user \"?([\w.-]+)")  # what images print for a user whom they do not let in


Clock: TypeAlias = Callable[[], float]
"""Seconds since a fixed moment, such as `time.monotonic`."""


@dataclass(frozen=True, slots=True)
class SshHost:
    """A machine and its SSH login."""

    host: str
    port: int
    user: str
    host_key_public: str
    """One line as in a .pub file; exactly this key is accepted."""
    client_key_openssh: str = field(repr=False)
    """Our private key, as ssh-keygen writes it without a passphrase."""
    machine: str = ""
    """The node that the machine was made for, where that is an earlier one."""


@dataclass(frozen=True, slots=True)
class Output:
    """The end of what a command printed."""

    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True)
class _Limit:
    """When a command has to have ended, by the clock; and what its error says if it has not."""

    at: float
    message: str


class Shell:
    """An open connection. `step` is what its errors name. For one thread."""

    def __init__(self, connection: Any, node: str, clock: Clock, deadline: float, machine: str = "") -> None:
        self._connection = connection
        self._node = node
        self._machine = machine or node
        self._clock = clock
        self._deadline = deadline
        self.step = ""

    @property
    def transport(self) -> Any:
        """paramiko's connection, for what is no command."""
        return self._connection.transport

    def run(self, command: Run) -> Output:
        """Run it to its end. Raises CommandError, BootstrapTimeoutError, UnreachableError."""
        script, timeout_s = command.script, command.timeout_s
        if command.as_root:
            script, timeout_s = as_root(script, self._machine, timeout_s), timeout_s + ROOT_GRACE_S
        limit = self._limit(timeout_s)
        with self._faults(str(command), limit), self._cut_off(limit):
            channel = self._connection.create_session()
            with channel:
                # The login shell may be any; ours is sh. exec: one process less to outlive a broken connection.
                channel.exec_command(f"exec /bin/sh -c {shlex.quote(script)}")
                self._send(channel, command.stdin, limit)
                output = self._drain(channel, str(command), limit)
                status = channel.recv_exit_status()
        if status == -1:  # paramiko's value for a channel that ended without a status
            message = f"the connection broke while `{command}` ran"
            raise self._error(UnreachableError, message, str(command), output.stderr)
        if status != 0:
            printed = output.stderr if output.stderr.strip() else output.stdout
            raise CommandError(
                f"`{command}` ended with status {status}{_last_line(printed)}",
                node=self._node,
                step=self.step,
                command=str(command),
                exit_status=status,
                stderr=printed,
                tried=command.of_job,
            )
        return output

    def check_login(self, nonce: str) -> None:
        """Raise LoginShellError if the login shell ends before our command, or reads what is sent to it; and what `run`
        raises, but no CommandError. What the shell prints before is left out of what is read later."""
        self.step, sent = "login", nonce.ljust(_PROBE_BYTES, ".")
        command = f"printf '%s ' {shlex.quote(nonce)}; head -c {_PROBE_BYTES}"
        try:
            output, status = self.run(Run("try the login shell", command, LOGIN_TIMEOUT_S, stdin=sent.encode())), 0
        except CommandError as error:
            output, status = Output("", error.stderr), error.exit_status or 0
        before, ran, echo = output.stdout.partition(f"{nonce} ")
        if ran and echo == sent:
            return
        printed = f"{before}{output.stderr}"
        fault = "reads what is sent to our command" if ran else f"ends before our command, with status {status}"
        other = _OTHER_USER.search(printed)
        remedy = f'; set `ssh_user = "{other[1]}"`' if other else "; it must leave commands without a terminal alone"
        message = f"the login shell of {self._connection.user} {fault}{_last_line(printed).rstrip('.')}{remedy}"
        raise LoginShellError(message, node=self._node, step=self.step, stderr=printed, tried=True)

    def upload(self, uploads: Sequence[Upload], nonce: str) -> None:
        """Write each under a temporary name with `nonce`, check it there, move it into place. Raises as `run` does.

        All in one round trip. If the connection breaks, the machine itself removes what is half written.
        """
        files = [(each.path, f"{each.mode:o}", len(each.data), sha256(each.data).hexdigest()) for each in uploads]
        script = fill("shell/put.sh", nonce=nonce, files=[part for file in files for part in file])
        what = "; ".join(map(str, uploads))
        self.run(Run(what, script, UPLOAD_TIMEOUT_S, stdin=b"".join(each.data for each in uploads)))

    def _limit(self, timeout_s: float) -> _Limit:
        at = self._clock() + timeout_s
        if at <= self._deadline:
            return _Limit(at, f"did not end within {timeout_s:g} s")
        return _Limit(self._deadline, "was still running when the time limit of the whole bootstrap was reached")

    @contextmanager
    def _cut_off(self, limit: _Limit) -> Iterator[None]:
        """Close the connection shortly after the limit: paramiko waits for some of a server's answers without one."""
        timer = threading.Timer(max(0.0, limit.at - self._clock()) + _CUT_OFF_S, self._connection.transport.close)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _send(self, channel: Any, data: bytes, limit: _Limit) -> None:
        """Ignore a command that ends before it has read everything: its status says why."""
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
            # The status may come before the last output, and a process that was left behind may keep the streams open.
            complete = ended_at is not None and (channel.eof_received or self._clock() > ended_at + _FINAL_OUTPUT_S)
            ended = complete or channel.closed
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
                message = f"`{command}` {limit.message}"
                raise self._error(BootstrapTimeoutError, message, command, stderr.decode(errors="replace"))
            idle = 0 if got else idle + 1
            if ended_at is not None:
                time.sleep(_POLL_S[0])
            elif idle:
                channel.status_event.wait(_POLL_S[min(idle, len(_POLL_S)) - 1])

    @contextmanager
    def _faults(self, command: str, limit: _Limit) -> Iterator[None]:
        """Faults of the connection, as errors that name node, step and command."""
        import paramiko

        try:
            yield
        except BootstrapError:
            raise
        except TimeoutError as error:
            raise self._error(BootstrapTimeoutError, f"`{command}` {limit.message}", command) from error
        except (paramiko.SSHException, OSError, EOFError) as error:
            message = f"the connection broke at `{command}`: {error or type(error).__name__}"
            raise self._error(UnreachableError, message, command) from error

    def _error(self, kind: type[BootstrapError], message: str, command: str, stderr: str = "") -> BootstrapError:
        return kind(message, node=self._node, step=self.step, command=command, stderr=stderr)


def as_root(script: str, node: str, timeout_s: float) -> str:
    """Run `script` as root for `timeout_s` at most, on the machine that was made for `node`; fails on any other."""
    return fill("shell/as_root.sh", born=BORN_FILE, node=node, timeout_s=timeout_s, script=script)


@contextmanager
def connected(ssh: SshHost, node: str, clock: Clock, deadline: float) -> Iterator[Shell]:
    """Yield a shell on the machine. Retries until `deadline` (of `clock`) while its sshd is not up yet.

    Raises HostKeyMismatchError at once, LoginRefusedError after LOGIN_PATIENCE_S of refusals, else UnreachableError.
    """
    connection = _connect(ssh, node, clock, deadline)
    try:
        yield Shell(connection, node, clock, deadline, ssh.machine)
    finally:
        connection.close()


def _connect(ssh: SshHost, node: str, clock: Clock, deadline: float) -> Any:
    import paramiko

    host_key, client_key = _public_key(ssh.host_key_public), _private_key(ssh.client_key_openssh)
    where = f"{ssh.user}@{ssh.host}:{ssh.port}"
    refused_since: float | None = None
    refusal = ""
    attempts = 0
    while True:
        left_s = deadline - clock()
        try:
            return _open(ssh, host_key, client_key, max(0.1, min(CONNECT_TIMEOUT_S, left_s)))
        except paramiko.BadHostKeyException as error:
            raise HostKeyMismatchError(
                f"{where} has the host key {_fingerprint(error.key)}, not {_fingerprint(host_key)} as it was given "
                "at its launch; another machine answers at this address",
                node=node,
            ) from error
        except paramiko.AuthenticationException as error:
            now = clock()
            refused_since = now if refused_since is None else refused_since
            gives = f"does its image run cloud-init, which gives {ssh.user} this key?"
            refusal = f"{where} refuses our key ({error}); {gives}"
            if min(deadline, refused_since + LOGIN_PATIENCE_S) <= now:
                raise LoginRefusedError(refusal, node=node) from error
        except (paramiko.SSHException, OSError, EOFError) as error:
            if clock() >= deadline and refusal:  # the last attempt was cut short: an earlier one has the reason
                raise LoginRefusedError(refusal, node=node) from error
            if clock() >= deadline:
                reason = str(error) or type(error).__name__
                raise UnreachableError(f"sshd at {where} did not answer in time: {reason}", node=node) from error
        attempts += 1
        wait_s = min(RETRY_S[min(attempts, len(RETRY_S)) - 1], deadline - clock())
        if wait_s > 0:
            time.sleep(wait_s)


def _open(ssh: SshHost, host_key: Any, client_key: Any, timeout_s: float) -> Any:
    import fabric
    import paramiko

    connection = fabric.Connection(
        ssh.host,
        user=ssh.user,
        port=ssh.port,
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
    known_as = ssh.host if ssh.port == paramiko.config.SSH_PORT else f"[{ssh.host}]:{ssh.port}"
    client.get_host_keys().add(known_as, host_key.get_name(), host_key)
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    client.set_log_channel(_quiet_log().name)
    try:
        connection.open()
    except BaseException:
        client.close()  # fabric closes only what it has opened
        raise
    transport = connection.transport
    transport.set_keepalive(KEEPALIVE_S)
    transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_S * 1000)
    return connection


def _quiet_log() -> logging.Logger:
    """paramiko logs each refused connection with a traceback; we get all of them as exceptions."""
    log = logging.getLogger("bootstrap.ssh")
    log.setLevel(logging.CRITICAL)
    return log


def _public_key(line: str) -> Any:
    import paramiko

    try:
        kind, body, *_ = line.split()
        return paramiko.PKey.from_type_string(kind, b64decode(body, validate=True))
    except (ValueError, binascii.Error, paramiko.SSHException, paramiko.pkey.UnknownKeyType) as error:
        raise ValueError(f"host_key_public is not a public key in OpenSSH's format: {line[:60]!r}") from error


def _private_key(text: str) -> Any:
    import paramiko

    kinds: tuple[Callable[[io.StringIO], Any], ...] = tuple(kind.from_private_key for kind in paramiko.key_classes)
    for read in kinds:
        try:
            return read(io.StringIO(text))
        except (paramiko.SSHException, ValueError):
            continue
    raise ValueError("client_key_openssh is not a private key in OpenSSH's format without a passphrase")


def _fingerprint(key: Any) -> str:
    """Return it as `ssh-keygen -l` prints it."""
    digest = binascii.b2a_base64(sha256(key.asbytes()).digest(), newline=False).decode().rstrip("=")
    return f"SHA256:{digest} ({key.get_name()})"


def _last_line(stderr: str) -> str:
    """Return the last line that a program prints: it is usually the reason."""
    lines = stderr.rstrip().splitlines()
    return f": {lines[-1].strip()[:_LINE_CHARACTERS]}" if lines else ""
