"""What an sshd that runs as root wants to find on its computer, given to it in a mount namespace of its own.

Root's sshd refuses to start without the account `sshd` and the folder /run/sshd, which only an installed package
brings, and (UsePAM no) refuses a login to a locked account. An unpacked sshd finds neither. Rather than change the
computer, init mounts its own view of three files: nothing outside the machine's folder is touched, and the view ends
with the machine. Without root none of this is asked for.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
from pathlib import Path

_RUN = Path("/run")
_PRIVSEP = _RUN / "sshd"
_CLONE_NEWNS = 0x00020000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000


class NamespaceError(Exception):
    """Root's sshd cannot run here; the message says what would help."""


def prepare(folder: Path) -> None:
    """Enter a namespace in which root's sshd starts, if it would not as things are. Raises NamespaceError."""
    if os.geteuid() != 0:
        return
    account = _has_account("sshd")
    locked = _is_locked(pwd.getpwuid(0).pw_name)
    if account and _PRIVSEP.is_dir() and not locked:
        return
    try:
        _enter()
        _mount_run(folder / "run")
        _mount_accounts(folder, pwd.getpwuid(0).pw_name, with_sshd=not account)
    except PermissionError as error:
        if account and not locked:
            _PRIVSEP.mkdir(mode=0o755, exist_ok=True)  # all that is missing, and what the package's service does
            return
        raise NamespaceError(
            "sshd as root needs the account 'sshd', the folder /run/sshd and an account that is not locked, and this "
            f"process may not mount ({error.strerror}): install openssh-server and create /run/sshd, or run the "
            "local cloud as an ordinary user"
        ) from error


def _has_account(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _is_locked(user: str) -> bool:
    """True if it is locked as sshd sees it: a shadow password that begins with '!'."""
    try:
        lines = Path("/etc/shadow").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    return any(line.startswith(f"{user}:!") for line in lines)


def _enter() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.unshare(_CLONE_NEWNS), "unshare")
    _mount("none", "/", "", _MS_REC | _MS_PRIVATE)  # else our mounts would show outside


def _mount_run(scratch: Path) -> None:
    """Mount a /run with all that is in the real one, and `sshd`."""
    scratch.mkdir(exist_ok=True)
    _mount("tmpfs", str(scratch), "tmpfs", 0, "mode=755,size=1m")
    (scratch / _PRIVSEP.name).mkdir(mode=0o755)
    for entry in sorted(_RUN.iterdir()):
        target = scratch / entry.name
        if entry.is_symlink():
            target.symlink_to(entry.readlink())
            continue
        if entry.is_dir():
            target.mkdir(exist_ok=True)
        else:
            target.touch()
        with contextlib.suppress(FileNotFoundError):  # gone since it was listed
            _mount(str(entry), str(target), "", _MS_BIND | _MS_REC)
    _mount(str(scratch), str(_RUN), "", _MS_BIND | _MS_REC)


def _mount_accounts(folder: Path, user: str, *, with_sshd: bool) -> None:
    accounts = Path("/etc/passwd").read_text(encoding="utf-8")
    if with_sshd:
        used = {entry.pw_uid for entry in pwd.getpwall()}
        uid = next(number for number in range(999, 100, -1) if number not in used)
        accounts = f"{accounts.rstrip()}\nsshd:x:{uid}:65534::{_PRIVSEP}:/usr/sbin/nologin\n"
    # '*': no password ever matches, yet the account is not locked.
    for name, text in (("passwd", accounts), ("shadow", f"{user}:*:19000:0:99999:7:::\n")):
        (folder / name).write_text(text, encoding="utf-8")
        if Path("/etc", name).exists():
            _mount(str(folder / name), f"/etc/{name}", "", _MS_BIND)


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    encoded = (os.fsencode(source), os.fsencode(target), os.fsencode(kind))
    _check(libc.mount(*encoded, ctypes.c_ulong(flags), os.fsencode(data)), f"mount {target}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
