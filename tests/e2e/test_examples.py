"""The examples and the scripts about training are run: they park, go on where they were, and see the same data."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from spotsup_trainer.session import Session

from tests.e2e.ranks import EXAMPLES, IMAGENET, OFTEN, SMOKE, STEPS, Ranks, script, steps, until_parked, wait
from tests.support.combinations import others_nightly
from tests.support.documents import blocks


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


@pytest.fixture
def imagenet(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The names in imagenet.py."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return SimpleNamespace(**runpy.run_path(str(IMAGENET)))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """The lines of a run of two processes without interruption."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    with Ranks(IMAGENET, folder, 2, *SMOKE, *OFTEN) as ranks:
        return steps(ranks.end())


@pytest.mark.nightly
def test_imagenet_goes_on_with_exact_data_and_schedule(tmp_path: Path, uninterrupted: dict[int, str]) -> None:
    yield_file, parked, checkpoints = (tmp_path / name for name in ("yield", "parked", "checkpoints"))
    environ = {"SPOTSUP_YIELD_FILE": str(yield_file), "SPOTSUP_PARKED_FILE": str(parked)}
    arguments = (*SMOKE, *OFTEN, "--checkpoints", str(checkpoints))
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

    mixed = ("--micro-batch", "3", "--amp", "bf16", "--channels-last")
    with Ranks(IMAGENET, tmp_path / "copy", 1, *SMOKE, *OFTEN, *mixed) as alone:
        of_one = steps(alone.end())
    assert list(of_one) == list(after)
    rates = [re.sub("world 2 (lr .*) loss.*", r"world 1 \1", line) for line in after.values()]
    assert [line.partition(" loss")[0] for line in of_one.values()] == rates


