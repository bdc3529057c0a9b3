"""Who may use the daemon's socket: it is never open to more users than it should be, and what is in the way is said."""

from __future__ import annotations

import ctypes
import grp
import os
import platform
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from spotsup.contexts import default_socket
from spotsup.transport import Transport

from supervisor.api.security.unix_socket import bind_socket, closed_folder
from supervisor.cli.check import check_installation
from supervisor.config import parse_config
from supervisor.errors import DaemonUnreachableError, SpotsupError, StartError

MINE = grp.getgrgid(os.getegid()).gr_name
NOBODY = 65534
SYS_SETRESUID = {"x86_64": 117, "aarch64": 147}[platform.machine()]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


def mode(path: Path) -> str:
    return f"{stat.S_IMODE(path.stat().st_mode):o}"


def modes_at(monkeypatch: pytest.MonkeyPatch, path: Path) -> list[str]:
    """The socket's mode at each step that gives it to a group."""
    seen: list[str] = []
    chown, chmod = os.chown, Path.chmod

    def see_chown(*arguments: Any) -> None:
        seen.append(mode(path))
        chown(*arguments)

    def see_chmod(of: Path, bits: int) -> None:
        seen.append(mode(path))
        chmod(of, bits)

    monkeypatch.setattr(os, "chown", see_chown)
    monkeypatch.setattr(Path, "chmod", see_chmod)
    return seen


@pytest.mark.parametrize("umask", [0o022, 0o077, 0])
def test_without_a_group_it_is_for_its_own_user(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with closing(bind_socket(tmp_path / "state/s")):
            assert (mode(tmp_path / "state/s"), mode(tmp_path / "state")) == ("600", "700")
            with pytest.raises(StartError, match="another spotsupd listens at"):
                bind_socket(tmp_path / "state/s")
        with closing(bind_socket(tmp_path / "state/s")):
            pass  # of a dead daemon: replaced
    finally:
        os.umask(before)


def test_with_a_group_its_members_may_use_it_and_nobody_else_at_any_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s"
    seen = modes_at(monkeypatch, path)
    with closing(bind_socket(path, MINE)):
        assert seen == ["600"], (
            "until it has its group, which the shipped unit forbids to give: it lets no program call chown()"
        )
        assert (mode(path), path.stat().st_gid) == ("660", os.getegid())


@needs_root
def test_another_group_is_given_while_it_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, group = (
        tmp_path / "s",
        grp.getgrgid(next(each.gr_gid for each in grp.getgrall() if each.gr_gid != os.getegid())),
    )
    seen = modes_at(monkeypatch, path)
    with closing(bind_socket(path, group.gr_name)):
        assert seen == ["600", "600"]
        assert (mode(path), path.stat().st_gid) == ("660", group.gr_gid)


def test_users_without_a_daemon_of_their_own_use_the_hosts(tmp_path: Path) -> None:
    host, own = tmp_path / "host", tmp_path / "own"
    assert default_socket(host, own, root=False) == own / "spotsupd.sock"
    host.mkdir()
    assert default_socket(host, own, root=False) == host / "spotsupd.sock"
    own.mkdir()
    assert default_socket(host, own, root=False) == own / "spotsupd.sock"
    assert default_socket(host, own, root=True) == host / "spotsupd.sock"


def test_a_folder_that_it_makes_lets_the_group_pass(tmp_path: Path) -> None:
    with closing(bind_socket(tmp_path / "run/s", MINE)):
        assert mode(tmp_path / "run") == "750"


def test_a_group_that_does_not_exist_is_named(tmp_path: Path) -> None:
    said = (
        "api.group is 'no-such-group', and this computer has no such group: make it (`groupadd no-such-group`), or "
        "correct it"
    )
    with pytest.raises(StartError) as caught:
        bind_socket(tmp_path / "s", "no-such-group")
    assert str(caught.value) == said
    config = parse_config({"state_dir": str(tmp_path), "api": {"group": "no-such-group"}}, "it")
    (found,) = [each for each in check_installation(config, embedded_etcd=True) if each.subject == "api"]
    assert (found.finding.ok, found.finding.message) == (False, said)


# -- as another user ---------------------------------------------------------------------------------------


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user reaches: pytest's own are for root."""
    made = Path(tempfile.mkdtemp(prefix="spotsup-"))
    made.chmod(0o777)
    yield made
    shutil.rmtree(made)


def as_nobody(do: Callable[[], object]) -> object:
    """What `do` returns or raises on a thread without root's rights to files (setfsuid(2) is per thread)."""
    found: list[object] = []

    def run() -> None:
        libc = ctypes.CDLL(None)
        libc.setfsgid(NOBODY)
        libc.setfsuid(NOBODY)
        try:
            found.append(do())
        except SpotsupError as error:
            found.append(type(error)(str(error)))  # without the traceback, which holds an open socket

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30.0)
    return found[0]


@needs_root
def test_a_group_of_which_the_daemons_user_is_no_member_is_refused_and_nothing_is_left_open(folder: Path) -> None:
    error = as_nobody(lambda: bind_socket(folder / "s", "daemon"))
    assert isinstance(error, StartError)
    assert (
        "cannot be given to the group daemon of api.group, of which root is no member: `usermod -aG daemon root`"
        in str(error)
    )
    assert mode(folder / "s") == "600"


@needs_root
def test_who_is_no_member_is_told_whom_to_ask(folder: Path) -> None:
    with closing(bind_socket(folder / "s", MINE)):

        def ask() -> object:
            with closing(Transport(folder / "s")) as client:
                return client.get("/v1/jobs")

        # connect(2) looks at the effective user's rights, which a thread without root's rights to files lacks, too.
        error = as_nobody(ask)
    assert isinstance(error, DaemonUnreachableError)
    assert str(error).endswith("ask root to add you to that group")


@needs_root
def test_check_names_the_folder_that_is_closed_to_the_group(folder: Path) -> None:
    closed = folder / "state"
    closed.mkdir(mode=0o700)
    assert closed_folder(closed / "s", "daemon") == closed
    config = parse_config({"state_dir": str(closed), "api": {"group": "daemon"}}, "it")
    (found,) = [each.finding for each in check_installation(config, embedded_etcd=True) if each.subject == "api"]
    assert found.message == (
        f"members of daemon cannot reach {closed}/spotsupd.sock, {closed} is closed to them: `chgrp daemon {closed}`, "
        f"`chmod g+x {closed}`"
    )
    shutil.chown(closed, group="daemon")
    closed.chmod(0o750)
    assert closed_folder(closed / "s", "daemon") is None
    (found,) = [each.finding for each in check_installation(config, embedded_etcd=True) if each.subject == "api"]
    assert found.ok
    assert closed_folder(closed / "later/s", "daemon") is None, "the daemon makes it"
