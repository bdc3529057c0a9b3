"""The network step: what the agent gets of it, and how routes are read."""

from __future__ import annotations

from dataclasses import replace

from bootstrap.decision import env_script
from bootstrap.network.facts import read_default_route
from bootstrap.steps import agent_key
from tests.support.hosts import host_on
from tests.support.plans import GOLDEN, a_setup, network_facts_of, read


def test_the_agent_gets_the_variables_and_the_job_overrides_them() -> None:
    facts = network_facts_of(read(GOLDEN / "network" / "aws_image_efa.json"))
    host = host_on("aws", "A100-40GB", 8)
    text = env_script(facts, a_setup(host=host, env={"NCCL_SOCKET_IFNAME": "mine", "LR": "0.1"})).decode()
    assert "export FI_PROVIDER=efa\n" in text
    assert "export NCCL_SOCKET_IFNAME=mine\n" in text
    assert "export LR=0.1\n" in text
    on_another = replace(facts, network=replace(facts.network, interface="ens6"))
    assert agent_key(facts, a_setup(host=host)) != agent_key(on_another, a_setup(host=host))


def test_the_default_route_is_the_one_with_the_lowest_metric() -> None:
    head = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
    rows = "ens6 00000000 01101FAC 0003 0 0 200 00000000 0 0 0\nens5 00000000 01101FAC 0003 0 0 100 00000000 0 0 0\n"
    assert read_default_route(head + rows) == "ens5"
    assert read_default_route(head + "ens5 00101FAC 00000000 0001 0 0 100 00F0FFFF 0 0 0\n") == ""
    assert read_default_route("") == ""
