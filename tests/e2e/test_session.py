"""Session with real processes and gloo: rounds of changing size, with and without notice, on one history."""

from __future__ import annotations

import json
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from spotsup_trainer.session.audit import Report, analyse, parse

from tests.e2e.rounds import Launcher, output, ranks, run_round, running, wait
from tests.e2e.training import GLOBAL_BATCH, SAMPLES, Rank
from tests.support.combinations import others_nightly
from tests.support.s3 import s3_here

EXAMPLE = Path(__file__).resolve().parents[2] / "trainer" / "examples" / "char_transformer.py"


def park_after(jobs: list[Rank], step: int, asked: int) -> int:
    """Run a round; once it reached `step`, ask only rank `asked` to yield. The step after which all ranks parked."""
    launcher = Launcher(jobs)
    with running(launcher.jobs) as processes:
        wait(f"step {step}", launcher.reached(step))
        assert all(launcher.file("SESSION", job.rank).exists() for job in launcher.jobs)
        launcher.file("YIELD", asked).touch()
        wait("all ranks parked", launcher.all_parked)
        assert all(process.is_alive() for process in processes)
        parked = [json.loads(launcher.file("PARKED", job.rank).read_text()) for job in launcher.jobs]
        progress = launcher.progress()
    assert all(each == parked[0] for each in parked)
    assert parked[0]["saved"] is True
    assert progress is not None
    assert (progress.step, progress.checkpoint_step) == (parked[0]["step"], parked[0]["step"])
    assert 0 < progress.first_step_at <= progress.at <= time.time()
    return int(parked[0]["step"])


def report(folder: Path) -> Report:
    lines = [line for path in sorted((folder / "audit").iterdir()) for line in parse(path.read_text())]
    return analyse(lines, samples=SAMPLES, global_batch=GLOBAL_BATCH)


@pytest.mark.main
def test_kill_then_notice_then_growth_see_every_sample_once(tmp_path: Path) -> None:
    killed = ranks(3, tmp_path, round=1, every_steps=3, step_s=0.2)  # time to write between two steps
    killed[1] = replace(killed[1], die_after=5)
    codes = run_round(killed)
    assert codes[1] == -signal.SIGKILL
    assert all(code != 0 for code in codes)

    step = park_after(ranks(2, tmp_path, round=2, epochs=1000, step_s=0.02), step=8, asked=1)
    epochs = step // 6 + 2
    grown = ranks(4, tmp_path, round=3, epochs=epochs)
    grown[2] = replace(grown[2], workers=1)
    assert run_round(grown) == [0, 0, 0, 0]

    verdict = report(tmp_path)
    assert (verdict.samples_repeated, verdict.samples_missed) == (0, 0)
    assert (verdict.steps, verdict.samples) == (epochs * 6, epochs * SAMPLES)
    without_notice, with_notice = verdict.changes
    assert without_notice.steps_lost == 2  # the checkpoint of step 3 is the last one, step 5 the last one completed
    assert with_notice.steps_lost == 0
    assert verdict.loss_last < verdict.loss_first
    draws = [path.read_text() for path in tmp_path.glob("draws.*")]
    assert len(set(draws)) == len(draws) == 3 + 2 + 4  # each rank of each round has random numbers of its own


@pytest.mark.parametrize("sharded", others_nightly([True], [False, True]), ids=["ddp", "fsdp"])
def test_any_world_sizes_train_the_same_weights_as_one_process(tmp_path: Path, sharded: bool) -> None:
    train_on_any_world_sizes(tmp_path, sharded, {})


def test_so_they_do_with_checkpoints_in_an_object_store(tmp_path: Path) -> None:
    with s3_here() as s3:
        train_on_any_world_sizes(tmp_path, True, {**s3.environ, "SPOTSUP_CHECKPOINT_URL": s3.place})
        # a slow machine skips some in between, so the older two may be of the round before
        kept = [name.split("-")[0] for name in s3.folders()]
        assert (len(kept), kept[-1]) == (3, "step_00000018.r3")
    assert not (tmp_path / "together" / "checkpoints").exists()


