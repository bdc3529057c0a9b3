"""etcd and sshd: on the PATH, else unpacked into .tools/root, else installed as root, else the command that does it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from provisioners.localcloud.programs import ProgramMissingError, find_program, find_ssh_programs, library_path
from tools.setup.apt import Apt
from tools.setup.errors import SetupError, output_tail, run

PACKAGES: Mapping[str, Sequence[str]] = {
    "etcd": ("etcd-server",),
    "sshd": ("openssh-server", "openssh-sftp-server"),
}
LIBRARY_ROUNDS = 4
RUN_TIMEOUT_S = 30.0
INSTALL_TIMEOUT_S = 900.0

# Exit status 101 of policy-rc.d: no service may be started. Enabling is another matter, and undone.
_INSTALL = r"""
set -eu
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi
install() { DEBIAN_FRONTEND=noninteractive apt-get install --quiet --yes --no-install-recommends "$@"; }
install "$@" || { apt-get --quiet update && install "$@"; }
for package in "$@"; do
    case $package in
    etcd-server) units="etcd.service" service=etcd ;;
    openssh-server) units="ssh.service ssh.socket" service=ssh ;;
    *) continue ;;
    esac
    if command -v systemctl >/dev/null; then
        for unit in $units; do systemctl disable --now "$unit" >/dev/null 2>&1 || :; done
    fi
    update-rc.d "$service" disable >/dev/null 2>&1 || :
done
"""


def ensure_programs(clone: Path) -> None:
    """Return once etcd and sshd run. Raises SetupError with the command that brings them."""
    root = clone / ".tools" / "root"
    if not (missing := _missing(root)):
        return
    packages = [package for name in missing for package in PACKAGES[name]]
    print(f"setup: no {' and no '.join(missing)} here: unpacking Debian's packages into .tools/root", flush=True)
    reasons = []
    try:
        _unpack(packages, clone)
    except SetupError as error:
        reasons.append(str(error))
    if not _missing(root):
        return
    if (prefix := _root_prefix()) is not None:
        print(f"setup: installing {' '.join(packages)}, with no service started or enabled", flush=True)
        done = run([*prefix, "sh", "-c", _INSTALL, "sh", *packages], cwd=clone, timeout_s=INSTALL_TIMEOUT_S)
        if done.returncode != 0:
            reasons.append(output_tail(done))
    if missing := _missing(root):
        why = "".join(f"\n  {line}" for reason in reasons for line in reason.splitlines())
        raise SetupError(
            f"{' and '.join(missing)} cannot be had:{why}\n"
            f"This brings what is missing: sudo apt-get install --no-install-recommends {' '.join(packages)}"
        )


def ensure_installed(packages: Mapping[str, str], clone: Path) -> None:
    """Install what cannot be unpacked into a folder: `packages` by the program that each brings. Raises SetupError."""
    missing = sorted({package for program, package in packages.items() if not _is_installed(program)})
    if not missing:
        return
    by_hand = f"this brings what is missing: sudo apt-get install --no-install-recommends {' '.join(missing)}"
    if (prefix := _root_prefix()) is None:
        raise SetupError(f"{' and '.join(missing)} have to be installed, which takes root; {by_hand}")
    print(f"setup: installing {' '.join(missing)}", flush=True)
    done = run([*prefix, "sh", "-c", _INSTALL, "sh", *missing], cwd=clone, timeout_s=INSTALL_TIMEOUT_S)
    if done.returncode != 0:
        raise SetupError(f"{' and '.join(missing)} cannot be installed: {output_tail(done)}\n{by_hand}")


def _is_installed(program: str) -> bool:
    try:
        find_program(program)
    except ProgramMissingError:
        return False
    return True


def _missing(root: Path) -> list[str]:
    """Return which of the programs are not there, or do not run."""
    tools = root if root.is_dir() else None
    return [name for name in PACKAGES if not _works(name, tools)]


def _works(name: str, tools: Path | None) -> bool:
    try:
        if name == "sshd":
            find_ssh_programs(tools)  # it runs sshd to ask for its version
            return True
        return (
            run([str(find_program(name, tools)), "--version"], cwd=Path("/"), timeout_s=RUN_TIMEOUT_S).returncode == 0
        )
    except ProgramMissingError:
        return False


def _unpack(packages: Sequence[str], clone: Path) -> None:
    """Unpack beside the root, complete it, then put it in the root's place: a root is whole or not there."""
    tools = clone / ".tools"
    root, scratch, old = tools / "root", tools / "root.new", tools / "root.old"
    for leftover in (scratch, old):
        shutil.rmtree(leftover, ignore_errors=True)
    if root.is_dir():
        shutil.copytree(root, scratch, symlinks=True)
    apt = Apt(tools)
    apt.unpack(packages, scratch)
    _add_libraries(apt, list(packages), scratch)
    if root.is_dir():
        root.rename(old)
    scratch.rename(root)
    shutil.rmtree(old, ignore_errors=True)


def _add_libraries(apt: Apt, packages: list[str], root: Path) -> None:
    """Add the shared libraries that unpacked programs miss: by the packages' own dependencies, a few levels deep."""
    for _ in range(LIBRARY_ROUNDS):
        if not (missing := _missing_libraries(root)):
            return
        more = sorted(set().union(*(apt.missing_libraries(package) for package in packages)) - set(packages))
        if not more:
            raise SetupError(f"no package is known that brings {', '.join(sorted(missing))}")
        apt.unpack(more, root)
        packages += more
    if missing := _missing_libraries(root):
        raise SetupError(f"after {LIBRARY_ROUNDS} rounds still missing: {', '.join(sorted(missing))}")


def _missing_libraries(root: Path) -> set[str]:
    programs = [path for path in root.glob("usr/*/**/*") if path.is_file() and os.access(path, os.X_OK)]
    environ = {"LD_LIBRARY_PATH": library_path(root)}
    missing = set()
    for program in programs:
        output = run(["ldd", str(program)], cwd=root, timeout_s=RUN_TIMEOUT_S, environ=environ).stdout
        missing |= {line.split()[0] for line in output.splitlines() if line.endswith("=> not found")}
    return missing


def _root_prefix() -> list[str] | None:
    """Return what makes a command run as root; None where nothing does."""
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo") is None:
        return None
    asks = ["sudo"] if sys.stdin.isatty() else ["sudo", "-n"]
    allowed = subprocess.run([*asks, "true"], check=False, timeout=INSTALL_TIMEOUT_S).returncode == 0
    return asks if allowed else None
