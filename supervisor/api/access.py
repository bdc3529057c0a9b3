"""How to log in to a node: for `spotsupctl ssh`. Whoever owns the socket can read the cluster's key anyway."""

from __future__ import annotations

from typing import Any

from supervisor.config import Config
from supervisor.errors import CommandRefusedError
from supervisor.identity import Identity
from supervisor.model import NodeRecord, NodeState
from supervisor.nodes.prepare import user_of

SSH_PORT = 22
_OVER = frozenset({NodeState.TERMINATING, NodeState.GONE})


class Access:
    """Over the cluster's keys."""

    def __init__(self, config: Config, identity: Identity) -> None:
        self._config = config
        self._identity = identity

    def row(self, node: NodeRecord) -> dict[str, Any]:
        """Address, user, the host key that the node must have, and our key. Raises CommandRefusedError without an
        address."""
        if not node.ssh_host or node.state in _OVER:
            raise CommandRefusedError(f"node {node.id} is {node.state} and has no address to connect to")
        port = node.ssh_port
        named = node.ssh_host if port == SSH_PORT else f"[{node.ssh_host}]:{port}"  # man 8 sshd, SSH_KNOWN_HOSTS
        return {
            "host": node.ssh_host,
            "port": port,
            "user": user_of(self._config, node),
            "known_hosts": f"{named} {self._identity.host_key(node.id).public}\n",
            "key": self._identity.client_key().private_openssh,
        }
