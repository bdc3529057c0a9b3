"""Ended jobs that are kept for too long, or are too many: deleted by the leader (`[retention]`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spotsup_trainer.etcd import Compare

from supervisor.errors import SpotsupError
from supervisor.features.retention.record import RetentionRules
from supervisor.features.retention.rule import sweeps_by_member, to_delete
from supervisor.journal.journal import Journal
from supervisor.runtime.clock import Clock

MAX_NAMED = 5  # in the log


@dataclass(frozen=True, slots=True)
class Retention:
    """A task of housekeeping. `guard`: as Leadership has it."""

    journal: Journal
    clock: Clock
    guard: Callable[[], Sequence[Compare]]
    rules: RetentionRules

    def run(self) -> str:
        """Delete what is due, each job by itself; says which. Raises SpotsupError, with what was done first.

        Nothing while the journal is doubted: a job that it has as ended may have machines that it does not know.
        """
        reading = self.journal.read()
        if reading.cluster is None or reading.cluster.doubted_at:
            return ""
        now, needed_by = self.clock.now(), sweeps_by_member(sweep for sweep, _ in self.journal.sweeps())
        done, problems = [], []
        for view in to_delete(reading.jobs.values(), needed_by, self.rules, now):
            try:
                if self.journal.delete_job(view, now, self.guard()):
                    done.append(view.name)
                    self.journal.delete_code(view.record.code_sha256, view.revision)
            except SpotsupError as error:
                problems.append(f"{view.name}: {error}")
        more = f" and {len(done) - MAX_NAMED} more" if len(done) > MAX_NAMED else ""
        said = f"deleted jobs that ended long ago: {', '.join(done[:MAX_NAMED])}{more}" if done else ""
        if problems:
            raise SpotsupError(f"{f'{said}; ' if said else ''}not deleted yet: {problems[0]}")
        return said
