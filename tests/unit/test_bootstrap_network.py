"""The network step: golden files `{texts of a machine, what was asked for -> plan, environment}`.

No machine with EFA or InfiniBand was at hand: the texts are put together by hand. To rewrite all plans:
SPOTSUP_WRITE_GOLDEN=1 pytest tests/unit/test_bootstrap_*.py
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bootstrap.decision import env_script
from bootstrap.facts import Facts, System
from bootstrap.model import Reboot, Run
from bootstrap.network.env import network_env
from bootstrap.network.facts import read_default_route, read_network
from bootstrap.steps import agent_key, plan
from tests.support import plans
from tests.support.hosts import host_on
from tests.support.plans import FRESH, a_setup, as_json, read, texts_of

GOLDEN = plans.GOLDEN / "network"
CASES = sorted(GOLDEN.glob("*.json"))


def facts_of(case: Any) -> Facts:
    return replace(FRESH, system=System(**case["system"]), network=read_network(texts_of(case)))


def test_there_are_golden_files() -> None:
    assert len(CASES) >= 10


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_golden(path: Path) -> None:
    case = read(path)
    facts, host = facts_of(case), host_on(**case["host"])
    planned = plan(facts, a_setup(host=host))
    found = {
        "env": network_env(facts.network, host),
        "plan": {step.name: as_json(step.decision) for step in planned if step.name == "network"},
    }
    if os.environ.get("SPOTSUP_WRITE_GOLDEN"):
        path.write_text(json.dumps({**case, **found}, indent=2) + "\n", encoding="utf-8")
        return
    assert found == {"env": case["env"], "plan": case["plan"]}


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_machine_that_was_not_made_for_the_node_is_never_changed(path: Path) -> None:
    case = read(path)
    for born in ("", "another"):
        facts = replace(facts_of(case), system=replace(System(**case["system"]), born=born))
        for step in plan(facts, a_setup(host=host_on(**case["host"]))):
            commands = step.decision if isinstance(step.decision, tuple) else ()
            assert not any(isinstance(each, Reboot) or (isinstance(each, Run) and each.as_root) for each in commands)


def test_the_agent_gets_the_variables_and_the_job_overrides_them() -> None:
    facts = facts_of(read(GOLDEN / "aws_image_efa.json"))
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
