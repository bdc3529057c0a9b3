"""What Prometheus is told: living nodes, over a port that tells nothing else."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import httpx
import pytest

from provisioners.base import Market, Offer
from supervisor.api.serving import MAX_CONNECTIONS, ApiServer, bind_address
from supervisor.api.targets import LIVING, targets, targets_app
from supervisor.config import parse_config
from supervisor.errors import StartError, UsageError
from supervisor.model import JobRecord, NodeRecord, NodeState
from supervisor.planner.world import JobView
from supervisor.spec import parse_spec

SPEC = parse_spec({"name": "job", "nodes": 2, "run": "train.py"})
JOB = JobRecord("job", "abcde", SPEC, "0" * 64, 1.0, 2, 2, 2)
OFFER = Offer("aws", "us-east-1", "us-east-1a", "g4dn.xlarge", Market.SPOT, 0.2, gpu="T4", gpus=1)
MEMBER = NodeRecord(
    "n1", "job", "token", OFFER, 0.0, state=NodeState.MEMBER, ssh_host="54.1.2.3", private_address="10.0.0.5"
)


def view(*nodes: NodeRecord) -> JobView:
    return JobView(JOB, 1, {node.id: node for node in nodes}, {})


def addresses(*nodes: NodeRecord, gpus: bool = False) -> list[str]:
    return [address for each in targets([view(*nodes)], 9100, gpus=gpus) for address in each["targets"]]


def test_a_node_is_found_within_its_network_under_its_names() -> None:
    assert targets([view(MEMBER)], 9400, gpus=True) == [
        {
            "targets": ["10.0.0.5:9400"],
            "labels": {
                "spotsup_job": "job",
                "spotsup_node": "n1",
                "spotsup_cloud": "aws",
                "spotsup_zone": "us-east-1a",
                "spotsup_instance_type": "g4dn.xlarge",
                "spotsup_market": "spot",
            },
        }
    ]


def test_addresses_of_all_kinds() -> None:
    assert addresses(replace(MEMBER, private_address="")) == ["54.1.2.3:9100"]
    assert addresses(replace(MEMBER, private_address="fd00::5")) == ["[fd00::5]:9100"]
    assert addresses(replace(MEMBER, private_address="", ssh_host="")) == []


@pytest.mark.parametrize("state", NodeState)
def test_only_living_nodes_are_asked(state: NodeState) -> None:
    assert bool(addresses(replace(MEMBER, state=state))) == (state in LIVING)


def test_nodes_without_a_gpu_are_not_asked_for_gpus() -> None:
    without = replace(MEMBER, id="n2", private_address="10.0.0.6", offer=replace(OFFER, gpu="", gpus=0))
    assert addresses(without, MEMBER) == ["10.0.0.5:9100", "10.0.0.6:9100"]
    assert addresses(without, MEMBER, gpus=True) == ["10.0.0.5:9100"]


@contextmanager
def serving(*nodes: NodeRecord) -> Iterator[httpx.Client]:
    """A real server on a port of its own."""
    listening = bind_address("127.0.0.1:0")
    server = ApiServer(targets_app(lambda: [view(*nodes)]), listening)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.start()
    try:
        with httpx.Client(base_url=url, timeout=10.0, trust_env=False) as client:
            yield client
    finally:
        server.stop()


def test_the_port_tells_the_targets_and_nothing_else() -> None:
    with serving(MEMBER) as client:
        answer = client.get("/v1/targets", params={"port": 9400, "gpus": "true"})
        assert answer.headers["content-type"] == "application/json"  # Prometheus insists on it
        assert answer.json() == targets([view(MEMBER)], 9400, gpus=True)
        assert client.get("/v1/targets").json()[0]["targets"] == ["10.0.0.5:9100"]
        for path in ("/v1/jobs", "/v1/nodes", "/openapi.json", "/docs"):
            assert client.get(path).status_code == 404
        assert client.post("/v1/targets").status_code == 405
        assert client.get("/v1/targets", params={"port": 0}).status_code == 422


def test_connections_that_say_nothing_are_so_many_and_no_more() -> None:
    with serving(MEMBER) as client, ExitStack() as stack:
        address = (client.base_url.host, client.base_url.port)
        silent = [stack.enter_context(socket.create_connection(address, 10.0)) for _ in range(MAX_CONNECTIONS + 1)]
        assert silent[-1].recv(1) == b"", "one too many is hung up on"
        silent[0].close()
        assert client.get("/v1/targets").status_code == 200


def test_a_port_that_is_taken_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(StartError, match=rf"cannot listen at {address} .*set api.targets to another address"):
            bind_address(address)
    with pytest.raises(StartError, match=r"cannot listen at 127\.0\.0\.1:99999: ports end at 65535"):
        bind_address("127.0.0.1:99999")


@pytest.mark.parametrize("address", ["127.0.0.1:9465", "[::1]:9465", "monitoring.example:80", ""])
def test_addresses_that_are_taken(address: str) -> None:
    assert parse_config({"api": {"targets": address}}, "f").api.targets == address


@pytest.mark.parametrize("address", ["9465", "::1:9465", "127.0.0.1", "http://127.0.0.1:9465", "127.0.0.1:port"])
def test_addresses_that_are_not(address: str) -> None:
    with pytest.raises(UsageError, match=r"api\.targets"):
        parse_config({"api": {"targets": address}}, "f")
