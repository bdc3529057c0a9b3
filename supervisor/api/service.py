"""What users may ask of the daemon. Each request is stored safely before it is acknowledged (P6)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from spotsup_trainer.etcd import Compare

from supervisor.api.quote import Quote
from supervisor.errors import NotFoundError, RefusedError, UsageError
from supervisor.model import Event, EventKind, JobRecord, NodeState, Passage
from supervisor.planner.world import JobView
from supervisor.runtime.clock import Clock
from supervisor.runtime.journal import Journal, Reading
from supervisor.runtime.loop import Leader
from supervisor.spec import JobSpec, check_nodes, parse_spec

MOST_TRIES = 20
LEAD_WAIT_S = 10.0
MOST_BLOB_BYTES = 32 * 1024 * 1024
_UID_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"


@dataclass(frozen=True, slots=True)
class Scale:
    """What `spotsupctl scale` asks for; None leaves a number as it is."""

    desired: int | None = None
    min_nodes: int | None = None
    max_nodes: int | None = None
    spares: int | None = None


class Service:
    """The API's verbs, over the journal."""

    def __init__(
        self,
        journal: Journal,
        leader: Leader,
        clock: Clock,
        clouds: Sequence[str],
        wait_for: Callable[[Callable[[Reading], bool], float], bool],
        quote: Callable[[JobSpec], Quote] | None = None,
    ) -> None:
        """`quote`: says what a job's cloud would be asked for; without it, no cloud is asked before it is."""
        self._journal = journal
        self._leader = leader
        self._clock = clock
        self._clouds = tuple(clouds)
        self._wait_for = wait_for
        self._quote = quote

    def put_blob(self, data: bytes) -> str:
        """Store a code archive; its SHA-256."""
        if len(data) > MOST_BLOB_BYTES:
            raise UsageError(f"the code archive has {len(data)} bytes; at most {MOST_BLOB_BYTES} are taken")
        return self._journal.put_blob(data)

    def check(self, spec_value: Any) -> tuple[JobSpec, Quote | None]:
        """Whether a job could be submitted now, before its code is packed and sent. Raises as `submit` does, and where
        its cloud says that it cannot give what the job asks for."""
        spec = parse_spec(spec_value)
        self._check_supported(spec)
        present = self._read().jobs.get(spec.name)
        if present is not None:
            _check_replaceable(present)
        return spec, self._quote(spec) if self._quote else None

    def plan(self, spec_value: Any) -> Quote:
        """What would be asked for, whether or not the job's name is free. Raises as `check` does."""
        spec = parse_spec(spec_value)
        self._check_supported(spec)
        if self._quote is None:
            raise RefusedError("this daemon cannot ask its clouds for offers")
        return self._quote(spec)

    def submit(self, spec_value: Any, code_sha256: str, submission: str) -> JobView:
        """Store a new job. `submission`: the client's own id of this request; sent again, it is the same job."""
        spec = parse_spec(spec_value)
        self._check_supported(spec)
        if not self._journal.has_blob(code_sha256):
            raise UsageError("the job's code was not uploaded: `spotsupctl submit` does that")
        record = _new_job(spec, code_sha256, submission, self._clock.now())
        for _ in range(MOST_TRIES):
            present = self._read().jobs.get(spec.name)
            if present is not None and present.record.uid == record.uid:
                return present
            if present is not None:
                _check_replaceable(present)
            event, record_now = _event(record, EventKind.SUBMITTED, f"{spec.name} submitted", self._clock.now())
            revision = present.revision if present else 0
            if self._journal.create_job(record_now, event, revision, self._guard()):
                self._await(lambda reading: _has(reading, spec.name, record.uid))
                return self.job(spec.name)
        raise RefusedError(f"job {spec.name} changes too fast to be stored; try again")

    def scale(self, name: str, scale: Scale) -> JobView:
        """Change how many nodes a job wants. Raises RefusedError beyond its limits, or where it has ended."""

        def change(job: JobRecord) -> tuple[JobRecord, str]:
            scaled = scaled_job(job, scale)
            numbers = f"{scaled.min_nodes} ≤ {scaled.desired_nodes} ≤ {scaled.max_nodes} nodes"
            return scaled, f"{name} scaled to {numbers}{_and_spares(scaled)}"

        return self._change(name, EventKind.SCALED, change)

    def cancel(self, name: str) -> JobView:
        """Ask for a job's end. One that is being cancelled already is fine; one that has ended is refused."""

        def change(job: JobRecord) -> tuple[JobRecord, str]:
            return replace(job, cancel_requested=True), f"{name}: a user asked to cancel it"

        view = self.job(name)
        if view.record.cancel_requested:
            return view
        return self._change(name, EventKind.CANCEL_REQUESTED, change)

    def jobs(self) -> list[JobView]:
        """All jobs, newest first."""
        found = self._read().jobs.values()
        return sorted(found, key=lambda job: job.record.submitted_at, reverse=True)

    def job(self, name: str) -> JobView:
        """One job. Raises NotFoundError."""
        jobs = self._read().jobs
        if name not in jobs:
            known = ", ".join(sorted(jobs)) or "none"
            raise NotFoundError(f"there is no job {name!r}; jobs: {known}")
        return jobs[name]

    def events(self, name: str, after: str) -> list[Event]:
        """A job's story since the event with id `after`."""
        self.job(name)
        return self._journal.events(name, after)

    def logs(self, name: str, node: str) -> list[tuple[str, str, bytes]]:
        """Chunks of output. Raises NotFoundError for an unknown job or node."""
        view = self.job(name)
        if node and node not in view.nodes:
            raise NotFoundError(f"job {name} has no node {node!r}; nodes: {', '.join(sorted(view.nodes)) or 'none'}")
        return self._journal.logs(name, node)

    # -- inside --------------------------------------------------------------------------------------------

    def _change(self, name: str, kind: EventKind, change: Callable[[JobRecord], tuple[JobRecord, str]]) -> JobView:
        for _ in range(MOST_TRIES):
            view = self.job(name)
            if view.record.ended:
                raise RefusedError(f"job {name} has ended ({view.record.state}): nothing was changed")
            changed, text = change(view.record)
            event, stored = _event(changed, kind, text, self._clock.now())
            if self._journal.update_job(view, stored, event, self._guard()):
                self._await(lambda reading, old=view.revision: reading.jobs[name].revision > old)  # type: ignore[misc]
                return self.job(name)
            self._await(lambda reading, old=view.revision: reading.jobs[name].revision > old)  # type: ignore[misc]
        raise RefusedError(f"job {name} changes too fast to be stored; try again")

    def _read(self) -> Reading:
        return self._journal.read()

    def _await(self, predicate: Callable[[Reading], bool]) -> None:
        """Until our own write is in what we read: a command that follows must see it. Bounded; late is not wrong."""
        self._wait_for(predicate, 2.0)

    def _guard(self) -> Sequence[Compare]:
        # A daemon that took the place of a killed one leads as soon as that one's lease has ended.
        if not self._leader.leading and not self._wait_for(lambda _: self._leader.leading, LEAD_WAIT_S):
            who = self._leader.leader or "no daemon"
            raise RefusedError(f"this daemon stands by; {who} leads: nothing was changed, try again in a moment")
        return self._leader.guard()

    def _check_supported(self, spec: JobSpec) -> None:
        cloud = spec.placement.cloud
        if cloud not in self._clouds:
            have = ", ".join(self._clouds) or "none"
            raise RefusedError(f"`placement.cloud` is {cloud}, which this daemon is not set up for; it has: {have}")
        if cloud == "local" and spec.storage:
            raise RefusedError(
                "`storage` is set, but machines of the local cloud share the host's folders: leave it out"
            )


