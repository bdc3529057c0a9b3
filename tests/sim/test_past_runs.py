"""A name is used again: the old run is still there, as `name.1`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from spotsup_simulator.world import World

from supervisor.api.jobs.changes import unreadable_by
from supervisor.api.jobs.views import cost_row, job_detail
from supervisor.api.submit.submissions import MAX_SOURCES
from supervisor.errors import CommandRefusedError, NotFoundError
from supervisor.events import EventKind
from supervisor.journal.past import KEPT_NODES, past_run
from supervisor.model import JobState
from supervisor.new_job import new_job
from supervisor.spec import parse_spec
from tests.sim.harness import in_state, record, service, submit, training_world
from tests.sim.promises import jobs_of, settled


def again(world: World, resume_from: str = "") -> None:
    """End the job, and use its name again."""
    service(world).commands.cancel("job")
    assert world.run_until(in_state(JobState.CANCELLED), 60.0)
    assert world.run_until(settled, 60.0)
    submit(world, "job", 1, 1, 1, resume_from=resume_from)


def test_the_old_run_keeps_its_state_its_events_and_its_cost() -> None:
    world = training_world()
    old, steps = record(world), world.nodes.trainings["job"].save()
    world.run(30.0)
    again(world)
    view = service(world).jobs.one("job.1")
    assert (view.record.uid, view.record.state, view.name) == (old.uid, JobState.CANCELLED, "job.1")
    assert (record(world).run, record(world).uid != old.uid) == (2, True)
    detail, cost = job_detail(view, "cancelled", world.clock.now()), cost_row(view, world.clock.now())
    assert (detail["name"], len(detail["node_list"]), detail["node_list"][0]["job"]) == ("job.1", 3, "job.1")
    assert detail["step"] >= steps
    assert detail["usd"] == cost["usd"] > 0.0
    before, now = (service(world).jobs.events(name, "") for name in ("job.1", "job"))
    assert before[-1].kind is EventKind.JOB_CANCELLED
    assert EventKind.ROUND in {event.kind for event in before}
    assert {event.id.rpartition("-")[0] for event in before} == {old.task_id}
    assert {event.id.rpartition("-")[0] for event in now} == {record(world).task_id}
    assert [each.name for each in service(world).jobs.all(past=True)] == ["job", "job.1"]
    assert [each.name for each in service(world).jobs.all()] == ["job"]


def test_a_past_run_only_reads_and_one_that_is_not_kept_is_not_found() -> None:
    world = training_world()
    again(world)
    with pytest.raises(CommandRefusedError, match=r"job job\.1 has ended \(cancelled\): nothing was changed"):
        service(world).commands.pause("job.1")
    with pytest.raises(NotFoundError, match=r"no run is kept as job\.7; `spotsupctl list --all` shows"):
        service(world).jobs.one("job.7")


def test_of_many_nodes_the_newest_are_kept_and_the_cost_of_all() -> None:
    world = training_world()
    service(world).commands.cancel("job")
    world.run(60.0)
    view = jobs_of(world)["job"]
    node = replace(next(iter(view.nodes.values())), launched_at=1.0, ended_at=3601.0)
    nodes = {f"job-{n}": replace(node, id=f"job-{n}", created_at=float(n)) for n in range(KEPT_NODES + 7)}
    run = past_run(replace(view, nodes=nodes))
    assert [each.id for each in run.nodes] == [f"job-{n}" for n in range(7, KEPT_NODES + 7)]
    assert run.job.billing.dropped_usd == pytest.approx(view.record.billing.dropped_usd + 7 * node.usd(0.0))


# -- going on from an earlier run --------------------------------------------------------------------------


def test_a_new_run_begins_where_the_old_one_or_one_before_ended_or_from_the_start() -> None:
    world = training_world()
    paths = [record(world).checkpoint_path]
    for names in ("job", "job", "job.1", "job", "job", "job", "job"):
        again(world, resume_from=names)
        paths.insert(0, record(world).checkpoint_path)
        if names == "job.1":
            assert record(world).resume_from == (paths[-1],)
        else:
            assert record(world).resume_from[0] == paths[1]
    assert len(set(paths)) == len(paths), "each run has a folder of its own"
    assert len(record(world).resume_from) == MAX_SOURCES
    text = service(world).jobs.events("job", "")[0].text
    assert text == f"job submitted; it resumes from {paths[1]}"
    again(world)
    assert record(world).resume_from == (), "unless asked, it starts fresh"


def test_a_job_resumes_from_one_that_has_ended_or_is_paused_and_is_known() -> None:
    world = training_world()
    with pytest.raises(CommandRefusedError, match="job job is running: cancel or pause it before another resumes"):
        submit(world, "other", 1, 1, 1, resume_from="job")
    with pytest.raises(NotFoundError, match="no job is named 'jop'; did you mean job"):
        submit(world, "other", 1, 1, 1, resume_from="jop")
    service(world).commands.pause("job")
    assert world.run_until(in_state(JobState.PAUSED), 60.0)
    submit(world, "other", 1, 1, 1, resume_from="job")
    assert record(world, "other").resume_from == (record(world).checkpoint_path,)


NFS = {"mount": "/mnt/out", "nfs": "fs:/out"}


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ({}, {}, ""),
        ({"storage": [NFS]}, {"storage": [NFS]}, ""),
        ({"storage": [NFS]}, {"storage": [{**NFS, "mode": "ro"}, {"mount": "/mnt/b", "nfs": "fs:/b"}]}, ""),
        ({"storage": [NFS]}, {}, "its checkpoints are below /mnt/out: give this job the same entry of `storage`"),
        ({"storage": [NFS]}, {"storage": [{**NFS, "nfs": "fs:/b"}]}, "its checkpoints are below /mnt/out: give this"),
        ({"checkpoints": "/home/ck"}, {}, ""),
        ({"checkpoints": "gs://bucket"}, {"placement": {"cloud": "aws"}}, ""),
        ({"checkpoints": "none"}, {}, "it said `checkpoints: none`, so it made none"),
        ({}, {"checkpoints": "none"}, "the new job says `checkpoints: none`, and would read none either"),
        ({"placement": {"cloud": "aws"}}, {"placement": {"cloud": "aws"}}, "it had no shared `storage`, so its"),
        ({}, {"placement": {"cloud": "aws"}}, "its checkpoints are on the cloud local"),
        ({"kind": "data"}, {}, "data jobs have no checkpoints"),
    ],
)
def test_what_the_new_job_could_not_read_is_refused_before_a_machine_is_paid_for(old: Any, new: Any, why: str) -> None:
    whole = {"name": "job", "nodes": 1, "run": "train.py", "placement": {"cloud": "local"}}
    earlier, spec = (parse_spec({**whole, **more}) for more in (old, new))
    found = unreadable_by(new_job(earlier, "", "submission", 0.0), spec, ["local"])
    assert found.startswith(why)
    assert bool(found) is bool(why)
