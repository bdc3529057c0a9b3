"""Checkpoints of one process: complete or not there, on disks that refuse, for every kind of object."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from spotsup_trainer import snapshot
from spotsup_trainer.checkpoint import Checkpointer
from spotsup_trainer.checkpoint_dir import CheckpointDir, CheckpointError, Position, SupersededError
from spotsup_trainer.peers import Peers
from torch import nn

ALONE = Peers(0, 1, None)


@contextmanager
def disk_that_refuses() -> Iterator[None]:
    """The kernel refuses whatever makes a file larger than 20 kB, as it would on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class Training:
    """A model, its optimizer and schedule, and one parameter that never has a gradient."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
        self.model.register_parameter("unused", nn.Parameter(torch.ones(3)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=2, gamma=0.5)
        self.state = {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule}

    def train(self, steps: int) -> None:
        for step in range(steps):
            self.model(torch.arange(12.0).reshape(3, 4) * (step + 1)).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.schedule.step()

    def everything(self) -> dict[str, Any]:
        """All that training goes on with."""
        slots = [self.optimizer.state[parameter] for parameter in self.model.parameters()]
        flat = {f"slot.{at}.{name}": value for at, slot in enumerate(slots) for name, value in slot.items()}
        return dict(self.model.state_dict()) | flat | {"lr": torch.tensor(self.schedule.get_last_lr())}


def assert_same(one: Training, other: Training) -> None:
    assert one.everything().keys() == other.everything().keys()
    for name, value in one.everything().items():
        assert torch.equal(value, other.everything()[name]), name


def checkpointer(root: Path, state: snapshot.State, keep: int = 3) -> Checkpointer:
    return Checkpointer(root, state, ALONE, keep)


def names(root: Path) -> list[str]:
    return sorted(entry.name for entry in root.iterdir())


# -- what is in a checkpoint -----------------------------------------------------------------------------------


@pytest.mark.parametrize("background", [False, True])
def test_training_goes_on_exactly_where_it_stopped(tmp_path: Path, background: bool) -> None:
    torch.manual_seed(1)
    old = Training()
    old.train(3)
    writer = checkpointer(tmp_path / "new" / "folder", old.state)
    writer.claim()
    position = Position(3, epoch=1, offset=8, samples=24, rng_seed=2**63 + 5, data_length=16)
    if background:
        writer.begin(position)
        old.train(1)  # the copy must not change with it
        writer.settle()
    else:
        assert writer.save(position)
    assert writer.step == 3

    new = Training()
    assert checkpointer(tmp_path / "new" / "folder", new.state).restore() == position
    new.train(1)
    if not background:
        old.train(1)
    assert_same(old, new)


def test_stateless_optimizers_and_several_modules(tmp_path: Path) -> None:
    first, second = nn.Linear(2, 2), nn.Linear(3, 3)
    state = {
        "first": first,
        "second": second,
        "first_opt": torch.optim.SGD(first.parameters(), lr=0.25),
        "second_opt": torch.optim.SGD(second.parameters(), lr=0.5, momentum=0.9),
    }
    assert checkpointer(tmp_path, state).save(Position(1))
    saved = first.weight.clone()
    with torch.no_grad():
        first.weight.zero_()
    state["first_opt"].param_groups[0]["lr"] = 7.0
    assert checkpointer(tmp_path, state).restore() == Position(1)
    assert torch.equal(first.weight, saved)
    assert state["first_opt"].param_groups[0]["lr"] == 0.25


def test_what_cannot_be_saved_is_refused(tmp_path: Path) -> None:
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    with pytest.raises(TypeError, match=r"state\['step'\] is of type int"):
        checkpointer(tmp_path, {"step": 3})
    both = torch.optim.SGD([*model.parameters(), *other.parameters()])
    with pytest.raises(TypeError, match=r"state\['opt'\] is an optimizer.*ModuleDict"):
        checkpointer(tmp_path, {"model": model, "other": other, "opt": both})


def test_a_checkpoint_of_another_model_is_refused_and_left_alone(tmp_path: Path) -> None:
    assert checkpointer(tmp_path, {"model": nn.Linear(2, 2)}).save(Position(1))
    with pytest.raises(CheckpointError, match=r"step_00000001: .*has no model\.0\.bias, model\.0\.weight"):
        checkpointer(tmp_path, {"model": nn.Sequential(nn.Linear(2, 2))}).restore()
    assert "step_00000001" in names(tmp_path)


# -- complete, or not there --------------------------------------------------------------------------------


def write_steps(root: Path, *steps: int, keep: int = 3) -> Checkpointer:
    """Checkpoints whose weights are all the step."""
    model = nn.Linear(2, 2)
    writer = checkpointer(root, {"model": model}, keep)
    writer.claim()
    for step in steps:
        with torch.no_grad():
            model.weight.fill_(step)
        assert writer.save(Position(step))
    return writer


def restored_step(root: Path) -> float | None:
    """The step by the position and by the weights, which must agree."""
    model = nn.Linear(2, 2)
    position = checkpointer(root, {"model": model}).restore()
    if position is None:
        return None
    assert torch.equal(model.weight, torch.full((2, 2), float(position.step)))
    return position.step


def test_no_checkpoint_is_a_fresh_start(tmp_path: Path) -> None:
    assert restored_step(tmp_path / "nothing") is None
    (tmp_path / "step_00000005.abc.tmp").mkdir()
    assert restored_step(tmp_path) is None


def test_the_newest_are_kept(tmp_path: Path) -> None:
    write_steps(tmp_path, 5, 10, 100_000_000, keep=2)
    assert names(tmp_path) == ["LATEST", "OWNER", "step_00000010", "step_100000000"]
    assert (tmp_path / "LATEST").read_text() == "step_100000000"
    assert restored_step(tmp_path) == 100_000_000
    with pytest.raises(ValueError, match="keep is 0"):
        CheckpointDir(tmp_path, "token", keep=0)


def test_the_same_step_again_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    write_steps(tmp_path, 5)
    model = nn.Linear(2, 2)
    again = checkpointer(tmp_path, {"model": model})
    again.restore()
    again.claim()
    again.step = 0  # as if the one on disk were not known
    assert again.save(Position(5, epoch=7))
    assert checkpointer(tmp_path, {"model": model}).restore() == Position(5, epoch=7)
    assert names(tmp_path) == ["LATEST", "OWNER", "step_00000005"]


def cut_data(checkpoint: Path) -> None:
    file = next(checkpoint.glob("*.distcp"))
    file.write_bytes(file.read_bytes()[:-10])


def damage_data(checkpoint: Path) -> None:
    file = next(checkpoint.glob("*.distcp"))
    file.write_bytes(b"\0" * file.stat().st_size)


def remove_data(checkpoint: Path) -> None:
    next(checkpoint.glob("*.distcp")).unlink()


def remove_metadata(checkpoint: Path) -> None:
    (checkpoint / ".metadata").unlink()


def damage_metadata(checkpoint: Path) -> None:
    (checkpoint / ".metadata").write_bytes(b"not a pickle")


def damage_position(checkpoint: Path) -> None:
    (checkpoint / "session.json").write_text('{"epoch": 3}')


def swap_position(checkpoint: Path) -> None:
    (checkpoint / "session.json").write_text('{"step": 9}')


@pytest.mark.parametrize(
    "damage",
    [cut_data, damage_data, remove_data, remove_metadata, damage_metadata, damage_position, swap_position],
)
def test_a_broken_checkpoint_falls_back_to_the_one_before(
    tmp_path: Path, damage: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    write_steps(tmp_path, 5, 10)
    damage(tmp_path / "step_00000010")
    assert restored_step(tmp_path) == 5
    said = capfd.readouterr().err
    assert f"checkpoint {tmp_path}/step_00000010 is passed over: " in said
    assert "training goes on from step 5" in said

    damage(tmp_path / "step_00000005")
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* can be read.*step_00000010.*step_00000005"):
        restored_step(tmp_path)


def test_going_on_from_an_older_checkpoint_sets_newer_ones_aside(tmp_path: Path) -> None:
    write_steps(tmp_path, 5, 10, 15)
    remove_data(tmp_path / "step_00000015")
    remove_data(tmp_path / "step_00000010")
    (tmp_path / "step_00000012.0123.tmp").mkdir()
    (tmp_path / "LATEST.0123.tmp").touch()
    model = nn.Linear(2, 2)
    writer = checkpointer(tmp_path, {"model": model})
    writer.restore()
    assert "step_00000015" in names(tmp_path)  # reading changes nothing
    writer.claim()
    assert names(tmp_path) == ["LATEST", "OWNER", "step_00000005", "step_00000015.aside"]
    with torch.no_grad():
        model.weight.fill_(7)
    assert writer.save(Position(7))
    assert restored_step(tmp_path) == 7


def test_a_process_that_was_replaced_completes_nothing_more(tmp_path: Path) -> None:
    old = write_steps(tmp_path, 5)
    new = checkpointer(tmp_path, {"model": nn.Linear(2, 2)})
    new.restore()
    new.claim()
    with pytest.raises(SupersededError, match=r"this one .* was replaced"):
        old.save(Position(10))
    old.begin(Position(11))
    with pytest.raises(SupersededError):
        old.settle()
    assert names(tmp_path) == ["LATEST", "OWNER", "step_00000005"]
    assert new.save(Position(8))


# -- disks that refuse -------------------------------------------------------------------------------------


def test_a_full_disk_is_a_warning_and_the_next_checkpoint_succeeds(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    writer = checkpointer(tmp_path, {"model": nn.Linear(100, 100)})  # 40 kB
    writer.claim()
    assert writer.save(Position(5))
    with disk_that_refuses():
        assert not writer.save(Position(6))
        writer.begin(Position(7))
        writer.settle()
    assert writer.step == 5
    said = capfd.readouterr().err
    assert said.count(f"the checkpoint of step 6 could not be written to {tmp_path}: rank 0: ") == 2  # tried twice
    assert said.count("the checkpoint of step 7 could not be written") == 1
    assert names(tmp_path) == ["LATEST", "OWNER", "step_00000005"]
    writer.begin(Position(8))
    writer.settle()
    assert writer.step == 8


def test_a_directory_that_cannot_be_made_is_a_warning(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    writer = checkpointer(tmp_path / "file" / "checkpoints", {"model": nn.Linear(2, 2)})
    assert writer.restore() is None
    writer.claim()
    assert not writer.save(Position(1))
    assert "cannot be written to" in capfd.readouterr().err
