"""Memory that is damaged, short, of another version, or of a process that was killed: what a round restores then."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from spotsup_trainer import snapshot_files
from spotsup_trainer.session import snapshot, staging
from spotsup_trainer.session.checkpoint import Checkpointer
from spotsup_trainer.session.checkpoint_dir import CheckpointError, Position
from spotsup_trainer.session.memory import Head, Keeper, Slot

from tests.support.restoring import Job, Node, Rank, a_job, forget, numbers, restore, save, state_of, train

pytestmark = pytest.mark.long


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with a_job(tmp_path) as made:
        yield made


def damage(node: Node, share: float = 0.5) -> None:
    """Change a byte of what a node keeps."""
    for slot in node.slots():
        head = slot.head()
        if head is not None:
            tensors = [piece for piece in slot.table(head) if piece.bytes > 8]
            piece = tensors[int(share * len(tensors))]
            memory = slot.map()
            memory[piece.at + piece.bytes // 2] ^= 4


def test_damaged_memory_is_not_used(job: Job) -> None:
    nodes = [job.node(), job.node()]
    saved = job.round(nodes, save)
    damage(nodes[0])
    found = job.round(nodes, restore)
    assert [each["numbers"] for each in found] == [saved[0]["numbers"]] * 2
    assert found[0]["sources"]["storage"] == 0, "the other has it"
    damage(nodes[1])
    found = job.round(nodes, restore)
    assert [each["numbers"] for each in found] == [saved[0]["numbers"]] * 2
    assert found[0]["sources"]["storage"] > 0
    said = (job.folder / f"out-{job.number}-0.err").read_text()
    assert "is damaged, and not used" in said
    assert "an older" not in said
    shutil.rmtree(job.root / "step_00000003")
    assert [each["refused"] for each in job.round(nodes, refused)] == [True, True], "only a person should start over"


def refused(rank: Rank) -> dict[str, Any]:
    try:
        rank.checkpointer(state_of(rank, "plain")).restore()
    except CheckpointError as error:
        return {"refused": "parts of it are damaged on all nodes" in str(error)}
    return {"refused": False}


def test_damage_before_the_first_checkpoint_is_said_as_what_it_is(job: Job) -> None:
    node = job.node()
    job.round([node], save)
    forget(job, 3)
    damage(node)
    (found,) = job.round([node], partial(restore_or_say, shortage=None))
    assert (
        "has no complete checkpoint, and what the nodes have in memory cannot be read; cancel the job" in found["said"]
    )
    assert "repair one" not in found["said"]


@pytest.mark.nightly
def test_a_shortage_of_memory_is_no_damage(job: Job) -> None:
    nodes = [job.node(), job.node()]
    saved = job.round(nodes, save)
    forget(job, 3)
    shortage = OSError(errno.ENOMEM, "Cannot allocate memory")
    for each in job.round(nodes, partial(restore_or_say, shortage=shortage)):
        assert "too little memory to restore the snapshot of step 3 in memory, which is not damaged" in each["said"]
    found = job.round(nodes, partial(restore_or_say, shortage=shortage, times=2))
    assert [each["numbers"] for each in found] == [saved[0]["numbers"]] * 2, "it is tried again"


def restore_or_say(rank: Rank, shortage: Exception | None, times: int = 1000) -> dict[str, Any]:
    """Restore with a shortage on rank 1, so many times."""
    keeper = (ShortKeeper if shortage and rank.rank == 1 else Keeper).named_by(rank.environ, rank.rank, rank.world)
    assert keeper is not None
    if isinstance(keeper, ShortKeeper):
        keeper.shortages = [shortage] * times
    state = state_of(rank, "plain")
    checkpoints = Checkpointer(
        rank.root, state, rank.peers, 2, round_number=rank.round, keeper=keeper, sleep=lambda _: None
    )
    try:
        checkpoints.restore()
    except CheckpointError as error:
        return {"said": str(error)}
    return {"numbers": numbers(state)}


class ShortKeeper(Keeper):
    """Of a machine that has too little memory for a while."""

    shortages: list[Any]

    def find(self, snapshot: int) -> list[tuple[Slot, Head]]:
        if self.shortages:
            raise self.shortages.pop()
        return super().find(snapshot)


@pytest.mark.nightly
def test_all_ranks_agree_that_one_could_not_take_what_it_was_sent(job: Job) -> None:
    nodes = [job.node(), job.node()]
    job.round(nodes, partial(say_what_is_unpickled, save_it=True))
    forget(job, 3)
    found = job.round([nodes[0], job.node()], partial(say_what_is_unpickled, save_it=False))
    assert ["too little memory to restore the snapshot" in each["said"] for each in found] == [True, True]


class Large:
    """Takes more memory than rank 1 has."""

    def __reduce__(self) -> tuple[Any, ...]:
        return unpickle_large, ()


def unpickle_large() -> Large:
    if os.environ.get("SHORT_OF_MEMORY"):
        raise MemoryError
    return Large()


def say_what_is_unpickled(rank: Rank, save_it: bool) -> dict[str, Any]:
    state = state_of(rank, "plain")
    state["opt"].param_groups[0]["large"] = Large()
    keeper = Keeper.named_by(rank.environ, rank.rank, rank.world)
    checkpoints = Checkpointer(
        rank.root, state, rank.peers, 2, round_number=rank.round, keeper=keeper, sleep=lambda _: None
    )
    if rank.rank == 1 and not save_it:
        os.environ["SHORT_OF_MEMORY"] = "1"
    try:
        checkpoints.restore()
    except CheckpointError as error:
        return {"said": str(error)}
    if save_it:
        train(state, 3)
        checkpoints.claim()
        checkpoints.save(Position(3))
    return {"said": ""}


def test_memory_of_another_version_is_not_used(job: Job) -> None:
    nodes = [job.node(), job.node()]
    saved = job.round(nodes, save)
    nodes[1].job = "another"  # as another format, or version of torch
    found = job.round(nodes, restore)
    assert [each["numbers"] for each in found] == [saved[0]["numbers"]] * 2
    assert found[0]["sources"]["own"] == 0


def test_a_worker_that_is_killed_while_it_copies_leaves_the_snapshot_before(job: Job) -> None:
    node = job.node()
    saved = job.round([node], save)
    forget(job, 3)
    assert job.round([node], die_while_copying) == [{}]
    (found,) = job.round([node], restore)
    assert (found["step"], found["numbers"]) == (3, saved[0]["numbers"])


def die_while_copying(rank: Rank) -> dict[str, Any]:
    state = state_of(rank, "plain")
    rank.checkpointer(state).restore()
    train(state, 1)
    keeper = Keeper.named_by(rank.environ, rank.rank, rank.world)
    assert keeper is not None
    captured = snapshot.capture(state)
    room = keeper.room(staging.room_for(captured))
    staging.Staging().copy(captured, room)
    os._exit(9)


def test_where_memory_is_short_that_is_said_once_and_storage_is_used(job: Job) -> None:
    nodes = [job.node(), job.node()]
    saved = job.round(nodes, partial(save_often, refuses=1))
    assert all(each["saved"] for each in saved)
    assert [slot.head() for node in nodes for slot in node.slots()] == [None] * 4
    errors = [(job.folder / f"out-{job.number}-{rank}.err").read_text() for rank in (0, 1)]
    assert [text.count("no snapshots are kept") for text in errors] == [1, 1]
    found = job.round(nodes, restore)
    assert [each["numbers"] for each in found] == [saved[0]["numbers"]] * 2
    assert found[0]["sources"]["storage"] > 0


class FullKeeper(Keeper):
    """Of a machine without memory to spare."""

    def available_bytes(self) -> int:
        return 1


def save_often(rank: Rank, refuses: int) -> dict[str, Any]:
    kind = FullKeeper if rank.rank == refuses else Keeper
    keeper = kind.named_by(rank.environ, rank.rank, rank.world)
    state = state_of(rank, "plain")
    checkpoints = Checkpointer(rank.root, state, rank.peers, 2, round_number=rank.round, keeper=keeper)
    checkpoints.restore()
    saved = []
    for step in range(1, 4):
        train(state, 1)
        checkpoints.claim()
        saved.append(checkpoints.save(Position(step)))
    return {"saved": all(saved), "numbers": numbers(state)}


def test_the_memory_goes_with_its_last_process() -> None:
    """A launcher that is killed leaves nothing behind."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        made = snapshot_files.create(1)
        (files,) = snapshot_files.named_by({snapshot_files.VARIABLE: made})
        os.posix_fallocate(files.slots[0], 0, 64 * 2**20)
        os.write(writing, str(_shared_kb()).encode())
        signal.pause()
        os._exit(0)
    with_it = int(os.read(reading, 100))
    os.kill(child, 9)
    os.waitpid(child, 0)
    os.close(reading)
    os.close(writing)
    assert _shared_kb() < with_it - 32 * 1024


def _shared_kb() -> int:
    return next(int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines() if "Shmem:" in line)
