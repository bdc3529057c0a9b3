"""The callbacks for Lightning and Hugging Face: real processes, gloo and files; stand-ins for the frameworks."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from spotsup_trainer import callbacks, wire
from spotsup_trainer.callbacks.parking import Parking
from torch.distributed import TCPStore

from tests.integration.frameworks import BATCH, BATCHES_PER_STEP, Rank, begin, look, stand_in, train

pytestmark = pytest.mark.long

FRAMEWORKS = ("lightning.pytorch", "pytorch_lightning", "transformers")
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    ["tests.integration.frameworks"]
)  # torch costs seconds to import, milliseconds to fork


@contextmanager
def running(jobs: list[Rank], what: Callable[[Rank], None] = train) -> Iterator[list[Any]]:
    """A process per rank; none is left."""
    processes = [PROCESSES.Process(target=what, args=(job,)) for job in jobs]
    for process in processes:
        process.start()
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.join()


def wait(what: str, processes: list[Any], condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < deadline, f"timed out waiting for {what}"
        assert not any(process.exitcode for process in processes), f"a rank failed before {what}"
        time.sleep(0.01)


def wait_for_the_end(processes: list[Any]) -> None:
    wait("the end", processes, lambda: all(process.exitcode == 0 for process in processes))


def file(job: Rank, name: str) -> Path:
    return job.folder / f"{name}.{job.round}.{job.rank}"


def ranks(framework: str, world: int, folder: Path, number: int, steps: int) -> list[Rank]:
    jobs = [Rank(framework, rank, world, folder, number, steps) for rank in range(world)]
    names = ("YIELD", "SESSION", "PARKED", "PROGRESS")
    return [replace(job, environ={f"SPOTSUP_{name}_FILE": str(file(job, name)) for name in names}) for job in jobs]


def progress(jobs: list[Rank]) -> wire.Progress | None:
    path = file(jobs[0], "PROGRESS")
    return wire.decode(wire.Progress, path.read_bytes()) if path.exists() else None


def checkpoint_steps(folder: Path) -> list[int]:
    names = (path.name.removesuffix(".ckpt") for path in (folder / "checkpoints").iterdir())
    return sorted(int(name.removeprefix("step_").removeprefix("checkpoint-")) for name in names)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_all_ranks_save_the_same_step_and_park_and_others_go_on_from_it(framework: str, tmp_path: Path) -> None:
    jobs = ranks(framework, 2, tmp_path, 1, 10**6)
    with running(jobs) as processes:
        wait("step 4", processes, lambda: (output := progress(jobs)) is not None and output.step >= 4)
        assert all(file(job, "SESSION").exists() for job in jobs)
        file(jobs[1], "YIELD").touch()  # only one of the two nodes is asked
        wait("all parked", processes, lambda: all(file(job, "PARKED").exists() for job in jobs))
        assert all(process.is_alive() for process in processes)
    parked = [json.loads(file(job, "PARKED").read_text()) for job in jobs]
    step = parked[0]["step"]
    assert parked == [{"step": step, "saved": True}] * 2
    assert checkpoint_steps(tmp_path)[-1] == step
    output = progress(jobs)
    assert output is not None
    assert (output.round, output.step, output.checkpoint_step) == (1, step, step)
    assert output.samples == step * BATCHES_PER_STEP * BATCH * 2
    # transformers logs a step after the callback has reported it
    assert output.loss in (pytest.approx(1 / step), pytest.approx(1 / (step - 1)))

    alone = ranks(framework, 1, tmp_path, 2, step + 5)
    with running(alone) as processes:
        wait_for_the_end(processes)
    assert f"{step}" in file(alone[0], "resumed").read_text()
    assert checkpoint_steps(tmp_path)[-1] in range(step + 3, step + 6)
    output = progress(alone)
    assert output is not None
    assert (output.step, output.checkpoint_step) == (step + 5, checkpoint_steps(tmp_path)[-1])
    assert output.samples == BATCHES_PER_STEP * BATCH * (2 * step + 5), "two ranks, then one"


def test_lightning_keeps_the_newest_and_takes_nothing_unfinished(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step_00000099.ckpt.tmp").mkdir()  # a killed process's, of a strategy that shards
    jobs = ranks("lightning.pytorch", 1, tmp_path, 1, 10)
    with running(jobs) as processes:
        wait_for_the_end(processes)
    assert file(jobs[0], "resumed").read_text() == "None"
    assert checkpoint_steps(tmp_path) == [6, 9]


def test_lightning_saves_before_each_validation_in_a_job_only(tmp_path: Path) -> None:
    (job,) = ranks("lightning.pytorch", 1, tmp_path / "job", 1, 5)
    outside = replace(job, folder=tmp_path / "outside", environ={})
    for each, saved in ((job, [3, 4]), (outside, [3])):
        each.folder.mkdir()
        with running([replace(each, validate_every=4)]) as processes:  # after steps 2 and 4
            wait_for_the_end(processes)
        assert checkpoint_steps(each.folder) == saved


def test_the_last_step_of_a_hugging_face_training_does_not_park(tmp_path: Path) -> None:
    (job,) = ranks("transformers", 1, tmp_path, 1, 1)
    file(job, "YIELD").touch()
    with running([job]) as processes:
        wait_for_the_end(processes)
    assert checkpoint_steps(tmp_path) == [1]
    assert not file(job, "PARKED").exists()


def test_all_ranks_resume_from_what_rank_0_sees(tmp_path: Path) -> None:
    launcher = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environ = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(launcher.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    jobs = [replace(job, environ=environ, steps=20 - job.rank) for job in ranks("", 3, tmp_path, 1, 0)]
    with running(jobs, look) as processes:
        wait_for_the_end(processes)
    assert [file(job, "seen").read_text() for job in jobs] == ["20 21"] * 3


def test_ranks_that_resumed_from_different_checkpoints_do_not_train(tmp_path: Path) -> None:
    jobs = [replace(job, steps=20 - job.rank) for job in ranks("", 2, tmp_path, 1, 0)]
    with running(jobs, begin) as processes:
        wait_for_the_end(processes)
    assert (
        file(jobs[1], "error").read_text().startswith("rank 1 resumes after step 19, others after 19 to 20: all must ")
    )
    assert file(jobs[0], "error").exists()


def test_a_half_written_hugging_face_checkpoint_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", stand_in("transformers"))
    newest = callbacks.SpotsupTrainerCallback.newest
    assert newest(tmp_path / "nothing") is None
    for step, state in ((20, "{}"), (100, '{"global_step": 100}'), (120, '{"global_step": 1'), (140, None)):
        (tmp_path / f"checkpoint-{step}").mkdir()
        if state is not None:
            (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(state)
    (tmp_path / "checkpoint-best").mkdir()
    assert newest(tmp_path) == str(tmp_path / "checkpoint-100")


def test_a_job_begins_with_the_checkpoint_of_an_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for framework in ("transformers", "lightning.pytorch"):
        monkeypatch.setitem(sys.modules, framework, stand_in(framework))
    earlier, own = tmp_path / "earlier", tmp_path / "own"
    monkeypatch.setenv("SPOTSUP_RESUME_FROM", os.pathsep.join([str(tmp_path / "none"), str(earlier)]))
    (earlier / "checkpoint-7").mkdir(parents=True)
    (earlier / "checkpoint-7" / "trainer_state.json").write_text("{}")
    (earlier / "step_00000007.ckpt").touch()
    lightning = callbacks.SpotsupLightningCallback(own)
    assert callbacks.SpotsupTrainerCallback.newest(own) == str(earlier / "checkpoint-7")
    assert lightning.newest() == str(earlier / "step_00000007.ckpt")
    own.mkdir()
    (own / "step_00000002.ckpt").touch()
    assert lightning.newest() == str(own / "step_00000002.ckpt"), "its own counts more"


def test_outside_a_job_nothing_is_asked_for() -> None:
    parking = Parking(environ={})
    assert not parking.step_done(1)


def test_loss_and_samples_of_a_step_are_reported(tmp_path: Path) -> None:
    environ = {"SPOTSUP_YIELD_FILE": str(tmp_path / "yield"), "SPOTSUP_PROGRESS_FILE": str(tmp_path / "progress")}
    at = [100.0]
    parking = Parking(4, environ=environ, clock=lambda: at[0])

    def reported(**more: Any) -> tuple[float | None, int]:
        at[0] += 1.0
        parking.step_done(int(at[0]), **more)
        found = wire.decode(wire.Progress, (tmp_path / "progress").read_bytes())
        return found.loss, found.samples

    assert reported() == (None, 0)
    assert reported(loss=torch.tensor([2.5], requires_grad=True), samples=64) == (2.5, 64)
    assert reported(samples=128) == (2.5, 128), "a loss that is known every few steps stays"
    assert reported(loss=1.5, samples=192) == (1.5, 192)
    assert reported(loss=float("nan"), samples=256) == (None, 256)


class OnGpu(torch.Tensor):  # type: ignore[misc]  # torch is untyped here
    """A loss that says it is on a GPU: whoever reads its value fails, as torch's own check for synchronisation does."""

    device = torch.device("cuda", 0)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ in {"item", "__float__", "__bool__", "tolist", "cpu", "numpy"}:
            raise AssertionError(f"{func.__name__} waits for the GPU")
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_loss_on_a_gpu_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ready = [False]
    monkeypatch.setattr(torch.cuda, "Event", lambda: SimpleNamespace(record=lambda: None, query=lambda: ready[0]))
    empty = torch.empty
    # pinned memory needs a GPU, too
    monkeypatch.setattr(torch, "empty", lambda *size, **options: empty(*size, **(options | {"pin_memory": False})))
    environ = {"SPOTSUP_YIELD_FILE": str(tmp_path / "yield"), "SPOTSUP_PROGRESS_FILE": str(tmp_path / "progress")}
    parking = Parking(environ=environ)
    loss = torch.tensor(0.5).as_subclass(OnGpu)
    with pytest.raises(AssertionError, match="waits for the GPU"):
        float(loss)

    def known() -> float | None:
        parking.ended()
        return wire.decode(wire.Progress, (tmp_path / "progress").read_bytes()).loss

    parking.step_done(1, loss=loss)
    assert known() is None, "it is under way"
    parking.step_done(2, loss=loss)
    ready[0] = True
    assert known() == 0.5


