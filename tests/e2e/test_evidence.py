"""A silent node is asked over real SSH whether its steps advance, before it is given up (P4)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bootstrap import bootstrap, stop_agent
from provisioners.base import Market, Offer
from supervisor.config import Config
from supervisor.identity import Identity
from supervisor.model import NodeRecord
from supervisor.nodes.evidence import ASK_TIMEOUT_S, SshEvidence
from supervisor.planner.actions import ADVANCE_S
from tests.support.agents import a_setup, wait_for
from tests.support.faulty_ssh import Machine, machine_with_sshd
from tests.support.programs import free_ports

IDENTITY = Identity(b"evidence" * 4)


class Clock:
    """Real time; each read skips `skip_s` ahead."""

    def __init__(self) -> None:
        self.skip_s = self._skipped_s = 0.0

    def now(self) -> float:
        self._skipped_s += self.skip_s
        return time.monotonic() + self._skipped_s


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with machine_with_sshd(tmp_path, IDENTITY.host_key("n1"), IDENTITY.client_key()) as made:
        yield made


def test_steps_advance_while_the_agent_runs_and_its_workers_write(machine: Machine) -> None:
    clock = Clock()
    evidence = SshEvidence(Config(), IDENTITY, clock)
    node = NodeRecord("n1", "j", "token", Offer("local", "r", "z", "t", Market.SPOT, None), 0.0)
    node = replace(node, ssh_host=machine.target.host, ssh_port=machine.target.port)
    never = evidence.ask(node)
    assert (never.error, never.agent_runs, never.advances) == ("", False, False)

    bootstrap(machine.target, a_setup(), clock=clock.now, deadline_s=60.0)
    own = machine.home / ".spotsup/nodes/n1"
    wait_for(lambda: "started" in (own / "agent.log").read_text())
    (own / "run").mkdir(exist_ok=True)
    for name in ("progress-3.json", "session-3-1"):
        (own / "run" / name).touch()
        assert evidence.ask(node).advances
        long_ago = time.time() - ADVANCE_S - 30
        os.utime(own / "run" / name, (long_ago, long_ago))
        stale = evidence.ask(node)
        assert (stale.agent_runs, stale.advances) == (True, False)
        assert stale.written_s_ago >= ADVANCE_S + 30

    (own / "run/session-3-0").touch()
    stop_agent(machine.target, "n1", grace_s=5.0, clock=clock.now, deadline_s=30.0)
    dead = evidence.ask(node)
    assert (dead.agent_runs, dead.advances) == (False, False), "what a dead agent's workers wrote last proves nothing"

    clock.skip_s = 1.0
    asked_at = clock.now()
    gone = evidence.ask(replace(node, ssh_port=free_ports(1)[0]))
    assert "did not answer in time" in gone.error
    assert not gone.advances
    assert clock.now() - asked_at < ASK_TIMEOUT_S + 10.0
