"""Lightning's and Hugging Face's own Trainers with our callbacks, by our launcher, as machines come and go."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from spotsup_trainer.launcher.run_dir import RunDir

from tests.e2e.launching import BUSY_S, Nodes, eventually, nodes
from tests.e2e.ranks import script

PROGRAM = Path(__file__).with_name("program.py")
NEVER, BATCH = 10**6, 4

STATE = ("step", "weights", "moments", "lr")


@contextmanager
def job_of(framework: str, endpoint: str, folder: Path, every: int, **program: str) -> Iterator[Nodes]:
    """A job with a checkpoint `every` so many steps."""
    settings = {"framework": framework, "every": str(every)} | program
    with nodes(endpoint, folder, script=PROGRAM, program=settings) as job:
        yield job


def state_after(job: Nodes, number: int, step: int) -> dict[str, Any]:
    """What all ranks had after a step of a round: they must agree."""
    found = {tuple(event[name] for name in STATE) for event in job.events("step", round=number, step=step)}
    assert len(found) == 1, f"the ranks of round {number} differ after step {step}: {found}"
    return dict(zip(STATE, found.pop(), strict=True))


def assert_goes_on(job: Nodes, number: int, from_round: int, step: int) -> None:
    """All ranks of a round began with exactly what the ones before had after `step`."""
    expected = state_after(job, from_round, step)
    started = job.events("start", round=number)
    assert started
    for event in started:
        assert {name: event[name] for name in STATE} == expected
    assert job.first_step(number) == step + 1


def some_steps(job: Nodes, number: int, count: int = 10) -> None:
    """Wait until a round has trained for a while."""
    first = job.first_step(number)
    eventually(f"step {first + count} of round {number}", lambda: job.last_step(number) >= first + count, BUSY_S)


@pytest.mark.parametrize(
    ("framework", "accumulate", "every"),
    [("lightning.pytorch", 1, 7), ("pytorch_lightning", 2, NEVER), ("transformers", 2, NEVER)],
)
def test_a_job_goes_on_as_nodes_join_leave_and_vanish(
    framework: str, accumulate: int, every: int, etcd_endpoint: str, tmp_path: Path
) -> None:
    with job_of(framework, etcd_endpoint, tmp_path, every, accumulate=str(accumulate)) as job:
        job.start("a", "b")
        job.hint("a", "b")
        job.stepping(2, timeout_s=BUSY_S)
        some_steps(job, 1)

        # a node joins: all save the same step and park, and no step is lost
        job.start("c")
        job.ready("c", timeout_s=BUSY_S)
        job.hint("a", "b", "c")
        job.stepping(3, 1, timeout_s=BUSY_S)
        assert_goes_on(job, 2, from_round=1, step=job.last_step(1))
        assert "round 1: stopping the workers: all workers are parked" in job.log("a").read_text()
        assert job.events("start", node="c", rank=2), "survivors keep their ranks"
        some_steps(job, 2)

        # a node leaves after a notice: no step is lost
        job.launchers["a"].send_signal(signal.SIGTERM)
        job.stepping(2, 2, timeout_s=BUSY_S)
        assert job.exit_code("a", BUSY_S) == 0
        assert_goes_on(job, 3, from_round=2, step=job.last_step(2))
        for node in "abc":
            assert "round 2: stopping the workers: all workers are parked" in job.log(node).read_text()
        some_steps(job, 3, 20)

        # one vanishes: the others go on from the newest checkpoint
        job.kill("b")
        job.stepping(1, 3, timeout_s=BUSY_S)
        resumed = job.first_step(4) - 1
        if every == NEVER:
            assert_goes_on(job, 4, from_round=2, step=job.last_step(2))
        else:
            assert resumed % every == 0
            assert 0 <= job.last_step(3) - resumed < 2 * every, "the newest may still have been written"
            assert_goes_on(job, 4, from_round=3, step=resumed)

        def is_told() -> bool:
            """A Trainer logs its loss every few steps."""
            progress = RunDir(job.folder / "run-c").progress()
            return progress is not None and progress.round == 4 and progress.loss is not None

        eventually("a loss of the last round", is_told, BUSY_S)
        job.end_file.touch()
        assert job.exit_code("c", BUSY_S) == 0
        assert "training is over" in job.log("c").read_text()
        progress = RunDir(job.folder / "run-c").progress()
        assert progress is not None
        assert (progress.round, progress.step) == (4, job.last_step(4))
        assert resumed <= progress.checkpoint_step <= progress.step
        batch, per_round = accumulate * BATCH, [job.last_step(number) - job.first_step(number) + 1 for number in (1, 2)]
        assert progress.loss is not None
        assert progress.loss > 0.0
        # lost steps do not count, and rounds had 2, 3, 2 and 1 ranks
        third, fourth = resumed - sum(per_round), job.last_step(4) - resumed
        assert progress.samples == batch * (2 * per_round[0] + 3 * per_round[1] + 2 * third + fourth)


def test_a_loss_in_the_middle_of_a_validation_costs_lightning_no_step(etcd_endpoint: str, tmp_path: Path) -> None:
    with job_of("lightning.pytorch", etcd_endpoint, tmp_path, NEVER, validate="1") as job:
        job.start("a", "b")
        job.hint("a", "b")
        number = job.stepping(2, timeout_s=BUSY_S)["round"]  # on a busy machine, the first may train alone before
        reached = ({"rank": 0, "batch": 3}, {"rank": 1})
        validated = partial(job.events, "validated", round=number)
        eventually("a validation", lambda: all(validated(**each) for each in reached), BUSY_S)
        step = job.last_step(number)
        job.kill("b")
        job.stepping(1, number, timeout_s=BUSY_S)
        assert job.last_step(number) == step, "the validation was too short for this test"
        assert_goes_on(job, number + 1, from_round=number, step=step)


@pytest.mark.parametrize("name", ["with_lightning.py", "with_hugging_face.py"])
def test_the_scripts_of_the_document_go_on_where_they_were(name: str, etcd_endpoint: str, tmp_path: Path) -> None:
    with nodes(etcd_endpoint, tmp_path, script=script(name, tmp_path), env={"TQDM_MININTERVAL": "60"}) as job:
        job.hint("a", "b", minimum=2)
        job.start("a", "b")
        leaver = RunDir(job.folder / "run-a")
        eventually("progress", lambda: any(RunDir(job.folder / f"run-{node}").progress() for node in "ab"), BUSY_S)
        job.hint("a", "b")
        job.launchers["a"].send_signal(signal.SIGTERM)
        assert [job.exit_code(node, BUSY_S) for node in "ab"] == [0, 0]
        parked = [json.loads(file.read_text()) for file in leaver.path.glob("parked-1-*")]
        (parked_file,) = parked
        assert parked_file["saved"]
        assert 0 < parked_file["step"] < 2000
        progress = RunDir(job.folder / "run-b").progress()
        assert progress is not None
        assert (progress.round, progress.step) == (2, 2000)
        saved = {int(re.findall(r"\d+", path.name)[-1]) for path in job.checkpoint_dir.iterdir()}
        assert 2000 in saved