def train_on_any_world_sizes(tmp_path: Path, sharded: bool, environ: dict[str, str]) -> None:
    together, alone = tmp_path / "together", tmp_path / "alone"
    together.mkdir()
    alone.mkdir()
    options: dict[str, Any] = {"epochs": 3, "every_steps": 2, "sharded": sharded, "environ": environ}
    assert run_round(ranks(1, alone, epochs=3)) == [0]
    assert run_round(ranks(1, together, round=1, steps=4, **options)) == [0]
    micro_batch = None if sharded else 3
    assert run_round(ranks(2, together, round=2, steps=9, micro_batch=micro_batch, **options)) == [0, 0]
    assert run_round(ranks(3, together, round=3, **options)) == [0, 0, 0]

    verdict = report(together)
    assert [span.world for span in verdict.rounds] == [1, 2, 3]
    assert (verdict.steps, verdict.samples_repeated, verdict.samples_missed) == (18, 0, 0)
    expected, trained = (torch.load(folder / "weights.pt") for folder in (alone, together))
    for one, other in zip(expected, trained, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-9)
    assert (together / "draws.1.0").read_text() == (alone / "draws.1.0").read_text()


@pytest.mark.nightly
def test_tensor_parallelism_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    assert run_round(ranks(2, tmp_path, tensor_parallel=2, tells_mesh=False)) == [1, 1]
    for rank in (0, 1):
        assert "SessionError: model.0.weight is a DTensor over the mesh dimension 'tp', " in output(tmp_path, rank)
    assert not (tmp_path / "audit").exists()


@pytest.mark.nightly
def test_context_parallelism_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    assert run_round(ranks(2, tmp_path, context_parallel=2, tells_mesh=False)) == [1, 1]
    for rank in (0, 1):
        assert "SessionError: model.places is a DTensor over the mesh dimension 'dp_cp', " in output(tmp_path, rank)
    assert not (tmp_path / "audit").exists()


@pytest.mark.nightly
@pytest.mark.timeout(600)  # four processes with dozens of collectives per step: 45 s a round on a very busy machine
@pytest.mark.parametrize("parallel", ["tensor_parallel", "context_parallel"])
def test_ranks_that_share_samples_train_the_weights_of_one_process_over_two_changes(
    parallel: str, tmp_path: Path
) -> None:
    together, alone = tmp_path / "together", tmp_path / "alone"
    together.mkdir()
    alone.mkdir()
    options: dict[str, Any] = {"epochs": 2, "every_steps": 2, parallel: 2}
    assert run_round(ranks(1, alone, context_parallel=int(parallel == "context_parallel"))) == [0]
    for number, (world, steps) in enumerate(((4, 3), (2, 7), (4, 10**6)), start=1):
        codes = run_round(ranks(world, together, round=number, steps=steps, **options), timeout_s=180.0)
        assert codes == [0] * world, [output(together, rank) for rank in range(world)]

    verdict = report(together)
    assert [(span.world, span.first_step) for span in verdict.rounds] == [(4, 1), (2, 4), (4, 8)]
    assert (verdict.steps, verdict.samples_repeated, verdict.samples_missed) == (12, 0, 0)
    expected, trained = (torch.load(folder / "weights.pt") for folder in (alone, together))
    for one, other in zip(expected, trained, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-9)
    for number, rank in ((1, 0), (1, 2), (2, 0), (3, 0), (3, 2)):
        assert samples_of(together / "audit" / f"{number}.{rank}") == samples_of(
            together / "audit.1" / f"{number}.{rank + 1}"
        )
        assert drawn(together, number, rank) == drawn(together, number, rank + 1)
    assert drawn(together, 1, 0) != drawn(together, 1, 2)


def samples_of(audit: Path) -> list[tuple[int, ...]]:
    return [line.indices for line in parse(audit.read_text())]


def drawn(folder: Path, number: int, rank: int) -> str:
    return (folder / f"draws.{number}.{rank}").read_text()


