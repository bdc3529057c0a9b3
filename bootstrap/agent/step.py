"""Starts the agent, unless one with the same configuration runs."""

from __future__ import annotations

import json
from hashlib import sha256

from bootstrap.agent import scripts
from bootstrap.agent.unit import agent_unit
from bootstrap.container.step import container_name
from bootstrap.decision import CHECK_TIMEOUT_S, Decision, env_script, ours, paths_on
from bootstrap.environment.step import python_of
from bootstrap.facts import Facts
from bootstrap.model import Command, Run, Setup, Skip, Upload, expand

START_TIMEOUT_S = 60.0


def agent(facts: Facts, setup: Setup) -> Decision:
    """Return the agent with this configuration: a unit of systemd on a machine of our own, else a process of its own
    session.

    An agent with another configuration is stopped first.
    """
    paths = paths_on(facts, setup)
    config = agent_config(facts, setup)
    key = agent_key(facts, setup)
    if facts.agent and facts.agent.key == key:
        return Skip(f"the agent runs with this configuration, pid {facts.agent.pid}")
    # With an image the launcher trains in a container; the agent supervises it from outside.
    python = facts.python if setup.image else python_of(facts, setup)
    become = scripts.become_agent(paths, python, setup.trainer, key, container_name(setup) if setup.image else "")
    uploads: tuple[Upload, ...] = (
        Upload("the agent's configuration", paths.agent_config, 0o600, config),
        Upload("the environment", paths.env, 0o600, env_script(facts, setup)),
        Upload("the script that becomes the agent", paths.agent_start, 0o600, become.encode()),
    )
    if setup.etcd_access:
        uploads += (Upload("the access to etcd", paths.etcd_access, 0o600, setup.etcd_access),)
    commands: list[Command] = []
    if facts.agent:
        stop = scripts.stop_agent(paths, setup.stop_grace_s)
        commands.append(Run("stop the agent with another configuration", stop, stop_timeout_s(setup.stop_grace_s)))
    commands += uploads
    if ours(facts, setup) and facts.system.systemd:
        unit = agent_unit(paths, facts.user, key).encode()
        commands.append(Upload("the agent's unit", paths.agent_unit, 0o600, unit))
        start = scripts.start_agent_unit(paths, key)
        return (*commands, Run("start the agent", start, START_TIMEOUT_S, as_root=True))
    return (*commands, Run("start the agent", scripts.start_agent(paths, key), START_TIMEOUT_S))


def agent_config(facts: Facts, setup: Setup) -> bytes:
    """Return the configuration that this machine's agent reads: `Setup.agent_config` with the paths filled in."""
    paths = paths_on(facts, setup)
    config = json.loads(setup.agent_config)
    config |= {
        "python": python_of(facts, setup),
        "code_dir": paths.code(setup.code),
        "run_dir": paths.run,
        "log_dir": paths.log,
        "checkpoints": expand(config.get("checkpoints", ""), facts.home),
    }
    if setup.etcd_access:
        config["etcd_access"] = paths.etcd_access
    if config.get("output"):
        config["output"] = expand(config["output"], facts.home)
    if "resume_from" in config:
        config["resume_from"] = [expand(folder, facts.home) for folder in config["resume_from"]]
    if setup.image is not None:
        config["container_init"] = True
    if facts.gpu.devices and setup.host.gpus:
        config["gpus"] = setup.host.gpus
    return json.dumps(config, separators=(",", ":"), sort_keys=True).encode()


def agent_key(facts: Facts, setup: Setup) -> str:
    """Return what identifies what an agent was started with: configuration, trainer, environment and login to etcd. Not
    the CA by which it trusts etcd: that is replaced while it runs."""
    parts = [agent_config(facts, setup), setup.trainer.sha256.encode(), env_script(facts, setup)]
    if setup.etcd_access:
        login = {name: value for name, value in json.loads(setup.etcd_access).items() if name != "ca"}
        parts.append(json.dumps(login, sort_keys=True).encode())
    return sha256(b"\0".join(parts)).hexdigest()[:32]


def stop_timeout_s(grace_s: float) -> float:
    """Return the time limit of the stop script."""
    return grace_s + scripts.KILL_WAIT_S + CHECK_TIMEOUT_S
