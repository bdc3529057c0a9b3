"""How machines that the journal does not know become nodes of it. Pure.

What a machine is, its tag says: `<job>-<uid>-<number>`. What its job is, its user says: the job file is submitted
again, waits without nodes, and takes the machines over here. Those that nobody wants become nodes that are being ended.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from provisioners.base import Instance, InstanceState, Offer
from supervisor.errors import CommandRefusedError
from supervisor.model import Event, EventKind, JobRecord, JobState, NodeRecord, NodeState, Transition, move_job
from supervisor.planner.world import JobView
from supervisor.spec import JobSpec, parse_spec


@dataclass(frozen=True, slots=True)
class Family:
    """Machines of one job: `name` and `uid` are what its nodes' ids begin with."""

    name: str
    uid: str
    machines: tuple[Instance, ...]


@dataclass(frozen=True, slots=True)
class Adopted:
    """What is written for one family. `revision`: of the job's record that is changed, 0 where it is a new one."""

    job: JobRecord
    revision: int
    nodes: tuple[NodeRecord, ...]
    event: Event


def families(unknown: Iterable[Instance]) -> list[Family]:
    """By job, in order. Raises CommandRefusedError for a machine whose tag names no node of ours."""
    found: dict[tuple[str, str], list[Instance]] = {}
    for each in unknown:
        name, uid, number = (*each.node.rsplit("-", 2), "", "")[:3]
        if not (name and uid and number.isdigit()):
            raise CommandRefusedError(
                f"{each.id} carries the cluster's tag, but is no node ({each.node!r}): end it by hand"
            )
        found.setdefault((name, uid), []).append(each)
    return [Family(name, uid, tuple(machines)) for (name, uid), machines in sorted(found.items())]


def adopt(
    found: Iterable[Family],
    jobs: Mapping[str, JobView],
    heard: Collection[str],
    release: Collection[str],
    offer_of: Callable[[Instance, JobSpec], Offer],
    now: float,
) -> list[Adopted]:
    """What to write. `heard`: nodes whose agents speak; `release`: names of jobs whose unknown machines shall end.

    Raises CommandRefusedError, and then nothing is to be written, where nobody said what some of them are.
    """
    adopted, open_questions = [], []
    for family in found:
        view = jobs.get(family.name)
        if family.name in release:
            adopted.append(_released(family, view, offer_of, now))
        elif view is not None and _takes(view, family):
            adopted.append(_taken_over(family, view, heard, offer_of, now))
        else:
            open_questions.append(_question(family, view))
    if open_questions:
        raise CommandRefusedError("; ".join(open_questions))
    return adopted


def _takes(view: JobView, family: Family) -> bool:
    """It is this very job, or the same one submitted again, which waits and has no machines of its own."""
    waits = view.record.state is JobState.QUEUED and not view.nodes
    return not view.record.ended and (view.record.uid == family.uid or waits)


def _question(family: Family, view: JobView | None) -> str:
    count = f"{len(family.machines)} machine{'' if len(family.machines) == 1 else 's'} of job {family.name}"
    if view is None:
        return f"{count}: submit its job file again, or end them by --release {family.name}"
    return f"{count} and another job of that name ({view.record.state}): end them by --release {family.name}"


def _taken_over(
    family: Family, view: JobView, heard: Collection[str], offer_of: Callable[[Instance, JobSpec], Offer], now: float
) -> Adopted:
    job = view.record
    if job.state is JobState.QUEUED:
        launched = [each.launched_at for each in family.machines if each.launched_at]
        job = replace(job, uid=family.uid, submitted_at=min([job.submitted_at, *launched]))
        job = move_job(job, JobState.STARTING, now, "its machines were taken into the journal")
    inside = view.round.nodes() if view.round else ()
    nodes = [
        replace(
            _node(each, offer_of(each, job.spec), job.name, _state(each, heard), now), has_joined=each.node in inside
        )
        for each in family.machines
    ]
    job = replace(job, next_node=max([job.next_node, *(1 + _number(each) for each in family.machines)]))
    return _told(job, view.revision, nodes, f"{len(nodes)} machines of {job.name} were taken into the journal", now)


def _state(instance: Instance, heard: Collection[str]) -> NodeState:
    """One that is not heard is suspected, like any other whose agent is silent; the cloud's word counts as always."""
    if instance.node in heard:
        return NodeState.READY
    return NodeState.PENDING if instance.state is InstanceState.PENDING else NodeState.SUSPECT


def _released(
    family: Family, view: JobView | None, offer_of: Callable[[Instance, JobSpec], Offer], now: float
) -> Adopted:
    """Below the record of the job that has the name, or of one that has ended."""
    if view is None:
        spec = parse_spec({"name": family.name, "nodes": 1, "run": "unknown"})
        job = JobRecord(family.name, family.uid, spec, "", now, 1, 1, 1)
        job = move_job(job, JobState.CANCELLED, now, "a user let its machines go")
    else:
        job = view.record
    nodes = [_node(each, offer_of(each, job.spec), job.name, NodeState.TERMINATING, now) for each in family.machines]
    text = f"{len(nodes)} machines of {job.name} are let go: a user does not want them"
    return _told(job, view.revision if view else 0, nodes, text, now)


def _node(instance: Instance, offer: Offer, job: str, state: NodeState, now: float) -> NodeRecord:
    return NodeRecord(
        id=instance.node,
        job=job,
        token=instance.token or instance.node,
        offer=offer,
        created_at=instance.launched_at or now,
        state=state,
        state_since=now,
        launch_attempts=1,
        instance_id=instance.id,
        launched_at=instance.launched_at or now,
        ssh_host=instance.ssh_host,
        ssh_port=instance.ssh_port,
        private_address=instance.private_address,
        metadata_url=instance.metadata_url,
        bootstrapped=state is NodeState.READY,
        history=(Transition(now, "", state, "it ran, and was taken into the journal"),),
    )


def _number(instance: Instance) -> int:
    return int(instance.node.rpartition("-")[2])


def _told(job: JobRecord, revision: int, nodes: Iterable[NodeRecord], text: str, now: float) -> Adopted:
    event = Event(f"{job.task_id}-{job.next_event:06d}", now, job.name, EventKind.ADOPTED, text)
    return Adopted(replace(job, next_event=job.next_event + 1), revision, tuple(nodes), event)
