"""What users may ask of any daemon, leader or standby. Each request is stored before it is acknowledged (P6).

A command is a user's word in the journal, guarded by the revision of what it changes; whoever leads acts on it.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from supervisor.api.quote import Quote
from supervisor.errors import CommandRefusedError, JournalUnavailableError, NotFoundError, SpotsupError, UsageError
from supervisor.journal.journal import Journal, Reading
from supervisor.model import DaemonPause, Event, EventKind, JobRecord, NodeRecord, NodeState, Transition
from supervisor.planner.world import JobView
from supervisor.runtime.clock import Clock
from supervisor.runtime.loop import Leader
from supervisor.spec import JobSpec, check_nodes, parse_spec

MAX_TRIES = 20
MAX_FORGOTTEN = 20  # each costs a look at etcd, and each submission adds one job
CATCH_UP_S = 5.0
MAX_BLOB_BYTES = 32 * 1024 * 1024
_UID_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
_LEAVING = frozenset({NodeState.DRAINING, NodeState.TERMINATING})
_OVER = frozenset({NodeState.LOST, NodeState.FAILED, NodeState.GONE})


@dataclass(frozen=True, slots=True)
class Scale:
    """What `spotsupctl scale` asks for; None leaves a number as it is."""

    desired: int | None = None
    min_nodes: int | None = None
    max_nodes: int | None = None
    spares: int | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """What a command makes of a job, and of one of its nodes; and the event that tells of it."""

    job: JobRecord
    kind: EventKind
    text: str
    node: NodeRecord | None = None


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
        *,
        hosted: Collection[str] = (),
    ) -> None:
        """`quote`: says what a job's cloud would be asked for; without it, no cloud is asked before it is.

        `hosted`: the clouds whose machines are processes of this computer, which can mount nothing.
        """
        self._journal = journal
        self._leader = leader
        self._clock = clock
        self._clouds = tuple(clouds)
        self._wait_for = wait_for
        self._quote = quote
        self._hosted = frozenset(hosted)

    @property
    def led_by(self) -> str:
        """Who acts on commands, where that is another daemon; "" where it is this one, or nobody yet."""
        return "" if self.leads else self._leader.leader

    @property
    def leads(self) -> bool:
        """Whether this daemon acts on commands."""
        return self._leader.leading

    def pause_daemons(self, reason: str) -> None:
        """Have no daemon of the cluster do anything, across restarts. Commands are still stored."""
        self._journal.set_pause(DaemonPause(self._clock.now(), reason))
        self._await(lambda reading: reading.pause is not None)

    def resume_daemons(self) -> None:
        """Have them go on."""
        self._journal.set_pause(None)
        self._await(lambda reading: reading.pause is None)

    @property
    def paused(self) -> DaemonPause | None:
        """Whether no daemon does anything, since when, and why."""
        return self._read().pause

    def put_blob(self, data: bytes) -> str:
        """Store a code archive; its SHA-256."""
        if len(data) > MAX_BLOB_BYTES:
            raise UsageError(f"the code archive has {len(data)} bytes; at most {MAX_BLOB_BYTES} are taken")
        return self._journal.put_blob(data)

    def check(self, spec_value: Any) -> tuple[JobSpec, Quote | None]:
        """Whether a job could be submitted now, before its code is packed and sent. Raises as `submit` does, and where
        its cloud says that it cannot give what the job asks for."""
        spec = parse_spec(spec_value)
        self._check_supported(spec)
        present = self._present(spec.name)
        if present is not None:
            _check_replaceable(present)
        return spec, self._quote(spec) if self._quote else None

    def plan(self, spec_value: Any) -> Quote:
        """What would be asked for, whether or not the job's name is free. Raises as `check` does."""
        spec = parse_spec(spec_value)
        self._check_supported(spec)
        if self._quote is None:
            raise CommandRefusedError("this daemon cannot ask its clouds for offers")
        return self._quote(spec)

    def submit(self, spec_value: Any, code_sha256: str, submission: str) -> JobView:
        """Store a new job. `submission`: the client's own id of this request; sent again, it is the same job."""
        spec = parse_spec(spec_value)
        self._check_supported(spec)
        self._catch_up(spec.name)
        record = new_job(spec, code_sha256, submission, self._clock.now())
        for _ in range(MAX_TRIES):
            present = self._present(spec.name)
            if present is not None and present.record.uid == record.uid:
                return present
            if present is not None:
                _check_replaceable(present)
            code = self._journal.find_blob(code_sha256)
            if code is None:
                raise UsageError("the job's code was not uploaded: `spotsupctl submit` does that")
            new = Change(record, EventKind.SUBMITTED, f"{spec.name} submitted")
            event, record_now = _event(new, self._clock.now())
            revision = present.revision if present else 0
            if self._journal.create_job(record_now, event, revision, code):
                self._forget_code(present)
                self._await(lambda reading: _has(reading, spec.name, record.uid))
                seen = self._read().jobs.get(spec.name)
                # It is stored: whoever asked is told so, however late this daemon reads of it.
                return seen if seen and seen.record.uid == record.uid else JobView(record_now, 0, {}, {})
        raise CommandRefusedError(f"job {spec.name} changes too fast to be stored; try again")

    def scale(self, name: str, scale: Scale) -> JobView:
        """Change how many nodes a job wants. Raises CommandRefusedError beyond its limits, or where it has ended."""

        def change(view: JobView) -> Change:
            scaled = scaled_job(view.record, scale)
            numbers = f"{scaled.min_nodes} ≤ {scaled.desired_nodes} ≤ {scaled.max_nodes} nodes"
            return Change(scaled, EventKind.SCALED, f"{name} scaled to {numbers}{_and_spares(scaled)}")

        return self._change(name, change)

    def cancel(self, name: str) -> JobView:
        """Ask for a job's end. One that is being cancelled already is fine; one that has ended is refused."""

        def change(view: JobView) -> Change:
            text = f"{name}: a user asked to cancel it"
            return Change(replace(view.record, cancel_requested=True), EventKind.CANCEL_REQUESTED, text)

        self._catch_up(name)
        view = self.job(name)
        return view if view.record.cancel_requested else self._change(name, change)

    def pause(self, name: str) -> JobView:
        """Ask for a job's checkpoint, and for the release of its machines until it is resumed. Once is enough."""

        def change(view: JobView) -> Change | None:
            if view.record.pause_requested_at:
                return None
            paused = replace(view.record, pause_requested_at=self._clock.now())
            return Change(paused, EventKind.PAUSE_REQUESTED, f"{name}: a user asked to pause it")

        return self._change(name, change)

    def resume(self, name: str) -> JobView:
        """Have a paused job go on from its checkpoint. One that is not paused goes on anyway."""

        def change(view: JobView) -> Change | None:
            if not view.record.pause_requested_at:
                return None
            return Change(replace(view.record, pause_requested_at=0.0), EventKind.RESUMED, f"{name}: a user resumed it")

        return self._change(name, change)

    def drain(self, node: str) -> JobView:
        """Ask for a node's replacement, and for its leave in order then. Once is enough. Raises NotFoundError, and
        CommandRefusedError for a node that has ended."""

        def change(view: JobView) -> Change | None:
            found = view.nodes.get(node)
            if found is None or found.state in _OVER:
                state = found.state if found else "forgotten"
                raise CommandRefusedError(f"node {node} is {state}: there is nothing to drain")
            if found.drain_requested or found.state in _LEAVING:
                return None
            text = f"a user wants {node} drained: it leaves once it is replaced"
            drained = replace(found, drain_requested=True, needs_replacement=True)
            return Change(view.record, EventKind.DRAIN_REQUESTED, text, drained)

        return self._change(self._job_of(node), change)

    def jobs(self) -> list[JobView]:
        """All jobs, newest first."""
        found = self._read().jobs.values()
        return sorted(found, key=lambda job: job.record.submitted_at, reverse=True)

    def job(self, name: str) -> JobView:
        """One job. Raises NotFoundError."""
        reading = self._read()
        jobs = reading.jobs
        if name in reading.refused:
            raise CommandRefusedError(f"job {name} is left alone: {reading.refused[name]}")
        if name not in jobs:
            known = ", ".join(sorted(jobs)) or "none"
            raise NotFoundError(f"there is no job {name!r}; jobs: {known}")
        return jobs[name]

    def node(self, node: str) -> NodeRecord:
        """One node. Raises NotFoundError."""
        return self.job(self._job_of(node)).nodes[node]

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

    def _forget_code(self, replaced: JobView | None) -> None:
        """Nobody needs the code of jobs that are over: of the one whose name was just used again, and of those that
        ended last. The new job is stored, whatever becomes of this."""
        over = [view for view in self._read().jobs.values() if view.record.ended and not _held(view)]
        latest = sorted(over, key=lambda view: view.record.ended_at)[-MAX_FORGOTTEN:]
        with contextlib.suppress(SpotsupError):
            for view in [*latest, *filter(None, [replaced])]:
                self._journal.delete_code(view.record.code_sha256, view.revision)

    def _present(self, name: str) -> JobView | None:
        return self.job(name) if name in {*self._read().jobs, *self._read().refused} else None

    def _job_of(self, node: str) -> str:
        name = next((name for name, view in self._read().jobs.items() if node in view.nodes), "")
        if not name:
            raise NotFoundError(f"there is no node {node!r}; `spotsupctl nodes` has all of them")
        return name

    def _change(self, name: str, change: Callable[[JobView], Change | None]) -> JobView:
        """Store what `change` makes of the job as it is now; None where it is so already."""
        self._catch_up(name)
        for _ in range(MAX_TRIES):
            view = self.job(name)
            if view.record.ended:
                raise CommandRefusedError(f"job {name} has ended ({view.record.state}): nothing was changed")
            changed = change(view)
            if changed is None:
                return view
            event, stored = _event(changed, self._clock.now())
            if self._journal.update_job(view, stored, event, changed.node):
                self._await_newer(view)
                seen = self._read().jobs.get(name, view)
                return replace(view, record=stored) if seen.revision == view.revision else seen
            self._await_newer(view)
        raise CommandRefusedError(f"job {name} changes too fast to be stored; try again")

    def _read(self) -> Reading:
        return self._journal.read()

    def _catch_up(self, name: str) -> None:
        """Know all that was acknowledged of a job before we were asked, also by another daemon: a refusal, or "it is so
        already", must not come of an old copy. Raises JournalUnavailableError where that is not to be had."""
        newest = self._journal.job_revision(name)
        if _is_at(self._read(), name, newest):
            return
        if not self._wait_for(lambda reading: _is_at(reading, name, newest), CATCH_UP_S):
            raise JournalUnavailableError(
                f"this daemon's copy of the journal has been behind etcd for {CATCH_UP_S:g} s: try again in a moment"
            )

    def _await(self, predicate: Callable[[Reading], bool]) -> None:
        """Until our own write is in what we read: a command that follows must see it. Bounded; late is not wrong."""
        self._wait_for(predicate, 2.0)

    def _await_newer(self, old: JobView) -> None:
        def is_newer(reading: Reading) -> bool:
            seen = reading.jobs.get(old.record.name)
            return seen is None or seen.revision != old.revision

        self._await(is_newer)

    def _check_supported(self, spec: JobSpec) -> None:
        cloud = spec.placement.cloud
        if spec.image is not None and not spec.image.digest:
            raise CommandRefusedError(
                f"{spec.image} has no digest, so two nodes could run different content: write docker://…@sha256:…, as "
                "`spotsupctl submit` does"
            )
        if cloud not in self._clouds:
            have = ", ".join(self._clouds) or "none"
            raise CommandRefusedError(
                f"`placement.cloud` is {cloud}, which this daemon is not set up for; it has: {have}"
            )
        if cloud in self._hosted and spec.storage:
            raise CommandRefusedError(
                f"`storage` is set, but machines of the cloud {cloud} share the host's folders: leave it out"
            )


