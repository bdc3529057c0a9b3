"""What the users' command line shows of jobs: lists, logs, earlier runs; completion; and job files that it writes."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from supervisor.api.jobs.runs import spec_row
from supervisor.cli import ctl
from supervisor.cli.logs import LogPrinter, harmless
from supervisor.cli.new_file import name_of
from supervisor.cli.runs import compared
from supervisor.errors import UsageError
from supervisor.spec import parse_spec
from tests.support.desk import Desk
from tests.support.desk import desk as a_desk

J = "--nodes", "1"


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with a_desk(tmp_path) as desk:
        desk.write("train.py", "pass\n")
        yield desk


def submit(desk: Desk, name: str, *options: str) -> None:
    desk.said("submit", "--name", name, *J, "--code", str(desk.folder), *options, "--", "train.py")


def names(desk: Desk, *options: str) -> list[str]:
    return sorted(row["name"] for row in desk.ask("list", *options))


# -- lists and earlier runs ----------------------------------------------------------------------------------


def test_lists_are_filtered_by_name_state_and_owner(desk: Desk) -> None:
    for name in ("resnet-a", "resnet-b", "bert"):
        submit(desk, name)
    desk.said("cancel", "resnet-b")
    assert names(desk, "res*") == ["resnet-a", "resnet-b"]
    assert names(desk, "--state", "cancelled") == ["resnet-b"]
    assert names(desk, "--mine") == names(desk)
    assert names(desk, "--owner", "nobody") == []
    assert desk.said("list", "vit*") == "none of 3 jobs is such a one; `spotsupctl list` without options shows all\n"


def test_runs_show_what_ended_and_what_two_of_them_differ_in(desk: Desk) -> None:
    assert desk.said("runs").startswith("no job has ended yet")
    submit(desk, "one", "--env", "LR=0.1", "--env", "WANDB_API_KEY=abc")
    submit(desk, "two", "--env", "LR=0.2", "--env", "WANDB_API_KEY=xyz", "--hours", "3")
    desk.said("cancel", "one", "two")
    desk.world.run(60.0)
    submit(desk, "one", "--env", "LR=0.3")
    rows = desk.ask("runs")
    assert sorted(row["name"] for row in rows) == ["one.1", "two"]
    assert {row["state"] for row in rows} == {"cancelled"}
    assert [row["name"] for row in desk.ask("runs", "one")] == ["one.1"]
    found = desk.ask("runs", "one.1", "two")
    key = found["spec"].pop("env.WANDB_API_KEY")
    assert found["spec"] == {"env.LR": ["0.1", "0.2"], "limits.hours": [None, 3.0]}
    assert key[0] != key[1], "that a secret differs is said, and nothing else of it"
    assert all(each.startswith("(hidden, ") for each in key)
    assert found["results"]["state"] == ["cancelled", "cancelled"]
    said = desk.said("runs", "one.1", "two")
    assert ("env.LR" in said, "0.2" in said, "abc" in said) == (True, True, False)


def test_a_job_file_is_shown_without_what_looks_like_a_secret() -> None:
    env = {"HF_TOKEN": "a", "aws_secret_access_key": "b", "LR": "0.1", "DSN": "a"}
    spec = parse_spec({"name": "job", "nodes": 2, "run": "t.py", "env": env})
    own = spec_row(spec, b"key", show_env=True)
    assert own.keys() == {"name", "nodes", "run", "env"}
    assert (own["env"]["LR"], own["env"]["DSN"]) == ("0.1", "a")
    hidden = [own["env"]["HF_TOKEN"], own["env"]["aws_secret_access_key"]]
    assert all(re.fullmatch(r"\(hidden, [0-9a-f]{8}\)", each) for each in hidden)
    others = spec_row(spec, b"key", show_env=False)["env"]
    assert others["DSN"] == others["HF_TOKEN"] == own["env"]["HF_TOKEN"], "what is equal looks equal"
    assert len(set(others.values())) == 3, "and what differs does not"
    assert spec_row(spec, b"another", show_env=False)["env"] != others


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("\x1b]0;owned\x07step 3", "\ufffd]0;owned\ufffdstep 3"),
        ("\x1b]52;c;bGVhaw==\x07", "\ufffd]52;c;bGVhaw==\ufffd"),
        ("\x1b[2J\x1b[31mred\tx", "\ufffd[2J\x1b[31mred\tx\x1b[0m"),
        (" 10%|#   |\r 20%|##  |\r", " 20%|##  |"),
        ("\x9b2Jüñ", "\ufffd2Jüñ"),
        ("plain", "plain"),
    ],
)
def test_a_terminal_gets_nothing_that_it_would_obey_but_colours(printed: str, shown: str) -> None:
    assert harmless(printed) == shown


def test_other_code_is_a_difference() -> None:
    row = {"name": "a", "state": "", "reason": "", "trained_s": 0, "step": 0, "loss": None, "usd": 0}
    one: dict[str, Any] = {"spec": {"run": "t.py"}, "code_sha256": "0" * 64, "row": row}
    assert compared(one, {**one, "code_sha256": "1" * 64})["spec"] == {"code (archive)": ["0" * 12, "1" * 12]}
    assert compared(one, one)["spec"] == {}


# -- logs ----------------------------------------------------------------------------------------------------


def chunk(node: str, number: int, text: str) -> dict[str, Any]:
    return {"node": node, "chunk": f"{number:08d}", "text": text}


CHUNKS = [chunk("a", 0, "one\ntwo\n"), chunk("b", 0, "step 3\n"), chunk("a", 1, "step 4\nno end")]


def lines(capsys: pytest.CaptureFixture[str], printer: LogPrinter, *, ended: bool = True) -> list[str]:
    printer.show(CHUNKS)
    printer.end_of_past(open_lines=ended)
    return capsys.readouterr().out.splitlines()


def test_a_line_names_its_node_and_rank_and_the_last_one_needs_no_end(capsys: pytest.CaptureFixture[str]) -> None:
    found = lines(capsys, LogPrinter(named=True, ranks={"a": 1, "b": None}))
    assert found == ["a [1] | one", "a [1] | two", "b | step 3", "a [1] | step 4", "a [1] | no end"]


def test_only_lines_of_a_pattern_and_only_the_last_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert lines(capsys, LogPrinter(named=False, pattern=r"step \d")) == ["step 3", "step 4"]
    assert lines(capsys, LogPrinter(named=False, tail=2)) == ["step 4", "no end"]
    assert lines(capsys, LogPrinter(named=False, pattern="step", tail=1)) == ["step 4"]
    assert lines(capsys, LogPrinter(named=False, tail=0)) == []
    with pytest.raises(UsageError, match=r"--grep '\(' is no regular expression"):
        LogPrinter(named=False, pattern="(")


def test_what_follows_the_last_lines_is_not_held_back(capsys: pytest.CaptureFixture[str]) -> None:
    printer = LogPrinter(named=False, tail=1)
    assert lines(capsys, printer, ended=False) == ["step 4"]
    printer.show([chunk("a", 1, "step 4\nno end, or is there\n")])
    assert capsys.readouterr().out == "no end, or is there\n"


# -- completion, and what was misspelt -----------------------------------------------------------------------


def completed(desk: Desk, *words: str) -> list[str]:
    environ = {
        "_SPOTSUPCTL_COMPLETE": "bash_complete",
        "COMP_WORDS": f"spotsupctl --socket {desk.socket} {' '.join(words)}",
        "COMP_CWORD": str(len(words) + 2),
    }
    done = CliRunner(env=environ).invoke(ctl.main, [], prog_name="spotsupctl")
    return [line.partition(",")[2] for line in done.output.splitlines() if line]


def test_names_of_jobs_and_nodes_are_completed(desk: Desk) -> None:
    for name in ("resnet-a", "resnet-b", "bert"):
        submit(desk, name)
    assert sorted(completed(desk, "status", "res")) == ["resnet-a", "resnet-b"]
    assert completed(desk, "cancel", "bert", "resnet-b") == ["resnet-b"]
    (node,) = completed(desk, "drain", "bert")
    assert node in {row["id"] for row in desk.ask("nodes")}
    assert completed(desk, "can") == ["cancel"]


def test_without_a_daemon_nothing_is_completed_and_nothing_said(desk: Desk) -> None:
    desk.socket = desk.folder / "nothing"
    assert completed(desk, "status", "res") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(shell: str) -> None:
    done = CliRunner().invoke(ctl.main, ["completion", shell])
    assert (done.exit_code, "_SPOTSUPCTL_COMPLETE" in done.stdout) == (0, True)
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=done.stdout, text=True, check=True)


def test_a_misspelt_command_gets_the_right_one() -> None:
    done = CliRunner().invoke(ctl.main, ["lsit"])
    assert (done.exit_code, "there is no command 'lsit'; did you mean list" in done.stderr) == (2, True)
    assert "`main --help` lists all" in CliRunner().invoke(ctl.main, ["qqq"]).stderr


# -- a job file from a script --------------------------------------------------------------------------------


def test_init_writes_a_job_file_that_is_accepted(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "requirements.txt").write_text("")
    said = desk.said("init", "train.py", "--name", "mine", "--nodes", "2", "--gpu", "none", "--", "--lr", "0.1")
    assert "wrote job.yaml" in said
    assert "next: `spotsupctl plan job.yaml` shows prices" in said
    spec = parse_spec(yaml.safe_load((tmp_path / "job.yaml").read_text()))
    assert (spec.name, spec.command, spec.environment) == ("mine", ("train.py", "--lr", "0.1"), "requirements.txt")
    assert (spec.nodes.min, spec.nodes.desired, spec.nodes.max) == (1, 2, 4)
    refused = desk.ctl("init", "train.py")
    assert (refused.exit_code, "job.yaml is there already: --force replaces it" in refused.stderr) == (5, True)
    assert desk.ctl("init", "nothing.py", "--force").stderr.startswith("spotsupctl: there is no nothing.py in ")


def test_init_asks_at_a_terminal(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, screen = desk.at_a_terminal("init", "train.py", typed="asked\n3\nV100\n8\n12\nnone", folder=tmp_path)
    assert code == 0, screen
    spec = parse_spec(yaml.safe_load((tmp_path / "job.yaml").read_text()))
    (asked,) = spec.resources
    assert (spec.name, spec.nodes.desired, asked.gpu, asked.gpus_per_node) == ("asked", 3, "V100", 8)
    assert (spec.limits.hours, spec.checkpoints) == (12.0, "none")


@pytest.mark.parametrize(
    ("folder", "name"), [("My Job_2", "my-job-2"), ("3d", "my-job"), ("x" * 60, "x" * 40), ("", "my-job")]
)
def test_a_folders_name_becomes_a_jobs(folder: str, name: str) -> None:
    assert name_of(folder) == name
    parse_spec({"name": name, "nodes": 1, "run": "t.py"})


# -- sweeps --------------------------------------------------------------------------------------------------


def test_a_sweep_is_submitted_shown_and_cancelled(desk: Desk) -> None:
    job = desk.write("job.yaml", "name: search\nnodes: 1\nrun: train.py\n")
    assert desk.said("sweep", "list").startswith("no sweeps")
    assert desk.said("submit", job, "--sweep", "lr=0.1,0.01", "--sweep", "seed=1..3", "--parallel", "4") == "search\n"
    said = desk.said("sweep", "show", "search").splitlines()
    assert said[0].startswith("search  running  6 jobs, 4 at a time: 6 waiting for its turn")
    assert said[1].split()[:4] == ["JOB", "lr", "seed", "STATE"]
    assert said[2].split()[:3] == ["search-1", "0.1", "1"]
    found = desk.ctl("sweep", "show", "serch")
    assert (found.exit_code, found.stderr) == (4, "spotsupctl: no sweep is named 'serch'; did you mean search?\n")
    assert desk.said("sweep", "cancel", "search").startswith("search: cancelled; ")
    assert "search  cancelled  6     6      4          -" in " ".join(desk.said("sweep", "list").split("\n"))


def test_a_sweep_by_a_metric_has_a_column_for_it(desk: Desk) -> None:
    job = desk.write("job.yaml", "name: search\nnodes: 1\nrun: train.py\n")
    desk.said("submit", job, "--sweep", "lr=0.1,0.01", "--metric", "val/accuracy", "--mode", "max")
    said = desk.said("sweep", "show", "search").splitlines()
    assert said[1].split()[:6] == ["JOB", "lr", "STATE", "STEP", "VAL/ACCURACY", "LOSS"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--sweep", "lr"), "--sweep lr: write NAME=VALUE,VALUE or NAME=1..3"),
        (("--sweep", "nodes.dsired=1,2"), "unknown key `nodes.dsired`"),
        (("--sweep", "lr=1,2", "--follow"), "--sweep makes several jobs: leave --follow"),
        (("--sweep", "a=1,2", "--metric", "two words"), "metric"),
        (("--sweep", "a=1,2", "--mode", "max"), "--mode with --metric"),
        (("--metric", "accuracy"), "--metric goes with --sweep"),
        (("--parallel", "2"), "--parallel goes with --sweep"),
        (
            ("--sweep", "a=1,2", "--early-stop", "500"),
            "there is no option --early-stop any more; to end a sweep's worst",
        ),
        (
            ("--sweep", "a=1..99", "--sweep", "b=1,2"),
            "the sweep has 198 combinations; 1 to 100 are accepted: leave values out",
        ),
    ],
)
def test_a_sweep_that_cannot_be_right_is_one_sentence(desk: Desk, options: tuple[str, ...], sentence: str) -> None:
    job = desk.write("job.yaml", "name: search\nnodes: 1\nrun: train.py\n")
    result = desk.ctl("submit", job, *options)
    assert (result.exit_code, sentence in result.stderr) == (2, True), result.stderr


def test_a_command_that_is_gone_names_what_takes_its_place(desk: Desk) -> None:
    result = desk.ctl("bench-network", "job.yaml")
    assert result.exit_code == 2
    assert (
        "there is no command bench-network any more; submit the example trainer/examples/all_reduce.py" in result.stderr
    )
