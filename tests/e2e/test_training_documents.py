"""The commands and blocks of code in the documents for training scripts, run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import pytest
import torch
import yaml
from spotsup_trainer.etcd import Etcd
from spotsup_trainer.launcher.data_job import ReportedProgress, parse_progress
from spotsup_trainer.session import Session

from supervisor.cli.ctl import main as ctl
from supervisor.spec import parse_spec
from tests.e2e.launching import kill_all, nodes, processes_with
from tests.e2e.ranks import EXAMPLES, PAGES, REPO, TRAINING, Ranks, alone, script, steps, until_parked
from tests.support.combinations import others_nightly
from tests.support.documents import Block, blocks

TORCHRUN = REPO / "docs" / "torchrun.md"
DATA_JOBS = TRAINING / "data-jobs.md"
EXAMPLES_README = EXAMPLES / "README.md"
# A script that torchrun can start in an instant: what is tried here is the command. Both ranks have one pipe, and
# an unbuffered print() writes in pieces: a line is one write.
STUB = """
import os
os.write(1, "rank {RANK} of {WORLD_SIZE}\\n".format(**os.environ).encode())
"""
# Which test runs each script.
RUN_BY = {
    "yield_file.py": "test_a_job_runs_the_script_with_files_in_the_environment",
    "not_elastic.py": "test_examples.py",
    "elastic.py": "test_plain_python_runs_the_scripts_with_a_session",
    "parking.py": "test_the_loop_that_parks_loses_no_step",
    "accumulating.py": "test_the_script_with_epochs_and_micro_batches",
    "own_loader.py": "test_the_script_with_loaders_of_its_own_goes_on_with_more_of_them",
    "best.py": "test_the_script_that_keeps_its_best_weights",
    "sentences.py": "test_plain_python_runs_the_scripts_with_a_session",
    "stream.py": "test_plain_python_runs_the_scripts_with_a_session",
    "tensor_parallel.py": "test_the_script_with_tensor_parallelism_goes_on_with_half_of_its_ranks",
    "with_accelerate.py": "make test-frameworks",
    "with_torchtitan.py": "make test-frameworks",
    "tracked.py": "make test-frameworks",
    "with_wandb.py": "make test-frameworks",
    "with_mlflow.py": "make test-frameworks",
    "with_tensorboard.py": "make test-frameworks",
    "with_lightning.py": "make test-frameworks",
    "with_hugging_face.py": "make test-frameworks",
}


def commands(document: Path) -> list[str]:
    """All shell commands of a document."""
    return [command for block in blocks(document, "sh") for command in block.commands()]


SCRIPTS = [block for page in PAGES for block in blocks(page, "python")]


@pytest.mark.parametrize("block", SCRIPTS, ids=lambda block: block.file)
def test_every_script_of_the_documents_is_run_by_a_test(block: Block) -> None:
    compile(block.text, block.file, "exec")
    assert block.file in RUN_BY


@pytest.mark.parametrize(("name", "last"), [("elastic.py", 200), ("stream.py", 40), ("sentences.py", 20)])
def test_plain_python_runs_the_scripts_with_a_session(name: str, last: int, tmp_path: Path) -> None:
    printed = alone(script(name, tmp_path), tmp_path)
    assert list(steps(printed.replace(":", " "))) == list(range(1, last + 1))


def test_the_script_of_the_page_goes_on_with_another_rank(tmp_path: Path) -> None:
    path = script("sentences.py", tmp_path)
    before = steps(until_parked(path, tmp_path, 2)[0])
    with Ranks(path, tmp_path, 3) as ranks:
        after = steps(ranks.end())
    assert before
    assert [*before, *after] == list(range(1, 21))


def test_the_script_with_epochs_and_micro_batches(tmp_path: Path) -> None:
    printed = alone(script("accumulating.py", tmp_path), tmp_path)
    assert re.findall(r"rank 0: epoch (\d) has ended after step (\d+)", printed) == [
        ("0", "10"),
        ("1", "20"),
        ("2", "30"),
    ]


@pytest.mark.nightly
@pytest.mark.timeout(400)  # dozens of collectives per step: 75 s on a very busy machine
def test_the_script_with_tensor_parallelism_goes_on_with_half_of_its_ranks(tmp_path: Path) -> None:
    path = script("tensor_parallel.py", tmp_path)
    before = steps(until_parked(path, tmp_path, 4, timeout_s=180.0)[0])
    with Ranks(path, tmp_path, 2) as ranks:
        after = steps(ranks.end(timeout_s=180.0))
    assert before
    assert [*before, *after] == list(range(1, 21))


@pytest.mark.nightly
def test_the_script_with_loaders_of_its_own_goes_on_with_more_of_them(tmp_path: Path) -> None:
    path = script("own_loader.py", tmp_path)
    before = steps(until_parked(path, tmp_path, 2)[0])
    with Ranks(path, tmp_path, 3) as ranks:
        after = steps(ranks.end())
    assert before
    assert [*before, *after] == list(range(1, 41))


def test_the_script_that_keeps_its_best_weights(tmp_path: Path) -> None:
    printed = alone(script("best.py", tmp_path), tmp_path, SPOTSUP_CHECKPOINT_DIR=str(tmp_path / "checkpoints"))
    losses = [float(loss) for loss in re.findall(r"epoch \d loss (\d+\.\d+)", printed)]
    best = 20 * (losses.index(min(losses)) + 1)
    assert f"2 of 2 tensors of the model are in {tmp_path}/checkpoints/step_{best:08}\n" in printed
    assert {path.name for path in (tmp_path / "checkpoints").glob("step_*")} == {f"step_{best:08}", "step_00000080"}


def test_a_job_runs_the_script_with_files_in_the_environment(etcd_endpoint: str, tmp_path: Path) -> None:
    """Its checkpoint directory does not exist when the launcher starts."""
    with nodes(etcd_endpoint, tmp_path, script=script("yield_file.py", tmp_path)) as job:
        job.checkpoint_dir.rmdir()
        job.start("a")
        assert job.exit_code("a") == 0, job.log("a").read_text()
        assert (job.checkpoint_dir / "mine.pt").is_file()


def test_the_loop_that_parks_loses_no_step(tmp_path: Path) -> None:
    path = script("parking.py", tmp_path)
    before = steps(until_parked(path, tmp_path, 2)[0])
    with Ranks(path, tmp_path, 3) as ranks:
        after = steps(ranks.end())
    assert before
    assert [*before, *after] == list(range(1, 101))


def training() -> dict[str, Any]:
    """What the fragments of a training loop expect around them."""
    model = torch.nn.Linear(4, 1)

    def loss_of(output: torch.Tensor) -> torch.Tensor:
        return output.square().mean()

    return {
        "Session": Session,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.01),
        "dataset": torch.randn(512, 4),
        "loss_of": loss_of,
    }


def test_the_training_loop_of_the_examples_runs() -> None:
    (block,) = blocks(EXAMPLES_README, "python")
    names = training()
    exec(block.text, names)  # noqa: S102 - our own document
    assert names["session"].epoch == 3


def test_the_data_job_of_the_document_is_accepted() -> None:
    (block,) = (each for each in blocks(DATA_JOBS, "yaml") if "kind: data" in each.text)
    spec = parse_spec(yaml.safe_load(block.text))
    assert spec.kind == "data"
    program = next(word for word in " ".join(spec.command).split() if word.endswith(".py"))
    assert (REPO / spec.code / program).is_file()


def test_the_line_of_progress_of_the_document_is_understood(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = blocks(DATA_JOBS, "")
    exec(block.text)  # noqa: S102 - our own document
    assert parse_progress(capsys.readouterr().out) == ReportedProgress(0.4, "copied 12 of 30 files")


def test_the_torchrun_command_forms_a_round(etcd_endpoint: str, tmp_path: Path) -> None:
    (command,) = commands(TORCHRUN)
    (tmp_path / "train.py").write_text(STUB)
    with shell(command, tmp_path, ETCD=etcd_endpoint) as torchrun:
        output, _ = torchrun.communicate(timeout=120)
    ranks = sorted(line for line in output.splitlines() if line.startswith("rank"))
    assert ranks == ["rank 0 of 2", "rank 1 of 2"], output
    with closing(Etcd([etcd_endpoint])) as etcd:
        assert etcd.get("/spotsup/default/world/run/my-job/round") is not None


COMMANDS = [each for each in commands(EXAMPLES_README) if not each.startswith("spotsupctl")]


@pytest.mark.parametrize("command", others_nightly(COMMANDS[:1], COMMANDS))
def test_the_commands_of_the_examples_begin_to_train(command: str, tmp_path: Path) -> None:
    mark = "SPOTSUP_TEST_DOCUMENT"
    with shell(command, EXAMPLES, GLOO_SOCKET_IFNAME="lo", **{mark: str(tmp_path)}) as process:
        try:
            assert process.stdout is not None
            assert any(line.startswith("step ") for line in process.stdout)
        finally:
            kill_all(processes_with(mark, str(tmp_path)))


def test_the_submissions_of_the_examples_have_known_options() -> None:
    for command in commands(EXAMPLES_README):
        if command.startswith("spotsupctl"):
            _, name, *arguments = command.split()
            found = ctl.get_command(click.Context(ctl), name)
            assert found is not None, command
            found.make_context(name, arguments)
            assert (EXAMPLES / arguments[-1]).is_file()


def shell(command: str, folder: Path, **environ: str) -> subprocess.Popen[str]:
    """A command line, with the programs of this environment first on the PATH."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.Popen(
        ["bash", "-c", f"exec {command}"],
        cwd=folder,
        env=os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"} | environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
