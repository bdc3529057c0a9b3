"""etcd on this computer, for `spotsupd init`: its program, place, certificates and units, alone or with other hosts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from supervisor.config import Config
    from supervisor.installation.answers import EtcdHere
    from supervisor.installation.etcd_program import Program

ETCD_UNIT = "spotsup-etcd.service"
TIMER = "spotsup-certificates.timer"
_SYSTEMD = Path("/run/systemd/system")
# The others need a moment to elect a leader with a new member.
JOIN_S = 60.0
# A host that is the first one waits for others in any case.
ALONE_S = 5.0


def has_systemd() -> bool:
    """Whether it runs this computer."""
    return _SYSTEMD.is_dir()


def program() -> Path:
    """Raises StartError where there is none."""
    import shutil

    from supervisor.errors import StartError
    from supervisor.installation.layout import ETCD_PROGRAM

    if ETCD_PROGRAM.exists():
        return ETCD_PROGRAM
    found = shutil.which("etcd", path="/usr/bin:/usr/local/bin:/usr/sbin")
    if not found:
        raise StartError(
            "there is no etcd on this computer: `apt-get install etcd-server`, then repeat; or give --etcd a release "
            "of etcd's"
        )
    return Path(found)


def check_place(here: EtcdHere) -> None:
    """Raises StartError where etcd could not listen."""
    from supervisor.errors import StartError
    from supervisor.installation.answers import ETCD_PORT
    from supervisor.installation.host import Host, has_address, listens

    for name in here.names:
        if not has_address(name):
            raise StartError(
                f"{name} is no address of this computer, so etcd cannot listen there: give its own address in the "
                "nodes' network, or a DNS name that leads to it"
            )
    if has_systemd() and listens(ETCD_PORT) and not Host().succeeds("systemctl", "is-active", ETCD_UNIT):
        raise StartError(
            f"something listens on port {ETCD_PORT} already, Debian's own etcd most likely: "
            "`systemctl disable --now etcd`, then repeat"
        )


def commands(config: Config, here: EtcdHere | None, etcd: Program | None, *, start: bool) -> list[str]:
    """What is done besides files, for people."""
    from supervisor.installation.layout import ETCD_PROGRAM, TLS

    certificates = []
    if here:
        names = ", ".join(here.names) or "this computer only"
        certificates = [f"make a CA and etcd's certificate in {TLS}, or renew it ({names})"]
    if etcd:
        certificates.append(f"put etcd {etcd.version} at {ETCD_PROGRAM}, and restart etcd with it if it runs")
    if not start or not has_systemd():
        return certificates
    units = []
    if here:
        users = f"let etcd answer to users only, and make the user {config.etcd.user}"
        once = f", once {len(here.members) // 2 + 1} of {', '.join(here.members)} run" if here.members else ""
        units = [f"start {ETCD_UNIT} and {TIMER}, now and at boot", users + once]
    return [*certificates, "let systemd read the units", *units]


def make_certificates(here: EtcdHere) -> None:
    """The CA, unless there is one, and this host's certificate."""
    import datetime as dt

    from supervisor.installation.host import Host
    from supervisor.installation.layout import TLS, USER
    from supervisor.journal.certificates import TlsFiles, ensure_certificates

    done = ensure_certificates(TlsFiles(TLS), here.names, dt.datetime.now(dt.UTC))
    Host().own(TLS, USER)
    if done:
        click.echo(done)


def start(config: Config, here: EtcdHere | None, *, joins: bool, renewed: bool) -> list[str]:
    """The units, and etcd's users. `renewed`: etcd has to read its CA anew.

    Returns what a person has to do so that etcd answers. Raises StartError where it does not run on this host.
    """
    from supervisor.cli.etcd import make_users
    from supervisor.installation.host import Host

    host = Host()
    host.run("systemctl", "daemon-reload")
    if here is None:
        return []
    if here.members:
        if todo := _start_member(config, here, joins=joins, renewed=renewed):
            return todo
    else:
        host.run("systemctl", "enable", "--now", ETCD_UNIT, TIMER)
    click.echo(make_users(config))
    return []


def _start_member(config: Config, here: EtcdHere, *, joins: bool, renewed: bool) -> list[str]:
    """Start etcd as a member. Returns what a person has to do where it waits for others. Raises StartError."""
    from supervisor.errors import StartError
    from supervisor.installation.answers import https
    from supervisor.installation.etcd_member import MemberHere, answers
    from supervisor.installation.etcd_program import version_of_program
    from supervisor.installation.host import Host
    from supervisor.installation.joining import CONFIG_FILE
    from supervisor.installation.layout import BEGUN, ETCD_DATA, TLS, USER
    from supervisor.journal.certificates import TlsFiles
    from supervisor.journal.connection import login_of

    host, login = Host(), login_of(config)
    others = tuple(each for each in here.members if each != here.own)
    member = MemberHere(here.own, others, login, TlsFiles(TLS), ETCD_DATA, BEGUN, version_of_program(program()))
    try:
        done = member.take_place(first=not joins, stop=lambda: host.run("systemctl", "stop", ETCD_UNIT))
    except OSError as error:
        raise StartError(f"etcd cannot begin in {ETCD_DATA}: {error.strerror}; fix that, and repeat") from error
    if done:
        click.echo(done)
    host.run("systemctl", "enable", ETCD_UNIT)
    host.run("systemctl", "enable", "--now", TIMER)
    # The unit has started once etcd has a leader, for which one host alone waits.
    host.run("systemctl", "restart" if renewed else "start", "--no-block", ETCD_UNIT)
    if answers(replace(login, endpoints=(https(here.own),)), JOIN_S if joins else ALONE_S):
        return []
    problem = member.runs()
    if not problem and answers(replace(login, endpoints=tuple(map(https, others))), ALONE_S):
        problem = "it is not in step with the other hosts'"
    if problem:
        raise StartError(
            f"etcd does not serve at {here.own}, this host ({problem}): `journalctl -u {ETCD_UNIT} -n 50` says why. "
            "Fix that, and repeat"
        )
    click.echo(f"etcd waits for {len(here.members) // 2} more of {', '.join(others)}")
    join = "sudo spotsupd join-file | ssh HOST sudo spotsupd init --join -"
    return [
        f"on each other host: install spotsup and etcd, then {join}",
        # Who brings the majority makes the users; this one is for a host that brought it, and saw it too late.
        f"once etcd answers, on one host: sudo -u {USER} spotsupd etcd-users --config {CONFIG_FILE}",
        "then the following, on each",
    ]
