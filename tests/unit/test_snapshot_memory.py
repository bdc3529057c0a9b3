"""Snapshots in memory: whole or not there, two in turn, and gone with the last process that has them."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from spotsup_trainer import snapshot_files
from spotsup_trainer.session import snapshot, staging
from spotsup_trainer.session.checkpoint_dir import Position
from spotsup_trainer.session.memory import MAX_LOOSE_BYTES, DamagedError, Keeper, checksum, is_shortage
from spotsup_trainer.session.survivors import Copy, Lineage

ENVIRON = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "2", "GROUP_WORLD_SIZE": "3", "SPOTSUP_JOB": "j"}


@pytest.fixture
def environ() -> Iterator[dict[str, str]]:
    made = ENVIRON | {snapshot_files.VARIABLE: snapshot_files.create("1")}
    yield made
    for files in snapshot_files.named_by(made):
        for descriptor in (*files.slots, files.lineage):
            os.close(descriptor)


def keeper(environ: dict[str, str]) -> Keeper:
    """As a new process has it."""
    made = Keeper.named_by(environ, 2, 3)
    assert made is not None
    return made


def state(value: float, size: int = 100) -> dict[str, Any]:
    tensors = {"w": torch.full((size, 3), value), "scalar": torch.tensor(value), "none": torch.empty(0)}
    return {"model": tensors, "notes": {"pickled": b"x" * 10}}


def keep(mine: Keeper, step: int, *, size: int = 100, publish: bool = True) -> None:
    room = mine.room(staging.room_for(state(0, size)))
    if room is None:
        return
    copied = staging.Staging().copy(state(float(step), size), room)
    if publish:
        copy = Copy(step * 10, step, 1, 1, (1,))
        mine.keep(room, snapshot.items(copied), copy, Position(step, samples=8), 2)


def steps(mine: Keeper) -> set[int]:
    return {copy.step for copy in mine.offer().copies}


def test_the_last_two_are_kept_and_found_by_another_process(environ: dict[str, str]) -> None:
    first = keeper(environ)
    assert first.offer().copies == ()
    for step in (1, 2, 3):
        keep(first, step)
    other = keeper(environ)
    assert steps(other) == {2, 3}
    ((slot, head),) = other.find(30)
    assert (head.copy, head.position, head.rank) == (Copy(30, 3, 1, 1, (1,)), Position(3, samples=8), 2)
    pieces = {piece.name: piece for piece in slot.table(head)}
    assert pieces.keys() == {"model.w", "model.scalar", "model.none", "notes.pickled"}
    weights, memory = pieces["model.w"], slot.map()
    raw = memory[weights.at : weights.at + weights.bytes]
    assert torch.equal(torch.frombuffer(bytearray(raw), dtype=torch.float32), torch.full((300,), 3.0))
    assert (weights.lengths, weights.whole, weights.dtype) == ((100, 3), (100, 3), "float32")
    assert pieces["notes.pickled"].offsets is None


def test_a_process_that_is_killed_while_it_copies_leaves_the_one_before(environ: dict[str, str]) -> None:
    mine = keeper(environ)
    for step in (1, 2):
        keep(mine, step)
    keep(mine, 3, publish=False)
    assert steps(keeper(environ)) == {2}
    keep(keeper(environ), 4)
    assert steps(mine) == {2, 4}, "the copy that was not whole is the one to be replaced"


@pytest.mark.parametrize("at", [0, 5, 20, 40])
def test_a_damaged_head_is_none(environ: dict[str, str], at: int) -> None:
    mine = keeper(environ)
    keep(mine, 1)
    (files,) = snapshot_files.named_by(environ)
    for descriptor in files.slots:
        if os.fstat(descriptor).st_size:
            os.pwrite(descriptor, bytes([os.pread(descriptor, 1, at)[0] ^ 1]), at)
    assert steps(mine) == set()


def test_a_damaged_table_is_refused(environ: dict[str, str]) -> None:
    mine = keeper(environ)
    keep(mine, 1)
    ((slot, head),) = mine.find(10)
    slot.map()[head.table_at + 3] ^= 1
    with pytest.raises(DamagedError, match="table of the snapshot of step 1"):
        slot.table(head)


def test_a_state_that_grows_and_shrinks_finds_room(environ: dict[str, str]) -> None:
    mine = keeper(environ)
    for step, size in enumerate((100, 100, 9000, 10, 200_000, 5), start=1):
        keep(mine, step, size=size)
        assert step in steps(keeper(environ))


def test_where_there_is_too_little_memory_that_is_said_once(
    environ: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    class Short(Keeper):
        spare = 3 * 2**20  # half of it is one slot, with its head of 1 MiB

        def available_bytes(self) -> int:
            return self.spare

    mine = Short.named_by(environ, 2, 3)
    assert mine is not None
    for step in (1, 2):
        keep(mine, step)
    assert steps(mine) == {2}, "there is memory for one"
    Short.spare = 0
    for step in (3, 4):
        keep(mine, step, size=2**20)
    assert steps(mine) == set(), "an old one is no use in the way of the program"
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert "the machine has too little memory to spare. After an interruption the state is read from storage" in said


def held(environ: dict[str, str]) -> list[int]:
    """Bytes of memory in each slot."""
    return [os.fstat(descriptor).st_size for files in snapshot_files.named_by(environ) for descriptor in files.slots]


def test_what_is_kept_shrinks_when_memory_gets_short_and_not_before(environ: dict[str, str]) -> None:
    class Filling(Keeper):
        spare = 100 * 2**20

        def available_bytes(self) -> int:
            return self.spare

    mine = Filling.named_by(environ, 2, 3)
    assert mine is not None
    for step in (1, 2):
        keep(mine, step)
    size = max(held(environ))
    Filling.spare = size  # less than half is for others, but enough
    keep(mine, 3)
    assert steps(mine) == {2, 3}
    Filling.spare = size // 2
    keep(mine, 4)
    assert steps(mine) == {4}
    assert min(held(environ)) == 0
    Filling.spare = 0
    keep(mine, 5)
    assert held(environ) == [0, 0]


def test_who_gives_up_gives_the_memory_back_when_nothing_is_written_from_it(environ: dict[str, str]) -> None:
    mine = keeper(environ)
    keep(mine, 1)
    keep(mine, 2, publish=False)
    mine.give_up("another rank could keep none")
    assert steps(mine) == {1}
    assert 0 not in held(environ), "the copy may be on its way to storage"
    assert mine.room(100) is None
    assert (steps(mine), held(environ)) == (set(), [0, 0])


def test_a_state_of_which_much_is_no_tensor_is_not_kept(
    environ: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    mine = keeper(environ)
    room = mine.room(0)
    assert room is not None
    item = snapshot.Item("notes", None, (), bytes(MAX_LOOSE_BYTES + 1))
    mine.keep(room, [item], Copy(10, 1, 1, 1, (1,)), Position(1), 2)
    assert steps(mine) == set()
    assert "much of the state is neither tensors nor DTensors" in capfd.readouterr().err


def test_what_a_round_began_from_is_remembered(environ: dict[str, str]) -> None:
    keeper(environ).begin_round(Lineage(4, 2**62))
    assert keeper(environ).offer().lineage == Lineage(4, 2**62)


@pytest.mark.parametrize(
    "change",
    [
        {snapshot_files.VARIABLE: ""},
        {snapshot_files.VARIABLE: "0,1,2"},  # started in a way that has closed them
        {snapshot_files.VARIABLE: "a,b,c"},
        {"LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "3"},
        {"GROUP_RANK": "1"},
        {"LOCAL_RANK": "x"},
    ],
)
def test_without_the_launchers_files_or_with_unequal_nodes_there_is_none(
    environ: dict[str, str], change: dict[str, str]
) -> None:
    assert Keeper.named_by(environ | change, 2, 3) is None


def limit(folder: Path, limit: str, used: int, cached: int, *, legacy: bool = False) -> None:
    """A cgroup."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ("limit_in_bytes", "usage_in_bytes") if legacy else ("max", "current")
    for name, value in zip(names, (limit, used), strict=True):
        (folder / f"memory.{name}").write_text(f"{value}\n")
    stat = "total_inactive_file" if legacy else "inactive_file"
    (folder / "memory.stat").write_text(f"anon 5\ninactive_anon 7\n{stat} {cached}\nactive_file 9\n")


