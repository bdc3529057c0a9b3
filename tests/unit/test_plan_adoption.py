"""How machines that the journal does not know become nodes of it: what is written for each job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provisioners.base import Instance, InstanceState, Offer
from supervisor.errors import CommandRefusedError
from supervisor.model import EventKind, JobRecord, NodeRecord, NodeState
from supervisor.planner.adoption import Adopted, MachineGroup, adopt, group_by_job
from supervisor.planner.world import JobView
from supervisor.spec import JobSpec
from tests.unit.scene import NOW, OFFER, J, N, job, machine, member, name, names, round_of, view

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