def scaled_job(job: JobRecord, scale: Scale) -> JobRecord:
    """The job with other numbers. Raises CommandRefusedError where they do not fit together, or its kind."""
    desired = job.desired_nodes if scale.desired is None else scale.desired
    min_nodes = job.min_nodes if scale.min_nodes is None else scale.min_nodes
    max_nodes = job.max_nodes if scale.max_nodes is None else scale.max_nodes
    spares = job.spare_nodes if scale.spares is None else scale.spares
    if job.spec.kind == "data" and (desired, max_nodes, spares) != (1, 1, 0):
        raise CommandRefusedError(f"cannot scale {job.name}: a data job is one node")
    try:
        check_nodes(min_nodes, desired, max_nodes, spares)
    except ValueError as error:
        hint = " (--min and --max change the bounds)" if scale.desired is not None else ""
        raise CommandRefusedError(f"cannot scale {job.name}: {error}{hint}") from error
    return replace(job, desired_nodes=desired, min_nodes=min_nodes, max_nodes=max_nodes, spare_nodes=spares)


def _and_spares(job: JobRecord) -> str:
    """How a sentence about nodes goes on where the job keeps spares."""
    return f" and {job.spare_nodes} spare{'' if job.spare_nodes == 1 else 's'}" if job.spare_nodes else ""


