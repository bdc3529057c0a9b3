"""The targets for Prometheus: living nodes at their private addresses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import httpx
import pytest

from provisioners.base import Market, Offer
from supervisor.api.nodes.targets import LIVING, targets, targets_app
from supervisor.api.serving import ApiServer, bind_address
from supervisor.config import parse_config
from supervisor.errors import UsageError
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


def test_a_node_has_its_private_address_and_labels() -> None:
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
def test_only_living_nodes_are_targets(state: NodeState) -> None:
    assert bool(addresses(replace(MEMBER, state=state))) == (state in LIVING)


def test_nodes_without_a_gpu_are_no_targets_of_the_gpu_exporter() -> None:
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


@pytest.mark.parametrize("address", ["127.0.0.1:9465", "[::1]:9465", "monitoring.example:80", ""])
def test_valid_listening_addresses(address: str) -> None:
    assert parse_config({"api": {"targets": address}}, "f").api.targets == address


@pytest.mark.parametrize("address", ["9465", "::1:9465", "127.0.0.1", "http://127.0.0.1:9465", "127.0.0.1:port"])
def test_invalid_listening_addresses(address: str) -> None:
    with pytest.raises(UsageError, match=r"api\.targets"):
        parse_config({"api": {"targets": address}}, "f")
