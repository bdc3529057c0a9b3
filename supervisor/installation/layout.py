"""What an installation consists of: accounts, folders and files, from its configuration. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from supervisor.config import Config
from supervisor.installation.answers import CA_FILE, HOST_STATE, EtcdHere, https, is_address
from supervisor.installation.plan import Absent, Account, File, Folder, Item

USER = "spotsup"
ETC = Path("/etc/spotsup")
STATE = Path(HOST_STATE)
KEY_FILE, TLS = STATE / "cluster.key", STATE / "tls"
ENVIRONMENT_FILE = ETC / "environment"
ETCD_DATA = STATE / "etcd"  # as the unit says
# How etcd begins, where it has several hosts (etcd_member.py); in ETCD_DATA.
BEGIN = "begin.env"
BEGUN = STATE / "etcd.begun"
PEER_PORT = 2380
UNIT_FOLDER = Path("/etc/systemd/system")
ETCD_UNITS = ("spotsup-etcd.service", "spotsup-certificates.service", "spotsup-certificates.timer")
UNITS = ("spotsupd.service", *ETCD_UNITS)
DROP_INS = UNIT_FOLDER / "spotsup-etcd.service.d"
# The paths in the units as they are delivered.
# A person's own etcd, in place of the distribution's: of root, and executable by everyone.
ETCD_PROGRAM = Path("/usr/local/lib/spotsup/etcd")
UNIT_PROGRAM, UNIT_ETCD = "/opt/spotsup/.venv/bin/spotsupd", "/usr/bin/etcd"

_ENVIRONMENT = """\
# Secrets for spotsupd, one NAME=value a line: the cloud's credentials, where this host has no role of its own, and
# SPOTSUP_SLACK_WEBHOOK. Names: docs/reference/environment.md
"""

_HOSTS = f"""\
# Of an etcd of several hosts. A member that lost its data must not start again as itself: it would vote anew on what it
# has voted on. Without data it starts once `spotsupd init` has asked the other hosts.
[Unit]
ConditionPathExistsGlob=|{ETCD_DATA}/member/wal/*.wal
ConditionPathExists=|{ETCD_DATA / BEGIN}

[Service]
EnvironmentFile=-{ETCD_DATA / BEGIN}
ExecStartPost=-/bin/rm -f {ETCD_DATA / BEGIN}
"""
_PROGRAM = f"""\
# Put there by `spotsupd init --etcd`, in place of the distribution's.
[Service]
ExecStart=
ExecStart={ETCD_PROGRAM}
"""


@dataclass(frozen=True, slots=True)
class Secrets:
    """Random, made by the caller: each is used only where there is no such file yet."""

    cluster_key: bytes = field(repr=False)
    etcd_password: bytes = field(repr=False)
    # What another host of the installation has given: files by their path here. They win over what is made.
    given: Mapping[Path, bytes] = field(default_factory=dict, repr=False)
    # What is here, and the other host has no more (joining.py).
    outdated: frozenset[Path] = frozenset()


@dataclass(frozen=True, slots=True)
class Programs:
    """Where they are on this host. `etcd`: the distribution's, or `ETCD_PROGRAM`."""

    spotsupd: Path
    etcd: Path


def host_items(
    config: Config,
    text: str | None,
    units: Mapping[str, str],
    programs: Programs,
    secrets: Secrets,
    here: EtcdHere | None,
) -> list[Item]:
    """All of a host, in the order in which it is made: what something else needs comes first.

    `text`: of the configuration; None where the one that is there counts. `units`: the units' texts by name. `here`:
    the etcd of this host, if it has one.
    """
    given = secrets.given
    items: list[Item] = [
        Account(USER, STATE),
        Folder(ETC, 0o750, group=USER),
        Folder(STATE, 0o750, USER, USER),
    ]
    if text is not None:
        items.append(File(ETC / "spotsupd.toml", text.encode(), 0o640, group=USER))
    environment = given.get(ENVIRONMENT_FILE, _ENVIRONMENT.encode())
    items.append(File(ENVIRONMENT_FILE, environment, 0o600, seed=True, secret=True))
    if here or Path(CA_FILE) in given:
        items.append(Folder(TLS, 0o700, USER, USER))
    kept = dict(given)
    if here:
        items.append(File(ETC / "etcd.env", etcd_environment(config, here).encode(), 0o640, group=USER))
        kept = {STATE / "etcd.password": secrets.etcd_password, KEY_FILE: secrets.cluster_key} | kept
    items += [
        # The CA of the others counts: theirs may have been replaced meanwhile.
        File(path, data, 0o600, USER, USER, seed=True, secret=True, renew=path.parent == TLS)
        for path, data in kept.items()
        if path.parent in (STATE, TLS)
    ]
    items += [Absent(path) for path in sorted(secrets.outdated)]
    own_etcd = programs.etcd == ETCD_PROGRAM
    if here and (here.members or own_etcd):
        items.append(Folder(DROP_INS, 0o755))
    if here and here.members:
        items += [Folder(ETCD_DATA, 0o700, USER, USER), File(DROP_INS / "hosts.conf", _HOSTS.encode(), 0o644)]
    if here and own_etcd:
        items.append(File(DROP_INS / "program.conf", _PROGRAM.encode(), 0o644))
    etcd = UNIT_ETCD if own_etcd else str(programs.etcd)
    for name in UNITS if here else UNITS[:1]:
        unit = units[name].replace(UNIT_PROGRAM, str(programs.spotsupd)).replace(UNIT_ETCD, etcd)
        items.append(File(UNIT_FOLDER / name, unit.encode(), 0o644))
    return items


def personal_items(config: Config, path: Path, text: str | None, secrets: Secrets, user: str, group: str) -> list[Item]:
    """For one user: folders, the configuration, and the cluster's key. The daemon makes the rest when it starts."""
    folders = [Folder(each, 0o700, user, group, seed=True) for each in (path.parent, config.state)]
    files = [File(config.state / "cluster.key", secrets.cluster_key, 0o600, user, group, seed=True, secret=True)]
    if text is not None:
        files.insert(0, File(path, text.encode(), 0o600, user, group))
    return [*folders, *files]


def etcd_environment(config: Config, here: EtcdHere) -> str:
    """The settings of etcd's unit that depend on the host: /etc/spotsup/etcd.env."""
    listen = https("127.0.0.1")
    # etcd binds addresses only; under a DNS name it is reached on all of them.
    listens = [https(name) for name in here.names if is_address(name)]
    if len(listens) < len(here.names):
        listen, listens = https("0.0.0.0"), []  # noqa: S104 - with TLS and users
    lines = [
        "# Written by `spotsupd init`, for spotsup-etcd.service and spotsup-certificates.service.",
        f"ETCD_LISTEN_CLIENT_URLS={','.join([listen, *listens])}",
        f"ETCD_ADVERTISE_CLIENT_URLS={https(here.names[0]) if here.names else listen}",
        f"ETCD_CERT_FILE={TLS / 'etcd.crt'}",
        f"ETCD_KEY_FILE={TLS / 'etcd.key'}",
        "# Passwords are random and long: a slow hash would only cost time at each of many logins.",
        "ETCD_BCRYPT_COST=4",
        f"SPOTSUP_ETCD_NAMES={' '.join(here.names)}",
        *(_peers(config, here) if here.members else ()),
    ]
    return "\n".join(lines) + "\n"


def peer_url(host: str) -> str:
    """Where the other hosts' etcds reach that of a host."""
    return https(host, PEER_PORT)


def _peers(config: Config, here: EtcdHere) -> list[str]:
    """The hosts of one etcd know each other by address; whoever has a certificate of the CA is one of them."""
    return [
        f"ETCD_NAME={here.own}",
        f"ETCD_LISTEN_PEER_URLS={peer_url(here.own)}",
        f"ETCD_INITIAL_ADVERTISE_PEER_URLS={peer_url(here.own)}",
        f"ETCD_INITIAL_CLUSTER={','.join(f'{host}={peer_url(host)}' for host in here.members)}",
        f"ETCD_INITIAL_CLUSTER_TOKEN=spotsup-{config.cluster}",
        f"ETCD_PEER_CERT_FILE={TLS / 'etcd.crt'}",
        f"ETCD_PEER_KEY_FILE={TLS / 'etcd.key'}",
        f"ETCD_PEER_TRUSTED_CA_FILE={CA_FILE}",
        "ETCD_PEER_CLIENT_CERT_AUTH=true",
    ]
