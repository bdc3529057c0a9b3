"""What an installation consists of: accounts, folders and files, from its configuration. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from supervisor.config import Config
from supervisor.installation.answers import HOST_STATE, OWN_CA_FILE, EtcdHere, https, is_address
from supervisor.installation.plan import Account, File, Folder, Item

USER = "spotsup"
ETC = Path("/etc/spotsup")
CONFIG_FILE, ENVIRONMENT_FILE = ETC / "spotsupd.toml", ETC / "environment"
STATE = Path(HOST_STATE)
KEY_FILE, TLS = STATE / "cluster.key", STATE / "tls"
UNIT_FOLDER = Path("/etc/systemd/system")
UNITS = ("spotsupd.service", "spotsup-etcd.service")
# The paths in the units as they are delivered.
UNIT_PROGRAM, UNIT_ETCD = "/opt/spotsup/.venv/bin/spotsupd", "/usr/bin/etcd"

_ENVIRONMENT = """\
# Secrets for spotsupd, one NAME=value a line: the cloud's credentials, where this host has no role of its own, and
# SPOTSUP_SLACK_WEBHOOK. Names: docs/reference/environment.md
"""


@dataclass(frozen=True, slots=True)
class Programs:
    """Where they are on this host."""

    spotsupd: Path
    etcd: Path


def host_items(
    text: str | None,
    units: Mapping[str, str],
    programs: Programs,
    secrets: Mapping[Path, bytes],
    here: EtcdHere | None,
    ca: bytes | None = None,
) -> list[Item]:
    """Return all of a host, in the order in which it is made: what something else needs comes first.

    `text`: of the configuration; None where the one that is there counts. `units`: the units' texts by name. `secrets`:
    each is used only where there is no such file yet. `here`: the etcd of this host, if it has one. `ca`: of an etcd of
    one's own, as PEM.
    """
    items: list[Item] = [Account(USER, STATE), Folder(ETC, 0o750, group=USER), Folder(STATE, 0o750, USER, USER)]
    if text is not None:
        items.append(File(CONFIG_FILE, text.encode(), 0o640, group=USER))
    items.append(File(ENVIRONMENT_FILE, _ENVIRONMENT.encode(), 0o600, seed=True, secret=True))
    if ca is not None:
        items.append(File(Path(OWN_CA_FILE), ca, 0o644))
    if here:
        items.append(Folder(TLS, 0o700, USER, USER))
        items.append(File(ETC / "etcd.env", etcd_environment(here).encode(), 0o640, group=USER))
    items += [File(path, data, 0o600, USER, USER, seed=True, secret=True) for path, data in secrets.items()]
    for name in UNITS if here else UNITS[:1]:
        unit = units[name].replace(UNIT_PROGRAM, str(programs.spotsupd)).replace(UNIT_ETCD, str(programs.etcd))
        items.append(File(UNIT_FOLDER / name, unit.encode(), 0o644))
    return items


def personal_items(config: Config, path: Path, text: str | None, key: bytes, user: str, group: str) -> list[Item]:
    """Return the items for one user: folders, the configuration, and the cluster's key. The daemon makes the rest when
    it starts."""
    folders = [Folder(each, 0o700, user, group, seed=True) for each in (path.parent, config.state)]
    files = [File(config.state / "cluster.key", key, 0o600, user, group, seed=True, secret=True)]
    if text is not None:
        files.insert(0, File(path, text.encode(), 0o600, user, group))
    return [*folders, *files]


def etcd_environment(here: EtcdHere) -> str:
    """Return the settings of etcd's unit that depend on the host: /etc/spotsup/etcd.env."""
    listen = https("127.0.0.1")
    # etcd binds addresses only; under a DNS name it is reached on all of them.
    listens = [https(name) for name in here.names if is_address(name)]
    if len(listens) < len(here.names):
        listen, listens = https("0.0.0.0"), []  # noqa: S104 - with TLS and users
    lines = [
        "# Written by `spotsupd init`, for spotsup-etcd.service.",
        f"ETCD_LISTEN_CLIENT_URLS={','.join([listen, *listens])}",
        f"ETCD_ADVERTISE_CLIENT_URLS={https(here.names[0]) if here.names else listen}",
        f"ETCD_CERT_FILE={TLS / 'etcd.crt'}",
        f"ETCD_KEY_FILE={TLS / 'etcd.key'}",
        "# Passwords are random and long: a slow hash would only cost time at each of many logins.",
        "ETCD_BCRYPT_COST=4",
    ]
    return "\n".join(lines) + "\n"
