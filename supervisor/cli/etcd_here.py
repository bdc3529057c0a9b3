"""etcd on this computer, for `spotsupd init`: its program, place, certificate and unit."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from supervisor.config import Config
    from supervisor.installation.answers import EtcdHere

ETCD_UNIT = "spotsup-etcd.service"
_SYSTEMD = Path("/run/systemd/system")


def has_systemd() -> bool:
    """True if it runs this computer."""
    return _SYSTEMD.is_dir()


def program() -> Path:
    """Return the program: a person's own goes before the distribution's. Raises StartError where there is none."""
    import shutil

    from supervisor.errors import StartError

    found = shutil.which("etcd", path="/usr/local/bin:/usr/bin:/usr/sbin")
    if not found:
        raise StartError(
            "there is no etcd on this computer: `apt-get install etcd-server`, or put a release of etcd's at "
            "/usr/local/bin/etcd; then repeat"
        )
    return Path(found)


def check_place(here: EtcdHere) -> None:
    """Raise StartError where etcd could not listen."""
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


def commands(config: Config, here: EtcdHere, *, start: bool) -> list[str]:
    """Return what is done besides files, for people."""
    from supervisor.installation.layout import TLS

    names = ", ".join(here.names) or "this computer only"
    certificate = f"make a CA and etcd's certificate in {TLS}, or renew it ({names})"
    if not start or not has_systemd():
        return [certificate]
    users = f"let etcd answer to users only, and make the user {config.etcd.user}"
    return [certificate, "let systemd read the units", f"start {ETCD_UNIT}, now and at boot", users]


def make_certificates(here: EtcdHere) -> None:
    """Make the CA, unless there is one, and this host's certificate."""
    import datetime as dt

    from supervisor.installation.host import Host
    from supervisor.installation.layout import TLS, USER
    from supervisor.journal.certificates import TlsFiles, ensure_certificates

    done = ensure_certificates(TlsFiles(TLS), here.names, dt.datetime.now(dt.UTC))
    Host().own(TLS, USER)
    if done:
        click.echo(done)


def start(config: Config) -> None:
    """Start the unit, and make etcd's users. Raises StartError."""
    from supervisor.cli.etcd import make_users
    from supervisor.installation.host import Host

    Host().run("systemctl", "enable", "--now", ETCD_UNIT)
    click.echo(make_users(config))


def open_problem(config: Config) -> str:
    """Return what etcd on this host lets everyone do; "" if nothing, or if it does not answer."""
    from spotsup_trainer.etcd import EtcdError

    from supervisor.journal.connection import login_of
    from supervisor.journal.users import open_to_everyone

    with contextlib.suppress(EtcdError), contextlib.closing(login_of(config).anonymous().connect()) as anonymous:
        return open_to_everyone(anonymous)
    return ""
