"""The daemon's Unix socket, and who may use it: root and the daemon's user, or besides the members of a group."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import socket
import stat
import struct
from pathlib import Path
from typing import Any

from supervisor.errors import StartError

# Stands for a host in the address of a request's client; its number is a user's.
PEER = "uid"
_UCRED = struct.Struct("3i")  # unix(7): pid, uid, gid


def peer_uid(connection: Any) -> int | None:
    """Return the user at the other end of a Unix socket's connection; None for another one."""
    if connection is None or connection.family != socket.AF_UNIX:
        return None
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return int(_UCRED.unpack(raw)[1])


def user_name(client: tuple[str, int] | None) -> str:
    """Return who makes a request: the name of this computer's user, `uid-1000` for one without a name, "" where it is
    not known."""
    if client is None or client[0] != PEER:
        return ""
    try:
        return pwd.getpwuid(client[1]).pw_name
    except KeyError:
        return f"uid-{client[1]}"


def bind_socket(path: Path, group: str = "") -> socket.socket:
    """Return a listening Unix socket, mode 0600; 0660 for the members of a group. Replaces a dead daemon's.

    Raises StartError if one listens there, or the socket cannot be given to the group.
    """
    gid = _gid(group) if group else None
    _make_folder(path.parent, gid)
    if path.exists() and stat.S_ISSOCK(path.stat().st_mode):
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(os.fspath(path)) == 0:
                raise StartError(f"another spotsupd listens at {path}: stop it, or give this one another --socket")
        path.unlink()
    listening = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        listening.bind(os.fspath(path))
        if gid is not None:
            # In this order: another group than the intended one never has it.
            _give(path, gid)
            path.chmod(0o660)
    except OSError as error:
        listening.close()
        raise StartError(_why_not(path, group, error)) from error
    finally:
        os.umask(before)
    listening.listen(128)
    return listening


def _make_folder(folder: Path, gid: int | None) -> None:
    """Make a folder; one that is there already is left as it is."""
    if folder.exists():
        return
    folder.mkdir(parents=True, mode=0o700)
    if gid is not None:
        _give(folder, gid)
        folder.chmod(0o750)


def _give(path: Path, gid: int) -> None:
    """To a group. The shipped unit forbids chown(), also where it would change nothing."""
    if path.stat().st_gid != gid:
        os.chown(path, -1, gid)


def _gid(group: str) -> int:
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise StartError(
            f"api.group is {group!r}, and this computer has no such group: make it (`groupadd {group}`), or correct it"
        ) from None


def _why_not(path: Path, group: str, error: OSError) -> str:
    if group and isinstance(error, PermissionError) and path.exists():
        user = str(os.geteuid())
        with contextlib.suppress(KeyError):  # a user without a name, as in containers
            user = pwd.getpwuid(os.geteuid()).pw_name
        return (
            f"{path} cannot be given to the group {group} of api.group, of which {user} is no member: "
            f"`usermod -aG {group} {user}`, and start spotsupd again; the shipped unit can use the group {user} only"
        )
    return f"cannot listen at {path}: {error.strerror}"


def closed_folder(path: Path, group: str) -> Path | None:
    """Return the first folder above the socket that members of the group may not pass; None if they reach it.

    Raises StartError if there is no such group.
    """
    gid = _gid(group)
    for folder in reversed(path.absolute().parents):
        try:
            found = folder.stat()
        except OSError:
            return None  # the daemon makes it
        passing = stat.S_IXGRP if found.st_gid == gid else stat.S_IXOTH
        if not found.st_mode & passing:
            return folder
    return None
