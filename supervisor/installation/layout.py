"""What an installation consists of: accounts, folders and files, from its configuration. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from supervisor.config import Config
from supervisor.installation.answers import ETCD_PORT, HOST_STATE, etcd_names, is_etcd_here
from supervisor.installation.plan import Account, File, Folder, Item

USER = "spotsup"
ETC = Path("/etc/spotsup")
STATE = Path(HOST_STATE)
TLS = STATE / "tls"
UNIT_FOLDER = Path("/etc/systemd/system")
ETCD_UNITS = ("spotsup-etcd.service", "spotsup-certificates.service", "spotsup-certificates.timer")
UNITS = ("spotsupd.service", *ETCD_UNITS)
# The paths in the units as they are delivered.
UNIT_PROGRAM, UNIT_ETCD = "/opt/spotsup/.venv/bin/spotsupd", "/usr/bin/etcd"

_ENVIRONMENT = """\
# Secrets for spotsupd, one NAME=value a line: the cloud's credentials, where this host has no role of its own, and
# SPOTSUP_SLACK_WEBHOOK. Names: docs/reference/environment.md
"""


@dataclass(frozen=True, slots=True)
class Secrets:
    """Random, made by the caller: each is used only where there is no such file yet."""

    cluster_key: bytes = field(repr=False)
    etcd_password: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Programs:
    """Where they are on this host."""

    spotsupd: Path
    etcd: Path


def host_items(
    config: Config, text: str | None, units: Mapping[str, str], programs: Programs, secrets: Secrets
) -> list[Item]:
    """All of a host, in the order in which it is made: what something else needs comes first.

    `text`: of the configuration; None where the one that is there counts. `units`: the units' texts by name.
    """
    here = is_etcd_here(config)
    items: list[Item] = [
        Account(USER, STATE),
        Folder(ETC, 0o750, group=USER),
        Folder(STATE, 0o750, USER, USER),
    ]
    if text is not None:
        items.append(File(ETC / "spotsupd.toml", text.encode(), 0o640, group=USER))
    items.append(File(ETC / "environment", _ENVIRONMENT.encode(), 0o600, seed=True))
    if here:
        items += [
            Folder(TLS, 0o700, USER, USER),
            File(ETC / "etcd.env", etcd_environment(config).encode(), 0o640, group=USER),
            File(STATE / "etcd.password", secrets.etcd_password, 0o600, USER, USER, seed=True, secret=True),
            File(STATE / "cluster.key", secrets.cluster_key, 0o600, USER, USER, seed=True, secret=True),
        ]
    for name in UNITS if here else UNITS[:1]:
        unit = units[name].replace(UNIT_PROGRAM, str(programs.spotsupd)).replace(UNIT_ETCD, str(programs.etcd))
        items.append(File(UNIT_FOLDER / name, unit.encode(), 0o644))
    return items


def personal_items(config: Config, path: Path, text: str | None, secrets: Secrets, user: str, group: str) -> list[Item]:
    """For one user: folders, the configuration, and the cluster's key. The daemon makes the rest when it starts."""
    folders = [Folder(each, 0o700, user, group, seed=True) for each in (path.parent, config.state)]
    files = [File(config.state / "cluster.key", secrets.cluster_key, 0o600, user, group, seed=True, secret=True)]
    if text is not None:
        files.insert(0, File(path, text.encode(), 0o600, user, group))
    return [*folders, *files]


def etcd_environment(config: Config) -> str:
    """The settings of etcd's unit that depend on the host: /etc/spotsup/etcd.env."""
    names = etcd_names(config)
    nodes = [f"https://{f'[{name}]' if ':' in name else name}:{ETCD_PORT}" for name in names]
    listen = f"https://127.0.0.1:{ETCD_PORT}"
    # etcd binds addresses only; under a DNS name it is reached on all of them.
    listens = [url for name, url in zip(names, nodes, strict=True) if _is_address(name)]
    if len(listens) < len(nodes):
        listen, listens = f"https://0.0.0.0:{ETCD_PORT}", []
    lines = [
        "# Written by `spotsupd init`, for spotsup-etcd.service and spotsup-certificates.service.",
        f"ETCD_LISTEN_CLIENT_URLS={','.join([listen, *listens])}",
        f"ETCD_ADVERTISE_CLIENT_URLS={nodes[0] if nodes else listen}",
        f"ETCD_CERT_FILE={TLS / 'etcd.crt'}",
        f"ETCD_KEY_FILE={TLS / 'etcd.key'}",
        "# Passwords are random and long: a slow hash would only cost time at each of many logins.",
        "ETCD_BCRYPT_COST=4",
        f"SPOTSUP_ETCD_NAMES={' '.join(names)}",
    ]
    return "\n".join(lines) + "\n"


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