def test_the_limits_of_containers_count_and_cached_files_do_not(tmp_path: Path) -> None:
    meminfo, own = tmp_path / "meminfo", tmp_path / "own"
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable: 1000 kB\n")
    own.write_text("4:cpu,cpuacct:/other\n3:memory:/box/job\n0::/slice/unit\n")

    def available() -> int:
        return snapshot_files.available_bytes(meminfo, tmp_path, own)

    assert available() == 1000 * 1024
    limit(tmp_path / "slice" / "unit", "max", 100, 0)
    assert available() == 1000 * 1024
    limit(tmp_path / "slice", "500000", 200000, 50000)
    assert available() == 350000, "of an ancestor"
    limit(tmp_path / "slice" / "unit", "400000", 200000, 50000)
    assert available() == 250000
    limit(tmp_path / "memory" / "box", "300000", 200000, 90000, legacy=True)
    assert available() == 190000
    limit(tmp_path / "memory" / "box" / "job", "100000", 60000, 0, legacy=True)
    assert available() == 40000
    own.write_text("0::/\n")
    limit(tmp_path, "50000", 70000, 30000)
    assert available() == 10000
    assert snapshot_files.available_bytes(tmp_path / "none", tmp_path, own) == 0


@pytest.mark.parametrize(
    ("error", "short"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (OSError(errno.EMFILE, "Too many open files"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory"), True),
        (OSError(errno.EIO, "Input/output error"), False),
        (RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"), False),
        (ValueError("it has no model.weight"), False),
        (DamagedError("the table is damaged"), False),
    ],
)
def test_a_shortage_is_told_from_damage(error: Exception, short: bool) -> None:
    assert is_shortage(error) == short
    wrapped = RuntimeError("cannot read it")
    wrapped.__cause__ = error
    assert is_shortage(wrapped) == short


@given(st.binary(max_size=40_000).filter(len), st.data())
def test_any_change_of_a_byte_changes_the_checksum(raw: bytes, draw: st.DataObject) -> None:
    at, bit = draw.draw(st.integers(0, len(raw) - 1)), draw.draw(st.integers(0, 7))
    changed = bytearray(raw)
    changed[at] ^= 1 << bit
    before, after = (torch.frombuffer(bytearray(each), dtype=torch.uint8) for each in (raw, changed))
    assert checksum(before) == checksum(before.clone()) != checksum(after)