def test_the_gradient_scaler_of_fp16_goes_on_where_it_was(imagenet: Any, tmp_path: Path) -> None:
    arguments = (*SMOKE, *OFTEN, "--amp", "fp16", "--epochs", "1")
    until_parked(IMAGENET, tmp_path, 2, *arguments)
    with Ranks(IMAGENET, tmp_path, 1, *arguments) as alone:
        assert min(steps(alone.end())) > 1
    make_model, _ = imagenet.MODELS["tiny"]
    trained = imagenet.Trainer(make_model(1000), imagenet.parse(list(arguments)), torch.device("cpu"), STEPS // 2)
    state = {"model": trained.model, "optimizer": trained.optimizer, "scaler": trained.scaler}
    state |= {"schedule": trained.schedule, "best": {}}
    assert Session(state, checkpoints=tmp_path).steps_done == STEPS // 2
    assert trained.scaler.state_dict()["_growth_tracker"] == STEPS // 2, "steps since a gradient was not finite"


DIFFERENCES = {block.file: block.text for block in blocks(EXAMPLES / "README.md", "diff")}
PLAIN_RUNS = {
    "char_transformer.py": (
        *("--steps", str(STEPS), "--global-batch", "16", "--micro-batch", "4", "--log-every", "1"),
        *("--text-mb", "0.05", "--dim", "32", "--layers", "1", "--seq", "32"),
    ),
    "imagenet.py": (*SMOKE, *OFTEN, "--micro-batch", "4", "--fake-val", "20"),
    "language_model.py": (
        *("--model", "tiny", "--steps", str(STEPS), "--global-batch", "16", "--micro-batch", "4"),
        *("--log-every", "1", "--workers", "0", "--validate-every", "20", "--validate-batches", "1"),
    ),
}


@pytest.mark.parametrize("name", others_nightly(list(PLAIN_RUNS)[:1], PLAIN_RUNS))
def test_the_difference_in_the_document_makes_the_example_of_a_script_without_spotsup(
    name: str, tmp_path: Path
) -> None:
    plain = (EXAMPLES / name).read_text()
    for hunk in DIFFERENCES[name].split("\n@@\n")[1:]:
        lines = hunk.strip("\n").splitlines()
        elastic = "".join(f"{line[1:]}\n" for line in lines if line[:1] != "-")
        assert plain.count(elastic) == 1, f"trainer/examples/{name} does not have\n{elastic}"
        plain = plain.replace(elastic, "".join(f"{line[1:]}\n" for line in lines if line[:1] != "+"))
    assert "spotsup" not in plain.lower()
    assert "session" not in plain.lower()
    for beside in ("image_index.py", "image_models.py", "char_transformer.py"):
        shutil.copy(EXAMPLES / beside, tmp_path)
    (tmp_path / "plain.py").write_text(plain)
    with Ranks(tmp_path / "plain.py", tmp_path, 2, *PLAIN_RUNS[name]) as ranks:
        assert list(steps(ranks.end())) == list(range(1, STEPS + 1))


def test_the_document_has_the_difference_of_each_example_that_trains() -> None:
    assert {each.name for each in EXAMPLES.glob("*.py") if "import Session" in each.read_text()} == set(PLAIN_RUNS)


@pytest.mark.parametrize("name", PLAIN_RUNS)
def test_eight_lines_of_code_make_an_example_elastic(name: str) -> None:
    _, docstring, *code = DIFFERENCES[name].split("\n@@\n")
    assert '"""' in docstring
    added = [line[1:].strip() for hunk in code for line in hunk.splitlines() if line[:1] == "+" and line[1:].strip()]
    options = [line for line in added if line.startswith('add("--checkpoint')]
    assert len(added) - len(options) <= 8
    assert len(options) <= 2


@pytest.mark.nightly
def test_the_two_scripts_side_by_side(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("not_elastic", "undisturbed", "disturbed")]
    for folder in folders:
        folder.mkdir()
    printed = []
    for name, folder in zip(("not_elastic.py", "elastic.py"), folders, strict=False):
        with Ranks(script(name, folder), folder, 2) as ranks:
            printed.append(steps(ranks.end()))
    assert [list(lines) for lines in printed] == [list(range(1, 201))] * 2
    for lines in printed:
        assert float(lines[200].split()[-1]) < 0.1 * float(lines[1].split()[-1])

    disturbed = folders[2]
    path = script("elastic.py", disturbed)
    lines = steps(until_parked(path, disturbed, 2)[0])
    with Ranks(path, disturbed, 2) as ranks:
        after = steps(ranks.end())
    assert not lines.keys() & after.keys()
    assert lines | after == printed[1]


def test_without_a_job_an_example_is_an_ordinary_script(tmp_path: Path) -> None:
    small = ("--text-mb", "0.02", "--dim", "32", "--layers", "1", "--seq", "32", "--steps", "3", "--log-every", "1")
    said = interpreter([str(EXAMPLES / "char_transformer.py"), *small], tmp_path)
    assert list(steps(said)) == [1, 2, 3]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
def test_a_session_in_a_notebook_goes_on_where_the_last_one_stopped(tmp_path: Path) -> None:
    cell = (
        "import torch\n"
        "from spotsup_trainer.session import Session\n"
        "model = torch.nn.Linear(2, 1)\n"
        "session = Session({'model': model}, checkpoints='checkpoints')\n"
        "print(session.steps_done, float(model.bias.detach()))\n"
        "torch.nn.init.constant_(model.bias, 7.0)\n"
        "session.step()\n"
        "session.finish()\n"
    )
    assert interpreter(["-"], tmp_path, cell).startswith("0 ")
    assert interpreter(["-"], tmp_path, cell) == "1 7.0\n"


def interpreter(arguments: list[str], folder: Path, text: str = "") -> str:
    """What a new interpreter prints that is no worker of anything."""
    ours = ("SPOTSUP_", "TORCHELASTIC_", "MASTER_")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, input=text, env=environ, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.nightly
def test_a_script_of_the_document_parks_by_files_alone(tmp_path: Path) -> None:
    path = script("yield_file.py", tmp_path)
    files = {f"SPOTSUP_{name}_FILE": f"{tmp_path}/{name}.{{rank}}" for name in ("YIELD", "SESSION", "PARKED")}
    # only one of the two nodes is asked, once the periodic checkpoint of step 100 is there
    (tmp_path / "YIELD.1").symlink_to(tmp_path / "mine.pt")
    with Ranks(path, tmp_path, 2, **files) as ranks:
        ranks.wait("parking", lambda: all((tmp_path / f"PARKED.{rank}").exists() for rank in range(2)))
    assert all((tmp_path / f"SESSION.{rank}").exists() for rank in range(2))
    with Ranks(path, tmp_path, 1) as ranks:
        assert ranks.end() == "rank 0 resumes after step 101\n"


@pytest.mark.nightly
def test_a_stream_of_the_document_is_seen_once_over_changing_worlds(tmp_path: Path) -> None:
    path = script("stream.py", tmp_path)
    text = "".join(until_parked(path, tmp_path, 2))
    assert text.count("step ") in {2, 4}  # one step or two
    with Ranks(path, tmp_path, 1) as ranks:
        text += ranks.end()
    lines = [line for line in text.splitlines() if line.startswith("step ")]
    seen = [int(number) for line in lines for number in line.partition(":")[2].split()]
    assert sorted(seen) == list(range(12 * STEPS))


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


def test_torch_compile_sees_the_whole_model(imagenet: Any) -> None:
    graphs = []

    def compiler(graph: Any, _: object) -> Any:
        graphs.append(graph)
        return graph.forward

    with torch.device("meta"):
        models = [make_model(10) for make_model, _ in imagenet.MODELS.values()]
        model = imagenet.MODELS["tiny"][0](10)
        model.compile(backend=compiler)
        model(torch.empty(2, 3, 32, 32))
    assert len(graphs) == 1
    assert {type(other).forward for other in models} == {type(model).forward}


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


def test_the_middle_of_an_image_is_a_square_of_seven_eighths(imagenet: Any) -> None:
    assert imagenet.middle_crop(256, 256) == (16, 16, 240, 240)
    assert imagenet.middle_crop(500, 375) == (86, 23, 414, 351)
    assert imagenet.middle_crop(1, 900) == (0, 449, 1, 450)


def test_the_accuracy_is_measured_after_each_epoch_and_the_best_model_is_kept(imagenet: Any, tmp_path: Path) -> None:
    arguments = (*SMOKE, *OFTEN, "--fake-val", "30", "--best", str(tmp_path / "best"))
    with Ranks(IMAGENET, tmp_path, 2, *arguments, "--micro-batch", "4") as ranks:
        said = ranks.end()
    measured = re.findall(r"^epoch (\d) accuracy ([\d.]+) best ([\d.]+)$", said, re.MULTILINE)
    assert [number for number, _, _ in measured] == ["1", "2"]
    best = max(float(found) for _, found, _ in measured)
    assert float(measured[-1][2]) == best
    kept = torch.load(tmp_path / "best" / "best.pt", weights_only=True)
    assert kept["accuracy"] == pytest.approx(best, abs=1e-4)
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["best.pt"]
    make_model, size = imagenet.MODELS["tiny"]
    model = make_model(1000)
    model.load_state_dict(kept["model"])
    options = imagenet.parse(list(arguments))
    trainer = imagenet.Trainer(model, options, torch.device("cpu"), STEPS)
    found = imagenet.accuracy(trainer, imagenet.FakeImages(30, size), options, lambda: None)
    assert found == pytest.approx(kept["accuracy"], abs=2 / 30), "ranks' statistics of batches differ by a step"


@pytest.mark.nightly
def test_an_epoch_whose_measuring_was_interrupted_is_measured_when_training_goes_on(tmp_path: Path) -> None:
    small = ("--model", "tiny", "--fake-data", "16", "--global-batch", "8", "--epochs", "2", "--warmup", "1")
    arguments = (*small, *OFTEN, "--fake-val", "64", "--micro-batch", "4", "--step-time", "0.01")
    files = {f"SPOTSUP_{name}_FILE": f"{tmp_path}/{name}.{{rank}}" for name in ("YIELD", "PARKED", "PROGRESS")}
    with Ranks(IMAGENET, tmp_path, 2, *arguments, **files) as ranks:
        ranks.wait("step 2", lambda: 2 in steps(ranks.output()))
        (tmp_path / "YIELD.1").touch()
        parked = [tmp_path / f"PARKED.{rank}" for rank in range(2)]
        ranks.wait("parking", lambda: all(file.exists() for file in parked))
        before = ranks.output()
    with Ranks(IMAGENET, tmp_path, 2, *arguments) as ranks:
        after = ranks.end()
    measured = re.findall(r"^epoch (\d) accuracy", before + after, re.MULTILINE)
    assert measured == ["1", "2"]


def test_classes_of_validation_must_be_those_of_training(
    imagenet: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", ModuleType("PIL.Image"))
    for name in ("train/n01/a.jpg", "train/n02/b.jpg", "val/n02/c.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    options = imagenet.parse(["--data", str(tmp_path / "train"), "--val", str(tmp_path / "val")])
    with pytest.raises(SystemExit, match="has other classes than --data"):
        imagenet.datasets(options, 8)


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
    assert (folder.classes, len(folder)) == (["cat", "dog"], 3)
    assert folder._files == [("cat/z.jpg", 0), ("dog/a.png", 1), ("dog/b.JPEG", 1)]
