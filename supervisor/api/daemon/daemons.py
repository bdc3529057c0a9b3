"""Who leads, and the pause of all daemons of a cluster."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.api.journal_copy import JournalCopy
from supervisor.model import DaemonPause
from supervisor.runtime.clock import Clock
from supervisor.runtime.loop import Leader


@dataclass(frozen=True, slots=True)
class Daemons:
    """The daemons of a cluster, as this one knows them."""

    copy: JournalCopy
    leader: Leader
    clock: Clock

    @property
    def other_leader(self) -> str:
        """Return the leading daemon, if it is another one; "" if this one leads, or none does."""
        return "" if self.leads else self.leader.leader

    @property
    def leads(self) -> bool:
        """True if this daemon leads, and so acts on commands."""
        return self.leader.leading

    @property
    def paused(self) -> DaemonPause | None:
        """Return the pause of all daemons, if there is one."""
        return self.copy.read().pause

    def pause(self, reason: str) -> None:
        """Stop all daemons of the cluster from acting, across restarts. Commands are still stored."""
        self.copy.journal.set_pause(DaemonPause(self.clock.now(), reason))
        self.copy.wait_until(lambda reading: reading.pause is not None)

    def resume(self) -> None:
        """Let the daemons act again."""
        self.copy.journal.set_pause(None)
        self.copy.wait_until(lambda reading: reading.pause is None)
