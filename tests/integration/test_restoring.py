"""Rounds of several ranks that restore from each other's memory, from storage, or from both."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from spotsup_trainer.session.exchange import MAX_BLOCK_BYTES, MAX_SENDING, Exchange
from spotsup_trainer.session.parts import Parts
from spotsup_trainer.session.peers import Peers
from spotsup_trainer.session.survivors import Box, Transfer

from tests.support.restoring import (
    Job,
    Rank,
    a_job,
    bytes_of,
    bytes_of_slots,
    forget,
    restore,
    save,
    state_of,
    train,
)

pytestmark = pytest.mark.long


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with a_job(tmp_path) as made:
        yield made


def test_survivors_read_their_own_memory_and_send_it_to_a_newcomer(job: Job) -> None:
    nodes = [job.node() for _ in range(3)]
    saved = job.round(nodes, save)
    assert all(each["saved"] for each in saved)
    forget(job, 3)
    found = job.round([nodes[0], job.node(), nodes[2]], restore)
    for each in found:
        assert each["step"] == 3
        assert each["numbers"] == saved[0]["numbers"]
        assert each["notes"] == {"by": 0}, "rank 0's, whoever survives"
    kept = bytes_of(nodes[0])
    assert found[0]["sources"] == {"own": 2 * kept, "peers": kept, "storage": 0}


@pytest.mark.nightly
def test_a_node_with_several_workers_keeps_the_state_once(job: Job) -> None:
    nodes = [job.node(2), job.node(2)]
    saved = job.round(nodes, save)
    forget(job, 3)
    assert all(part < 0.8 * bytes_of(nodes[0]) for part in bytes_of_slots(nodes[0]))
    assert bytes_of(nodes[0]) == bytes_of(nodes[1])
    found = job.round([nodes[1], job.node(2)], restore)
    assert [each["numbers"] for each in found] == [saved[0]["numbers"]] * 4
    # to each of the newcomer's workers, and to those that are alone here
    assert found[0]["sources"]["storage"] == 0
    (alone,) = job.round([nodes[0]], partial(restore, kind="plain"))[:1]
    assert alone["numbers"] == saved[0]["numbers"]


def test_one_rank_reads_each_byte_of_storage_and_the_others_get_it_from_there(job: Job) -> None:
    saved = job.round([job.node() for _ in range(3)], save)
    one = job.round([job.node()], restore)
    several = job.round([job.node() for _ in range(4)], restore)
    for each in (*one, *several):
        assert each["numbers"] == saved[0]["numbers"]
        assert each["notes"] == {"by": 0}
    stored = one[0]["sources"]["storage"]
    assert several[0]["sources"]["storage"] == stored > 0
    assert several[0]["sources"]["peers"] > 2 * one[0]["sources"]["peers"] == 0


def test_the_newest_is_restored_wherever_it_is(job: Job) -> None:
    node = job.node()
    job.round([node], save)
    job.round([job.node()], save)  # of another node, which is lost: its checkpoint of step 6 is in storage
    (found,) = job.round([node], restore)
    assert found["step"] == 6
    assert found["sources"]["own"] == 0
    job.round([node], save)
    forget(job, 9)
    (found,) = job.round([node], restore)
    assert found["step"] == 9
    assert found["sources"]["storage"] == 0


def test_what_a_node_did_while_it_was_cut_off_is_not_continued(job: Job) -> None:
    """It trained on alone in a round that the others had left, and reached more steps than they did."""
    cut_off, other = job.node(), job.node()
    job.round([cut_off, other], save)
    before = job.number
    job.round([cut_off], partial(save, steps=50))
    forget(job, 53)
    job.number = before + 1  # meanwhile
    job.root.joinpath("OWNER").write_text(f"{before} x")
    job.round([other], partial(save, steps=2))
    found = job.round([cut_off, other], restore)
    assert {each["step"] for each in found} == {5}
    forget(job, 5)
    job.root.joinpath("OWNER").unlink()
    found = job.round([cut_off, other], restore)
    assert {each["step"] for each in found} == {5}, "the other's memory shows that a newer round has trained"


def test_a_round_that_ended_before_its_first_checkpoint_leaves_what_it_began_from(job: Job) -> None:
    node = job.node()
    saved = job.round([node], save)
    forget(job, 3)
    job.round([node], step_and_end)
    (found,) = job.round([node], restore)
    assert found["step"] == 3
    assert found["numbers"] == saved[0]["numbers"]
    assert found["sources"]["storage"] == 0


def step_and_end(rank: Rank) -> dict[str, Any]:
    state = state_of(rank, "plain")
    checkpoints = rank.checkpointer(state)
    checkpoints.restore()
    train(state, 1)
    checkpoints.claim()
    checkpoints.settle()
    return {}


# -- sharded state -----------------------------------------------------------------------------------------------------


def test_of_a_sharded_state_storage_is_read_for_what_was_lost_only(job: Job) -> None:
    nodes = [job.node() for _ in range(4)]
    saved = job.round(nodes, partial(save, kind="sharded"))
    everything = job.round([job.node()], partial(restore, kind="sharded"))[0]["sources"]
    found = job.round(nodes[:3], partial(restore, kind="sharded"))
    assert [each["numbers"] for each in found] == [saved[0]["numbers"]] * 3
    sources = found[0]["sources"]
    assert 0 < sources["storage"] < 0.5 * everything["storage"]
    assert sources["own"] > 0
    assert sources["peers"] > 0
    forget(job, 3)
    with_all = job.round([nodes[2], nodes[0], nodes[3], nodes[1], job.node()], partial(restore, kind="sharded"))
    assert [each["numbers"] for each in with_all] == [saved[0]["numbers"]] * 5
    assert with_all[0]["sources"]["storage"] == 0
    assert job.round(nodes[:3], nothing) == [{"restored": False}] * 3, "a part is nowhere"


def nothing(rank: Rank) -> dict[str, Any]:
    return {"restored": rank.checkpointer(state_of(rank, "sharded")).restore() is not None}


def test_of_a_state_that_is_sharded_and_replicated_the_memory_of_one_replica_is_enough(job: Job) -> None:
    nodes = [job.node() for _ in range(4)]
    saved = job.round(nodes, partial(save, kind="hybrid"))
    forget(job, 3)
    found = job.round([nodes[0], nodes[3]], partial(restore, kind="hybrid"))
    assert [each["numbers"] for each in found] == [saved[0]["numbers"]] * 2
    assert found[0]["sources"]["storage"] == 0


# -- faults ------------------------------------------------------------------------------------------------------------


def test_all_ranks_learn_that_rank_0_cannot_look_for_checkpoints(job: Job) -> None:
    job.root.symlink_to(job.root)
    found = job.round([job.node(), job.node()], say_what_is_raised)
    assert found[0]["raised"].startswith("OSError: [Errno 40] Too many levels of symbolic links")
    assert found[1]["raised"].startswith("CheckpointError: rank 0 cannot look for checkpoints: OSError: [Errno 40]")


def say_what_is_raised(rank: Rank) -> dict[str, Any]:
    try:
        rank.checkpointer(state_of(rank, "plain")).restore()
    except Exception as error:  # noqa: BLE001  # of any kind
        return {"raised": f"{type(error).__name__}: {error}"}
    return {"raised": ""}


def test_a_rank_with_a_fault_of_its_own_goes_on_sending_what_others_wait_for(job: Job) -> None:
    found = job.round([job.node() for _ in range(3)], pass_on)
    assert [each["failure"] for each in found] == ["", "MemoryError()", ""]
    assert found[2]["first"], "what came before the fault is whole"


def pass_on(rank: Rank) -> dict[str, Any]:
    """Two tensors of several blocks go from rank 0 to 1 to 2; rank 1 has no memory for the second."""
    rows = 3 * MAX_BLOCK_BYTES // 1024
    sent = [torch.arange(rows * 256, dtype=torch.float32).view(rows, 256) + at for at in (0, 1)]
    parts = Parts([("a", (0, 0)), ("b", (0, 0))], [(rows, 256)] * 2, [torch.float32] * 2, {}, [set(), set(), set()])
    if rank.rank == 0:
        parts.own = {at: tensor.view(-1).view(torch.uint8) for at, tensor in enumerate(sent)}
    boxes = [Box(at, (0, 0), (rows, 256)) for at in (0, 1)]
    reading: Any = FewPlaces([torch.zeros(rows, 256) for _ in sent], places=1 if rank.rank == 1 else 2)
    exchange = Exchange(rank.peers, parts, reading, dict.fromkeys(boxes, reading), {}, {})
    exchange.run([Transfer(box, (0, 1, 2), from_storage=False) for box in boxes])
    try:
        exchange.finish()
    except MemoryError as error:
        return {"failure": repr(error)}
    return {"failure": "", "first": rank.rank == 0 or torch.equal(reading.tensors[0], sent[0])}


@dataclass
class FewPlaces:
    """Where tensors go."""

    tensors: list[torch.Tensor]
    places: int
    asked: int = 0

    def destination(self, item: Any) -> torch.Tensor:
        self.asked += 1
        if self.asked > self.places:
            raise MemoryError
        return self.tensors[self.asked - 1]


def test_a_holder_that_dies_while_it_sends_ends_the_round_and_the_next_decides_anew(job: Job) -> None:
    nodes = [job.node(), job.node()]
    saved = job.round(nodes, save)
    forget(job, 3)
    newcomer = job.node()
    found = job.round([nodes[0], newcomer], die_while_sending)
    assert found == [{}, {"lost": True}]
    found = job.round([newcomer, nodes[1]], restore)
    assert [each["numbers"] for each in found] == [saved[0]["numbers"]] * 2


class DyingPeers(Peers):
    """Its process ends when it has sent something."""

    def send(self, raw: torch.Tensor, rank: int) -> Any:
        super().send(raw, rank).wait()
        os._exit(9)


def die_while_sending(rank: Rank) -> dict[str, Any]:
    peers = DyingPeers(rank.peers.rank, rank.peers.world, rank.peers.group)
    checkpoints = rank.checkpointer(state_of(rank, "plain"), peers)
    try:
        checkpoints.restore()
    except RuntimeError:
        return {"lost": True}
    return {"lost": False}


def test_blocks_are_sent_a_few_at_a_time(job: Job) -> None:
    found = job.round([job.node(), job.node()], count_sending)
    assert found == [{"whole": True, "most": MAX_SENDING}, {"whole": True, "most": 0}]


class CountingPeers(Peers):
    """Counts messages that were sent, and not waited for."""

    under_way = most = 0

    def send(self, raw: torch.Tensor, rank: int) -> Any:
        CountingPeers.under_way += 1
        CountingPeers.most = max(CountingPeers.most, CountingPeers.under_way)
        return Counted(super().send(raw, rank))


@dataclass
class Counted:
    """A message under way."""

    work: Any

    def wait(self) -> None:
        self.work.wait()
        CountingPeers.under_way -= 1


def count_sending(rank: Rank) -> dict[str, Any]:
    """A tensor of more blocks than may be under way goes from rank 0 to 1."""
    rows = 2 * MAX_SENDING * MAX_BLOCK_BYTES // 1024
    sent = torch.arange(rows * 256, dtype=torch.float32).view(rows, 256)
    parts = Parts([("a", (0, 0))], [(rows, 256)], [torch.float32], {}, [set(), set()])
    if rank.rank == 0:
        parts.own = {0: sent.view(-1).view(torch.uint8)}
    box = Box(0, (0, 0), (rows, 256))
    reading: Any = FewPlaces([torch.zeros(rows, 256)], places=1)
    peers = CountingPeers(rank.peers.rank, rank.peers.world, rank.peers.group)
    exchange = Exchange(peers, parts, reading, {box: reading}, {}, {})
    exchange.run([Transfer(box, (0, 1), from_storage=False)])
    exchange.finish()
    return {"whole": rank.rank == 0 or torch.equal(reading.tensors[0], sent), "most": CountingPeers.most}


def test_a_slow_newcomer_is_waited_for(job: Job) -> None:
    nodes = [job.node(), job.node()]
    saved = job.round(nodes, save)
    found = job.round([nodes[0], job.node()], late)
    assert [each["numbers"] for each in found] == [saved[0]["numbers"]] * 2


def late(rank: Rank) -> dict[str, Any]:
    if rank.rank == 1:
        time.sleep(2.0)
    return restore(rank)
