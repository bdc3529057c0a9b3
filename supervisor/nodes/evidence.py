"""Asks a silent node over SSH whether its steps advance, before it is given up (P4)."""

from __future__ import annotations

from supervisor.config import Config
from supervisor.identity import Identity
from supervisor.model import NodeRecord
from supervisor.nodes.prepare import ssh_host_of
from supervisor.planner.actions import AskDone
from supervisor.runtime.clock import Clock

ASK_TIMEOUT_S = 15.0


class SshEvidence:
    """The same for all clouds. Safe to use from several threads."""

    def __init__(self, config: Config, identity: Identity, clock: Clock) -> None:
        self._config = config
        self._identity = identity
        self._clock = clock

    def ask(self, node: NodeRecord) -> AskDone:
        """As Evidence: within ASK_TIMEOUT_S."""
        from bootstrap import BootstrapError, look

        ssh, root, asked_at = (
            ssh_host_of(self._config, self._identity, node),
            self._config.node.root,
            self._clock.now(),
        )
        try:
            runs, age_s = look(ssh, node.id, root=root, clock=self._clock.now, deadline_s=ASK_TIMEOUT_S)
        except BootstrapError as error:
            return AskDone(node.id, asked_at, next(iter(str(error).splitlines()), "no answer"))
        return AskDone(node.id, asked_at, agent_runs=runs, written_s_ago=age_s)
