"""Removes over SSH what a job left on its machine, before the machine waits for the next job."""

from __future__ import annotations

from supervisor.config import Config
from supervisor.identity import Identity
from supervisor.model import JobRecord, NodeRecord
from supervisor.nodes.prepare import ssh_host_of
from supervisor.planner.actions import CleanDone
from supervisor.runtime.clock import Clock

CLEAN_S = 240.0


class SshCleaner:
    """The same for all clouds. Safe to use from several threads."""

    def __init__(self, config: Config, identity: Identity, clock: Clock) -> None:
        self._config = config
        self._identity = identity
        self._clock = clock

    def clean(self, node: NodeRecord, job: JobRecord) -> CleanDone:
        """As runtime.actor.Cleaner. A machine that is this computer is not changed outside of the node's folder."""
        from bootstrap import BootstrapError, UnreachableError, clean

        settings = self._config.cloud(node.offer.cloud)
        try:
            clean(
                ssh_host_of(self._config, self._identity, node),
                node.id,
                root=self._config.node.root,
                cache=self._config.node.cache,
                mounts=[storage.as_mount() for storage in job.spec.mounted],
                whole=settings is not None and not settings.on_this_host,
                clock=self._clock.now,
                deadline_s=CLEAN_S,
            )
        except (BootstrapError, ValueError) as error:
            return CleanDone(node.id, str(error), unreachable=isinstance(error, UnreachableError))
        return CleanDone(node.id)
