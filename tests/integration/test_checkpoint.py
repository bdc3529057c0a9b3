"""Checkpoints of one process: complete or not there, on disks that refuse, for every kind of object."""

from __future__ import annotations

import resource
import shutil
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from spotsup_trainer.session import snapshot
from spotsup_trainer.session.checkpoint import Checkpointer
from spotsup_trainer.session.checkpoint_dir import (
    CheckpointDir,
    CheckpointError,
    Owner,
    Position,
    SupersededError,
    checkpoints_in,
)
from spotsup_trainer.session.peers import Peers
from spotsup_trainer.session.retention import Retention
from torch import nn

from tests.support.disks import HangingFile

ALONE = Peers(0, 1, None)


@contextmanager
def disk_that_refuses(room: int = 20_000) -> Iterator[None]:
    """The kernel refuses whatever makes a file larger than `room` bytes, as it would on a full disk."""
    volatile, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (volatile, hard))


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


def checkpointer(root: Path, state: snapshot.State, keep: int = 3, **options: Any) -> Checkpointer:
    return Checkpointer(root, state, ALONE, keep, **options)


def wait(what: str, condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"timed out waiting for {what}"
        time.sleep(0.005)


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


def test_a_job_begins_with_the_newest_checkpoint_of_an_earlier_one_and_writes_nothing_there(tmp_path: Path) -> None:
    older, newer, own = (tmp_path / name for name in ("older", "newer", "own"))
    for root, step in ((older, 3), (newer, 5)):
        training = Training()
        writer = checkpointer(root, training.state, round_number=7)
        writer.claim()
        assert writer.save(Position(step))
    before = names(older), names(newer)
    sources = [tmp_path / "missing", newer, older]
    began = Training()
    first = checkpointer(own, began.state, round_number=1, resume_from=sources)
    assert first.restore() == Position(5)
    assert_same(began, training)
    assert first.save(Position(6))
    assert checkpointer(own, Training().state, resume_from=sources).restore() == Position(6), "its own counts more"
    assert (names(older), names(newer)) == before


def test_a_job_that_should_resume_does_not_start_over(tmp_path: Path) -> None:
    empty = checkpointer(tmp_path / "own", Training().state, resume_from=[tmp_path / "earlier"])
    with pytest.raises(CheckpointError, match=r"no complete checkpoint in .*/earlier: submit the job without --resume"):
        empty.restore()


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


def test_a_directory_that_cannot_be_mounted_is_no_fresh_start(tmp_path: Path) -> None:
    """An automounter that cannot mount answers so; the job would train from step 0, and set its checkpoints aside."""
    (tmp_path / "auto").symlink_to(tmp_path / "auto")
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        restored_step(tmp_path / "auto")


def test_the_newest_are_kept(tmp_path: Path) -> None:
    write_steps(tmp_path, 5, 10, 100_000_000, keep=2)
    assert names(tmp_path) == ["LATEST", "OWNER", "step_00000010", "step_100000000"]
    assert (tmp_path / "LATEST").read_text() == "step_100000000"
    assert restored_step(tmp_path) == 100_000_000
    with pytest.raises(ValueError, match="keep is 0"):
        Retention(0)


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


def flip_data(checkpoint: Path) -> None:
    """One bit of the weights."""
    step = float(int(checkpoint.name.partition("_")[2]))
    flip(next(checkpoint.glob("*.distcp")), struct.pack("<4f", *[step] * 4))


def flip_metadata(checkpoint: Path) -> None:
    flip(checkpoint / ".metadata", b"storage_data")


def flip_position(checkpoint: Path) -> None:
    """A digit: JSON as before, of another epoch."""
    file = checkpoint / "session.json"
    file.write_text(file.read_text().replace('"epoch": 0', '"epoch": 1'))


def flip(file: Path, near: bytes) -> None:
    found = bytearray(file.read_bytes())
    found[found.index(near)] ^= 1
    file.write_bytes(found)


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
    [
        *(cut_data, damage_data, flip_data, remove_data),
        *(remove_metadata, damage_metadata, flip_metadata),
        *(damage_position, swap_position, flip_position),
    ],
)
def test_a_broken_checkpoint_falls_back_to_the_one_before(
    tmp_path: Path, damage: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also where the program has turned torch's checksums off."""
    torch.serialization.set_crc32_options(compute_crc32=False)
    try:
        write_steps(tmp_path, 5, 10)
    finally:
        torch.serialization.set_crc32_options(compute_crc32=True)
    damage(tmp_path / "step_00000010")
    assert restored_step(tmp_path) == 5
    output = capfd.readouterr().err
    assert f"skipping checkpoint {tmp_path}/step_00000010: " in output
    assert "training goes on from step 5" in output
    if damage in (damage_data, flip_data):  # and not torch's advice about its options
        assert " is damaged: " in output

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
    writer.settle()
    assert names(tmp_path) == ["LATEST", "OWNER", "step_00000005", "step_00000015.aside"]
    with torch.no_grad():
        model.weight.fill_(7)
    assert writer.save(Position(7))
    assert restored_step(tmp_path) == 7


class Elsewhere(CheckpointDir):
    """What is written lies on another file system: the last rename fails."""

    other: Path

    def staging(self, step: int) -> Path:
        return self.other / f"step_{step}"


def test_a_step_that_is_written_again_is_there_at_every_instant(tmp_path: Path) -> None:
    write_steps(tmp_path, 5)
    with TemporaryDirectory(dir="/dev/shm") as other:  # another file system
        directory = Elsewhere(tmp_path, Owner(0, "me"), Retention(3, None))
        directory.remember_owner()
        directory.claim(5)
        directory.other = Path(other)
        directory.staging(5).mkdir()
        with pytest.raises(OSError, match="cross-device"):
            directory.complete(Position(5, samples=9))
    assert [each.step for each in checkpoints_in(tmp_path)] == [5]
    assert restored_step(tmp_path) == 5
    again = checkpointer(tmp_path, {"model": nn.Linear(2, 2)})
    again.restore()
    again.claim()
    again.settle()
    assert names(tmp_path)[-1] == "step_00000005", "it gets its name back"
    assert again.save(Position(5, samples=9), anew=True)
    assert names(tmp_path) == ["LATEST", "OWNER", "step_00000005"]


def test_a_process_that_was_replaced_completes_nothing_more(tmp_path: Path) -> None:
    old = write_steps(tmp_path, 5)
    new = checkpointer(tmp_path, {"model": nn.Linear(2, 2)})
    new.restore()
    new.claim()
    new.settle()
    with pytest.raises(SupersededError, match=r"this one .* must stop"):
        old.save(Position(10))
    old.begin(Position(11))
    with pytest.raises(SupersededError):
        old.settle()
    assert names(tmp_path) == ["LATEST", "OWNER", "step_00000005"]
    assert new.save(Position(8))


@pytest.mark.parametrize(("rounds", "winner"), [((3, 4), 1), ((4, 3), 0), ((0, 0), 0), ((4, 4), 0)])
def test_of_two_processes_that_restored_together_the_newer_round_wins_then_the_first(
    tmp_path: Path, rounds: tuple[int, int], winner: int
) -> None:
    write_steps(tmp_path, 5)
    both = [checkpointer(tmp_path, {"model": nn.Linear(2, 2)}, round_number=number) for number in rounds]
    for one in both:
        one.restore()
    both[0].claim()
    both[0].settle()
    both[1].claim()
    if winner == 0:
        with pytest.raises(SupersededError):
            both[1].settle()
    else:
        both[1].settle()
    with pytest.raises(SupersededError):
        both[1 - winner].save(Position(6))
    assert both[winner].save(Position(7))
    assert names(tmp_path) == ["LATEST", "OWNER", "step_00000005", "step_00000007"]


# -- disks that refuse -------------------------------------------------------------------------------------


def test_a_full_disk_is_one_warning_and_the_next_checkpoint_succeeds(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    writer = checkpointer(tmp_path, {"model": nn.Linear(100, 100)})  # 40 kB
    writer.claim()
    assert writer.save(Position(5))
    assert writer.problem() == ""
    with disk_that_refuses():
        assert not writer.save(Position(6))
        reason = "rank 0: [Errno 27] File too large"
        assert writer.problem() == f"the checkpoint of step 6 could not be written to {tmp_path}: {reason}"
        writer.begin(Position(7))
        writer.settle()
        assert "the checkpoint of step 7 could not be written" in writer.problem()
    assert writer.step == 5
    assert names(tmp_path) == ["LATEST", "OWNER", "step_00000005"]
    assert capfd.readouterr().err.count("could not be written") == 1
    writer.begin(Position(8))
    writer.settle()
    assert writer.step == 8
    assert writer.problem() == writer.problem() == ""
    assert capfd.readouterr().err == "spotsup: checkpoints are being written again: that of step 8 is complete\n"


def test_a_directory_that_cannot_be_made_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    writer = checkpointer(tmp_path / "file" / "checkpoints", {"model": nn.Linear(2, 2)})
    assert writer.restore() is None
    writer.claim()
    writer.settle()
    assert writer.problem().startswith(f"the checkpoint directory {tmp_path}/file/checkpoints cannot be written to: ")
    assert not writer.save(Position(1))
    assert "the checkpoint of step 1 could not be written" in writer.problem()


def test_a_disk_that_was_full_at_the_start_is_claimed_later(tmp_path: Path) -> None:
    write_steps(tmp_path, 5, 10)
    remove_data(tmp_path / "step_00000010")
    leftover = tmp_path / "step_00000012.0123.tmp"
    leftover.mkdir()
    (leftover / "__0_0.distcp").write_bytes(bytes(1000))
    writer = checkpointer(tmp_path, {"model": nn.Linear(2, 2)})
    writer.restore()
    with disk_that_refuses(room=0):
        writer.claim()
        writer.settle()
        assert not leftover.exists()  # perhaps it was this that filled the disk
        assert names(tmp_path) == ["LATEST", "OWNER", "step_00000005", "step_00000010"]
        assert not writer.save(Position(6))  # though the directory says that it belongs to the process before
    assert writer.save(Position(7))
    assert names(tmp_path) == ["LATEST", "OWNER", "step_00000005", "step_00000007", "step_00000010.aside"]


def test_nothing_is_completed_before_the_directory_is_claimed(tmp_path: Path) -> None:
    write_steps(tmp_path, 5, 10)
    remove_data(tmp_path / "step_00000010")
    in_the_way = tmp_path / "step_00000010.aside"
    in_the_way.touch()
    writer = checkpointer(tmp_path, {"model": nn.Linear(2, 2)})
    writer.restore()
    writer.claim()
    assert not writer.save(Position(6))  # step 10 would still be the newest name
    assert "step_00000010.aside" in writer.problem()
    in_the_way.unlink()
    assert writer.save(Position(7))
    assert names(tmp_path) == ["LATEST", "OWNER", "step_00000005", "step_00000007", "step_00000010.aside"]


# -- disks that hang ---------------------------------------------------------------------------------------


class Clock:
    """Monotonic seconds, set by the test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_disk_that_hangs_stops_nothing_and_is_one_warning(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_steps(tmp_path, 5)
    clock = Clock()
    model = nn.Linear(2, 2)
    writer = checkpointer(tmp_path, {"model": model}, warn_after_s=60.0, clock=clock)
    writer.restore()
    owner = HangingFile(tmp_path / "OWNER")
    owner.inject()
    writer.claim()
    may_begin = not writer.busy
    assert may_begin
    clock.now += 61
    says = f"the checkpoint directory {tmp_path} does not answer or is slow: "
    assert writer.problem() == f"{says}claiming it has been under way for more than 60 s"
    with torch.no_grad():
        model.weight.fill_(6.0)
    writer.begin(Position(6))
    with torch.no_grad():
        model.weight.fill_(7.0)
    assert writer.busy
    assert writer.problem() == f"{says}the checkpoint of step 6 has been under way for more than 60 s"
    assert not writer.save(Position(7), timeout_s=0.01)
    owner.repair()
    writer.settle()
    assert writer.problem() == ""
    assert restored_step(tmp_path) == 6
    output = capfd.readouterr().err
    assert (output.count("does not answer"), output.count("being written again")) == (1, 1)


def test_a_hang_in_the_middle_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    writer = checkpointer(tmp_path, {"model": model})
    writer.claim()
    with torch.no_grad():
        model.weight.fill_(5)
    assert writer.save(Position(5))
    with torch.no_grad():
        model.weight.fill_(6)
    owner = HangingFile(tmp_path / "OWNER")
    owner.inject()
    meanwhile: list[bool] = []
    assert not writer.save(Position(6), timeout_s=0.3, meanwhile=lambda: meanwhile.append(writer.busy))
    assert meanwhile[0]
    unfinished = next(tmp_path.glob("step_00000006.*.tmp"))
    wait("its data", (unfinished / ".metadata").exists)
    # as if the machine had been taken just now
    shutil.copytree(tmp_path, tmp_path / "copy", ignore=shutil.ignore_patterns("OWNER"))
    assert restored_step(tmp_path / "copy") == 5
    owner.repair()
    writer.settle()
    assert restored_step(tmp_path) == 6


def test_reading_from_a_disk_that_hangs_says_what_it_waits_for(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_steps(tmp_path, 5)
    metadata = HangingFile(tmp_path / "step_00000005" / ".metadata")
    metadata.inject()
    reader = checkpointer(tmp_path, {"model": nn.Linear(2, 2)}, warn_after_s=0.01)
    restored: list[Position | None] = []
    thread = threading.Thread(target=lambda: restored.append(reader.restore()), daemon=True)
    thread.start()
    output = ""

    def warned_twice() -> bool:
        nonlocal output
        output += capfd.readouterr().err
        return output.count("rank 0 is still reading") >= 2

    wait("two warnings", warned_twice)
    assert f"still reading the checkpoints in {tmp_path}, and training waits for it" in output
    metadata.repair()
    thread.join(30)
    assert restored == [Position(5)]
