"""Steps as a pure function: golden files of a machine, what was asked for, and the plan.

The folders gpu and network have the texts that a machine prints, the others its facts. No machine with a GPU, EFA or
InfiniBand was at hand: the texts follow the output of NVIDIA's programs in public logs and manuals, or are put together
by hand. To rewrite all plans: SPOTSUP_WRITE_GOLDEN=1 pytest tests/unit/test_bootstrap_golden.py
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from spotsup.archive import Archive

from bootstrap.container.image import image_of
from bootstrap.environment.lock import Lock
from bootstrap.facts import SECTIONS, Facts
from bootstrap.log_agent.model import LogAgent
from bootstrap.model import Setup, Uv
from bootstrap.mounts.model import Mount
from bootstrap.network.env import network_env
from bootstrap.steps import changes_system, plan
from tests.support.hosts import host_on
from tests.support.plans import GOLDEN, a_setup, as_json, gpu_facts_of, network_facts_of, read

CASES = sorted(GOLDEN.rglob("*.json"))
by_case = pytest.mark.parametrize("path", CASES, ids=lambda path: str(path.relative_to(GOLDEN)))


def facts_of(value: dict[str, Any]) -> Facts:
    """As a machine would answer; a section that a case leaves out keeps its defaults."""
    node = {"python": "", "python_version": [], "torch": "none", "codes": [], "trainers": [], "prepared": []}
    sections = {"node": {**node, "agent": None, **value}, **value}
    fields: dict[str, Any] = {}
    for section in SECTIONS:
        if section.name in sections:
            fields |= section.fields(sections[section.name])
    return Facts(**fields)


def setup_of(value: dict[str, Any]) -> Setup:
    packed = {name: Archive.of(value[name].encode()) for name in ("code", "trainer")}
    ours = {
        "agent_config": json.dumps(value["agent_config"]).encode(),
        "host": host_on(**value.get("host", {})),
        "mounts": tuple(Mount(**each) for each in value.get("mounts", ())),
        "lock": Lock(**value["lock"]) if "lock" in value else None,
        "uv": Uv(value["uv"]["machine"], Archive.of(value["uv"]["archive"].encode())) if "uv" in value else None,
        "log_agent": LogAgent(**value["log_agent"]) if "log_agent" in value else None,
        "image": image_of(value["image"]) if "image" in value else None,
    }
    return Setup(**{**value, **packed, **ours})


def machine_and_setup(path: Path) -> tuple[Facts, Setup]:
    case = read(path)
    match path.parent.name:
        case "gpu":
            return gpu_facts_of(case), a_setup(host=host_on(**case["host"]))
        case "network":
            return network_facts_of(case), a_setup(host=host_on(**case["host"]))
        case _:
            return facts_of(case["facts"]), setup_of(case["setup"])


def test_there_are_golden_files() -> None:
    assert len(CASES) >= 90


@by_case
def test_the_plan_is_the_reviewed_one(path: Path) -> None:
    case, (facts, setup) = read(path), machine_and_setup(path)
    # The check of GPUs is the same for all; one file shows it.
    steps = case.get("steps", [path.parent.name])
    found: dict[str, Any] = {
        "plan": {step.name: as_json(step.decision) for step in plan(facts, setup) if step.name in steps}
    }
    if "env" in case:
        found["env"] = network_env(facts.network, setup.host)
    if os.environ.get("SPOTSUP_WRITE_GOLDEN"):
        path.write_text(json.dumps({**case, **found}, indent=2) + "\n", encoding="utf-8")
    else:
        assert found == {key: case[key] for key in found}


@by_case
@pytest.mark.parametrize("born", ["", "another"])
def test_a_machine_that_was_not_made_for_the_node_is_never_changed(path: Path, born: str) -> None:
    facts, setup = machine_and_setup(path)
    facts = replace(facts, system=replace(facts.system, born=born))
    assert not any(changes_system(step.decision) for step in plan(facts, setup))
