"""New jobs: their code, what is checked before it is packed, and how they are stored."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from supervisor.api.jobs.changes import Terms, active_nodes, unreadable_by
from supervisor.api.jobs.commands import MAX_TRIES, Change, with_event
from supervisor.api.jobs.reading import Jobs
from supervisor.api.journal_copy import JournalCopy
from supervisor.api.security.gate import MAX_BLOB_BYTES
from supervisor.api.submit.checked import Checked
from supervisor.api.submit.job_files import JobFiles
from supervisor.deadlines import finish_by_at
from supervisor.errors import CommandRefusedError, NotFoundError, SpotsupError, UsageError
from supervisor.events import EventKind
from supervisor.journal.journal import Reading
from supervisor.model import JobState
from supervisor.new_job import new_job
from supervisor.planner.world import JobView
from supervisor.runtime.clock import Clock
from supervisor.spec import JobSpec
from supervisor.starting_time import starts_at

MAX_CODE_DELETIONS = 20  # per submission: each costs a read of etcd, and each submission adds one job
MAX_SOURCES = 4  # folders in which a job looks for a checkpoint to resume from


@dataclass(frozen=True, slots=True)
class Submissions:
    """What begins a job. `hosted`: clouds whose machines are processes of this computer. `terms`: of who submits; one
    whose name was another's is refused with ForbiddenError."""

    copy: JournalCopy
    jobs: Jobs
    clock: Clock
    job_files: JobFiles
    hosted: Collection[str]
    terms: Terms = Terms()  # noqa: RUF009 - frozen

    def under(self, terms: Terms) -> Submissions:
        """Return the submissions of one caller."""
        return replace(self, terms=terms)

    def put_blob(self, data: bytes, owner: str = "") -> str:
        """Store a code archive of the user `owner`. Returns its SHA-256."""
        if len(data) > MAX_BLOB_BYTES:
            raise UsageError(
                f"the code archive has {len(data)} bytes; at most {MAX_BLOB_BYTES} are accepted: "
                "list what is not code in "
                ".spotsupignore"
            )
        return self.copy.journal.put_blob(data, owner)

    def check(self, spec_value: Any, resume_from: str = "", owner: str = "") -> Checked:
        """Check a submission before its code is packed and sent. Raises what `submit` raises, and CommandRefusedError
        if the job's cloud answers that it has no such offer."""
        checked = self.job_files.admit_anew(spec_value, owner)
        spec = checked.spec
        present = self.jobs.find(spec.name)
        if present is not None:
            self._check_replaceable(present)
        if resume_from:
            self._sources(resume_from, spec)
        return self.job_files.quoted(checked)

    def submit(
        self, spec_value: Any, code_sha256: str, submission: str, resume_from: str = "", owner: str = ""
    ) -> JobView:
        """Store a new job of the user `owner`. `submission`: the client's own id of this request; sent again, it is the
        same job.

        `resume_from`: the name of a job that has ended or is paused, with whose newest checkpoint this one begins.
        """
        checked = self.job_files.admit(spec_value, owner)
        spec = checked.spec
        now = self.clock.now()
        record = new_job(spec, code_sha256, submission, now)
        begins = starts_at(spec.start_after, spec.schedule, now)
        finish_by = finish_by_at(spec.finish_by, spec.work, begins, now)
        record = replace(record, owner=owner, starts_at=begins, deadline=replace(record.deadline, finish_by=finish_by))
        placed, order = None, ""
        for _ in range(MAX_TRIES):
            # Where a connection breaks, a transaction is sent twice: one that was refused may be our own.
            self.copy.catch_up(spec.name)
            present = self.jobs.find(spec.name)
            if present is not None and present.record.uid == record.uid:
                return present
            if present is not None:
                self._check_replaceable(present)
            if placed is None:
                placed, order = self.job_files.placed(replace(checked, spec=record.spec))
            code = self.copy.journal.find_blob(code_sha256)
            if code is None:
                raise UsageError("the job's code was not uploaded first: PUT /v1/blobs, as `spotsupctl submit` does")
            run = present.record.run + 1 if present else 1
            sources = self._sources(resume_from, spec) if resume_from else ()
            text = f"{spec.name} submitted" + (f"; it resumes from {sources[0]}" if sources else "") + order
            new = Change(replace(record, spec=placed, run=run, resume_from=sources), EventKind.SUBMITTED, text)
            event, record_now = with_event(new, self.clock.now())
            if self.copy.journal.create_job(record_now, event, present, code):
                self._delete_old_code(present)
                self.copy.wait_until(lambda reading: _has(reading, spec.name, record.uid))
                seen = self.copy.read().jobs.get(spec.name)
                # It is stored, so the command succeeds even if this daemon's own copy of the journal is late.
                return seen if seen and seen.record.uid == record.uid else JobView(record_now, 0, {}, {})
        raise CommandRefusedError(f"job {spec.name} changes too fast to be stored; try again")

    def _sources(self, name: str, spec: JobSpec) -> tuple[str, ...]:
        """Return where the checkpoints of a job are, and of those that it resumed from itself. Raises NotFoundError,
        and CommandRefusedError if the new job could not read them."""
        try:
            job = self.jobs.one(name).record
        except NotFoundError as error:
            raise NotFoundError(
                f"cannot resume from {name}: there is no such job, or it was deleted. A deleted job's checkpoints are "
                f"where they were, for your program to load; {error}"
            ) from error
        if not (job.ended or job.state is JobState.PAUSED):
            raise CommandRefusedError(f"job {name} is {job.state}: cancel or pause it before another resumes from it")
        why = unreadable_by(job, spec, self.hosted)
        if why:
            raise CommandRefusedError(f"cannot resume from {name}: {why}")
        return (job.checkpoint_path, *job.resume_from)[:MAX_SOURCES]

    def _delete_old_code(self, replaced: JobView | None) -> None:
        """Delete the code of ended jobs: the one whose name was used again, and those that ended last. A failure is
        ignored, because the new job is stored already."""
        over = [view for view in self.copy.read().jobs.values() if view.record.ended and not active_nodes(view)]
        latest = sorted(over, key=lambda view: view.record.ended_at)[-MAX_CODE_DELETIONS:]
        with contextlib.suppress(SpotsupError):
            for view in [*latest, *filter(None, [replaced])]:
                self.copy.journal.delete_code(view.record.code_sha256, view.revision)

    def _check_replaceable(self, present: JobView) -> None:
        name = present.record.name
        if not present.record.ended:
            raise CommandRefusedError(
                f"the name {name} is in use ({present.record.state}): choose another, or cancel that job"
            )
        self.terms.check(present.record)
        if count := active_nodes(present):
            raise CommandRefusedError(f"job {name} has ended but still releases {count} nodes: try again in a moment")


def _has(reading: Reading, name: str, uid: str) -> bool:
    return name in reading.jobs and reading.jobs[name].record.uid == uid
