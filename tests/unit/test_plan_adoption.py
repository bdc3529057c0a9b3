"""Machines that the journal does not know: what is said of them while nothing is done, and how they become nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from provisioners.base import Instance, InstanceState, Offer
from supervisor.errors import CommandRefusedError
from supervisor.events import EventKind
from supervisor.model import ClusterRecord, JobRecord, NodeRecord, NodeState
from supervisor.planner.actions import ListInstances
from supervisor.planner.adoption import Adopted, MachineGroup, adopt, group_by_job
from supervisor.planner.journal_guard import JournalInit, blocked_reason, init_journal, unknown_machines, warnings
from supervisor.planner.orphans import ADOPT
from supervisor.planner.world import CloudView, JobView, Rules, Sighting, VolatileState, World
from supervisor.spec import JobSpec
from tests.unit.scene import (
    NOW,
    OFFER,
    J,
    N,
    decide,
    job,
    listing,
    machine,
    member,
    name,
    names,
    round_of,
    view,
    world_of,
)

# -- nothing is done -----------------------------------------------------------------------------------------

CLUSTER = ClusterRecord(NOW, "me")


def initialised(*machines: Instance, **more: Any) -> JournalInit:
    clouds = more.pop("views", {"local": listing(*machines)})
    world = World({}, replace(VolatileState(), clouds=clouds), Rules(), ("local",), **more)
    return init_journal(world, CLUSTER, NOW)


def test_a_journal_is_begun_once_every_cloud_was_listed_without_machines() -> None:
    begun = initialised(machine(1, InstanceState.TERMINATED))
    assert begun.commit is not None
    assert (begun.commit.cluster, begun.commit.guards, begun.actions) == (CLUSTER, {}, ())
    assert begun.sentence == "new journal: begun"


@pytest.mark.parametrize(
    ("known", "asks", "sentence"),
    [
        (CloudView(), True, "new journal: waiting for a listing of local"),
        (
            CloudView(attempted_at=NOW - 4.9, error="denied"),
            False,
            "new journal: waiting for a listing of local (denied)",
        ),
        (
            CloudView(attempted_at=NOW - 5.0, error="denied"),
            True,
            "new journal: waiting for a listing of local (denied)",
        ),
    ],
)
def test_a_cloud_that_has_not_answered_is_waited_for(known: CloudView, asks: bool, sentence: str) -> None:
    waits = initialised(views={"local": known})
    assert (waits.commit, waits.sentence) == (None, sentence)
    assert waits.actions == ((ListInstances("local"),) if asks else ())
    assert initialised(views={"local": known}, busy=frozenset({"list:local"})).actions == ()


def test_machines_that_run_without_a_journal_are_named_and_nothing_is_done() -> None:
    few = initialised(machine(2), machine(1))
    assert few.commit is None
    assert f"but its machines run ({name(1)}, {name(2)}): nothing is done" in few.sentence
    many = initialised(*(machine(n) for n in range(1, 6)))
    assert f"({name(1)}, {name(2)}, {name(3)} and 2 more)" in many.sentence
    assert "machines run (i-7): " in initialised(machine(7, node="")).sentence
    three = initialised(*(machine(n) for n in range(1, 4)))
    assert f"({name(1)}, {name(2)}, {name(3)})" in three.sentence
    assert initialised(machine(8, InstanceState.PENDING)).commit is None
    odd = initialised(machine(8, InstanceState.UNREADABLE))
    assert (odd.commit, f"machines run ({name(8)})" in odd.sentence) == (None, True), "it may be one of ours"
    old = initialised(views={"local": listing(machine(1), attempted_at=NOW - 5)})
    assert (old.commit, old.actions) == (None, (ListInstances("local"),))


def test_unknown_machines_come_in_the_order_of_their_nodes() -> None:
    clouds = {"a": listing(machine(2), machine(1, id="i-z")), "b": listing(machine(1), machine(3))}
    found = unknown_machines(clouds, {name(3): N.MEMBER, name(2): N.GONE})
    assert [each.id for each in found] == ["i-1", "i-z", "i-2"]


@pytest.mark.parametrize(
    ("unjournaled", "known", "left_alone"),
    [
        ((), CloudView(), False),
        (names(9), CloudView(), True),  # its message may be old, but its cloud was not listed yet
        (names(9), listing(machine(9)), True),
        (names(9), listing(machine(1)), False),  # the message is old
        (names(9), listing(machine(9, InstanceState.TERMINATED)), False),
        (("other-u-9",), listing(machine(9, node="other-u-9")), False),
        (("job-two-u-9",), listing(machine(9, node="job-two-u-9")), False),  # a job's name may have dashes
    ],
)
def test_a_job_is_left_alone_while_an_unjournaled_node_works_for_it(
    unjournaled: Sequence[str], known: CloudView, left_alone: bool
) -> None:
    world = world_of(
        view(job(2), [member(1)]), volatile={"clouds": {"local": known}}, unjournaled=frozenset(unjournaled)
    )
    reason = blocked_reason(world, world.jobs["job"])
    assert bool(reason) is left_alone
    if left_alone:
        assert reason.startswith(f"left alone: {name(9)} may work for it and is not in the journal")
        after = decide(world)
        assert (after.sentence, after.commit.empty) == (reason, True)


@pytest.mark.parametrize(
    ("record", "tag", "waits"),
    [
        (job(2, J.QUEUED), "job-old-1", True),
        (job(2, J.QUEUED), "job-two-old-1", False),
        (job(2, J.QUEUED, cancel_requested=True), "job-old-1", False),
        (job(2, J.STARTING), "job-old-1", False),  # it has begun beside it
    ],
)
def test_a_job_that_is_submitted_again_waits_for_what_may_be_its_own(record: JobRecord, tag: str, waits: bool) -> None:
    found = machine(9, node=tag)
    volatile = {"clouds": {"local": listing(found)}, "sightings": {found.id: Sighting(NOW, 1)}}
    world = world_of(view(record, []), volatile=volatile)
    reason = blocked_reason(world, world.jobs["job"])
    assert bool(reason) is waits
    if waits:
        assert reason == f"waits, since machines run that may be its own ({tag}): {ADOPT}"
        assert decide(world).commit.empty
        assert blocked_reason(replace(world, volatile=replace(world.volatile, sightings={})), world.jobs["job"]) == ""


def test_few_of_many_unknown_nodes_are_named() -> None:
    world = world_of(view(job(2), []), volatile={"clouds": {}}, unjournaled=frozenset(names(5, 4, 3, 2)))
    assert blocked_reason(world, world.jobs["job"]).startswith(
        f"left alone: {name(2)}, {name(3)}, {name(4)} and 1 more may"
    )


def test_what_is_left_alone_is_a_warning() -> None:
    quiet = world_of(view(job(2), [member(1), member(2)]))
    assert warnings(quiet) == ()
    refused = replace(quiet, unreadable_jobs={"b": "it is newer", "a": "it is broken"})
    assert warnings(refused) == ("a is left alone: it is broken", "b is left alone: it is newer")
    odd = listing(machine(1), machine(2, InstanceState.PENDING), machine(8, InstanceState.UNREADABLE))
    assert warnings(replace(quiet, volatile=replace(quiet.volatile, clouds={"local": odd}))) == (
        f"clouds describe machines so that they cannot be read ({name(8)}): they are left alone",
    )
    unjournaled = frozenset({name(9), "other-u-1"})
    works = world_of(
        view(job(2), []), volatile={"clouds": {"local": listing(machine(9), machine(1))}}, unjournaled=unjournaled
    )
    (warning,) = warnings(works)
    assert warning.startswith(f"machines run that are not in the journal ({name(9)}): they are left alone; `spotsupd")
    ended = replace(
        works, volatile=replace(works.volatile, clouds={"local": listing(machine(9, InstanceState.TERMINATED))})
    )
    assert warnings(ended) == ()
    assert decide(works).plan.warnings == (warning,)


@pytest.mark.parametrize(
    ("who", "alone"),
    [("job-u-1", True), ("jobs-u-1", False), ("job-two-u-1", False), ("s-1", True), ("t-1", False)],
)
def test_machines_of_unreadable_jobs_are_left_alone(who: str, alone: bool) -> None:
    world = replace(world_of(), unreadable_jobs={"job": "newer"}, unjournaled=frozenset({"s-1"}))
    assert world.is_protected(who) is alone


# -- adoption -----------------------------------------------------------------------------------------------

UNDER = "t-3"


def offer_of(instance: Instance, spec: JobSpec) -> Offer:
    return replace(OFFER, zone=instance.zone)


def adopted(
    known: JobView | None, *machines: Instance, heard: tuple[str, ...] = (), release: tuple[str, ...] = ()
) -> Adopted:
    jobs = {"job": known} if known else {}
    (found,) = adopt(group_by_job(machines), jobs, heard, release, offer_of, NOW)
    return found


QUEUED = job(2, J.QUEUED, uid="new", submitted_at=NOW - 20, next_node=1)


def test_machines_are_grouped_by_the_job_in_their_tags() -> None:
    others = [machine(7, node="a-b-x-1"), machine(8, node="job-v-1")]
    found = group_by_job([machine(2), *others, machine(1)])
    assert found == [
        MachineGroup("a-b", "x", (others[0],)),
        MachineGroup("job", "u", (machine(2), machine(1))),
        MachineGroup("job", "v", (others[1],)),
    ]


@pytest.mark.parametrize("tag", ["", "job", "job-1", "job-u-", "job-u-x", "-u-1", "job--1"])
def test_a_machine_whose_tag_names_no_node_needs_a_person(tag: str) -> None:
    with pytest.raises(CommandRefusedError, match="i-1 carries the cluster's tag, but names no node"):
        group_by_job([machine(1, node=tag)])


def test_a_waiting_job_without_machines_adopts_them_with_their_names() -> None:
    after = adopted(view(QUEUED, []), machine(3), machine(12, launched_at=NOW - 3000))
    assert (after.job.uid, after.job.state, after.revision) == ("u", J.STARTING, 7)
    assert after.job.submitted_at == NOW - 3000, "since its first machine runs"
    assert after.job.next_node == 13
    assert [each.id for each in after.nodes] == list(names(3, 12))
    assert (after.event.kind, after.event.text) == (EventKind.ADOPTED, "adopted 2 machines of job")
    assert (after.event.id, after.event.job, after.event.at) == ("job-u-000001", "job", NOW)
    assert after.job.next_event == 2
    unknown = adopted(view(QUEUED, []), machine(3, launched_at=0.0))
    assert unknown.job.submitted_at == NOW - 20, "the cloud does not report since when it runs"


def test_a_job_that_lacks_some_of_its_nodes_adopts_them_and_goes_on() -> None:
    after = adopted(view(job(2, next_node=50), [member(1)]), machine(3))
    assert (after.job.state, after.job.submitted_at, after.job.next_node) == (J.RUNNING, NOW - 5000, 50)


@pytest.mark.parametrize(
    ("heard", "cloud_state", "state"),
    [
        (True, InstanceState.RUNNING, N.READY),
        (True, InstanceState.PENDING, N.READY),
        (False, InstanceState.PENDING, N.PENDING),
        (False, InstanceState.RUNNING, N.SUSPECT),
        (False, InstanceState.STOPPED, N.SUSPECT),
    ],
)
def test_an_adopted_node_whose_agent_is_silent_is_suspect(
    heard: bool, cloud_state: InstanceState, state: NodeState
) -> None:
    after = adopted(view(QUEUED, []), machine(3, cloud_state), heard=(name(3),) if heard else ())
    assert (after.nodes[0].state, after.nodes[0].bootstrapped) == (state, heard)


def test_an_adopted_node_has_the_fields_of_its_machine() -> None:
    known = machine(3, token=UNDER, ssh_port=2222, private_address="10.1.1.1", metadata_url="http://meta")
    (found,) = adopted(view(QUEUED, []), known, heard=(name(3),)).nodes
    expected = NodeRecord(
        id=name(3),
        job="job",
        token=UNDER,
        offer=OFFER,
        created_at=NOW - 1000,
        state=N.READY,
        state_since=NOW,
        launch_attempts=1,
        instance_id="i-3",
        launched_at=NOW - 1000,
        ssh_host="10.0.0.1",
        ssh_port=2222,
        private_address="10.1.1.1",
        metadata_url="http://meta",
        bootstrapped=True,
        history=found.history,
    )
    assert found == expected
    assert [(each.at, each.after) for each in found.history] == [(NOW, "ready")]
    (young,) = adopted(view(QUEUED, []), machine(3, token="", launched_at=0.0)).nodes
    assert (young.token, young.created_at, young.launched_at) == (name(3), NOW, NOW)


def test_an_adopted_node_that_is_in_the_round_has_joined() -> None:
    known = view(QUEUED, [], round=round_of(3))
    after = adopted(known, machine(3), machine(4))
    assert [each.has_joined for each in after.nodes] == [True, False]


@pytest.mark.parametrize(
    ("known", "question"),
    [
        (None, "2 machines of job job: submit its job file again, or terminate them with --release job"),
        (view(job(2, uid="other"), []), "2 machines of job job and another job of that name (running): terminate them"),
        (view(job(2, J.FAILED), []), "2 machines of job job and another job of that name (failed): terminate them"),
        (view(QUEUED, [member(1)]), "2 machines of job job and another job of that name (queued): terminate them"),
    ],
)
def test_machines_that_fit_no_job_are_a_question_to_the_user(known: Any, question: str) -> None:
    with pytest.raises(CommandRefusedError) as refused:
        adopted(known, machine(1), machine(2))
    assert str(refused.value).startswith(question)


def test_all_questions_come_at_once_and_nothing_is_written() -> None:
    found = group_by_job([machine(1), machine(2, node="other-x-1")])
    with pytest.raises(CommandRefusedError, match=r"1 machine of job job: .*; 1 machine of job other: "):
        adopt(found, {}, (), (), offer_of, NOW)
    with pytest.raises(CommandRefusedError, match=r"^1 machine of job other: "):
        adopt(found, {"job": view(QUEUED, [])}, (), (), offer_of, NOW)


@pytest.mark.parametrize("known", [None, view(job(2, J.FAILED, uid="old"), []), view(job(2), [member(9)])])
def test_machines_that_a_user_releases_become_nodes_that_are_terminated(known: JobView | None) -> None:
    after = adopted(known, machine(1), machine(2), heard=names(1), release=("job",))
    assert [(each.state, each.bootstrapped) for each in after.nodes] == [(N.TERMINATING, False)] * 2
    assert (after.event.kind, after.event.text) == (
        EventKind.ADOPTED,
        "releasing 2 machines of job: a user does not want them",
    )
    if known is None:
        new: JobRecord = after.job
        assert (after.revision, new.state, new.uid, new.reason) == (0, J.CANCELLED, "u", "a user released its machines")
        assert (new.min_nodes, new.desired_nodes, new.max_nodes) == (1, 1, 1)
        assert (new.submitted_at, new.state_since, new.history[0].before) == (NOW, NOW, "queued")
    else:
        assert (after.revision, after.job.state) == (7, known.record.state)
