"""Tries etcd from the machine, before anything that takes minutes is done there."""

from __future__ import annotations

import json

from bootstrap.agent.step import agent_key
from bootstrap.decision import Decision, paths_on
from bootstrap.facts import Facts
from bootstrap.model import Command, Run, Setup, Skip, Upload
from bootstrap.templates import fill

# The program gives up after 8 s by itself, and after 9 s whatever happens.
REACH_TIMEOUT_S = 30.0
# As the agent needs it.
MIN_PYTHON = (3, 9)


def reach(facts: Facts, setup: Setup) -> Decision:
    """TCP, TLS, login, and one read of an own key."""
    config = json.loads(setup.agent_config)
    if not config.get("etcd_endpoints"):
        return Skip("the agent uses no etcd")
    if facts.agent and facts.agent.key == agent_key(facts, setup):
        return Skip("the agent runs, and says itself when it does not reach etcd")
    if not facts.python or facts.python_version < MIN_PYTHON:
        return Skip("there is no interpreter to try it with; the agent will")
    paths = paths_on(facts, setup)
    commands: list[Command] = []
    arguments = [
        *("--etcd", ",".join(config["etcd_endpoints"])),
        *("--cluster", config["cluster"], "--job", config["job"], "--node", config["node"]),
    ]
    if setup.etcd_access:
        commands.append(Upload("the access to etcd", paths.etcd_access, 0o600, setup.etcd_access))
        arguments += ["--access", paths.etcd_access]
    script = fill(
        "reach/reach.sh", trainer=paths.trainer(setup.trainer), python=facts.python, arguments=tuple(arguments)
    )
    return (*commands, Run("reach etcd", script, REACH_TIMEOUT_S))
