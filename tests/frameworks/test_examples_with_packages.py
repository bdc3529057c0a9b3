"""imagenet.py with what it can do without, but a researcher has: TensorBoard, Pillow, and a compiler."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.launching import BUSY_S
from tests.e2e.ranks import IMAGENET, OFTEN, SMOKE, STEPS, Ranks, steps, until_parked, wait
from tests.support.programs import free_ports


def values(lines: dict[int, str], name: str) -> dict[int, float]:
    """What the lines about each step say of a number."""
    return {step: float(line.split(f" {name} ")[1].split()[0]) for step, line in lines.items()}


def as_read(folder: Path, tag: str) -> list[tuple[int, float]]:
    """A curve as TensorBoard's own reader reads it."""
    package: Any = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    reader = package.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    reader.Reload()
    return [(event.step, event.value) for event in reader.Scalars(tag)]


def as_shown(folder: Path, tag: str) -> list[tuple[int, float]]:
    """A curve as `tensorboard --logdir` shows it to people."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--host", "127.0.0.1"]
    address = f"http://127.0.0.1:{port}/data/plugin/scalars/scalars?run=.&tag={tag}"
    shown: list[Any] = []

    def is_there() -> bool:
        with contextlib.suppress(OSError, ValueError), urllib.request.urlopen(address, timeout=5.0) as answer:
            shown[:] = json.load(answer)
        return bool(shown)

    process = subprocess.Popen([*command, "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait("TensorBoard", is_there, BUSY_S)
    finally:
        process.terminate()
        process.wait(timeout=30)
    return [(step, value) for _, step, value in shown]


def test_curves_go_on_over_a_recovery_as_one(tmp_path: Path) -> None:
    curves = tmp_path / "curves"
    arguments = (*SMOKE, *OFTEN, "--checkpoint-every", "10", "--tensorboard", str(curves))
    with Ranks(IMAGENET, tmp_path, 2, *arguments, "--step-time", "0.05") as lost:
        lost.wait("steps after a checkpoint", lambda: 25 in steps(lost.output()), BUSY_S)
        before = steps(lost.output())
    with Ranks(IMAGENET, tmp_path, 1, *arguments) as alone:
        after = steps(alone.end(BUSY_S))
    assert 10 < min(after) <= 25, "some steps were lost, and are done again"
    assert "tensorboard is not installed" not in lost.output()

    lines = {step: line for step, line in before.items() if step < min(after)} | after
    for tag, name in (("loss", "loss"), ("lr", "lr"), ("processes", "world")):
        printed = values(lines, name)
        for curve in (as_read(curves, tag), as_shown(curves, tag)):
            assert [step for step, _ in curve] == list(range(1, STEPS + 1))
            assert dict(curve) == pytest.approx(printed, abs=1e-5)
    assert {2, 1} == {value for _, value in as_read(curves, "processes")}


def test_of_a_step_that_was_written_twice_tensorboard_shows_the_later_value(tmp_path: Path) -> None:
    """As a framework's logger writes them, which knows of no purge_step."""
    package: Any = importlib.import_module("torch.utils.tensorboard")
    for start, end, value in ((1, 10, 1.0), (6, 15, 2.0)):
        writer = package.SummaryWriter(str(tmp_path), filename_suffix=f".{start}")
        for step in range(start, end):
            writer.add_scalar("loss", value, step)
        writer.close()
        time.sleep(1.0)  # a file's name has its second, by which TensorBoard orders them
    assert as_shown(tmp_path, "loss") == [(step, 1.0 if step < 6 else 2.0) for step in range(1, 15)]


def test_a_folder_of_images_is_trained_on(tmp_path: Path) -> None:
    pil: Any = importlib.import_module("PIL.Image")
    sizes = {"red/wide.png": (50, 20), "red/grey.jpg": (9, 40), "blue/small.jpeg": (3, 3), "blue/palette.bmp": (30, 30)}
    modes = {"red/grey.jpg": "L", "blue/palette.bmp": "P"}
    for name, size in sizes.items():
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pil.new(modes.get(name, "RGB"), size, 200).save(path)
    arguments = ("--model", "tiny", "--data", str(tmp_path / "images"), "--global-batch", "4", "--epochs", "3")
    with Ranks(IMAGENET, tmp_path, 2, *arguments, *OFTEN, "--image-size", "16") as ranks:
        losses = values(steps(ranks.end(BUSY_S)), "loss")
    assert list(losses) == [1, 2, 3]
    assert all(0.0 < loss < 2.0 for loss in losses.values())


def compiling(folder: Path, **environ: str) -> dict[str, str]:
    """An environment where nothing is compiled yet, and where nothing compiles after the end."""
    return {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "TORCHINDUCTOR_COMPILE_THREADS": "1", **environ}


@pytest.mark.skipif(not shutil.which(os.environ.get("CXX", "g++")), reason="torch.compile needs a C++ compiler on CPU")
def test_a_compiled_model_goes_on_as_one_that_is_not(tmp_path: Path) -> None:
    mixed = ("--amp", "bf16", "--channels-last")
    arguments = (*SMOKE, *OFTEN, *mixed, "--compile")
    first = steps(until_parked(IMAGENET, tmp_path, 1, *arguments, timeout_s=300.0, **compiling(tmp_path))[0])
    assert list((tmp_path / "inductor").rglob("*.so")), "nothing was compiled"
    with Ranks(IMAGENET, tmp_path, 2, *SMOKE, *OFTEN, *mixed) as ranks:
        losses = values(first | steps(ranks.end(BUSY_S)), "loss")
    (tmp_path / "alone").mkdir()
    with Ranks(IMAGENET, tmp_path / "alone", 2, *SMOKE, *OFTEN, *mixed) as ranks:
        never_compiled = values(steps(ranks.end(BUSY_S)), "loss")
    assert losses == pytest.approx(never_compiled, rel=1e-2)


def test_without_a_compiler_the_first_compiled_step_says_so(tmp_path: Path) -> None:
    environ = compiling(tmp_path, CXX=str(tmp_path / "no compiler"))
    with Ranks(IMAGENET, tmp_path, 1, *SMOKE, *OFTEN, "--compile", **environ) as ranks:
        wait("the error", lambda: "No working C++ compiler found" in ranks.output(), BUSY_S)
        assert not steps(ranks.output())
