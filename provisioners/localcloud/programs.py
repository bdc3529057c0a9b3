"""Where OpenSSH's programs are: on the PATH, in the system's folders, or unpacked into a folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOOLS_VARIABLE = "SPOTSUP_TOOLS"

_BIN_FOLDERS = ("usr/local/sbin", "usr/sbin", "usr/bin", "sbin", "bin")
# Debian, Fedora, Alpine and Arch put OpenSSH's helpers in different places.
_HELPER_FOLDERS = ("usr/lib/openssh", "usr/libexec/openssh", "usr/lib/ssh", "usr/libexec", "usr/lib")
_CLONE_TOOLS = Path(__file__).resolve().parent.parent.parent / ".tools" / "root"
_VERSION_TIMEOUT_S = 10.0


class ProgramMissingError(Exception):
    """A program that a machine needs is not on this computer; the message says what to install."""


@dataclass(frozen=True)
class SshPrograms:
    """What a machine's sshd is made of. `version` is (major, minor); paths are absolute.

    `libraries` is the LD_LIBRARY_PATH that an unpacked sshd needs, "" for an installed one.
    `session` and `auth` are the helpers that OpenSSH 9.8 and 10.0 split off, None where sshd knows its own.
    """

    sshd: Path
    sftp_server: Path
    version: tuple[int, int]
    libraries: str = ""
    session: Path | None = None
    auth: Path | None = None

    @property
    def in_spec(self) -> dict[str, Any]:
        """Return them as a machine's `Spec` has them."""
        return {
            "sshd": str(self.sshd),
            "sshd_version": self.version,
            "sftp_server": str(self.sftp_server),
            "libraries": self.libraries,
            "sshd_session": str(self.session or ""),
            "sshd_auth": str(self.auth or ""),
        }


def find_program(name: str, tools: Path | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the program `name`: on the PATH, then in the system's folders, then below `tools` (a root folder).

    Raises ProgramMissingError.
    """
    found = shutil.which(name, path=environ.get("PATH", os.defpath))
    if found:
        return Path(found).resolve()
    roots = [Path("/"), *([tools] if tools else [])]
    for candidate in (root / folder / name for root in roots for folder in _BIN_FOLDERS):
        if os.access(candidate, os.X_OK):
            return candidate.resolve()
    where = f", nor below {tools}" if tools else ""
    raise ProgramMissingError(f"no program {name!r} on the PATH{where}; install it, or set {TOOLS_VARIABLE}")


def tools_root(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder with unpacked programs: the one that the environment names, else the clone's, None without
    either."""
    named = environ.get(TOOLS_VARIABLE, "")
    if named:
        return Path(named)
    return _CLONE_TOOLS if _CLONE_TOOLS.is_dir() else None


def library_path(tools: Path | None) -> str:
    """LD_LIBRARY_PATH for programs unpacked below `tools`: every folder there that holds shared libraries."""
    if tools is None:
        return ""
    folders = {found.parent for pattern in ("lib", "usr/lib") for found in (tools / pattern).glob("*/*.so.*")}
    return ":".join(sorted(str(folder.resolve()) for folder in folders))


def find_ssh_programs(tools: Path | None = None, environ: Mapping[str, str] = os.environ) -> SshPrograms:
    """sshd and its helpers. An unpacked sshd brings its own helpers, an installed one knows where they are.

    Raises ProgramMissingError.
    """
    sshd = find_program("sshd", tools, environ)
    unpacked = tools is not None and sshd.is_relative_to(tools.resolve())
    libraries = library_path(tools) if unpacked else ""
    version = _version_of(sshd, libraries)
    root = tools if unpacked and tools else Path("/")
    sftp_server = _helper(root, "sftp-server") or _helper(Path("/"), "sftp-server")
    if sftp_server is None:
        raise ProgramMissingError(f"{sshd} is here, its sftp-server is not: install openssh-sftp-server")
    return SshPrograms(
        sshd=sshd,
        sftp_server=sftp_server,
        version=version,
        libraries=libraries,
        session=_helper(root, "sshd-session") if unpacked and version >= (9, 8) else None,
        auth=_helper(root, "sshd-auth") if unpacked and version >= (10, 0) else None,
    )


def _helper(root: Path, name: str) -> Path | None:
    candidates = (root / folder / name for folder in _HELPER_FOLDERS)
    return next((found.resolve() for found in candidates if os.access(found, os.X_OK)), None)


def _version_of(sshd: Path, libraries: str) -> tuple[int, int]:
    """`sshd -V` says it; before 9.2 that option is unknown, and the usage text says it too."""
    environ = {**os.environ, **({"LD_LIBRARY_PATH": libraries} if libraries else {})}
    try:
        done = subprocess.run(
            [sshd, "-V"],
            capture_output=True,
            text=True,
            env=environ,
            timeout=_VERSION_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProgramMissingError(f"{sshd} does not run: {error}") from error
    output = done.stderr + done.stdout
    match = re.search(r"OpenSSH_(\d+)\.(\d+)", output)
    if match is None:
        raise ProgramMissingError(f"{sshd} is not an OpenSSH server: it says {output.strip()[:200]!r}")
    return int(match[1]), int(match[2])
