"""What operators do to a training job: drain, pause, resume, ssh; and an etcd that loses all its data."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from supervisor.journal.etcd_server import EmbeddedEtcd
from tests.support.programs import run_module
from tools.stack import Stack

JOB = """\
name: steps
nodes: {min: 1, desired: 1, max: 2}
run: train.py STEPS
"""
TRAIN = """\
import sys, time
import torch
from torch.nn.parallel import DistributedDataParallel
from spotsup_trainer.session import Session

torch.distributed.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(1, 1))
session = Session({"model": model})
data = torch.utils.data.TensorDataset(torch.zeros(1000, 1))
for batch in session.loader(data, global_batch=1, epochs=1000):
    model(batch[0]).sum().backward()
    with open(sys.argv[1], "a") as file:
        file.write(f"{session.steps_done + 1}\\n")
    session.step()
    time.sleep(0.05)
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(TRAIN)
    file = tmp_path / "code" / "job.yaml"
    file.write_text(JOB.replace("STEPS", str(tmp_path / "steps")))
    return file


class Steps:
    """The steps that the program recorded."""

    def __init__(self, stack: Stack, file: Path) -> None:
        self._stack = stack
        self._file = file

    def made(self) -> list[int]:
        """All steps, in order."""
        return [int(line) for line in self._file.read_text().splitlines()] if self._file.exists() else []

    def wait_for_more(self) -> None:
        """Wait until training has made another step."""
        before = len(self.made())
        self._stack.wait_for(lambda: len(self.made()) > before, 150.0, "another step")


def status(stack: Stack) -> Any:
    return stack.ask("status", "steps")


def members(stack: Stack) -> list[str]:
    return [node["id"] for node in status(stack)["node_list"] if node["state"] == "member"]


