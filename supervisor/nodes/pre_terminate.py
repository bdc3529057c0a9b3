"""What is done over SSH on a machine before it is terminated. It is optional, so it may take seconds at most."""

from __future__ import annotations

import structlog

from supervisor.config import Config
from supervisor.identity import Identity
from supervisor.model import JobRecord, NodeRecord
from supervisor.nodes.prepare import ssh_host_of
from supervisor.runtime.clock import Clock

log = structlog.get_logger("spotsupd")

LOG_LINES = 50
LOG_S = 15.0
GRACE_S = 10.0
UNMOUNT_S = 30.0


class SshPreTerminate:
    """The same for all clouds. Safe to use from several threads."""

    def __init__(self, config: Config, identity: Identity, clock: Clock) -> None:
        self._config = config
        self._identity = identity
        self._clock = clock

    def log_of(self, node: NodeRecord) -> str:
        """As PreTerminate."""
        from bootstrap import BootstrapError, collect

        ssh, root = ssh_host_of(self._config, self._identity, node), self._config.node.root
        try:
            return collect(ssh, node.id, root=root, clock=self._clock.now, deadline_s=LOG_S, lines=LOG_LINES)
        except BootstrapError as error:
            log.info("cannot read the log of a failed node", node=node.id, error=str(error))
            return ""

    def unmount(self, node: NodeRecord, job: JobRecord) -> None:
        """As PreTerminate. Scratch disks end with the machine."""
        from bootstrap import BootstrapError, stop_agent

        ssh, root = ssh_host_of(self._config, self._identity, node), self._config.node.root
        mounts = [storage.as_mount() for storage in job.spec.mounted if not storage.scratch]
        try:
            stop_agent(
                ssh,
                node.id,
                root=root,
                mounts=mounts,
                grace_s=GRACE_S,
                clock=self._clock.now,
                deadline_s=UNMOUNT_S,
            )
        except BootstrapError as error:
            log.info("cannot unmount the file systems of a node before its termination", node=node.id, error=str(error))