@pytest.mark.nightly
def test_a_module_that_nothing_keeps_alike_is_refused_after_the_first_step(tmp_path: Path) -> None:
    assert run_round(ranks(3, tmp_path, epochs=1, every_steps=1, differs=True)) == [1, 1, 1]
    for rank in range(3):
        assert "SessionError: rank 2 has other values than rank 0 in own.bias and 1 more after step 1: " in output(
            tmp_path, rank
        )
    assert not list((tmp_path / "checkpoints").glob("step_*"))


@pytest.mark.nightly
def test_a_world_that_tensor_parallelism_does_not_divide_is_refused(tmp_path: Path) -> None:
    assert run_round(ranks(3, tmp_path, tensor_parallel=2)) == [1, 1, 1]
    for rank in range(3):
        assert (
            "SessionError: the world size, 3, is not a multiple of 2, so the mesh (dp 1 x tp 2) leaves out ranks: let "
            "rounds have a multiple of 2 processes, by nodes.multiple_of in the job file" in output(tmp_path, rank)
        )


def test_a_broken_newest_checkpoint_falls_back_for_all_ranks(tmp_path: Path) -> None:
    assert run_round(ranks(2, tmp_path, round=1, steps=4, every_steps=2)) == [0, 0]
    newest = tmp_path / "checkpoints" / "step_00000004"
    damaged = newest / "__1_0.distcp"
    damaged.write_bytes(bytes(damaged.stat().st_size))
    assert run_round(ranks(3, tmp_path, round=2, epochs=1)) == [0, 0, 0]
    assert f"spotsup: skipping checkpoint {newest}: " in output(tmp_path)
    assert "training goes on from step 2" in output(tmp_path)
    verdict = report(tmp_path)
    assert (verdict.changes[0].steps_lost, verdict.samples_repeated, verdict.samples_missed) == (2, 0, 0)
    assert (tmp_path / "checkpoints" / "LATEST").read_text() == "step_00000006"


@pytest.mark.nightly
def test_one_full_disk_costs_checkpoints_but_not_the_round(tmp_path: Path) -> None:
    jobs = ranks(2, tmp_path, epochs=1, every_steps=2, step_s=0.05)
    jobs[1] = replace(jobs[1], largest_file=2000)
    assert run_round(jobs) == [1, 1]  # only the last checkpoint must succeed
    problem = "the checkpoint of step {} could not be written to {}: rank 1: [Errno 27] File too large"
    folder = tmp_path / "checkpoints"
    assert f"spotsup: {problem.format(2, folder)}\n" in output(tmp_path)
    assert output(tmp_path).count("spotsup: ") == 2  # with what was arranged
    for rank in (0, 1):
        assert f"CheckpointError: the last checkpoint is missing: {problem.format(6, folder)}\n" in output(
            tmp_path, rank
        )
    assert report(tmp_path).steps == 6
    assert not list((tmp_path / "checkpoints").glob("step_*"))


@pytest.mark.nightly
def test_a_notice_during_evaluation_does_not_wait_for_the_next_step(tmp_path: Path) -> None:
    assert park_after(ranks(2, tmp_path, evaluate_after=3), step=3, asked=0) == 3


@pytest.mark.nightly
def test_a_notice_before_the_first_step_parks_at_once(tmp_path: Path) -> None:
    launcher = Launcher(ranks(2, tmp_path))
    launcher.file("YIELD", 1).touch()
    with running(launcher.jobs):
        wait("all ranks parked", launcher.all_parked)
    assert json.loads(launcher.file("PARKED").read_text()) == {"step": 0, "saved": True}
    assert not (tmp_path / "audit").exists()


def test_ranks_that_make_different_calls_get_an_error(tmp_path: Path) -> None:
    jobs = ranks(2, tmp_path, epochs=1)
    jobs[1] = replace(jobs[1], extra_point=True)
    assert run_round(jobs) == [1, 1]
    assert "SessionError: the ranks made different Session calls" in output(tmp_path, 0)
    assert "SessionError: the ranks made different Session calls" in output(tmp_path, 1)
