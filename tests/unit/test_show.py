"""What people see: long lists are shortened and say so, `--all` shows everything, and nodes are in natural order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click
import pytest
from spotsup import transport
from spotsup_trainer.wire import AgentStatus, Pause, Pauses, Round

from provisioners.base import Market, Offer
from supervisor.api.jobs.changes import alternatives, scaled_job
from supervisor.api.jobs.views import in_order, job_detail, job_row, node_rows
from supervisor.api.rows import JobRow, NodeRow
from supervisor.cli import ctl, daemon, show
from supervisor.cli.change import machines
from supervisor.cli.common import job_path
from supervisor.cli.submission import prepare
from supervisor.errors import CommandRefusedError, UsageError
from supervisor.model import JobRecord, JobState, NodeRecord, NodeState
from supervisor.planner.world import JobView
from supervisor.spec import parse_spec

SPEC = parse_spec({"name": "job", "nodes": 64, "run": "train.py"})
JOB = JobRecord("job", "abcde", SPEC, "0" * 64, 1.0, 64, 64, 64, state=JobState.RUNNING)
PREPARING = AgentStatus("job-abcde-1", "boot", 1, 0.0, "1", preparing="importing transformers")
OFFER = Offer("aws", "us-east-1", "us-east-1a", "p3.2xlarge", Market.SPOT, 1.0, gpu="V100", gpus=1)


def node(number: int, state: NodeState = NodeState.MEMBER) -> NodeRecord:
    return NodeRecord(f"job-abcde-{number}", "job", "token", OFFER, 0.0, state=state)


def view(*nodes: NodeRecord) -> JobView:
    return JobView(JOB, 1, {each.id: each for each in nodes}, {})


def rows(*nodes: NodeRecord) -> list[NodeRow]:
    return node_rows(view(*nodes), 0.0)


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Callable[[], list[str]]:
    def lines() -> list[str]:
        return capsys.readouterr().out.splitlines()

    return lines


def test_nodes_are_in_natural_order() -> None:
    nodes = [node(number) for number in (10, 2, 1, 33)]
    assert [each.id for each in in_order(nodes)] == [f"job-abcde-{number}" for number in (1, 2, 10, 33)]
    found = job_detail(view(*nodes), "", 0.0)["node_list"]
    assert [each["id"] for each in found] == [f"job-abcde-{number}" for number in (1, 2, 10, 33)]


def test_many_alike_nodes_share_a_row_and_the_exceptions_are_named(printed: Callable[[], list[str]]) -> None:
    nodes = [node(number) for number in range(1, 63)]
    nodes += [node(63, NodeState.BOOTING), node(64, NodeState.SUSPECT)]
    detail = job_detail(view(*nodes), "62 of 64 nodes train (round 7)", 0.0)
    assert len(detail["node_list"]) == 64, "-o json has everything"
    show.show_job(detail)
    lines = printed()
    assert len(lines) < 10
    (group,) = [line for line in lines if line.startswith("62 nodes of job")]
    assert "member" in group
    assert [line.split()[0] for line in lines[-2:]] == ["job-abcde-63", "job-abcde-64"]
    show.show_job(detail, show_all=True)
    assert sum(line.startswith("job-abcde-") for line in printed()) == 64


def test_a_node_that_prepares_says_what_it_does() -> None:
    known = replace(view(node(1, NodeState.BOOTSTRAPPING)), agents={"job-abcde-1": PREPARING})
    assert [row["reason"] for row in node_rows(known, 0.0)] == ["importing transformers"]
    assert [row["reason"] for row in rows(node(1, NodeState.BOOTSTRAPPING))] == ["asked for"]


def test_the_last_pause_is_shown(printed: Callable[[], list[str]]) -> None:
    formed = Round(3, (), 0.0)
    pauses = Pauses("job-abcde-1", (Pause(2, 5.0, 9.0), Pause(3, 6.0, 1.5, 1.0)))
    show.show_job(job_detail(replace(view(node(1)), round=formed, pauses=pauses), "", 0.0))
    (line,) = [line for line in printed() if line.startswith("last pause")]
    assert line.startswith("last pause: training paused for 1.5 s before round 3: detect 1 s, checkpoint unknown, ")


def test_nodes_that_are_gone_are_counted_and_listed_with_all(printed: Callable[[], list[str]]) -> None:
    found = rows(node(1), node(2, NodeState.GONE), node(3, NodeState.GONE))
    show.show_nodes(found)
    lines = printed()
    assert [line.split()[0] for line in lines[1:]] == ["job-abcde-1", "2"]
    assert lines[-1] == "2 nodes are gone; --all lists every node"
    show.show_nodes(found, show_all=True)
    assert [line.split()[0] for line in printed()[1:]] == [f"job-abcde-{number}" for number in (1, 2, 3)]
    show.show_nodes(found[1:2])
    assert printed() == ["1 node is gone; --all lists every node"]
    show.show_nodes([])
    assert printed() == ["no nodes"]


def test_of_many_ended_jobs_the_newest_are_listed(printed: Callable[[], list[str]]) -> None:
    def row(number: int, ended_at: float) -> JobRow:
        state = JobState.SUCCEEDED if ended_at else JobState.RUNNING
        record = replace(JOB, name=f"job-{number}", state=state, ended_at=ended_at)
        return job_row(JobView(record, 1, {}, {}), "", 10.0)

    jobs = [row(number, 5.0 if number % 2 else 0.0) for number in range(60)]
    show.show_jobs(jobs)
    lines = printed()
    assert sum(" running " in line for line in lines) == 30
    assert sum(" succeeded " in line for line in lines) == show.MAX_ENDED_JOBS
    assert lines[-1] == "20 older jobs ended; --all lists all"
    show.show_jobs(jobs, show_all=True)
    assert len(printed()) == 61


def test_of_many_events_the_newest_are_listed(printed: Callable[[], list[str]]) -> None:
    events = [{"at": float(number), "kind": "round", "text": f"round {number}"} for number in range(200)]
    show.show_events(events)
    lines = printed()
    assert lines[0] == "150 earlier events; --all lists all"
    assert lines[-1].endswith("round 199")
    assert len(lines) == show.MAX_EVENTS + 2
    show.show_events(events, show_all=True)
    assert len(printed()) == 201


def test_counts_have_the_right_number() -> None:
    assert (machines(1), machines(2)) == ("1 machine", "2 machines")


# -- names and files that cannot be right --------------------------------------------------------------------


def test_an_unknown_name_gets_similar_ones_or_the_first_few() -> None:
    assert alternatives("resnet5", ["bert", "resnet50"], "jobs") == "did you mean resnet50?"
    many = [f"job-{number}" for number in range(60)]
    assert alternatives("xyz", many, "jobs").endswith("job-7 and 52 more")
    assert alternatives("xyz", [], "jobs") == "jobs: none"


def test_any_name_is_quoted_in_the_path() -> None:
    assert job_path("a/../b?", "/cancel") == "/v1/jobs/a%2F..%2Fb%3F/cancel"
    with pytest.raises(click.UsageError, match="the name of the job is empty"):
        job_path("")


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        (("twice.yaml",), "the key 'name' occurs twice"),
        (("../outside.py",), "the script ../outside.py is not in"),
        (("python", "missing.py"), "the script missing.py is not in"),
    ],
)
def test_what_would_fail_on_every_node_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: tuple[str, ...], sentence: str
) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    (tmp_path / "outside.py").write_text("")
    (folder / "train.py").write_text("")
    (folder / "job.yaml").write_text("name: job\nnodes: 1\nrun: python train.py\n")
    (folder / "twice.yaml").write_text("name: job\nnodes: 1\nrun: train.py\nname: other\n")
    monkeypatch.chdir(folder)
    with pytest.raises(UsageError) as caught:
        prepare(what, {})
    assert sentence in str(caught.value)
    assert prepare(("job.yaml",), {}).spec["name"] == "job"


def test_a_socket_of_another_user_is_explained() -> None:
    assert "ask root to add you to that group" in transport._fix(PermissionError(13, "Permission denied"))
    assert "is it running" in transport._fix(ConnectionRefusedError(111, "Connection refused"))


def test_scaling_is_said_innumbers_of() -> None:
    from supervisor.api.jobs.changes import Scale, numbers_of

    assert numbers_of(scaled_job(JOB, Scale(desired=3, min_nodes=2))) == "3 nodes (min 2, max 64)"
    assert numbers_of(scaled_job(JOB, Scale(1, 1, 1, 2))) == "1 node (min 1, max 1, spares 2)"


def test_a_job_of_pairs_is_not_scaled_to_three() -> None:
    from supervisor.api.jobs.changes import Scale

    pairs = replace(JOB, spec=parse_spec({"name": "job", "run": "t.py", "nodes": {"min": 2, "multiple_of": 2}}))
    assert scaled_job(pairs, Scale(desired=4, min_nodes=2)).desired_nodes == 4
    with pytest.raises(CommandRefusedError, match=r"cannot scale .*: desired is 3; it must be a multiple of 2"):
        scaled_job(pairs, Scale(desired=3, min_nodes=2))


@pytest.mark.parametrize("main", [ctl.main, daemon.main], ids=["spotsupctl", "spotsupd"])
def test_help_has_each_commands_own_line(main: click.Group) -> None:
    context = click.Context(main, terminal_width=200)
    said = main.get_help(context)
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        assert f"  {name} " in said
        assert command.get_short_help_str(1000) in said
