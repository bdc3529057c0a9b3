"""Which endpoints of etcd may be given to machines that are rented: encrypted, with users, and reachable. Pure."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from provisioners.registry import CLOUDS
from supervisor.config import Config


def refusal(config: Config, *, embedded: bool) -> str:
    """Why nodes of a configured cloud could not use etcd, or must not, and what to do; "" where they can."""
    rented = [name for name in CLOUDS if (found := config.cloud(name)) and found.away]
    if not rented:
        return ""
    clouds = " and ".join(f"[{name}]" for name in rented)
    for endpoint in node_endpoints(config, embedded=embedded):
        if problem := _problem(endpoint):
            return f"{clouds} rents machines, which cannot be given etcd at {endpoint}: {problem}. {_remedy(embedded)}"
    if not (config.etcd.secure if embedded else config.etcd.user):
        return (
            f"{clouds} rents machines, and every program on them could change all that is in etcd, which has no users. "
            f"{_remedy(embedded)}"
        )
    return ""


def node_endpoints(config: Config, *, embedded: bool) -> tuple[str, ...]:
    """Where nodes reach etcd. An embedded one that listens on loopback has a port that is known once it runs."""
    if config.etcd.node_endpoints:
        return config.etcd.node_endpoints
    if not embedded:
        return config.etcd.endpoints
    scheme = "https" if config.etcd.secure else "http"
    return (f"{scheme}://{config.etcd.listen or '127.0.0.1'}",)


def _problem(endpoint: str) -> str:
    url = urlsplit(endpoint)
    host = url.hostname or ""
    if url.scheme != "https":
        return "it is not encrypted"
    if is_loopback(host):
        return "that address is this computer's own"
    if host in {"0.0.0.0", "::"}:  # noqa: S104 - nothing is bound
        return "that is every address of this computer, and none that others reach"
    return ""


def is_loopback(host: str) -> bool:
    """Whether a host's name or address means the computer itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _remedy(embedded: bool) -> str:
    if embedded:
        return "In [etcd], set `secure = true`, and `listen` to this computer's address in the nodes' network"
    return (
        "Give etcd TLS and users (docs/install.md#etcd), set etcd.ca, etcd.user and etcd.password_file, and name its "
        "https addresses in the nodes' network in etcd.node_endpoints"
    )
