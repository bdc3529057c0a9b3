"""This daemon's copy of the journal, which a command waits for: before it looks, and after it has written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from supervisor.errors import JournalUnavailableError
from supervisor.journal.journal import Journal, Reading
from supervisor.planner.world import JobView

CATCH_UP_S = 5.0
OWN_WRITE_S = 2.0


@dataclass(frozen=True, slots=True)
class JournalCopy:
    """The journal with its mirror. `wait_for`: waits until a reading has something, for some seconds at most."""

    journal: Journal
    wait_for: Callable[[Callable[[Reading], bool], float], bool]

    def read(self) -> Reading:
        """Return the copy as it is. Never blocks."""
        return self.journal.read()

    def catch_up(self, name: str) -> None:
        """Wait until the copy has every change of a job that any daemon acknowledged before now.

        Otherwise an old copy could refuse a command, or find that nothing has to change. Raises
        JournalUnavailableError.
        """
        newest = self.journal.job_revision(name)
        if _is_at(self.read(), name, newest):
            return
        if not self.wait_for(lambda reading: _is_at(reading, name, newest), CATCH_UP_S):
            raise JournalUnavailableError(
                f"this daemon's copy of the journal has been behind etcd for {CATCH_UP_S:g} s: try again in a moment"
            )

    def wait_until(self, predicate: Callable[[Reading], bool]) -> None:
        """Wait, briefly, until the copy has our own write, so that the next command sees it."""
        self.wait_for(predicate, OWN_WRITE_S)

    def wait_for_newer(self, old: JobView) -> None:
        """Wait, briefly, until the copy has a job otherwise than `old`."""

        def is_newer(reading: Reading) -> bool:
            seen = reading.jobs.get(old.record.name)
            return seen is None or seen.revision != old.revision

        self.wait_until(is_newer)


def _is_at(reading: Reading, name: str, newest: int) -> bool:
    """True if a reading has a job's revision `newest`; 0 means that the job does not exist."""
    if name in reading.refused:
        return True
    known = reading.jobs[name].revision if name in reading.jobs else 0
    return known >= newest if newest else not known
