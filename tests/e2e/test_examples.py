"""The examples and the scripts in docs/training.md are run: they park, go on where they were, and see the same data."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Self

import pytest
import torch

from tests.programs import free_ports

REPO = Path(__file__).resolve().parents[2]
EXAMPLES = REPO / "trainer" / "examples"
IMAGENET = EXAMPLES / "imagenet.py"
DOCUMENT = (REPO / "docs" / "training.md").read_text()
SMOKE = ("--model", "tiny", "--fake-data", "160", "--global-batch", "8", "--epochs", "2", "--warmup", "10")
OFTEN = ("--log-every", "1", "--workers", "1")
STEPS = 40
PROCESSES = multiprocessing.get_context("forkserver")
# torch costs seconds to import and milliseconds to fork
PROCESSES.set_forkserver_preload(["tests.e2e.training", "spotsup_trainer.checkpoint"])


def run_script(path: Path, arguments: tuple[str, ...], environ: Mapping[str, str], output: Path) -> None:
    """Be an interpreter that was started on a script."""
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ.update(environ)
    torch.set_num_threads(1)
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.parent))
    runpy.run_path(str(path), run_name="__main__")


class Ranks:
    """A script in `world` processes, as torchrun would start them."""

    def __init__(self, path: Path, folder: Path, world: int, *arguments: str, **environ: str) -> None:
        (port,) = free_ports(1)
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world), **environ}
        shared |= {"GLOO_SOCKET_IFNAME": "lo", "SPOTSUP_CHECKPOINT_DIR": str(folder)}
        self._outputs = [folder / f"out.{port}.{rank}" for rank in range(world)]
        self._processes = []
        for rank, output in enumerate(self._outputs):
            own = {name: value.format(rank=rank) for name, value in shared.items()}
            own |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            self._processes.append(PROCESSES.Process(target=run_script, args=(path, arguments, own, output)))

    def __enter__(self) -> Self:
        for process in self._processes:
            process.start()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.join()

    def said(self, rank: int = 0) -> str:
        return self._outputs[rank].read_text() if self._outputs[rank].exists() else ""

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        def done() -> bool:
            failed = [rank for rank, process in enumerate(self._processes) if process.exitcode]
            assert not failed, f"before {what}: {self.said(failed[0])}"
            return condition()

        wait(what, done)

    def end(self) -> str:
        """Wait for a good end. What rank 0 printed."""
        self.wait("the end", lambda: all(process.exitcode == 0 for process in self._processes))
        return self.said()


def wait(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90.0
    while not condition():
        assert time.monotonic() < deadline, f"timed out waiting for {what}"
        time.sleep(0.01)


@contextmanager
def torchrun(folder: Path, *arguments: str, **environ: str) -> Iterator[Callable[[], str]]:
    """imagenet.py by plain torchrun in two processes; yields what it printed so far. Ends it, its workers too."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(IMAGENET)]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **environ}
    output = folder / f"torchrun.{time.monotonic_ns()}"
    with output.open("w") as file:
        process = subprocess.Popen(
            [*command, *arguments], env=environment, stdout=file, stderr=subprocess.STDOUT, cwd=folder
        )
    try:
        yield output.read_text
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)  # it ends its workers first
        process.wait(timeout=60)


