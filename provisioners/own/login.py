"""One request to one host over SSH: its key is known beforehand, and time and memory are bounded."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
import shlex
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provisioners.base import ProvisionerError
from provisioners.calls import Deadline, NoAnswerError, NotSentError
from provisioners.own.host import ANSWER_FOLLOWS
from provisioners.own.program import COMMAND, sent
from provisioners.own.settings import OwnHost, OwnSettings

_CONNECT_S = 10.0
_MAX_ANSWER_BYTES = 4 << 20
_ERROR_BYTES = 4096


class HostError(ProvisionerError):
    """The host was reached, and our program does not run there: the message says why."""


class SilentError(NotSentError):
    """The host cannot be reached."""


def ask(name: str, settings: OwnSettings, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
    """Return a host's answer. Raises NotSentError (SilentError where nothing answers), NoAnswerError, HostError."""
    host, deadline = settings.hosts[name], Deadline(timeout_s)
    where = f"{name} ({host.address})"
    connection = _connection(name, settings, min(_CONNECT_S, timeout_s))
    cut = threading.Timer(max(0.1, deadline.left_s()), connection.close)
    cut.daemon = True
    cut.start()
    try:
        status, output, errors = _run(connection, settings, request)
    except Exception as error:
        raise NoAnswerError(f"{where} did not answer within {timeout_s:g} s: {_text(error)}") from error
    finally:
        cut.cancel()
        connection.close()
    if status == 0:
        with suppress(ValueError, RecursionError):
            _, _, said = output.decode().rpartition(f"{ANSWER_FOLLOWS}\n")
            if isinstance(found := json.loads(said), dict):
                return found
    if status in {-1, 0} or len(output) > _MAX_ANSWER_BYTES:
        raise NoAnswerError(f"{where} gave half an answer: {output[:200]!r}")
    lines = errors.decode(errors="replace").strip().splitlines()
    why = lines[-1] if lines else f"it ended with status {status}"
    raise HostError(f"{where}: {settings.python} cannot run our program: {why[:300]}")


def _run(connection: Any, settings: OwnSettings, request: Mapping[str, Any]) -> tuple[int, bytes, bytes]:
    channel = connection.get_transport().open_session(timeout=_CONNECT_S)
    python = settings.python
    quoted = f'"$HOME"/{shlex.quote(python[2:])}' if python.startswith("~/") else shlex.quote(python)
    channel.exec_command(f"""exec /bin/sh -c {shlex.quote(f'exec {quoted} -I -c "{COMMAND}"')}""")
    channel.sendall(sent(request, settings.folder))
    channel.shutdown_write()
    output = channel.makefile("rb").read(_MAX_ANSWER_BYTES + 1)
    errors = channel.makefile_stderr("rb").read(_ERROR_BYTES)
    return channel.recv_exit_status(), output, errors


@dataclass(frozen=True, slots=True)
class HostKey:
    """The SSH key that a host has shown."""

    line: str  # of a known_hosts file
    fingerprint: str  # as `ssh-keygen -l` has it
    is_new: bool
    file: Path

    def keep(self) -> None:
        """Add it to the known ones. Raises OSError."""
        self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        text = self.file.read_text(encoding="utf-8") if self.file.exists() else ""
        with self.file.open("a", encoding="utf-8") as file:
            file.write(f"{chr(10) if text and not text.endswith(chr(10)) else ''}{self.line}\n")


