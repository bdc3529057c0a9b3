"""The port for Prometheus: living nodes, and nothing else."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from supervisor.api.nodes.targets import targets
from supervisor.api.serving import bind_address
from supervisor.errors import StartError
from tests.unit.test_targets import MEMBER, serving, view


def test_the_port_serves_the_targets_and_nothing_else() -> None:
    with serving(MEMBER) as client:
        reply = client.get("/v1/targets", params={"port": 9400, "gpus": "true"})
        assert reply.headers["content-type"] == "application/json"  # Prometheus insists on it
        assert reply.json() == targets([view(MEMBER)], 9400, gpus=True)
        assert client.get("/v1/targets").json()[0]["targets"] == ["10.0.0.5:9100"]
        for path in ("/v1/jobs", "/v1/nodes", "/openapi.json", "/docs"):
            assert client.get(path).status_code == 404
        assert client.post("/v1/targets").status_code == 405
        assert client.get("/v1/targets", params={"port": 0}).status_code == 422


def test_idle_connections_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.api.serving.MAX_CONNECTIONS", 8)
    with serving(MEMBER) as client, ExitStack() as stack:
        address = (client.base_url.host, client.base_url.port)
        idle = [stack.enter_context(socket.create_connection(address, 10.0)) for _ in range(9)]
        assert idle[-1].recv(1) == b"", "one too many is closed"
        idle[0].close()
        assert client.get("/v1/targets").status_code == 200


def test_a_port_that_is_taken_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(StartError, match=rf"cannot listen at {address} .*set api.targets to another address"):
            bind_address(address)
    with pytest.raises(StartError, match=r"cannot listen at 127\.0\.0\.1:99999: ports end at 65535"):
        bind_address("127.0.0.1:99999")
