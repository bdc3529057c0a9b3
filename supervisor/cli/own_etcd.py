"""`spotsupd init --etcd`: an etcd that others run is looked at first, and then gets the daemons' user."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import click
from spotsup_trainer.etcd import EtcdError, EtcdRefusedError

from provisioners.base import Finding
from supervisor.cli import check_etcd
from supervisor.cli.common import finding_line
from supervisor.config import Config
from supervisor.errors import CommandRefusedError, StartError, UsageError
from supervisor.installation.answers import DAEMON_USER
from supervisor.journal.connection import EtcdLogin
from supervisor.journal.etcd_members import judged, look
from supervisor.journal.users import ROOT, add_daemon

# What is wrong and does not keep an installation from being made.
_SAID_ONLY = frozenset({"members", "clock", "certificates", "users"})


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found. `missing`: what has to be settled first. `admin`: who may make the daemons' user, None where that
    one is there."""

    findings: Sequence[Finding]
    missing: Sequence[Finding]
    admin: EtcdLogin | None = None

    def show(self) -> None:
        """Show all of it, in one list. Raises CommandRefusedError where something is missing."""
        for each in self.findings:
            click.echo(finding_line("etcd", each))
        if self.missing:
            raise CommandRefusedError(f"nothing was made: etcd is not ready, as listed ({len(self.missing)} not ok)")


def survey(config: Config, ca: str, admin_file: Path | None, password: str) -> Survey:
    """Look at the etcd of the configuration, and write nothing.

    `admin_file`: NAME:PASSWORD of one who may manage users, "-" for standard input, None to ask. `password`: of the
    daemons' user, "" for none here yet. Raises UsageError, StartError.
    """
    login = EtcdLogin(config.etcd.endpoints, config.etcd.endpoints, DAEMON_USER, password, ca)
    found = [check_etcd.nodes(config, embedded=False)]
    with contextlib.closing(login.anonymous().connect()) as anonymous:
        try:
            anonymous.get("/")
        except EtcdRefusedError:
            pass  # to users only
        except EtcdError:
            away = judged(look(login), 0, partial(_remedy, config))
            return _refused([*found, *away], "answer", "no majority of its members answers: see to that first")
        else:
            return _refused(
                found,
                "users",
                "it answers everyone, without a login: `etcdctl user add root`, `etcdctl user grant-role root root`, "
                '`etcdctl auth enable` (etcd.io, "Role-based access control"), then repeat',
            )
    is_there, works = _daemons_user(login)
    admin = None
    if not works:
        name, phrase = _asked(admin_file)
        admin = replace(login, user=name, password=phrase)
    with contextlib.closing((admin or login).connect()) as client:
        try:
            users = client.call("/v3/auth/user/list", {}).get("users", ())
            if not is_there and DAEMON_USER in users:
                return _refused(found, "user", _FOREIGN)
            found += check_etcd.held(config, admin or login, client)
        except EtcdError as error:
            return _refused(found, "login", f"{error}: {_login_remedy(error)}")
    return Survey(found, [each for each in found if not each.ok and each.what not in _SAID_ONLY], admin)


def make_user(admin: EtcdLogin, password: str) -> None:
    """Make the daemons' user. Raises StartError."""
    try:
        with contextlib.closing(admin.connect()) as etcd:
            add_daemon(etcd, DAEMON_USER, password)
    except EtcdError as error:
        raise StartError(f"etcd does not make the user {DAEMON_USER} ({error}): repeat this") from error
    click.echo(f"done: make the user {DAEMON_USER} of etcd, with the role {ROOT}")


_FOREIGN = (
    f"it has a user {DAEMON_USER}, whose password is not on this host. Is it of another host of this installation? "
    "Then copy that one's files (docs/install.md#several-daemons). Is that installation over? "
    f"`etcdctl user delete {DAEMON_USER}`"
)


def _refused(found: Sequence[Finding], what: str, message: str) -> Survey:
    bad = Finding(what, ok=False, message=message)
    return Survey([*found, bad], [bad])


def _daemons_user(login: EtcdLogin) -> tuple[bool, bool]:
    """Return whether etcd has the daemons' user with this password, and whether that one may manage users."""
    if not login.password:
        return False, False
    with contextlib.closing(login.connect()) as etcd:
        try:
            etcd.call("/v3/auth/user/list", {})
        except EtcdRefusedError as error:
            return "permission denied" in str(error), False
        except EtcdError:
            return False, False
    return True, True


def _asked(file: Path | None) -> tuple[str, str]:
    """Name and password of one who may manage users. Raises UsageError."""
    if file is None:
        if not sys.stdin.isatty():
            raise UsageError(
                "the daemons' user is made by one with the role root: give --etcd-login FILE, which holds "
                "NAME:PASSWORD, or run this in a terminal"
            )
        return ROOT, str(click.prompt("password of etcd's user root", hide_input=True, type=str))
    try:
        text = sys.stdin.readline() if str(file) == "-" else file.read_text(errors="replace")
    except OSError as error:
        raise UsageError(f"--etcd-login {file} cannot be read: {error.strerror}") from error
    name, colon, password = text.strip().partition(":")
    if not colon or not name or not password:
        raise UsageError(f"--etcd-login {file} holds no NAME:PASSWORD: write one line, as etcdctl --user takes it")
    return name, password


def _remedy(config: Config, problem: str) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in problem:
        return "give --etcd-ca the certificate of the CA that made its certificate"
    return check_etcd.remedy(config, problem, "start it, or correct --etcd")


def _login_remedy(error: Exception) -> str:
    if "does not accept user" in str(error):
        return "give --etcd-login the right NAME:PASSWORD"
    return "give --etcd-login one with the role root (`etcdctl user grant-role NAME root`)"
