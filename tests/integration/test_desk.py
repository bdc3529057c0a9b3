"""The users' command line, from a user's desk: against a daemon behind a socket, in the simulated world."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provisioners.base import Market, Offer
from supervisor.api.quote import Quotes
from supervisor.cli.following import Pace, follow, progress_text
from supervisor.cli.submission import prepare
from supervisor.errors import UsageError
from supervisor.spec import parse_spec
from tests.support.desk import Desk
from tests.support.desk import desk as a_desk
from tests.unit.quoting import Stub

TRAIN = "print('trains')\n"


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """A daemon without jobs, and a folder with a script."""
    with a_desk(tmp_path) as desk:
        desk.write("train.py", TRAIN)
        yield desk


def submit(desk: Desk, name: str, *options: str) -> None:
    desk.said("submit", "--name", name, "--nodes", "1", "--code", str(desk.folder), *options, "--", "train.py")


# -- several at once -----------------------------------------------------------------------------------------


def test_several_jobs_are_cancelled_by_one_command_and_a_refusal_keeps_none_from_it(desk: Desk) -> None:
    for name in ("one", "two"):
        submit(desk, name)
    result = desk.ctl("cancel", "one", "nosuch", "two")
    assert result.exit_code == 4
    assert [line.partition(" machine")[0][:-2] for line in result.stdout.splitlines()] == [
        "one: cancelling; releasing",
        "two: cancelling; releasing",
    ]
    assert "no job is named 'nosuch'; jobs: one, two" in result.stderr
    assert [row["name"] for row in desk.ask("cancel", "one", "two")] == ["one", "two"]
    assert desk.ask("cancel", "two")["name"] == "two", "one is one object, as before"


# -- what is deleted -----------------------------------------------------------------------------------------


def test_ended_jobs_are_deleted_once_that_is_confirmed(desk: Desk) -> None:
    for name in ("one", "two", "three"):
        submit(desk, name, "--set", "checkpoints=/mnt/out/c")
    result = desk.ctl("delete", "one", "-y")
    assert (result.exit_code, "`spotsupctl cancel one`, and delete it once it has ended" in result.stderr) == (5, True)
    desk.said("cancel", "one", "two")
    done = [desk.service.jobs.one(name) for name in ("one", "two")]
    assert desk.world.run_until(lambda _: all(desk.service.jobs.one(each.name).record.ended for each in done), 600.0)
    assert desk.world.run_until(lambda _: not any(desk.service.jobs.one(each.name).billed for each in done), 600.0)
    result = desk.ctl("delete", "one", stdin="n\n")
    assert (result.exit_code, "Checkpoints stay. [y/N]" in result.stderr) == (5, True)
    assert result.stderr.endswith("spotsupctl: nothing was deleted\n")
    stay = f"one: deleted; its checkpoints stay in /mnt/out/c/{done[0].record.task_id}\n"
    assert desk.ctl("delete", "one", stdin="y\n").stdout == stay
    result = desk.ctl("delete", "one", "two", "three", "-y", "-o", "json")
    assert result.exit_code == 4
    assert [row["name"] for row in json.loads(result.stdout)] == ["two"]
    assert "no job is named 'one'" in result.stderr
    assert "job three is" in result.stderr
    assert [row["name"] for row in desk.ask("list", "--all")] == ["three"]
    options = ("--name", "four", "--nodes", "1", "--code", str(desk.folder), "--resume-from", "one")
    result = desk.ctl("submit", *options, "--", "train.py")
    assert result.exit_code == 4
    assert "cannot resume from one: there is no such job, or it was deleted. A deleted job's" in result.stderr
    submit(desk, "one")


# -- secrets -------------------------------------------------------------------------------------------------


def test_a_secret_is_stored_listed_and_deleted_without_its_value_being_shown(desk: Desk) -> None:
    options = ("--name", "one", "--nodes", "1", "--code", str(desk.folder), "--secret", "HF_TOKEN", "--", "train.py")
    result = desk.ctl("submit", *options)
    assert result.exit_code == 5
    assert "job one is refused: " in result.stderr
    assert result.stderr.endswith("has no secret HF_TOKEN: `spotsupctl secret set HF_TOKEN`\n")

    result = desk.ctl("secret", "set", "HF_TOKEN", stdin="hf-marked-secret\n")
    assert (result.exit_code, "that say `secrets: [HF_TOKEN]`" in result.stdout) == (0, True)
    (row,) = json.loads(desk.said("secret", "list", "-o", "json"))
    assert row.keys() == {"name", "owner", "created_at", "changed_at", "jobs"}
    owner = row["owner"]
    assert desk.said("submit", *options) == "one\n"
    result = desk.ctl("secret", "set", "HF_TOKEN", stdin="hf-marked-other")
    assert result.stdout.endswith("; nodes of one have it once they are replaced\n")
    assert desk.said("secret", "list").startswith(f"{owner}  HF_TOKEN  ")
    shown = [desk.said(*each) for each in (("status", "one"), ("events", "one"), ("list",), ("nodes",))]
    shown += [json.dumps(desk.ask(*each)) for each in (("status", "one"), ("events", "one"), ("runs",))]
    assert "hf-marked" not in "".join(shown)
    assert desk.said("secret", "delete", "HF_TOKEN").endswith("no further node of one can be prepared without it\n")
    result = desk.ctl("secret", "delete", "HF_TOKEN")
    assert (result.exit_code, f"{owner} has no secret HF_TOKEN" in result.stderr) == (4, True)
    assert desk.said("secret", "list") == "no secrets: `spotsupctl secret set NAME` stores one\n"


@pytest.mark.parametrize(
    ("name", "stdin", "sentence"),
    [
        ("HF-TOKEN", "x", "'HF-TOKEN' is no name of a secret"),
        ("HF_TOKEN", "", "the value of HF_TOKEN is empty"),
        ("HF_TOKEN", "hf-marked" * 10_000, "at most 16384"),
        ("HF_TOKEN", b"hf-marked\xff", "the value of HF_TOKEN is not UTF-8 text"),
    ],
)
def test_a_secret_that_cannot_be_one_is_refused_without_being_shown(
    desk: Desk, name: str, stdin: Any, sentence: str
) -> None:
    result = desk.ctl("secret", "set", name, stdin=stdin)
    assert (result.exit_code, sentence in result.stderr) == (2, True), result.output
    assert "hf-marked" not in result.output


# -- what cannot be right ------------------------------------------------------------------------------------


def test_a_script_without_a_name_is_told_how_to_give_one(desk: Desk) -> None:
    result = desk.ctl("submit", "--nodes", "1", "--code", str(desk.folder), "--", "train.py")
    assert (result.exit_code, result.stderr) == (
        2,
        "spotsupctl: the job has no name: give --name, or `name` in a job file\n",
    )


# -- a job file, and what the command line makes of it -------------------------------------------------------

JOB = """\
name: job
nodes: {min: 1, desired: 2, max: 4}
resources: {gpu: V100, gpus_per_node: 2}
run: train.py --epochs 3
limits: {hours: 2}
"""


@pytest.fixture
def job(tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "job.yaml").write_text(JOB)
    return str(tmp_path / "job.yaml")


def test_arguments_after_a_job_file_are_added_to_its_run(desk: Desk, job: str) -> None:
    assert desk.ask("submit", job, "--", "--lr", "0.1", "--note", "two words")["name"] == "job"
    found = desk.ask("status", "job")["command"]
    assert found == ["train.py", "--epochs", "3", "--lr", "0.1", "--note", "two words"]


def changed(job: str, options: dict[str, Any]) -> dict[str, Any]:
    return prepare((job,), options).spec


def test_any_key_is_set_as_a_job_file_would_have_it(job: str) -> None:
    texts = (
        "nodes.desired=3",
        "limits.usd=7.5",
        "placement.zones=[a, b]",
        "env.LR=0.1",
        "start_after=2026-12-24T22:00Z",
    )
    found = changed(job, {"settings": texts})
    assert found["nodes"] == {"min": 1, "desired": 3, "max": 4}
    assert found["limits"] == {"hours": 2, "usd": 7.5}
    assert (found["placement"], found["env"]) == ({"zones": ["a", "b"]}, {"LR": "0.1"})
    assert found["start_after"] == "2026-12-24T22:00Z"
    parse_spec(found)


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        (("nodes",), "--set nodes: write KEY=VALUE"),
        (("run.x=1",), "the job file: `run` is 'train.py --epochs 3'; write a mapping"),
        (("nodes..desired=1",), "'nodes..desired' is no key of a job file"),
        (("limits=[",), "--set limits: '[' is not YAML"),
    ],
)
def test_a_setting_that_cannot_be_right_is_one_sentence(job: str, texts: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        changed(job, {"settings": texts})
    assert sentence in str(caught.value)


def test_an_unknown_key_is_named_by_the_daemon(desk: Desk, job: str) -> None:
    result = desk.ctl("submit", job, "--set", "nodes.dsired=8")
    assert (result.exit_code, "unknown key `nodes.dsired`; known here: min, desired" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("options", "nodes", "per_node"),
    [
        ({"gpus": 16}, {"min": 1, "desired": 8, "max": 8}, 2),
        ({"gpus": 16, "gpus_per_node": 8}, {"min": 1, "desired": 2, "max": 4}, 8),
        ({"gpus": 2}, {"min": 1, "desired": 1, "max": 4}, 2),
        ({"nodes": 3}, {"min": 1, "desired": 3, "max": 4}, 2),
    ],
)
def test_nodes_are_worked_out_from_gpus(
    job: str, options: dict[str, Any], nodes: dict[str, int], per_node: int
) -> None:
    found = changed(job, options)
    assert (found["nodes"], found["resources"]["gpus_per_node"]) == (nodes, per_node)


def test_gpus_without_a_file_are_one_on_each_node_and_must_divide(job: str) -> None:
    script = str(Path(job).with_name("train.py"))
    options = {"gpus": 16, "gpu": "V100", "name": "x", "code": str(Path(job).parent)}
    found = prepare((script,), options).spec
    assert (found["nodes"], found["resources"]) == (16, {"gpu": "V100", "gpus_per_node": 1})
    with pytest.raises(UsageError, match="--gpus 15 is no multiple of the 2 GPUs on each node: 16 would be"):
        changed(job, {"gpus": 15})
    with pytest.raises(UsageError, match="leave --nodes out"):
        changed(job, {"gpus": 4, "nodes": 2})


def test_each_option_sets_its_key(desk: Desk, tmp_path: Path) -> None:
    options = ["--region", "r1", "--region", "r2", "--env", "A=b", "--hang", "restart", "--spread", "region"]
    result = desk.ctl("plan", "--name", "xy", "--code", str(tmp_path), "--disk-gb", "50", *options, "--", "train.py")
    assert result.stderr == "spotsupctl: this daemon cannot ask its clouds for offers\n", "it is a job file"
    result = desk.ctl("submit", "--name", "xy", "--code", str(tmp_path), "--hours", "-1", "--", "train.py")
    assert "`limits.hours` is -1.0" in result.stderr


# -- money, and progress -------------------------------------------------------------------------------------


OFFER = Offer("local", "r", "zone-a", "p3.2xlarge", Market.SPOT, 0.9, "V100", 1, "live")


def test_a_person_at_a_terminal_sees_prices_and_agrees_before_machines_are_rented(tmp_path: Path) -> None:
    quotes = Quotes({"local": Stub(lambda _: (OFFER,))}, timeout_s=60.0, provider_s=55.0)
    with a_desk(tmp_path, quotes, rented=True) as desk:
        desk.write("train.py", TRAIN)
        command = ("submit", "--name", "dear", "--nodes", "3", "--checkpoints", "none", "--code", str(tmp_path))
        code, screen = desk.at_a_terminal(*command, "--", "train.py", typed="n")
        assert (code, desk.ask("list")) == (5, [])
        assert "p3.2xlarge" in screen
        assert "3 nodes: $2.70 per hour" in screen
        assert "Submit dear? [Y/n]" in screen
        assert "nothing was submitted" in screen
        code, screen = desk.at_a_terminal(*command, "-y", "--", "train.py", typed="")
        assert (code, "Submit" in screen) == (0, False)
        assert desk.said(*command[:2], "second", *command[3:], "--", "train.py") == "second\n", "a script is not asked"


def test_a_person_is_not_asked_where_nothing_is_rented(tmp_path: Path) -> None:
    quotes = Quotes({"local": Stub(lambda _: (OFFER,))}, timeout_s=60.0, provider_s=55.0)
    with a_desk(tmp_path, quotes) as desk:
        desk.write("train.py", TRAIN)
        command = ("submit", "--name", "free", "--code", str(tmp_path), "--", "train.py")
        assert desk.at_a_terminal(*command, typed="n")[0] == 0


def row(at: float, step: int, fraction: float | None = None, round_number: int = 1, **more: Any) -> dict[str, Any]:
    known = {"progress_at": at, "step": step, "progress_round": round_number, "done_fraction": fraction, "loss": 0.5}
    return {**known, "progress_text": "", "ended_at": None, **more}


def test_progress_has_speed_loss_and_the_time_left() -> None:
    pace = Pace()
    rows = [row(100.0, 0, 0.0), row(110.0, 20, 0.1), row(120.0, 40, 0.2)]
    for each in rows:
        pace.add(each)
    assert progress_text(rows[-1], pace) == "step 40, 2 per second, loss 0.5000, 20% done, 1m20s left"
    resumed = row(300.0, 41, 0.205, 2)
    pace.add(resumed)
    assert progress_text(resumed, pace) == "step 41, loss 0.5000, 20% done", "a pause is no slow step"
    slow = row(320.0, 42, None, 2)
    pace.add(slow)
    assert progress_text(slow, pace) == "step 42, 20 s each, loss 0.5000"
    assert progress_text({**slow, "progress_at": None}, pace) == ""


class Interrupted:
    """A daemon that is asked for a job when Ctrl-C is pressed."""

    def get(self, _path: str) -> Any:
        raise KeyboardInterrupt


def test_ctrl_c_leaves_a_followed_job_running_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert follow(Interrupted(), "job") == 1  # type: ignore[arg-type]
    assert capsys.readouterr().err == (
        "spotsupctl: job keeps running; `spotsupctl cancel job` ends it, `spotsupctl logs job -f` shows its output\n"
    )
