"""Where nodes reach etcd, and which endpoints may be given to machines that are rented: encrypted, with users. Pure."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from provisioners.registry import CLOUDS
from supervisor.config import Config

FIRST_PORT, LAST_PORT = 20_000, 30_000


def refusal(config: Config, *, embedded: bool) -> str:
    """Return why nodes of a configured cloud could not use etcd, or must not, and what to do; "" where they can."""
    rented = [name for name in CLOUDS if (found := config.cloud(name)) and found.away]
    if not rented:
        return ""
    for name in rented:
        by_tunnel = uses_tunnel(config, name)
        offered = own_endpoints(config, embedded=embedded) if by_tunnel else node_endpoints(config, embedded=embedded)
        for endpoint in offered:
            if problem := _problem(endpoint, by_tunnel=by_tunnel):
                where = f"[{name}] rents machines, which cannot be given etcd at {endpoint}"
                return f"{where}: {problem}. {_remedy(embedded)}"
    clouds = " and ".join(f"[{name}]" for name in rented)
    if not (config.etcd.secure if embedded else config.etcd.user):
        return (
            f"{clouds} rents machines, and every program on them could change all that is in etcd, which has no users. "
            f"{_remedy(embedded)}"
        )
    return ""


def node_endpoints(config: Config, *, embedded: bool) -> tuple[str, ...]:
    """Return where nodes reach etcd. An embedded one that listens on loopback has a port that is known once it runs."""
    if config.etcd.node_endpoints:
        return config.etcd.node_endpoints
    if not embedded:
        return config.etcd.endpoints
    scheme = "https" if config.etcd.secure else "http"
    return (f"{scheme}://{config.etcd.listen or '127.0.0.1'}",)


def own_endpoints(config: Config, *, embedded: bool) -> tuple[str, ...]:
    """Return where the daemon reaches etcd; without its port where that is known once it runs."""
    if not embedded:
        return config.etcd.endpoints
    return ("https://127.0.0.1" if config.etcd.secure else "http://127.0.0.1",)


def uses_tunnel(config: Config, cloud: str) -> bool:
    """True if a cloud's nodes use etcd through the daemon's SSH connection."""
    found = config.cloud(cloud)
    return found is not None and found.etcd_by_ssh


def tunnel_ports(node: str, count: int) -> tuple[int, ...]:
    """Return the ports of a node's loopback that lead to etcd's endpoints, in their order: the same for every daemon,
    so that a node goes on when another one takes over. Below the ports that Linux gives to clients (from 32768)."""
    first = FIRST_PORT + int.from_bytes(hashlib.sha256(node.encode()).digest()[:4], "big") % (LAST_PORT - FIRST_PORT)
    return tuple(first + number for number in range(count))


def tunnel_endpoints(node: str, endpoints: Sequence[str]) -> tuple[str, ...]:
    """etcd as a node reaches it through its tunnel."""
    ports = tunnel_ports(node, len(endpoints))
    return tuple(f"{urlsplit(url).scheme}://127.0.0.1:{port}" for url, port in zip(endpoints, ports, strict=True))


def _problem(endpoint: str, *, by_tunnel: bool) -> str:
    url = urlsplit(endpoint)
    host = url.hostname or ""
    if url.scheme != "https":
        return "it is not encrypted"
    if by_tunnel:
        return ""
    if is_loopback(host):
        return "that address is this computer's own"
    if host in {"0.0.0.0", "::"}:  # noqa: S104 - nothing is bound
        return "that is every address of this computer, and none that others reach"
    return ""


def is_loopback(host: str) -> bool:
    """True if a host's name or address means the computer itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _remedy(embedded: bool) -> str:
    if embedded:
        return (
            "In [etcd], set `secure = true`, and `listen` to this computer's address in the nodes' network; or, where "
            'nodes have no route here, `reach = "ssh"` for that cloud'
        )
    return (
        "Give etcd TLS and users (docs/install.md#on-a-host), set etcd.ca, etcd.user and etcd.password_file, and name "
        "its https addresses in the nodes' network in etcd.node_endpoints; or, where nodes have no route to it, set "
        '`reach = "ssh"` for that cloud'
    )


def host_of(address: str) -> str:
    """Return the host of "host:port", without the brackets of IPv6."""
    return address.rpartition(":")[0].strip("[]")