def uid_of(submission: str) -> str:
    """5 signs of a submission's id: a request that is sent again asks for the same job."""
    digest = hashlib.sha256(submission.encode()).digest()
    return "".join(_UID_ALPHABET[byte % len(_UID_ALPHABET)] for byte in digest[:5])


def new_job(spec: JobSpec, code_sha256: str, submission: str, now: float) -> JobRecord:
    """A job as it is stored when it is submitted."""
    return JobRecord(
        name=spec.name,
        uid=uid_of(submission),
        spec=spec,
        code_sha256=code_sha256,
        submitted_at=now,
        state_since=now,
        min_nodes=spec.nodes.min,
        desired_nodes=spec.nodes.desired,
        max_nodes=spec.nodes.max,
        spare_nodes=spec.nodes.spares,
        history=(Transition(now, "", "queued", "submitted"),),
    )


def _event(change: Change, now: float) -> tuple[Event, JobRecord]:
    job, node = change.job, change.node.id if change.node else ""
    event = Event(f"{job.task_id}-{job.next_event:06d}", now, job.name, change.kind, change.text, node)
    return event, replace(job, next_event=job.next_event + 1)


def _has(reading: Reading, name: str, uid: str) -> bool:
    return name in reading.jobs and reading.jobs[name].record.uid == uid


def _is_at(reading: Reading, name: str, newest: int) -> bool:
    """Whether a reading knows a job as of revision `newest`; of 0: that there is none."""
    if name in reading.refused:
        return True
    known = reading.jobs[name].revision if name in reading.jobs else 0
    return known >= newest if newest else not known


def _check_replaceable(present: JobView) -> None:
    name = present.record.name
    if not present.record.ended:
        raise CommandRefusedError(
            f"the name {name} is in use ({present.record.state}): choose another, or cancel that job"
        )
    if held := _held(present):
        raise CommandRefusedError(f"job {name} has ended but still releases {held} nodes: try again in a moment")


def _held(view: JobView) -> int:
    """How many nodes it has that are not gone."""
    return sum(node.state is not NodeState.GONE for node in view.nodes.values())
