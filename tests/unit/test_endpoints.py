"""Which endpoints of etcd rented machines may be given."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.config import parse_config
from supervisor.endpoints import FIRST_PORT, LAST_PORT, node_endpoints, refusal, tunnel_endpoints, tunnel_ports

RENTED = {"aws": {"regions": ["us-east-1"]}}
USER = {"user": "spotsupd"}
SAFE = {"endpoints": ["https://127.0.0.1:2379"], "node_endpoints": ["https://10.0.0.5:2379"], **USER}
LISTENING = {"secure": True, "listen": "10.0.0.5:2379"}


def refused(etcd: dict[str, Any], clouds: dict[str, Any] = RENTED, *, embedded: bool = False) -> str:
    return refusal(parse_config({"etcd": etcd, **clouds}, "test"), embedded=embedded)


@pytest.mark.parametrize(
    ("etcd", "embedded", "why"),
    [
        ({}, False, "etcd at http://127.0.0.1:2379: it is not encrypted"),
        ({}, True, "etcd at http://127.0.0.1: it is not encrypted"),
        ({"endpoints": ["http://10.0.0.5:2379"], **USER}, False, "it is not encrypted"),
        (
            {**SAFE, "node_endpoints": ["https://10.0.0.5:2379", "http://10.0.0.6:2379"]},
            False,
            "10.0.0.6:2379: it is not",
        ),
        ({"endpoints": ["https://localhost:2379"], **USER}, False, "that address is this computer's own"),
        ({"endpoints": ["https://[::1]:2379"], **USER}, False, "that address is this computer's own"),
        ({**SAFE, "node_endpoints": ["https://127.1.2.3:2379"]}, False, "that address is this computer's own"),
        ({**SAFE, "node_endpoints": ["https://0.0.0.0:2379"]}, False, "none that others reach"),
        ({**SAFE, "user": ""}, False, "which has no users"),
        ({"secure": True}, True, "that address is this computer's own"),
        ({"secure": True, "listen": "0.0.0.0:2379"}, True, "none that others reach"),
        # These keys are of an etcd of one's own, and do not secure the embedded one.
        (SAFE, True, "which has no users"),
    ],
)
def test_what_is_plain_open_or_out_of_reach_is_refused_with_its_remedy(
    etcd: dict[str, Any], embedded: bool, why: str
) -> None:
    found = refused(etcd, embedded=embedded)
    assert found.startswith("[aws] rents machines, ")
    assert why in found
    assert ("set `secure = true`" if embedded else "etcd.node_endpoints") in found


@pytest.mark.parametrize(
    ("etcd", "embedded"),
    [
        (SAFE, False),
        ({"endpoints": ["https://etcd.example:2379"], **USER}, False),
        (LISTENING, True),
        ({"secure": True, "listen": "0.0.0.0:2379", "node_endpoints": ["https://10.0.0.5:2379"]}, True),
    ],
)
def test_what_has_tls_users_and_an_address_for_others_is_taken(etcd: dict[str, Any], embedded: bool) -> None:
    assert not refused(etcd, embedded=embedded)


@pytest.mark.parametrize(
    "clouds",
    [
        {},
        {"local": {"enabled": True}},
        {"local": {"enabled": True, "image": "/srv/image"}},
        {"aws": {"regions": ["us-east-1"], "endpoint": "http://127.0.0.1:5000"}},
    ],
)
def test_machines_of_this_computer_may_use_its_loopback(clouds: dict[str, Any]) -> None:
    assert not refused({}, clouds)
    assert not refused({}, clouds, embedded=True)


def test_where_nodes_reach_etcd() -> None:
    def found(etcd: dict[str, Any], *, embedded: bool = False) -> tuple[str, ...]:
        return node_endpoints(parse_config({"etcd": etcd}, "test"), embedded=embedded)

    assert found(SAFE) == found(SAFE, embedded=True) == ("https://10.0.0.5:2379",)
    assert found({"endpoints": ["https://a:1"]}) == ("https://a:1",)
    assert found(LISTENING, embedded=True) == ("https://10.0.0.5:2379",)


BY_SSH = {"aws": {"regions": ["us-east-1"], "reach": "ssh"}}


def test_by_ssh_an_etcd_on_loopback_is_taken_but_none_without_tls_or_users() -> None:
    assert not refused({"secure": True}, BY_SSH, embedded=True)
    assert not refused({"endpoints": ["https://127.0.0.1:2379"], **USER}, BY_SSH)
    assert "it is not encrypted" in refused({}, BY_SSH, embedded=True)
    assert "it is not encrypted" in refused({"endpoints": ["http://10.0.0.5:2379"], **USER}, BY_SSH)
    assert "which has no users" in refused({"endpoints": ["https://127.0.0.1:2379"]}, BY_SSH)
    # Of two clouds each is judged by its own way.
    both = {**BY_SSH, "gcp": {"regions": ["us-central1"], "project": "vision"}}
    assert refused({"secure": True}, both, embedded=True).startswith("[gcp] rents machines, which cannot be given etcd")


def test_a_nodes_tunnel_has_the_same_ports_for_every_daemon_and_they_are_no_clients_ports() -> None:
    ports = [tunnel_ports(f"job-abcde-{number}", 3) for number in range(500)]
    assert all(
        FIRST_PORT <= found[0] < LAST_PORT and found == (found[0], found[0] + 1, found[0] + 2) for found in ports
    )
    assert len({first for first, *_ in ports}) > 450
    assert tunnel_ports("job-abcde-1", 1) == tunnel_ports("job-abcde-1", 3)[:1]
    one, other = tunnel_endpoints("job-abcde-1", ("https://10.0.0.5:2379", "https://10.0.0.6:2379"))
    assert (one, other) == tuple(f"https://127.0.0.1:{port}" for port in tunnel_ports("job-abcde-1", 2))