def test_a_step_that_was_not_saved_is_not_called_saved(tmp_path: Path) -> None:
    environ = {"SPOTSUP_YIELD_FILE": str(tmp_path / "yield"), "SPOTSUP_PARKED_FILE": str(tmp_path / "parked")}
    parking = Parking(environ=environ, park_timeout_s=0.0)
    assert not parking.step_done(6)
    parking.saved()
    (tmp_path / "yield").touch()
    assert parking.step_done(7)
    with pytest.raises(SystemExit, match="parked after step 7"):
        parking.park()
    assert json.loads((tmp_path / "parked").read_text()) == {"step": 7, "saved": False}


@pytest.mark.parametrize("name", ["SpotsupLightningCallback", "SpotsupTrainerCallback"])
def test_without_the_framework_the_error_says_what_is_missing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:

    for module in FRAMEWORKS:
        monkeypatch.setitem(sys.modules, module, None)
    for module in ("lightning", "hugging_face"):
        monkeypatch.delitem(sys.modules, f"spotsup_trainer.callbacks.{module}", raising=False)
    with pytest.raises(ImportError, match=f"{name} needs"):
        getattr(callbacks, name)


def test_a_wrong_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="SpotsupKerasCallback"):
        _ = callbacks.SpotsupKerasCallback