def steps(text: str) -> dict[int, str]:
    """What was printed about each step."""
    return {int(line.split()[1]): line for line in text.splitlines() if line.startswith("step ")}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """The lines of a run of two processes that nobody disturbs."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    with Ranks(IMAGENET, folder, 2, *SMOKE, *OFTEN) as ranks:
        return steps(ranks.end())


@pytest.mark.e2e
def test_imagenet_goes_on_with_exact_data_and_schedule(tmp_path: Path, uninterrupted: dict[int, str]) -> None:
    yield_file, parked, checkpoints = (tmp_path / name for name in ("yield", "parked", "checkpoints"))
    environ = {"SPOTSUP_YIELD_FILE": str(yield_file), "SPOTSUP_PARKED_FILE": str(parked)}
    arguments = (*SMOKE, *OFTEN, "--checkpoint-dir", str(checkpoints))
    with torchrun(tmp_path, *arguments, "--step-time", "0.1", **environ) as said:
        wait("step 5", lambda: 5 in steps(said()))
        yield_file.touch()
        wait("parking", parked.exists)
        before = steps(said())
    stopped_after = json.loads(parked.read_text())["step"]
    assert 5 <= stopped_after < STEPS
    assert max(before) == stopped_after
    shutil.copytree(checkpoints, tmp_path / "copy")

    with torchrun(tmp_path, *arguments) as said:
        wait("the last step", lambda: STEPS in steps(said()))
        after = steps(said())
    assert min(after) == stopped_after + 1
    # same samples and same rates: the losses are the same to the last digit
    assert before | after == uninterrupted
    assert len(uninterrupted) == STEPS

    with Ranks(IMAGENET, tmp_path / "copy", 1, *SMOKE, *OFTEN, "--micro-batch", "3") as alone:
        of_one = steps(alone.end())
    assert list(of_one) == list(after)
    rates = [re.sub("world 2 (lr .*) loss.*", r"world 1 \1", line) for line in after.values()]
    assert [line.partition(" loss")[0] for line in of_one.values()] == rates


@pytest.mark.e2e
def test_the_difference_in_the_document_makes_the_example_of_a_script_without_spotsup(tmp_path: Path) -> None:
    (difference,) = re.findall(r"```diff\n(.*?)```", DOCUMENT, re.DOTALL)
    plain = IMAGENET.read_text()
    for hunk in difference.split("\n@@\n")[1:]:
        lines = hunk.strip("\n").splitlines()
        elastic = "".join(f"{line[1:]}\n" for line in lines if line[:1] != "-")
        assert plain.count(elastic) == 1, f"trainer/examples/imagenet.py does not have\n{elastic}"
        plain = plain.replace(elastic, "".join(f"{line[1:]}\n" for line in lines if line[:1] != "+"))
    assert "spotsup" not in plain.lower()
    assert "session" not in plain.lower()
    shutil.copy(EXAMPLES / "image_models.py", tmp_path)
    (tmp_path / "plain.py").write_text(plain)
    with Ranks(tmp_path / "plain.py", tmp_path, 2, *SMOKE, *OFTEN) as ranks:
        assert list(steps(ranks.end())) == list(range(1, STEPS + 1))


def script(name: str, folder: Path) -> Path:
    """A script of the document."""
    (text,) = re.findall(rf"<!-- script: {re.escape(name)} -->\n```python\n(.*?)```", DOCUMENT, re.DOTALL)
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.e2e
def test_a_script_of_the_document_parks_by_files_alone(tmp_path: Path) -> None:
    path = script("yield_file.py", tmp_path)
    files = {f"SPOTSUP_{name}_FILE": f"{tmp_path}/{name}.{{rank}}" for name in ("YIELD", "SESSION", "PARKED")}
    # only one of the two nodes is asked, once the periodic checkpoint of step 100 is there
    (tmp_path / "YIELD.1").symlink_to(tmp_path / "mine.pt")
    with Ranks(path, tmp_path, 2, **files) as ranks:
        ranks.wait("parking", lambda: all((tmp_path / f"PARKED.{rank}").exists() for rank in range(2)))
    assert all((tmp_path / f"SESSION.{rank}").exists() for rank in range(2))
    with Ranks(path, tmp_path, 1) as ranks:
        assert ranks.end() == "rank 0 goes on after step 101\n"


@pytest.mark.e2e
def test_a_stream_of_the_document_is_seen_once_over_changing_worlds(tmp_path: Path) -> None:
    path = script("stream.py", tmp_path)
    files = {f"SPOTSUP_{name}_FILE": f"{tmp_path}/{name}.{{rank}}" for name in ("YIELD", "PARKED")}
    # only one of the two nodes is asked, once the first step has taken the checkpoint directory
    (tmp_path / "YIELD.1").symlink_to(tmp_path / "OWNER")
    with Ranks(path, tmp_path, 2, **files) as ranks:
        ranks.wait("parking", lambda: all((tmp_path / f"PARKED.{rank}").exists() for rank in range(2)))
        lines = (ranks.said(0) + ranks.said(1)).splitlines()
    assert len(lines) in {2, 4}  # one step or two
    with Ranks(path, tmp_path, 1) as ranks:
        lines += ranks.end().splitlines()
    seen = [int(number) for line in lines for number in line.partition(":")[2].split()]
    assert sorted(seen) == list(range(12 * STEPS))


@pytest.fixture
def imagenet(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The names in imagenet.py."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return SimpleNamespace(**runpy.run_path(str(IMAGENET)))


@pytest.mark.parametrize(("name", "parameters"), [("resnet50", 25_557_032), ("efficientnet_b7", 66_347_960)])
def test_the_models_have_the_published_number_of_parameters(imagenet: Any, name: str, parameters: int) -> None:
    make_model, _ = imagenet.MODELS[name]
    with torch.device("meta"):
        model = make_model(1000)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


@pytest.mark.parametrize("name", ["resnet50", "efficientnet_b7"])
def test_the_models_shrink_images_as_published(imagenet: Any, name: str) -> None:
    make_model, size = imagenet.MODELS[name]
    with torch.device("meta"):
        model = make_model(1000).eval()
        assert model(torch.empty(2, 3, size, size)).shape == (2, 1000)
        maps = next(layer for layer in model if isinstance(layer, torch.nn.AdaptiveAvgPool2d))
        last = model[: list(model).index(maps)](torch.empty(2, 3, size, size))
    assert last.shape == {"resnet50": (2, 2048, 7, 7), "efficientnet_b7": (2, 2560, 19, 19)}[name]


def test_the_learning_rate_rises_and_falls(imagenet: Any) -> None:
    rates = [imagenet.learning_rate(step, 10, 100, 0.5) for step in range(1, 101)]
    assert rates[:10] == pytest.approx([0.05 * step for step in range(1, 11)])
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert rates[10] == 0.5
    assert 0 < rates[-1] < 0.001


def test_curves_take_back_what_a_lost_run_wrote(
    imagenet: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)  # as where tensorboard is not installed
    imagenet.Curves(tmp_path, 0, 1).add(1, {"loss": 2.0})
    assert capsys.readouterr().out == "tensorboard is not installed: no curves are written\n"

    calls: list[Any] = []

    class SummaryWriter:
        def __init__(self, folder: str, purge_step: int) -> None:
            calls.append((folder, purge_step))

        def add_scalar(self, name: str, value: float, step: int) -> None:
            calls.append((name, value, step))

        def flush(self) -> None:
            calls.append("flush")

    stand_in = ModuleType("torch.utils.tensorboard")
    stand_in.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]  # a module made here
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", stand_in)
    imagenet.Curves(tmp_path, 0, 31).add(31, {"loss": 2.0})
    imagenet.Curves(tmp_path, 1, 31).add(31, {"loss": 2.0})  # not rank 0
    imagenet.Curves(None, 0, 31).add(31, {"loss": 2.0})
    assert calls == [(str(tmp_path), 31), ("loss", 2.0, 31), "flush"]


def test_fake_images_are_the_same_everywhere(imagenet: Any) -> None:
    image, label = imagenet.FakeImages(10, 8)[7]
    again, same_label = imagenet.FakeImages(100, 8)[7]
    assert (image.shape, image.dtype, label) == ((3, 8, 8), torch.uint8, same_label)
    assert torch.equal(image, again)


def test_crops_lie_inside_of_the_image(imagenet: Any) -> None:
    for width, height in ((500, 375), (1, 1), (3, 900)):
        for _ in range(200):
            left, top, right, bottom = imagenet.random_crop(width, height)
            assert 0 <= left < right <= width
            assert 0 <= top < bottom <= height


def test_a_folder_of_images_needs_pillow_and_images(
    imagenet: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(SystemExit, match="pip install pillow"):
        imagenet.ImageFolder(tmp_path, 4)
    monkeypatch.setitem(sys.modules, "PIL.Image", ModuleType("PIL.Image"))
    with pytest.raises(SystemExit, match="is not a folder"):
        imagenet.ImageFolder(tmp_path / "nothing", 4)
    (tmp_path / "dog").mkdir()
    with pytest.raises(SystemExit, match="has no images"):
        imagenet.ImageFolder(tmp_path, 4)
    for name in ("dog/b.JPEG", "dog/a.png", "cat/z.jpg", "cat/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    folder = imagenet.ImageFolder(tmp_path, 4)
    assert (folder.classes, len(folder)) == (2, 3)
    assert [(path.name, label) for path, label in folder._files] == [("z.jpg", 0), ("a.png", 1), ("b.JPEG", 1)]
