"""A machine's sshd: its configuration, and its start as a child of init."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from provisioners.localcloud.machine.child import reachable, spawn
from provisioners.localcloud.machine.spec import MARKER_VARIABLE, Folder, Spec

# sshd goes to the account's own home first, and SetEnv alone does not move it: so a forced command moves every
# session, sftp too, to the machine's. The client's command then runs as sshd would have run it.
_SESSION = (
    "cd && command=$SSH_ORIGINAL_COMMAND && unset SSH_ORIGINAL_COMMAND OLDPWD && "
    'if [ -n "$command" ]; then exec "$SHELL" -c "$command"; else exec "$SHELL" -l; fi'
)


def config_text(spec: Spec, folder: Folder, port: int, variables: Mapping[str, str] = MappingProxyType({})) -> str:
    """sshd_config. Paths are quoted: the cloud's folder may have spaces. `variables`: further ones for those who log
    in."""
    environ = [_quoted(f"HOME={folder.home}"), f"{MARKER_VARIABLE}={spec.id}"]
    environ += [_quoted(f"{name}={value}") for name, value in variables.items()]
    lines = [
        f"Port {port}",
        f"ListenAddress {spec.address}",
        f"HostKey {_quoted(folder.host_key)}",
        f"AuthorizedKeysFile {_quoted(folder.authorized_keys).replace('%', '%%')}",
        "PidFile none",
        "UsePAM no",
        "StrictModes no",  # our folder may lie below one that others can write, such as /tmp
        "AuthenticationMethods publickey",
        "PasswordAuthentication no",
        "PermitRootLogin prohibit-password",
        "PermitUserRC no",  # it would be the one in the account's own home
        "X11Forwarding no",
        "PrintMotd no",
        "PrintLastLog no",
        "UseDNS no",
        "AcceptEnv LANG LC_*",
        "MaxStartups 200:30:400",  # bootstrap opens many connections at once; the default refuses after 10
        "MaxSessions 100",
        f"SetEnv {' '.join(environ)}",
        f"Subsystem sftp {_quoted(shlex.quote(spec.sftp_server))}",  # sshd unquotes it, then hands it to a shell
        f"ForceCommand exec /bin/sh -c '{_SESSION}'",
    ]
    if spec.sshd_version >= (9, 8):
        lines.append("PerSourcePenalties no")  # all clients share the loopback: one that fails would lock out all
    if spec.sshd_session:
        lines.append(f"SshdSessionPath {_quoted(spec.sshd_session)}")
    if spec.sshd_auth:
        lines.append(f"SshdAuthPath {_quoted(spec.sshd_auth)}")
    return "\n".join(lines) + "\n"


def _quoted(value: str | Path) -> str:
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def start(spec: Spec, folder: Folder, variables: Mapping[str, str] = MappingProxyType({})) -> tuple[int, int]:
    """Start sshd on the machine's address; returns (pid, port) once it answers. `variables`: of those who log in.
    Raises ChildError."""
    environ = {"PATH": os.environ.get("PATH", os.defpath), MARKER_VARIABLE: spec.id}
    if spec.libraries:
        environ["LD_LIBRARY_PATH"] = spec.libraries

    def begin(port: int) -> int:
        config = folder.path / "sshd_config"
        config.write_text(config_text(spec, folder, port, variables), encoding="utf-8")
        return spawn(spec.sshd, [spec.sshd, "-D", "-e", "-f", str(config)], environ)

    return reachable("sshd", spec.address, spec.ssh_port, begin, folder.log, greeting=b"SSH-")