def spotsupd(stack: Stack, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_module("supervisor.cli.daemon", *arguments, "--config", str(stack.folder / "spotsupd.toml"))


def test_drain_pause_and_resume_lose_no_step(stack: Stack, job: Path, tmp_path: Path) -> None:
    steps = Steps(stack, tmp_path / "steps")
    assert stack.ctl("submit", str(job)).returncode == 0
    steps.wait_for_more()
    found: list[str] = []

    def is_member() -> bool:
        found[:] = members(stack)
        return len(found) == 1

    stack.wait_for(is_member, 90.0, "a member")
    (node,) = found

    assert stack.ctl("drain", "missing").returncode == 4
    assert stack.ctl("drain", node).stdout == f"{node}: will leave steps once it is replaced\n"
    assert stack.ctl("drain", node).returncode == 0
    stack.wait_for(lambda: members(stack) not in ([], [node]), 150.0, "the replacement to train")
    stack.wait_for(lambda: status(stack)["nodes"]["active"] == 1, 90.0, "the drained node to be gone")
    refused = stack.ctl("drain", node)
    assert (refused.returncode, refused.stderr.count("\n")) == (5, 1)
    assert stack.ctl("ssh", node).returncode == 5
    steps.wait_for_more()

    assert stack.ctl("pause", "steps").returncode == 0
    stack.wait_for(lambda: status(stack)["state"] == "paused" and not stack.machines(), 150.0, "the job to be paused")
    assert stack.ctl("resume", "steps").returncode == 0
    steps.wait_for_more()
    made = steps.made()
    assert made == list(range(1, len(made) + 1)), "each step was made once"
    assert stack.ctl("cancel", "steps").returncode == 0
    stack.wait_for(lambda: not stack.machines(), 150.0, "the machines to be released")


@pytest.mark.nightly
def test_machines_that_last_for_a_limited_time_are_replaced_before_their_end_and_no_step_is_lost(
    stack: Stack, job: Path, tmp_path: Path
) -> None:
    steps = Steps(stack, tmp_path / "steps")
    stack.cloud("set", "--flex-lasts", "240")  # replaced in its last minute
    job.write_text(job.read_text() + "market: [flex, on-demand]\n")
    assert stack.ctl("submit", str(job)).returncode == 0
    steps.wait_for_more()
    stack.wait_for(lambda: len(members(stack)) == 1, 90.0, "a member")
    (first,) = members(stack)
    sentences: list[str] = []

    def replaced() -> bool:
        sentences.append(status(stack)["sentence"])
        return members(stack) not in ([], [first])

    stack.wait_for(replaced, 400.0, "another machine to train in its place")
    assert any(f"{first} ends in about " in each for each in sentences), sentences
    steps.wait_for_more()
    made = steps.made()
    assert made == list(range(1, len(made) + 1)), "each step was made once"
    assert [node["market"] for node in status(stack)["node_list"] if node["state"] == "member"] == ["flex"]
    assert stack.ctl("cancel", "steps").returncode == 0
    stack.wait_for(lambda: not stack.machines(), 150.0, "the machines to be released")


@pytest.mark.nightly
def test_a_limit_pauses_and_a_new_run_of_the_name_goes_on_from_the_old_one(
    stack: Stack, job: Path, tmp_path: Path
) -> None:
    steps = Steps(stack, tmp_path / "steps")
    job.write_text(job.read_text() + "limits: {hours: 0.006}\n")  # 22 s

    def paused() -> bool:
        return status(stack)["state"] == "paused" and not stack.machines()

    assert stack.ctl("submit", str(job)).returncode == 0
    stack.wait_for(paused, 200.0, "the job to be paused")
    made = steps.made()
    assert status(stack)["reason"].startswith("limits.hours 0.006 reached; `spotsupctl limits steps --hours 0.0")
    refused = stack.ctl("resume", "steps")
    assert (refused.returncode, "stays paused: limits.hours 0.006 reached" in refused.stderr) == (5, True)
    assert "0.006" in stack.ctl("limits", "steps").stdout
    assert stack.ctl("limits", "steps", "--hours", "-1").returncode == 2
    assert stack.ask("limits", "steps", "--hours", "9")["limits"]["hours"]["limit"] == 9
    stack.wait_for(lambda: len(steps.made()) > len(made) + 5, 150.0, "training to go on")

    assert stack.ctl("submit", str(job), "--resume-from", "steps").returncode == 5, "it runs"
    assert stack.ctl("cancel", "steps").returncode == 0
    stack.wait_for(lambda: not status(stack)["nodes"]["active"], 150.0, "the machines to be released")
    checkpoint, ended = status(stack)["checkpoint_step"], len(steps.made())
    assert checkpoint >= len(made) > 0
    assert stack.ctl("submit", str(job), "--resume-from", "steps").returncode == 0
    steps.wait_for_more()
    assert steps.made()[ended] == checkpoint + 1, "the new run begins after the old one's newest checkpoint"
    old = stack.ask("status", "steps.1")
    assert (old["name"], old["state"], old["checkpoint_step"]) == ("steps.1", "cancelled", checkpoint)
    assert [row["name"] for row in stack.ask("list")] == ["steps", "steps.1"]
    assert stack.ask("events", "steps.1")[-1]["kind"] == "job-cancelled"
    assert stack.ask("logs", "steps.1") is not None
    assert stack.ask("cost", "steps.1")[0]["usd"] > 0
    assert stack.ctl("cancel", "steps").returncode == 0
    stack.wait_for(lambda: not stack.machines(), 150.0, "the machines to be released")


def test_an_etcd_that_lost_everything_costs_no_machine_and_no_step(stack: Stack, job: Path, tmp_path: Path) -> None:
    steps, backup = Steps(stack, tmp_path / "steps"), tmp_path / "journal.gz"
    assert stack.ctl("submit", str(job)).returncode == 0
    steps.wait_for_more()
    stack.wait_for(lambda: status(stack)["state"] == "running", 90.0, "the job to run")
    assert spotsupd(stack, "export", str(backup), "--embedded-etcd").stdout.startswith(f"{backup}: 1 jobs, 1 nodes, ")
    machines = [machine["id"] for machine in stack.machines()]

    def lose_etcd() -> None:
        stack.kill_daemon()
        EmbeddedEtcd(stack.state / "etcd").stop()
        shutil.rmtree(stack.state / "etcd" / "data")

    # without the backup: nothing is done until each machine is accounted for
    lose_etcd()
    stack.start_daemon()
    headline = "etcd has no journal of this cluster, but its machines run (steps-"
    stack.wait_for(lambda: headline in stack.ask("daemon", "status")["headline"], 90.0, "the daemon to report it")
    refused = spotsupd(stack, "adopt")
    assert refused.returncode == 5
    assert "1 machine of job steps: submit its job file again, or terminate them with --release steps" in refused.stderr
    assert stack.ctl("submit", str(job)).returncode == 0
    assert spotsupd(stack, "adopt").stdout == "adopted 1 machine of steps\n"
    stack.wait_for(lambda: status(stack)["state"] == "running", 90.0, "the job to run")
    assert [machine["id"] for machine in stack.machines()] == machines
    assert spotsupd(stack, "adopt").stdout == "the journal knows every machine, and is believed\n"
    assert spotsupd(stack, "import", str(backup), "--embedded-etcd").returncode == 5
    steps.wait_for_more()

    # with the backup: everything goes on, and is believed once an operator has looked
    lose_etcd()
    done = spotsupd(stack, "import", str(backup), "--embedded-etcd")
    assert done.returncode == 0, done.stderr
    stack.start_daemon()
    doubt = "watching 1 job; the journal in etcd is not believed: it was imported from a file"
    stack.wait_for(
        lambda: stack.ask("daemon", "status")["headline"].startswith(doubt), 90.0, "the daemon to know its job"
    )
    assert spotsupd(stack, "adopt").stdout == "the journal knows every machine, and is believed\n"
    stack.wait_for(
        lambda: stack.ask("daemon", "status")["headline"] == "watching 1 job", 90.0, "the journal to be believed"
    )
    # it waits for a moment where the node's agent is in the new etcd before its round is
    stack.wait_for(lambda: status(stack)["state"] == "running", 90.0, "the job to run")
    steps.wait_for_more()
    assert [machine["id"] for machine in stack.machines()] == machines
    made = steps.made()
    assert made == list(range(1, len(made) + 1)), "training never stopped"
    assert json.loads(stack.ctl("cost", "-o", "json").stdout)[0]["usd"] > 0
    assert stack.ctl("cancel", "steps").returncode == 0
    stack.wait_for(lambda: not stack.machines(), 150.0, "the machines to be released")


def test_an_etcd_that_is_put_back_begins_no_job_again_that_was_over(stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    job = tmp_path / "code" / "job.yaml"
    job.write_text("{name: waits, kind: data, run: sleep 100000}\n")
    assert stack.ctl("submit", str(job)).returncode == 0
    stack.wait_for(lambda: stack.ask("status", "waits")["state"] == "running", 90.0, "the job to run")
    data, before = stack.state / "etcd" / "data", tmp_path / "before"

    def stop() -> None:
        stack.kill_daemon()
        EmbeddedEtcd(stack.state / "etcd").stop()

    def headline() -> str:
        return str(stack.ask("daemon", "status")["headline"])

    stop()
    shutil.copytree(data, before)
    stack.start_daemon()
    assert stack.ctl("cancel", "waits").returncode == 0
    stack.wait_for(lambda: not stack.machines(), 90.0, "the machine to be released")
    stop()
    shutil.rmtree(data)
    shutil.copytree(before, data)
    stack.start_daemon()
    stack.wait_for(lambda: "etcd was restored from a backup" in headline(), 90.0, "the daemon to find out")
    lost = '"kind": "node-lost"'
    stack.wait_for(lambda: lost in json.dumps(stack.ask("events", "waits")), 90.0, "the node to be lost")
    assert "nothing is launched: `spotsupd adopt`" in stack.ask("status", "waits")["sentence"]
    assert stack.ctl("cancel", "waits").returncode == 0
    assert spotsupd(stack, "adopt").returncode == 0
    stack.wait_for(lambda: headline() == "watching 0 jobs", 90.0, "the journal to be believed")
    assert stack.machines() == []
    assert [node["id"].rpartition("-")[2] for node in stack.ask("status", "waits")["node_list"]] == ["1"]
