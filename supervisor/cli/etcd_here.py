"""etcd on this computer, for `spotsupd init`: its program, place, certificates and units, alone or with other hosts."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from supervisor.config import Config
    from supervisor.installation.answers import EtcdHere

ETCD_UNIT = "spotsup-etcd.service"
TIMER = "spotsup-certificates.timer"
_SYSTEMD = Path("/run/systemd/system")
# Until systemd forgets it, at the next boot: by then etcd's data say whose member it is.
_REJOIN = _SYSTEMD / f"{ETCD_UNIT}.d" / "rejoin.conf"
# The others need a moment to elect a leader with a new member.
JOIN_S = 60.0
ASK_S = 3.0


def has_systemd() -> bool:
    """Whether it runs this computer."""
    return _SYSTEMD.is_dir()


def program() -> Path:
    """Raises StartError where there is none."""
    import shutil

    from supervisor.errors import StartError

    found = shutil.which("etcd", path="/usr/bin:/usr/local/bin:/usr/sbin")
    if not found:
        raise StartError("there is no etcd on this computer: `apt-get install etcd-server`, then repeat")
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


def commands(config: Config, here: EtcdHere | None, *, start: bool) -> list[str]:
    """What is done besides files, for people."""
    from supervisor.installation.layout import TLS

    certificates = []
    if here:
        names = ", ".join(here.names) or "this computer only"
        certificates = [f"make a CA and etcd's certificate in {TLS}, or renew it ({names})"]
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


def start(config: Config, here: EtcdHere | None, *, joins: bool) -> list[str]:
    """The units, and etcd's users. Returns what a person has to do so that etcd answers. Raises StartError."""
    from supervisor.cli.etcd import make_users
    from supervisor.installation.host import Host

    host = Host()
    host.run("systemctl", "daemon-reload")
    if here is None:
        return []
    if here.members:
        if joins and (said := _take_place(config, here)):
            click.echo(said)
        host.run("systemctl", "enable", ETCD_UNIT)
        host.run("systemctl", "enable", "--now", TIMER)
        # The unit is started once etcd has a leader, for which one host alone waits.
        host.run("systemctl", "start", "--no-block", ETCD_UNIT)
        if not _answers(config, JOIN_S if joins else ASK_S):
            more = len(here.members) // 2
            click.echo(f"etcd waits for {more} more of {', '.join(each for each in here.members if each != here.own)}")
            join = "sudo spotsupd join-file | ssh HOST sudo spotsupd init --join -"
            return [f"on each other host: install spotsup and etcd, then {join}", "then the following, on each"]
    else:
        host.run("systemctl", "enable", "--now", ETCD_UNIT, TIMER)
    click.echo(make_users(config))
    return []


def _answers(config: Config, patience_s: float) -> bool:
    """Whether etcd has a leader, within some time."""
    import contextlib

    from spotsup_trainer.etcd import EtcdError, EtcdUnavailableError

    from supervisor.journal.connection import login_of

    anonymous = replace(login_of(config), user="", password="")
    deadline = time.monotonic() + patience_s
    with contextlib.closing(anonymous.connect(ASK_S)) as etcd:
        while True:
            try:
                etcd.get("/")
            except EtcdUnavailableError:
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.5)
                continue
            except EtcdError:
                pass  # it answers, to users only
            return True


def _take_place(config: Config, here: EtcdHere) -> str:
    """Where the others' etcd has had this host before, and this host has no data of it: have them forget that one, and
    wait for a new one in its place. What was done; "" for a host of an etcd that is not there yet."""
    import contextlib

    from spotsup_trainer.etcd import EtcdUnavailableError

    from supervisor.installation.answers import https
    from supervisor.installation.layout import ETCD_DATA, peer_url
    from supervisor.installation.members import Member, rejoining
    from supervisor.journal.connection import login_of

    if (ETCD_DATA / "member").exists():
        return ""
    others = tuple(https(host) for host in here.members if host != here.own)
    login = replace(login_of(config), endpoints=others)
    with contextlib.closing(login.connect(ASK_S)) as etcd:
        try:
            listed = etcd.call("/v3/cluster/member/list", {})["members"]
            plan = rejoining([Member.of(each) for each in listed], peer_url(here.own))
            if plan.remove:
                etcd.call("/v3/cluster/member/remove", {"ID": plan.remove})
            if plan.add:
                etcd.call("/v3/cluster/member/add", {"peerURLs": [peer_url(here.own)]})
        except EtcdUnavailableError:
            return ""  # the first hosts of a new etcd: none answers yet
    if not plan.existing:
        return ""
    _REJOIN.parent.mkdir(parents=True, exist_ok=True)
    _REJOIN.write_text("[Service]\nEnvironment=ETCD_INITIAL_CLUSTER_STATE=existing\n")
    from supervisor.installation.host import Host

    Host().run("systemctl", "daemon-reload")
    return f"etcd had a member at {here.own}, whose data are not here: a new one takes its place"
