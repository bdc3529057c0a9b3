"""Another etcd on this computer, for `spotsupd init --etcd`; and whether the one that runs keeps to its users."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from supervisor.cli.etcd_here import ALONE_S, ETCD_UNIT, has_systemd

if TYPE_CHECKING:
    from supervisor.config import Config
    from supervisor.installation.answers import EtcdHere
    from supervisor.installation.etcd_program import Program, Version
    from supervisor.journal.connection import EtcdLogin


def fetched(path: Path, config: Config, here: EtcdHere) -> Program:
    """An etcd that a person has fetched, which may run here. Raises UsageError, StartError."""
    from supervisor.errors import StartError
    from supervisor.installation.etcd_program import inspect, refusal

    found = inspect(path)
    if problem := refusal(found.version, _running(config, here)):
        raise StartError(f"nothing was made: {problem}")
    return found


def change_program(config: Config, here: EtcdHere, program: Program | None) -> None:
    """Put another etcd in place, if there is one, and restart the one that runs. Raises StartError.

    With several hosts one after another: where a second one is away, etcd has no majority.
    """
    from supervisor.errors import StartError
    from supervisor.installation.answers import https
    from supervisor.installation.etcd_member import answers, version_of
    from supervisor.installation.etcd_program import install
    from supervisor.installation.host import Host
    from supervisor.installation.layout import ETCD_PROGRAM

    if program is None:
        return
    login, host = _own_login(config, here), Host()
    runs = has_systemd() and host.succeeds("systemctl", "is-active", "--quiet", ETCD_UNIT)
    others = [each for each in here.members if each != here.own]
    away = [each for each in others if runs and not answers(replace(login, endpoints=(https(each),)), ALONE_S)]
    if away:
        raise StartError(
            f"etcd on {', '.join(away)} does not serve, and while it is restarted here there might be no majority: see "
            "to that first, then repeat"
        )
    install(program)
    click.echo(f"etcd {program.version} is at {ETCD_PROGRAM}")
    if not runs:
        return
    host.run("systemctl", "daemon-reload")
    # The unit has started once etcd serves again.
    host.run("systemctl", "restart", ETCD_UNIT)
    if (now := version_of(login)) != program.version:
        found = f"is {now}" if now else "does not answer"
        raise StartError(f"etcd {found} after its restart: `journalctl -u {ETCD_UNIT} -n 50` says why")
    click.echo(f"etcd was restarted, and serves as {now}")


def open_problem(config: Config, here: EtcdHere) -> str:
    """What etcd on this host lets everyone do; "" if nothing, or if it does not answer."""
    from spotsup_trainer.etcd import EtcdError

    from supervisor.journal.users import open_to_everyone

    with (
        contextlib.suppress(EtcdError),
        contextlib.closing(_own_login(config, here).anonymous().connect()) as anonymous,
    ):
        return open_to_everyone(anonymous)
    return ""


def _running(config: Config, here: EtcdHere) -> Version | None:
    """The version that etcd's data here are of; None without data. Raises StartError where that cannot be known."""
    from supervisor.errors import StartError
    from supervisor.installation.etcd_member import has_data, version_of
    from supervisor.installation.layout import ETCD_DATA

    if not has_data(ETCD_DATA):
        return None
    if (found := version_of(_own_login(config, here))) is None:
        raise StartError(
            "nothing was made: etcd has data here and does not answer, so its version is not known: "
            f"`systemctl start {ETCD_UNIT}`, then repeat"
        )
    return found


def _own_login(config: Config, here: EtcdHere) -> EtcdLogin:
    """To etcd on this host alone."""
    from supervisor.installation.answers import https
    from supervisor.journal.connection import login_of

    login = login_of(config)
    return replace(login, endpoints=(https(here.own),)) if here.members else login
