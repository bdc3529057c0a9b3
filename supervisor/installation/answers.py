"""What a person says about an installation, and the configuration that follows from it. Pure."""

from __future__ import annotations

import ipaddress
import json
import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_origin
from urllib.parse import urlsplit

from pydantic_core import PydanticUndefined

from provisioners.registry import CLOUDS
from provisioners.settings import Section
from supervisor.config import Config, parse_config
from supervisor.errors import UsageError

ETCD_PORT = 2379
DAEMON_USER = "spotsupd"
HOST_STATE = "/var/lib/spotsup"
CA_FILE = f"{HOST_STATE}/tls/ca.crt"
PASSWORD_FILE = f"{HOST_STATE}/etcd.password"
# A copy of what an etcd of one's own is verified by.
OWN_CA_FILE = "/etc/spotsup/etcd-ca.crt"
# Of the user spotsup. With PrivateUsers= a unit can give a file to no other group than its own.
HOST_GROUP = "spotsup"

# host: a computer of the installation's own, with root, systemd and an etcd that nodes reach.
# personal: for one user, with an embedded etcd; nothing outside of that user's folders.
Kind: TypeAlias = Literal["host", "personal"]
Toml: TypeAlias = "str | int | float | bool | list[str] | dict[str, Toml]"

_NAME = re.compile(r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Answers:
    """What the configuration is written from."""

    kind: Kind
    cloud: str
    cluster: str = "default"
    # The computer's name or address in the nodes' network; "" where nodes are on this computer.
    address: str = ""
    # "" for the default one.
    state_dir: str = ""
    # URLs of an etcd of one's own; () for one that `init` makes on this host.
    etcd: tuple[str, ...] = ()
    # The cloud's section: its keys, nested where it has tables.
    section: Mapping[str, Toml] = field(default_factory=dict)
    # What the machines of all jobs together may cost at most; None: any amount.
    usd_per_hour: float | None = None


def asked_keys(cloud: str) -> dict[str, str]:
    """Return the keys that a cloud's section cannot do without, in its model's order, each with how to ask for it."""
    fields = CLOUDS[cloud].settings.model_fields
    asked = {"hosts": "the hosts, as USER@HOST or USER@HOST:PORT, with commas between"}
    needed = (name for name, each in fields.items() if each.default is PydanticUndefined and each.is_required())
    return {name: asked.get(name, f"{cloud}.{name}") for name in needed}


def section_of(cloud: str, regions: Sequence[str], settings: Iterable[str]) -> dict[str, Toml]:
    """Return a cloud's section from regions and `KEY=VALUE` or `TABLE.KEY=VALUE`. Raises UsageError."""
    model = CLOUDS[cloud].settings
    found: dict[str, Toml] = {"regions": list(dict.fromkeys(regions))} if regions else {}
    for each in settings:
        path, equals, text = each.partition("=")
        key, dot, rest = path.strip().partition(".")
        if not equals or key not in model.model_fields or (dot and not rest):
            raise UsageError(
                f"--set {each!r}: say KEY=VALUE or TABLE.KEY=VALUE; [{cloud}] has the keys "
                f"{', '.join(sorted(model.model_fields))}"
            )
        if dot:
            table = found.setdefault(key, {})
            if not isinstance(table, dict):
                raise UsageError(f"--set {each!r}: {key} was given as a value before")
            table[rest] = _value(model, key, text.strip(), inner=True)
        else:
            found[key] = _value(model, key, text.strip(), inner=False)
    try:
        return model.written(found)
    except ValueError as error:
        raise UsageError(f"[{cloud}]: {error}") from error


def needs_address(cloud: str, section: Mapping[str, Toml]) -> bool:
    """True if machines reach etcd over the network."""
    field = CLOUDS[cloud].settings.model_fields.get("reach")
    return cloud in rented() and section.get("reach", field.default if field else "") != "ssh"


def _value(model: type[Section], key: str, text: str, *, inner: bool) -> Toml:
    """Return the value as the model wants it: lists from commas, numbers and booleans as in TOML, otherwise a
    string."""
    annotation = model.model_fields[key].annotation
    if "tuple[" in str(annotation) if inner else get_origin(annotation) is tuple:
        return [part.strip() for part in text.split(",") if part.strip()]
    if annotation in {bool, int, float}:
        try:
            value: Toml = json.loads(text)
        except ValueError:
            return text  # the model says what is wrong with it
        return float(value) if annotation is float and type(value) is int else value
    return text


def configuration(answers: Answers) -> str:
    """Return the text of spotsupd.toml. Raises UsageError where the answers make no configuration."""
    # For the commands that root, and the user spotsup, run beside the daemon.
    state = HOST_STATE if answers.kind == "host" else ""
    lines = [
        "# Written by `spotsupd init`. Every key: docs/reference/spotsupd-toml.md",
        f"cluster = {_toml(answers.cluster)}  # in the tags of its machines, with a mark of its key",
        *([f"state_dir = {_toml(folder)}"] if (folder := answers.state_dir or state) else []),
        "",
        *_etcd(answers),
        *(
            ["", "[api]", f"group = {_toml(HOST_GROUP)}  # its members may use spotsupctl"]
            if answers.kind == "host"
            else []
        ),
    ]
    if answers.usd_per_hour is not None:
        lines += [
            "",
            "[queue.cluster]",
            f"usd_per_hour = {answers.usd_per_hour:g}  # of all jobs; what would pass it waits",
        ]
    if answers.cloud in rented():
        lines += table_lines([answers.cloud], dict(answers.section))
    text = "\n".join(lines) + "\n"
    parse_config(tomllib.loads(text), "the configuration from these answers")
    return text


def amount(text: str) -> float | None:
    """Return US dollars, None for `none`. Raises UsageError."""
    if text == "none":
        return None
    try:
        usd = float(text)
    except ValueError:
        usd = 0.0
    if not 0 < usd < math.inf:
        raise UsageError(f"--usd-per-hour {text!r}: say US dollars, as in 20, or none")
    return usd


def without_ceiling(config: Config) -> str:
    """Say that nothing limits what all jobs together cost, else ""."""
    rents = any(config.cloud(name) is not None for name in rented() if CLOUDS[name].bills)
    if not rents or config.queue.cluster.usd_per_hour is not None or config.rules().budgets.any:
        return ""
    return "nothing limits what all jobs together cost: `[queue.cluster] usd_per_hour` or `[budget] usd_per_month` does"


def rented() -> set[str]:
    """Return the clouds that are not this computer."""
    return {name for name, cloud in CLOUDS.items() if cloud.default is None}


def _etcd(answers: Answers) -> list[str]:
    if answers.etcd:
        return ["[etcd]", f"endpoints = {_toml(list(answers.etcd))}", f'ca = "{OWN_CA_FILE}"', *_LOGIN]
    check_address(answers)
    at = f"[{answers.address}]" if ":" in answers.address else answers.address
    if answers.kind == "personal":
        listen = [f"listen = {_toml(f'{at}:{ETCD_PORT}')}"] if answers.address else []
        return ["[etcd]", "secure = true  # TLS and users, made by the daemon", *listen]
    nodes = [f"node_endpoints = {_toml([f'https://{at}:{ETCD_PORT}'])}"] if answers.address else []
    return [
        "[etcd]",
        f"endpoints = {_toml([f'https://127.0.0.1:{ETCD_PORT}'])}",
        *nodes,
        f'ca = "{CA_FILE}"',
        *_LOGIN,
    ]


def https(host: str, port: int = ETCD_PORT) -> str:
    """Return a URL of an address or a name."""
    return f"https://{f'[{host}]' if ':' in host else host}:{port}"


def is_address(name: str) -> bool:
    """True if it is an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def etcd_urls(text: str) -> tuple[str, ...]:
    """Return the members of an etcd of one's own, from URLs with commas between. Raises UsageError."""
    found = []
    for each in filter(None, map(str.strip, text.split(","))):
        url = urlsplit(each)
        if url.scheme == "http":
            raise UsageError(
                f"--etcd {each}: without TLS whoever is on the way reads passwords and changes jobs. Give etcd's "
                'members certificates (etcd.io, "Transport security model"), and write https://'
            )
        if url.scheme != "https" or not url.hostname or url.path.strip("/") or url.query or url.username:
            raise UsageError(
                f"--etcd {each!r}: say https://HOST:2379, with commas between several. (A release of etcd for this "
                "host goes to /usr/local/bin/etcd: docs/install.md#an-etcd-that-is-closed)"
            )
        try:
            found.append(https(url.hostname, url.port or ETCD_PORT))
        except ValueError as error:
            raise UsageError(f"--etcd {each}: {error}") from error
    if not found or len(set(found)) != len(found):
        raise UsageError(f"--etcd {text!r}: name each member once, with commas between")
    return tuple(found)


def check_address(answers: Answers) -> None:
    """Raise UsageError where nodes could not use the address."""
    address = answers.address
    if not address:
        if needs_address(answers.cloud, answers.section):
            raise UsageError(
                "rented machines reach etcd over the network: say under which name or address of this computer "
                "(--address 10.0.0.5), or, where they have no route to it, --set reach=ssh"
            )
        return
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        if not _NAME.fullmatch(address) or address.replace(".", "").isdigit():
            raise UsageError(f"--address {address!r} is neither an address nor a DNS name") from None
        local = address == "localhost"
    else:
        local = parsed.is_loopback or parsed.is_unspecified or parsed.is_link_local
    if local and answers.cloud in rented():
        raise UsageError(f"--address {address}: no other computer reaches this one there")


_LOGIN = (
    f'user = "{DAEMON_USER}"',
    f'password_file = "{PASSWORD_FILE}"',
)


def table_lines(path: list[str], table: Mapping[str, Toml]) -> list[str]:
    """Return a table of the configuration, with those in it."""
    plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
    lines = ["", f"[{'.'.join(_key(part) for part in path)}]"]
    lines += [f"{_key(key)} = {_toml(value)}" for key, value in plain.items()]
    for key, value in table.items():
        if isinstance(value, dict):
            lines += table_lines([*path, key], value)
    return lines


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _toml(name)


def _toml(value: Toml) -> str:
    """JSON's strings, numbers, booleans and arrays are TOML's, but for surrogates and DEL, which no key here takes."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")


@dataclass(frozen=True, slots=True)
class EtcdHere:
    """The etcd that `init` makes on this computer. `names`: under which nodes reach it; for its certificate."""

    names: tuple[str, ...] = ()


def etcd_here(config: Config) -> EtcdHere | None:
    """Return the etcd of this computer, None where the configuration names one that others made."""
    local = all("//127.0.0.1:" in url or "//localhost:" in url for url in config.etcd.endpoints)
    if not local or config.etcd.ca != CA_FILE:
        return None
    nodes = (urlsplit(url).hostname or "" for url in config.etcd.node_endpoints)
    return EtcdHere(tuple(dict.fromkeys(nodes)))