def host_key_of(host: OwnHost, settings: OwnSettings, timeout_s: float) -> HostKey:
    """Ask a host for its SSH key. Raises NotSentError."""
    import paramiko

    where = host.address if host.port == paramiko.config.SSH_PORT else f"[{host.address}]:{host.port}"
    try:
        with socket.create_connection((host.address, host.port), timeout_s) as connection:
            transport = paramiko.Transport(connection)
            transport.set_log_channel(_quiet_log().name)
            try:
                transport.start_client(timeout=timeout_s)
                key = transport.get_remote_server_key()
            finally:
                transport.close()
    except (OSError, EOFError, paramiko.SSHException) as error:
        raise NotSentError(f"{where} does not answer as an SSH server: {_text(error)}") from error
    client = paramiko.SSHClient()
    _load_keys(client, settings)
    digest = base64.b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")
    default = Path("/etc/ssh/ssh_known_hosts") if os.geteuid() == 0 else Path("~/.ssh/known_hosts").expanduser()
    is_new = key.get_name() not in (client.get_host_keys().lookup(where) or {})
    file = Path(settings.known_hosts).expanduser() if settings.known_hosts else default
    return HostKey(f"{where} {key.get_name()} {key.get_base64()}", f"SHA256:{digest}", is_new, file)


def _load_keys(client: Any, settings: OwnSettings) -> None:
    files = [settings.known_hosts] if settings.known_hosts else ["~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts"]
    for each in files:
        try:
            client.load_host_keys(str(Path(each).expanduser()))
        except FileNotFoundError:
            pass  # the host's key is not known then
        except Exception as error:  # OSError, paramiko's InvalidHostKey, a line that is no text
            raise NotSentError(f"the hosts' keys in {each} cannot be read: {_text(error)}") from error


def _connection(name: str, settings: OwnSettings, timeout_s: float) -> Any:
    import paramiko

    host = settings.hosts[name]
    where = f"{name} ({host.address})"
    client = paramiko.SSHClient()
    client.set_log_channel(_quiet_log().name)
    _load_keys(client, settings)
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    key_file = str(Path(host.key_file).expanduser()) if host.key_file else None
    try:
        if key_file:
            Path(key_file).read_bytes()
    except OSError as error:
        raise NotSentError(f"{where}: its key_file {key_file} cannot be read: {error.strerror}") from error
    try:
        client.connect(
            host.address,
            host.port,
            host.user or settings.login_user,
            key_filename=key_file,
            look_for_keys=key_file is None,
            allow_agent=key_file is None,
            timeout=timeout_s,
            banner_timeout=timeout_s,
            auth_timeout=timeout_s,
            channel_timeout=timeout_s,
        )
    except Exception as error:
        client.close()
        # Names that cannot be resolved, and networks that are away, may be this computer's trouble.
        silent = isinstance(error, TimeoutError | paramiko.ssh_exception.NoValidConnectionsError)
        kind = SilentError if silent else NotSentError
        raise kind(f"{where} cannot be logged in to: {_remedy(error, name, settings)}") from error
    return client


def _remedy(error: Exception, name: str, settings: OwnSettings) -> str:
    import paramiko

    host = settings.hosts[name]
    port = "" if host.port == paramiko.config.SSH_PORT else f"-p {host.port} "
    file = settings.known_hosts or "~/.ssh/known_hosts"
    user = host.user or settings.login_user
    match error:
        case paramiko.BadHostKeyException():
            return f"its SSH key is another one than in {file}: if that is right, correct the line there"
        case paramiko.AuthenticationException() if "timeout" not in str(error).lower():
            key = host.key_file or "the SSH agent and the keys in ~/.ssh"
            return f"it does not let {user} in with {key}: `ssh-copy-id {port}{user}@{host.address}`"
        case paramiko.SSHException() if "known_hosts" in str(error):
            at = host.address if not port else f"{host.address}:{host.port}"
            return (
                f"its SSH key is not in {file}: `spotsupd machine add {at} --name {name}` shows and keeps it, and so "
                "does ssh(1)"
            )
        case OSError():
            why = "" if isinstance(error, paramiko.ssh_exception.NoValidConnectionsError) else f" ({_text(error)})"
            return f"nothing answers there at port {host.port}{why}: is it switched on, and does its SSH server run?"
        case EOFError():
            return "it closes the connection before it says who it is"
    return _text(error)


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__


def _quiet_log() -> logging.Logger:
    """paramiko logs each refused connection with a traceback; we get all of them as exceptions."""
    log = logging.getLogger("provisioners.own.ssh")
    log.setLevel(logging.CRITICAL)
    return log
