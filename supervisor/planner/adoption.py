"""How machines that the journal does not know become nodes of it.

A machine's tag names its node: `<job>-<uid>-<number>`. Its job comes from the user: the job file is submitted again,
waits without nodes, and takes the machines over here. Machines that no user wants become nodes that are terminated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from provisioners.base import Instance, InstanceState, Offer
from supervisor.errors import CommandRefusedError
from supervisor.events import EventKind
from supervisor.model import Event, JobRecord, JobState, NodeRecord, NodeState, Transition, move_job, parts_of
from supervisor.planner.world import JobView
from supervisor.spec import JobSpec, parse_spec
from supervisor.spec_places import Placement

REASON = "it was running, and was adopted"  # why a node begins


@dataclass(frozen=True, slots=True)
class MachineGroup:
    """The unknown machines of one job."""

    job: str
    uid: str  # of the job, as their tags have it
    machines: tuple[Instance, ...]


@dataclass(frozen=True, slots=True)
class Adopted:
    """What is written for one group."""

    job: JobRecord
    revision: int  # of the job's record that is changed; 0 for a new one
    nodes: tuple[NodeRecord, ...]
    event: Event


def group_by_job(unknown: Iterable[Instance]) -> list[MachineGroup]:
    """Return the machines by job, in order. Raises CommandRefusedError for a machine whose tag names no node of
    ours."""
    found: dict[tuple[str, str], list[Instance]] = {}
    for each in unknown:
        name, uid, number = parts_of(each.node)
        if not (name and uid and number.isdigit()):
            raise CommandRefusedError(
                f"{each.id} carries the cluster's tag, but names no node ({each.node!r}): terminate it by hand"
            )
        found.setdefault((name, uid), []).append(each)
    return [MachineGroup(name, uid, tuple(machines)) for (name, uid), machines in sorted(found.items())]


def adopt(
    found: Iterable[MachineGroup],
    jobs: Mapping[str, JobView],
    heard: Collection[str],
    release: Collection[str],
    offer_of: Callable[[Instance, JobSpec], Offer],
    now: float,
) -> list[Adopted]:
    """Return what to write. Raises CommandRefusedError, and then nothing is written, if some machines could be
    anything.

    `heard`: ids of nodes whose agents publish messages. `release`: names of jobs whose unknown machines are terminated.
    """
    adopted, undecided = [], []
    for group in found:
        view = jobs.get(group.job)
        if group.job in release:
            adopted.append(_release(group, view, offer_of, now))
        elif view is not None and _takes(view, group):
            adopted.append(_take_over(group, view, heard, offer_of, now))
        else:
            undecided.append(_question(group, view))
    if undecided:
        raise CommandRefusedError("; ".join(undecided))
    return adopted


def _takes(view: JobView, group: MachineGroup) -> bool:
    """True if it is the same job, or that job submitted again, waiting and without machines of its own."""
    waits = view.record.state is JobState.QUEUED and not view.nodes
    return not view.record.ended and (view.record.uid == group.uid or waits)


def _question(group: MachineGroup, view: JobView | None) -> str:
    count = f"{_machines(len(group.machines))} of job {group.job}"
    if view is None:
        return f"{count}: submit its job file again, or terminate them with --release {group.job}"
    return f"{count} and another job of that name ({view.record.state}): terminate them with --release {group.job}"


def _take_over(
    group: MachineGroup,
    view: JobView,
    heard: Collection[str],
    offer_of: Callable[[Instance, JobSpec], Offer],
    now: float,
) -> Adopted:
    job = view.record
    if job.state is JobState.QUEUED:
        launched = [each.launched_at for each in group.machines if each.launched_at]
        job = replace(job, uid=group.uid, submitted_at=min([job.submitted_at, *launched]))
        job = move_job(job, JobState.STARTING, now, "its machines were adopted")
    inside = view.round.nodes() if view.round else ()
    nodes = [
        replace(
            _node(each, offer_of(each, job.spec), job.name, _state(each, heard), now), has_joined=each.node in inside
        )
        for each in group.machines
    ]
    job = replace(job, next_node=max([job.next_node, *(1 + _number(each) for each in group.machines)]))
    return _adopted(job, view.revision, nodes, f"adopted {_machines(len(nodes))} of {job.name}", now)


def _state(instance: Instance, heard: Collection[str]) -> NodeState:
    """Return the state: a node that is not heard is SUSPECT, like any other silent node, or PENDING where its cloud
    lists it so."""
    if instance.node in heard:
        return NodeState.READY
    return NodeState.PENDING if instance.state is InstanceState.PENDING else NodeState.SUSPECT


def _release(
    group: MachineGroup, view: JobView | None, offer_of: Callable[[Instance, JobSpec], Offer], now: float
) -> Adopted:
    """Under the record of the job that has the name, or of a new one that is cancelled."""
    if view is None:
        spec = parse_spec({"name": group.job, "nodes": 1, "run": "unknown"})
        cloud = offer_of(group.machines[0], spec).cloud
        spec = spec.model_copy(update={"placement": Placement(cloud=cloud)})
        job = JobRecord(group.job, group.uid, spec, "", now, 1, 1, 1)
        job = move_job(job, JobState.CANCELLED, now, "a user released its machines")
    else:
        job = view.record
    nodes = [_node(each, offer_of(each, job.spec), job.name, NodeState.TERMINATING, now) for each in group.machines]
    text = f"releasing {_machines(len(nodes))} of {job.name}: a user does not want them"
    return _adopted(job, view.revision if view else 0, nodes, text, now)


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
        history=(Transition(now, "", state, REASON),),
    )


def _machines(count: int) -> str:
    return f"{count} machine{'' if count == 1 else 's'}"


def _number(instance: Instance) -> int:
    return int(instance.node.rpartition("-")[2])


def _adopted(job: JobRecord, revision: int, nodes: Iterable[NodeRecord], text: str, now: float) -> Adopted:
    event = Event(f"{job.task_id}-{job.next_event:06d}", now, job.name, EventKind.ADOPTED, text)
    return Adopted(replace(job, next_event=job.next_event + 1), revision, tuple(nodes), event)
