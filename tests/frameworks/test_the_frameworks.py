"""What our callbacks and their stand-ins (tests/integration/frameworks.py) take for granted, seen in the frameworks."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from spotsup_trainer import callbacks

from tests.integration import frameworks

LIGHTNING_HOOKS = ("on_train_start", "on_train_batch_end", "on_validation_start", "on_train_end")
TRANSFORMERS_HOOKS = ("on_train_begin", "on_step_end", "on_log", "on_save", "on_train_end")
SAMPLES = 10

# The frameworks' own warnings are not ours to fix.
pytestmark = pytest.mark.filterwarnings("ignore")


class Numbers(torch.utils.data.Dataset):  # type: ignore[misc]  # torch is untyped here
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.full((2,), float(index)), "labels": torch.zeros(1)}


class Net(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": torch.nn.functional.mse_loss(self.layer(x), labels)}


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of this process, for the stand-ins."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def recorder(base: type, hooks: tuple[str, ...], calls: list[tuple[str, int]]) -> Any:
    """A callback that notes which of `hooks` are called, and with how many positional arguments."""

    def note(name: str) -> Callable[..., None]:
        return lambda _self, *arguments, **_: calls.append((name, len(arguments)))

    return type("Recorder", (base,), {name: note(name) for name in hooks} | {"state": lambda _: {}})()


def lightning(
    folder: Path, accumulate: int, epochs: int, *more: Any, resume: str | None = None, validate: bool = True
) -> tuple[list[tuple[Any, ...]], int]:
    """Train; per training batch (epoch, batch, optimizer steps before it), and the steps in the end."""
    pl: Any = importlib.import_module("lightning.pytorch")
    seen: list[tuple[Any, ...]] = []

    class Module(pl.LightningModule):  # type: ignore[misc]  # not installed where mypy runs
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: Any, number: int) -> Any:
            seen.append((self.trainer.current_epoch, number, self.trainer.global_step))
            return self.net(**batch)["loss"]

        def validation_step(self, batch: Any, _: int) -> None:
            self.net(**batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 1e-3)

    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=epochs,
        accumulate_grad_batches=accumulate,
        callbacks=[item for item in more if isinstance(item, pl.Callback)],
        plugins=[item for item in more if not isinstance(item, pl.Callback)],
        val_check_interval=4 if validate else None,
        limit_val_batches=1.0 if validate else 0,
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        logger=False,
        num_sanity_val_steps=1,
    )
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=1)
    trainer.fit(Module(), loader, loader, ckpt_path=resume)
    return seen, trainer.global_step


@pytest.mark.parametrize("accumulate", [1, 3])
def test_every_checkpoint_of_lightning_goes_on_with_the_next_batch(accumulate: int, tmp_path: Path) -> None:
    every = callbacks.SpotsupLightningCallback(tmp_path / "every", every_steps=1, keep=1000)
    seen, steps = lightning(tmp_path, accumulate, 2, every)
    assert steps == 2 * -(-SAMPLES // accumulate)
    for step in range(1, steps + 1):
        checkpoint = tmp_path / "every" / f"step_{step:08d}.ckpt"
        again, steps_in_all = lightning(tmp_path, accumulate, 2, resume=str(checkpoint))
        assert again == [batch for batch in seen if batch[2] >= step]
        assert steps_in_all == steps


def test_lightning_calls_hooks_as_its_stand_in_does(tmp_path: Path, alone: None) -> None:
    pl: Any = importlib.import_module("lightning.pytorch")
    real: list[tuple[str, int]] = []
    # its check before training validates, too, before on_train_start
    lightning(tmp_path, frameworks.BATCHES_PER_STEP, 1, recorder(pl.Callback, LIGHTNING_HOOKS, real))
    assert real.pop(0)[0] == "on_validation_start"
    stood_in: list[tuple[str, int]] = []
    trainer = frameworks.LightningTrainer(recorder(object, LIGHTNING_HOOKS, stood_in), validate_every=4)
    trainer.fit(SAMPLES // frameworks.BATCHES_PER_STEP, None)
    assert stood_in == real
    overridden = {name for name in vars(callbacks.SpotsupLightningCallback) if name.startswith("on_")}
    assert overridden == set(LIGHTNING_HOOKS)


def test_lightning_writing_in_the_background_is_refused(tmp_path: Path) -> None:
    pl: Any = importlib.import_module("lightning.pytorch")
    callback = callbacks.SpotsupLightningCallback(tmp_path / "checkpoints")
    with pytest.raises(TypeError, match="do not use it"):
        lightning(tmp_path, 1, 1, callback, pl.plugins.AsyncCheckpointIO())


def transformers(folder: Path, max_steps: int, *more: Any) -> int:
    """Train from the newest checkpoint; the optimizer steps in the end, over all calls."""
    package: Any = importlib.import_module("transformers")
    arguments = package.TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        per_device_train_batch_size=1,
        max_steps=max_steps,
        save_steps=3,
        eval_strategy="steps",
        eval_steps=1,
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = package.Trainer(
        model=Net(), args=arguments, train_dataset=Numbers(), eval_dataset=Numbers(), callbacks=list(more)
    )
    newest = callbacks.SpotsupTrainerCallback.newest(folder)
    return int(trainer.train(resume_from_checkpoint=newest).global_step)


def test_transformers_calls_hooks_as_its_stand_in_does(tmp_path: Path, alone: None) -> None:
    package: Any = importlib.import_module("transformers")
    real: list[tuple[str, int]] = []
    transformers(tmp_path / "real", 4, recorder(package.TrainerCallback, TRANSFORMERS_HOOKS, real))
    stood_in: list[tuple[str, int]] = []
    trainer = frameworks.HuggingFaceTrainer(recorder(object, TRANSFORMERS_HOOKS, stood_in), tmp_path / "stood_in")
    trainer.train(4, None)
    assert stood_in == real
    overridden = {name for name in vars(callbacks.SpotsupTrainerCallback) if name.startswith("on_")}
    assert overridden == set(TRANSFORMERS_HOOKS)
    for folder in ("real", "stood_in"):
        state = json.loads((tmp_path / folder / "checkpoint-4" / "trainer_state.json").read_text())
        assert state["global_step"] == 4


def test_a_complete_training_of_transformers_makes_one_more_step_when_started_again(tmp_path: Path) -> None:
    """As docs/training/frameworks.md says. If this fails, they have mended it: the document can forget about it."""
    assert transformers(tmp_path, 4, callbacks.SpotsupTrainerCallback()) == 4
    assert transformers(tmp_path, 4, callbacks.SpotsupTrainerCallback()) == 5


def test_transformers_goes_on_from_the_newest_checkpoint_that_is_whole(tmp_path: Path) -> None:
    assert transformers(tmp_path, 7) == 7
    newest = tmp_path / "checkpoint-7" / "trainer_state.json"
    newest.write_text(newest.read_text()[:-20])  # its writer was killed
    assert callbacks.SpotsupTrainerCallback.newest(tmp_path) == str(tmp_path / "checkpoint-6")
    assert transformers(tmp_path, 9) == 9


def test_both_lightnings_get_a_callback_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The two packages do not know each other's classes; a script imports one of them."""
    for name in ("lightning.pytorch", "pytorch_lightning"):
        other = {"lightning.pytorch": "pytorch_lightning", "pytorch_lightning": "lightning.pytorch"}[name]
        importlib.import_module(name)
        monkeypatch.delitem(sys.modules, other, raising=False)
        monkeypatch.delitem(sys.modules, "spotsup_trainer.callbacks.lightning", raising=False)
        base = importlib.import_module(name).Callback
        assert issubclass(callbacks.SpotsupLightningCallback, base)
