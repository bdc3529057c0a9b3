"""A job whose checkpoints go to an S3 server: a node is lost, another is taken with notice, and a new run goes on."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.s3 import DENIED, Fault, s3_here
from tools.stack import Stack

JOB = """\
name: counted
nodes: {{min: 1, desired: 2, max: 2}}
run: train.py {steps}
checkpoints: {place}
env: {environ}
"""
# Each step adds 1 to the one weight: so a state that is of another step, or a mixture of two, is seen.
TRAIN = """\
import json, os, sys, time
import torch
from torch.nn.parallel import DistributedDataParallel
from spotsup_trainer.session import Session

torch.distributed.init_process_group("gloo")
module = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.zeros_(module.weight)
model = DistributedDataParallel(module)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.0)
session = Session({"model": model, "optimizer": optimizer}, every_steps=20)
data = torch.utils.data.TensorDataset(torch.ones(4000, 1))
for (batch,) in session.loader(data, global_batch=2, epochs=1000):
    session.backward(-model(batch).mean())
    optimizer.step()
    optimizer.zero_grad()
    if session.rank == 0:
        with open(sys.argv[1], "a") as file:
            line = {"round": session.round, "step": session.steps_done + 1, "weight": module.weight.item()}
            file.write(json.dumps(line | {"task": os.environ["SPOTSUP_TASK_ID"], "world": session.world}) + "\\n")
    session.step()
    time.sleep(0.05)
"""
EVERY = 20


class Job:
    """The job on a stack, and the steps that it recorded."""

    def __init__(self, stack: Stack, folder: Path, place: str, environ: dict[str, str]) -> None:
        self.stack, self.steps = stack, folder / "steps"
        code = folder / "code"
        code.mkdir()
        (code / "train.py").write_text(TRAIN)
        self.file = code / "job.yaml"
        self.file.write_text(JOB.format(steps=self.steps, place=place, environ=json.dumps(environ)))

    def lines(self) -> list[dict[str, Any]]:
        text = self.steps.read_text() if self.steps.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def status(self) -> Any:
        return self.stack.ask("status", "counted")

    def member(self, rank: int) -> str:
        """The node that trains as this rank, once there is one."""
        found: list[str] = []

        def is_there() -> bool:
            found[:] = [each["id"] for each in self.status()["node_list"] if each["rank"] == rank]
            return bool(found)

        self.stack.wait_for(is_there, 60.0, f"rank {rank}")
        return found[0]

    def wait_for_training(self, after: int = 0) -> int:
        """Until two nodes have trained in a round after `after`, and a checkpoint of that round is complete."""

        def is_there() -> bool:
            lines = [line for line in self.lines() if line["round"] > after and line["world"] == 2]
            return bool(lines) and int(self.status()["checkpoint_step"]) > lines[0]["step"]

        self.stack.wait_for(is_there, 200.0, "two nodes to train, and a checkpoint of theirs")
        return int(self.lines()[-1]["round"])


def changes(lines: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """Where one round ended, and the next began: (last step, first step)."""
    pairs = itertools.pairwise(lines)
    return [
        (old["step"], new["step"]) for old, new in pairs if old["round"] != new["round"] or old["task"] != new["task"]
    ]


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_nodes_that_are_lost_and_taken_cost_what_is_promised_and_a_new_run_goes_on(
    stack: Stack, tmp_path: Path
) -> None:
    with s3_here() as s3:
        job = Job(stack, tmp_path, f"s3://{s3.bucket}/prefix", s3.environ)
        assert stack.ctl("submit", str(job.file)).returncode == 0
        number = job.wait_for_training()
        victim, saved = job.member(1), int(job.status()["checkpoint_step"])
        stack.cloud("kill", victim)
        killed_in, number = number, job.wait_for_training(number)
        assert next(line["step"] for line in job.lines() if line["round"] > killed_in) > saved
        victim = job.member(1)
        before = len(changes(job.lines()))
        stack.cloud("preempt", victim, "--notice", "90")
        job.wait_for_training(number)
        made = job.lines()
        lost = [last - first + 1 for last, first in changes(made)]
        assert lost[before:] == [0] * len(lost[before:]), "a notice costs no step"
        assert all(0 <= each <= 4 * EVERY for each in lost), "a loss without notice costs what was not yet saved"
        assert all(line["weight"] == pytest.approx(line["step"]) for line in made)
        # nothing is on a machine's own disk, and nothing is left in the bucket but the checkpoints that are kept
        (old,) = list(stack_folders(s3))
        assert stack.ctl("cancel", "counted").returncode == 0
        stack.wait_for(lambda: not stack.machines(), 150.0, "the machines to be released")
        checkpoint = int(job.status()["checkpoint_step"])
        kept = keys(s3)
        again = ("submit", str(job.file), "--resume-from", "counted")  # refused while nodes are released
        stack.wait_for(lambda: stack.ctl(*again).returncode == 0, 60.0, "the next run to be accepted")
        stack.wait_for(
            lambda: len(job.lines()) > len(made) + 5 and job.lines()[-1]["task"] != made[-1]["task"], 200.0, "it"
        )
        first = next(line for line in job.lines() if line["task"] != made[-1]["task"])
        assert first["step"] >= checkpoint + 1 > 1
        assert all(line["weight"] == pytest.approx(line["step"]) for line in job.lines())
        assert {key for key in keys(s3) if key.startswith(f"{old}/")} == kept, "the old run's checkpoints are untouched"
        assert stack.ctl("cancel", "counted").returncode == 0
        stack.wait_for(lambda: not stack.machines(), 150.0, "the machines to be released")


@pytest.mark.timeout(300)
def test_a_bucket_that_cannot_be_written_to_is_said_before_anything_trains(stack: Stack, tmp_path: Path) -> None:
    with s3_here() as s3:
        s3.fault = lambda request: Fault(error=DENIED) if request.method == "PUT" else None
        job = Job(stack, tmp_path, f"s3://{s3.bucket}/prefix", s3.environ)
        assert stack.ctl("submit", str(job.file)).returncode == 0

        def events() -> list[str]:
            return [event["text"] for event in stack.ask("events", "counted")]

        said = "checkpoints cannot be written: cannot write s3://"
        stack.wait_for(lambda: any(said in text for text in events()), 120.0, "the reason")
        (text, *_) = [text for text in events() if said in text]
        assert "access is denied: give the machine's role what docs/permissions/*-checkpoints-* lists" in text
        assert not job.lines()
        assert stack.ctl("cancel", "counted").returncode == 0
        stack.wait_for(lambda: not stack.machines(), 150.0, "the machines to be released")


def keys(s3: Any) -> set[str]:
    """All keys below the prefix."""
    found = s3.client.list_objects_v2(Bucket=s3.bucket, Prefix="prefix/").get("Contents", [])
    return {each["Key"].removeprefix("prefix/") for each in found}


def stack_folders(s3: Any) -> set[str]:
    """The folders of runs."""
    return {key.partition("/")[0] for key in keys(s3)}