def scaled_job(job: JobRecord, scale: Scale) -> JobRecord:
    """The job with other numbers. Raises RefusedError where they do not fit together."""
    desired = job.desired_nodes if scale.desired is None else scale.desired
    min_nodes = job.min_nodes if scale.min_nodes is None else scale.min_nodes
    max_nodes = job.max_nodes if scale.max_nodes is None else scale.max_nodes
    spares = job.spare_nodes if scale.spares is None else scale.spares
    try:
        check_nodes(min_nodes, desired, max_nodes, spares)
    except ValueError as error:
        hint = " (--min and --max change the bounds)" if scale.desired is not None else ""
        raise RefusedError(f"cannot scale {job.name}: {error}{hint}") from error
    return replace(job, desired_nodes=desired, min_nodes=min_nodes, max_nodes=max_nodes, spare_nodes=spares)


def _and_spares(job: JobRecord) -> str:
    """How a sentence about nodes goes on where the job keeps spares."""
    return f" and {job.spare_nodes} spare{'' if job.spare_nodes == 1 else 's'}" if job.spare_nodes else ""


def uid_of(submission: str) -> str:
    """5 signs of a submission's id: a request that is sent again asks for the same job."""
    digest = hashlib.sha256(submission.encode()).digest()
    return "".join(_UID_ALPHABET[byte % len(_UID_ALPHABET)] for byte in digest[:5])


def _new_job(spec: JobSpec, code_sha256: str, submission: str, now: float) -> JobRecord:
    return JobRecord(
        name=spec.name,
        uid=uid_of(submission),
        spec=spec,
        code_sha256=code_sha256,
        submitted_at=now,
        since=now,
        min_nodes=spec.nodes.min,
        desired_nodes=spec.nodes.desired,
        max_nodes=spec.nodes.max,
        spare_nodes=spec.nodes.spares,
        history=(Passage(now, "", "queued", "submitted"),),
    )


def _event(job: JobRecord, kind: EventKind, text: str, now: float) -> tuple[Event, JobRecord]:
    event = Event(f"{job.task_id}-{job.next_event:06d}", now, job.name, kind, text)
    return event, replace(job, next_event=job.next_event + 1)


def _has(reading: Reading, name: str, uid: str) -> bool:
    return name in reading.jobs and reading.jobs[name].record.uid == uid


def _check_replaceable(present: JobView) -> None:
    name = present.record.name
    if not present.record.ended:
        raise RefusedError(f"the name {name} is in use ({present.record.state}): choose another, or cancel that job")
    still = [node.id for node in present.nodes.values() if node.state is not NodeState.GONE]
    if still:
        raise RefusedError(f"job {name} has ended but still releases {len(still)} nodes: try again in a moment")
