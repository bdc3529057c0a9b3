"""`spotsupd etcd-ca`: another CA for etcd while jobs run, in three steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from supervisor.cli.common import config_options

if TYPE_CHECKING:
    from spotsup_trainer.etcd import Etcd

    from supervisor.config import Config
    from supervisor.journal.ca_rotation import Rotation
    from supervisor.journal.certificates import TlsFiles

_LOOK_S = 0.5


@click.command("etcd-ca")
@click.argument("step", type=click.Choice(["status", "begin", "sign", "finish"]), default="status")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help="Where `spotsupd etcd-certificates` keeps the CA. By default where etcd.ca is.",
)
@click.option(
    "--wait",
    "wait_s",
    type=float,
    default=90.0,
    show_default=True,
    help="Seconds that `sign` waits for all to trust the new CA.",
)
@config_options
def ca(step: str, folder: Path | None, wait_s: float, config: Config, embedded_etcd: bool) -> None:
    """Replace the CA of etcd while jobs run: `begin`, `sign`, `finish`, in this order.

    begin: makes a CA, which daemons and nodes are to trust beside the old one. sign: signs etcd's certificate by it,
    once all of them do; before, it is refused. finish: the old one is trusted no more. Each may be repeated. status
    says where it stands. To be run as the user who owns the folder. Exit code 5 where a step may not be done yet.
    """
    import datetime as dt

    from supervisor.journal import ca_rotation
    from supervisor.journal.connection import open_etcd

    files = _files(config, folder, embedded_etcd=embedded_etcd)
    now = dt.datetime.now(dt.UTC)
    rotation = ca_rotation.rotation_of(files)
    with open_etcd(config, embedded_etcd=embedded_etcd) as etcd:
        done = ""
        if step == "begin":
            done = ca_rotation.begin(files, now)
        elif step == "sign":
            if rotation.phase is ca_rotation.Phase.BEGUN:
                _wait_for_all(lambda: _lacking(config, etcd, files, rotation), wait_s)
            done = ca_rotation.sign(files, now)
        elif step == "finish":
            if rotation.phase is ca_rotation.Phase.SIGNED:
                _check_shown(etcd, rotation)
            done = ca_rotation.finish(files)
            if done and len(etcd.endpoints) > 1:
                done += ". Restart etcd on each host, one after another: until then members accept peers of the old CA"
        if done:
            click.echo(done)
        if step != "status":
            _publish(config, etcd, files)
        for line in _status(config, etcd, files):
            click.echo(line)


def _files(config: Config, folder: Path | None, *, embedded_etcd: bool) -> TlsFiles:
    import os

    from supervisor.errors import CommandRefusedError, UsageError
    from supervisor.journal.certificates import TlsFiles
    from supervisor.journal.connection import tls_files

    if embedded_etcd:
        if not config.etcd.secure:
            raise CommandRefusedError("the embedded etcd has no CA: etcd.secure is not set")
        files = tls_files(config)
    elif folder is not None or config.etcd.ca:
        files = TlsFiles((folder or Path(config.etcd.ca).parent).absolute())
    else:
        raise UsageError("etcd.ca is not set, so this etcd has no CA of ours; or name its folder by --folder")
    if files.folder.exists() and (owner := files.folder.stat().st_uid) != os.geteuid():
        raise UsageError(f"{files.folder} is of user {owner}, and etcd must be able to read its files: run this as it")
    return files


def _publish(config: Config, etcd: Etcd, files: TlsFiles) -> None:
    """At once, and not only within the minute in which the leader does."""
    from spotsup_trainer.wire import Keys

    from supervisor.journal.journal import Journal
    from supervisor.journal.store import EtcdStore

    keys = Keys(config.cluster)
    Journal(EtcdStore(etcd, keys.world), keys).publish_ca(files.ca.read_text())


def _lacking(config: Config, etcd: Etcd, files: TlsFiles, rotation: Rotation) -> list[str]:
    """Who does not trust the CA that stays, each with the reason."""
    from types import MappingProxyType

    from spotsup_trainer.etcd.mirror import MirrorView
    from spotsup_trainer.wire import Keys

    from supervisor.journal import ca_rotation
    from supervisor.journal.etcd_peers import refusing
    from supervisor.journal.reading import Reader

    keys = Keys(config.cluster)
    found = etcd.range(keys.world)
    reading = Reader(keys).read(MirrorView(MappingProxyType({kv.key: kv for kv in found.kvs}), found.revision, True))
    prefix = keys.daemon("")
    daemons = {kv.key.removeprefix(prefix): kv.value.decode().split() for kv in etcd.range(prefix).kvs}
    new = ca_rotation.fingerprint(rotation.new)
    return [*ca_rotation.lacking(reading, daemons, new), *refusing(etcd, files, rotation.new)]


def _wait_for_all(lacking: Callable[[], list[str]], wait_s: float) -> None:
    from supervisor.errors import CommandRefusedError
    from supervisor.journal.ca_rotation import summary

    deadline = time.monotonic() + wait_s
    while who := lacking():
        if time.monotonic() >= deadline:
            raise CommandRefusedError(f"not all trust the new CA yet: {summary(who)}. Repeat this once they do")
        time.sleep(_LOOK_S)


def _check_shown(etcd: Etcd, rotation: Rotation) -> None:
    """Every endpoint has to show a certificate of the CA that stays."""
    import contextlib

    from cryptography.hazmat.primitives.serialization import Encoding
    from spotsup_trainer.etcd import Etcd as Client
    from spotsup_trainer.etcd import Tls

    from supervisor.errors import CommandRefusedError

    pem = rotation.new.public_bytes(Encoding.PEM).decode()
    with contextlib.closing(Client(etcd.endpoints, tls=Tls(ca_text=pem))) as client:
        for index, endpoint in enumerate(client.endpoints):
            try:
                client.connect(index).close()
            except OSError as error:
                raise CommandRefusedError(
                    f"etcd at {endpoint} shows no certificate of the new CA ({error}): `sign` on its host first"
                ) from error


def _status(config: Config, etcd: Etcd, files: TlsFiles) -> list[str]:
    from supervisor.journal import ca_rotation
    from supervisor.journal.ca_rotation import Phase

    found = ca_rotation.rotation_of(files)
    until = f"valid until {found.new.not_valid_after_utc:%Y-%m-%d}"
    if found.phase is Phase.SETTLED:
        return [f"settled: one CA, {until}"]
    if found.phase is Phase.SIGNED:
        return [f"signed: etcd's certificate is of the new CA, {until}; `finish` ends the trust in the old one"]
    who = _lacking(config, etcd, files, found)
    if who:
        return [f"begun: a new CA is {until}; it is not trusted yet by {len(who)}: {ca_rotation.summary(who)}"]
    return [f"begun: a new CA is {until}, and all trust it: `sign`"]
