"""Steps as a pure function: golden files `{facts, setup -> plan}`, and what holds for any machine.

To write the plans of all golden files anew: SPOTSUP_WRITE_GOLDEN=1 pytest tests/unit/test_bootstrap_steps.py
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bootstrap.facts import AgentFact, Facts
from bootstrap.model import Archive, Command, Run, Setup, Skip, Unfit, Upload
from bootstrap.steps import Decision, agent_config, agent_key, explain, plan, prepared_name

GOLDEN = Path(__file__).parent / "golden" / "bootstrap"
CASES = sorted(GOLDEN.glob("*.json"))


def facts_of(value: dict[str, Any]) -> Facts:
    agent = value.get("agent")
    names = {name: frozenset(value.get(name, ())) for name in ("codes", "trainers", "prepared")}
    return Facts(
        **{
            **value,
            **names,
            "python_version": tuple(value.get("python_version", ())),
            "agent": AgentFact(**agent) if agent else None,
        }
    )


def setup_of(value: dict[str, Any]) -> Setup:
    packed = {name: Archive.of(value[name].encode()) for name in ("code", "trainer")}
    return Setup(**{**value, **packed, "agent_config": json.dumps(value["agent_config"]).encode()})


def told(decision: Decision) -> Any:
    match decision:
        case Skip(reason):
            return {"skip": reason}
        case Unfit(reason):
            return {"unfit": reason}
        case commands:
            return [told_command(command) for command in commands]


def told_command(command: Command) -> dict[str, Any]:
    match command:
        case Upload(what, path, mode, data):
            return {"upload": what, "path": path, "mode": f"{mode:04o}", "content": data.decode().splitlines()}
        case Run(what, script, timeout_s):
            return {"run": what, "script": script.strip().splitlines(), "timeout_s": timeout_s}


def test_there_are_golden_files() -> None:
    assert len(CASES) >= 9


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_golden(path: Path) -> None:
    case = json.loads(path.read_text(encoding="utf-8"))
    found = {step.name: told(step.decision) for step in plan(facts_of(case["facts"]), setup_of(case["setup"]))}
    if os.environ.get("SPOTSUP_WRITE_GOLDEN"):
        path.write_text(json.dumps({**case, "plan": found}, indent=2) + "\n", encoding="utf-8")
        return
    assert found == case["plan"]


names = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,20}", fullmatch=True)
# Spaces, quotes, dollars: anything but what separates paths and accounts.
folders = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/:"), min_size=1, max_size=12)
homes = folders.map(lambda name: f"/home/{name}")
roots = st.one_of(folders.map(lambda name: f"~/{name}"), folders.map(lambda name: f"/srv/{name}"))
lines = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
archives = st.binary(max_size=20).map(Archive.of)
hexes = st.from_regex(r"[0-9a-f]{16}", fullmatch=True)

setups = st.builds(
    Setup,
    node=names,
    agent_config=st.dictionaries(st.sampled_from(["job", "checkpoint_dir"]), homes).map(
        lambda value: json.dumps(value).encode()
    ),
    code=archives,
    trainer=archives,
    python=st.sampled_from(["python3", "/usr/bin/python3", "~/venv/bin/python"]),
    setup=st.none() | lines,
    root=roots,
    env=st.dictionaries(st.from_regex(r"[A-Z_]{1,5}", fullmatch=True), lines),
)
machines = st.builds(
    Facts,
    user=names,
    home=homes,
    boot_id=names,
    free_mb=st.integers(0, 10_000),
    python=st.sampled_from(["", "/usr/bin/python3"]),
    python_version=st.sampled_from([(3, 8, 1), (3, 11, 0), (3, 13, 2)]),
    torch=st.booleans(),
    codes=st.frozensets(hexes, max_size=2),
    trainers=st.frozensets(hexes, max_size=2),
    prepared=st.frozensets(hexes, max_size=2),
    agent=st.none() | st.builds(AgentFact, pid=st.integers(2, 99999), key=hexes),
)


pure = settings(deadline=None, max_examples=50)  # a busy computer is no reason to fail


def prepared_machine(facts: Facts, setup: Setup) -> Facts:
    """The machine after a bootstrap that went well."""
    return replace(
        facts,
        torch=True,
        codes=facts.codes | {setup.code.name},
        trainers=facts.trainers | {setup.trainer.name},
        prepared=facts.prepared | ({prepared_name(setup)} if setup.setup else set()),
        agent=AgentFact(4242, agent_key(facts, setup)),
    )


@pure
@given(machines, setups)
def test_nothing_is_left_to_do_on_a_machine_that_is_ready(facts: Facts, setup: Setup) -> None:
    for step in plan(prepared_machine(facts, setup), setup):
        unusable = step.name == "environment" and (not facts.python or facts.python_version < (3, 11))
        assert isinstance(step.decision, Unfit if unusable else Skip)


@pure
@given(machines, setups)
def test_a_plan_is_the_same_each_time(facts: Facts, setup: Setup) -> None:
    assert plan(facts, setup) == plan(facts, setup)


@pure
@given(machines, setups)
def test_a_plan_asks_for_something_skips_or_refuses(facts: Facts, setup: Setup) -> None:
    for step in plan(facts, setup):
        assert isinstance(step.decision, Skip | Unfit) or len(step.decision) > 0


@pure
@given(machines, setups)
def test_every_wait_is_bounded(facts: Facts, setup: Setup) -> None:
    for step in plan(facts, setup):
        if isinstance(step.decision, tuple):
            assert all(0 < command.timeout_s < 2 * 3600 for command in step.decision if isinstance(command, Run))


@pure
@given(machines, setups)
def test_a_running_agent_with_another_configuration_is_stopped_before_one_is_started(
    facts: Facts, setup: Setup
) -> None:
    decision = next(step.decision for step in plan(facts, setup) if step.name == "agent")
    if facts.agent and isinstance(decision, tuple):
        assert str(decision[0]).startswith("stop the agent")


@pure
@given(machines, setups)
def test_the_agent_is_started_anew_when_its_configuration_trainer_or_environment_changed(
    facts: Facts, setup: Setup
) -> None:
    keys = {
        agent_key(facts, setup),
        agent_key(facts, replace(setup, trainer=Archive.of(setup.trainer.data + b"x"))),
        agent_key(facts, replace(setup, code=Archive.of(setup.code.data + b"x"))),
        agent_key(facts, replace(setup, env={**setup.env, "ANOTHER": "1"})),
        agent_key(facts, replace(setup, agent_config=b'{"job":"another one"}')),
    }
    assert len(keys) == 5


def a_setup(**changes: Any) -> Setup:
    value: dict[str, Any] = {
        "node": "n1",
        "agent_config": b'{"job":"j"}',
        "code": Archive.of(b"code"),
        "trainer": Archive.of(b"trainer"),
    }
    return Setup(**(value | changes))


FRESH = Facts("u", "/home/u", "b", 9999, python="/usr/bin/python3", python_version=(3, 12, 1), torch=True)


def test_secrets_show_up_neither_in_a_plan_nor_in_a_repr() -> None:
    setup = a_setup(env={"TOKEN": "hunter2"}, agent_config=b'{"env":{"TOKEN":"hunter2"}}', setup="true")
    planned = plan(FRESH, setup)
    assert "hunter2" not in explain(planned) + repr(planned) + repr(setup)


def test_the_agent_reads_paths_that_only_the_node_knows() -> None:
    setup = a_setup(agent_config=b'{"job":"j","python":"","checkpoint_dir":"~/ck"}')
    assert json.loads(agent_config(FRESH, setup)) == {
        "job": "j",
        "python": "/usr/bin/python3",
        "code_dir": f"/home/u/.spotsup/code/{setup.code.name}",
        "run_dir": "/home/u/.spotsup/nodes/n1/run",
        "log_dir": "/home/u/.spotsup/nodes/n1/log",
        "checkpoint_dir": "/home/u/ck",
    }


def test_a_dry_run_tells_what_is_done_what_is_left_and_what_is_impossible() -> None:
    text = explain(plan(replace(FRESH, codes=frozenset({a_setup().code.name}), torch=False), a_setup()))
    assert "code: nothing to do: code " in text
    assert "environment: impossible: /usr/bin/python3 cannot import torch; install it in the image" in text
    assert "    | setsid /usr/bin/python3 -m spotsup_trainer.agent" in text


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"node": "../n1"}, r"node is '\.\./n1'; use letters"),
        ({"node": ""}, "node is ''"),
        ({"root": "spots"}, "use an absolute path or one that begins with ~/"),
        ({"root": "~bob/spots"}, "use an absolute path"),
        ({"root": "/a\nb"}, "use an absolute path"),
        ({"root": "/a:b"}, "use an absolute path .* without `:`"),
        ({"env": {"A-B": "1"}}, "'A-B' is no variable name"),
        ({"env": {"A": "x\0y"}}, "the value of A contains a NUL"),
        ({"setup": "echo \0"}, "contains a NUL"),
        ({"agent_config": b"[]"}, "agent_config is no JSON object"),
        ({"agent_config": b"{"}, "Expecting property name"),
    ],
)
def test_a_setup_that_cannot_work_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        a_setup(**changes)
