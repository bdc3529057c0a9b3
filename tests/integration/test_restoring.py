"""Rounds of several ranks that restore from each other's memory, from storage, or from both.

Each node's memory belongs to this process, as to a launcher; the ranks are forked from it, and end with their round.
"""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from spotsup_trainer import snapshot_files
from spotsup_trainer.session import snapshot, staging
from spotsup_trainer.session.checkpoint import Checkpointer
from spotsup_trainer.session.checkpoint_dir import CheckpointError, Position, checkpoints_in
from spotsup_trainer.session.exchange import MAX_BLOCK_BYTES, MAX_SENDING, Exchange
from spotsup_trainer.session.memory import Head, Keeper, Slot
from spotsup_trainer.session.parts import Parts
from spotsup_trainer.session.peers import Peers
from spotsup_trainer.session.survivors import Box, Transfer
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

pytestmark = pytest.mark.long

FORKED = multiprocessing.get_context("fork")
LIMIT_S = 60.0


@dataclass
class Node:
    """A machine of the job."""

    memory: str
    job: str = "job"
    local_world: int = 1

    def files(self) -> list[snapshot_files.SnapshotFiles]:
        return snapshot_files.named_by({snapshot_files.VARIABLE: self.memory})

    def slots(self) -> list[Slot]:
        return [Slot(descriptor) for files in self.files() for descriptor in files.slots]

    def close(self) -> None:
        for files in self.files():
            for descriptor in (*files.slots, files.lineage):
                os.close(descriptor)


@dataclass
class Job:
    """What runs its rounds."""

    folder: Path
    root: Path
    nodes: list[Node] = field(default_factory=list)
    number: int = 0

    def node(self, local_world: int = 1, **options: Any) -> Node:
        made = Node(snapshot_files.create(local_world), local_world=local_world, **options)
        self.nodes.append(made)
        return made

    def round(self, nodes: list[Node], work: Callable[[Rank], dict[str, Any]]) -> list[dict[str, Any]]:
        """What `work` returned on each rank; {} of one that ended otherwise."""
        self.number += 1
        ranks = [(at, local) for at, node in enumerate(nodes) for local in range(node.local_world)]
        processes, files = [], []
        for rank, (at, local) in enumerate(ranks):
            environ = {
                snapshot_files.VARIABLE: nodes[at].memory,
                "SPOTSUP_JOB": nodes[at].job,
                "LOCAL_RANK": str(local),
                "LOCAL_WORLD_SIZE": str(nodes[at].local_world),
                "GROUP_RANK": str(at),
                "GROUP_WORLD_SIZE": str(len(nodes)),
            }
            files.append(self.folder / f"out-{self.number}-{rank}")
            one = partial(be_rank, self, rank, len(ranks), environ, work, files[-1])
            processes.append(FORKED.Process(target=one))
        for process in processes:
            process.start()
        deadline = time.monotonic() + LIMIT_S
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
        hung = [process for process in processes if process.is_alive()]
        for process in hung:
            process.kill()
            process.join()
        assert not hung, "\n".join(file.with_suffix(".err").read_text() for file in files)
        return [
            json.loads(file.read_text()) if file.exists() else {} for file in (f.with_suffix(".json") for f in files)
        ]


@dataclass
class Rank:
    """A rank in its process."""

    rank: int
    world: int
    round: int
    root: Path
    environ: dict[str, str]
    peers: Peers
    output: Path

    def checkpointer(self, state: dict[str, Any], peers: Peers | None = None) -> Checkpointer:
        keeper = Keeper.named_by(self.environ, self.rank, self.world)
        assert keeper is not None
        return Checkpointer(self.root, state, peers or self.peers, 2, round_number=self.round, keeper=keeper)


def be_rank(
    job: Job, rank: int, world: int, environ: dict[str, str], work: Callable[[Rank], dict[str, Any]], output: Path
) -> None:
    """In a process of its own."""
    sys.stderr = output.with_suffix(".err").open("w", buffering=1)
    os.dup2(sys.stderr.fileno(), 2)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{job.folder}/store.{job.number}", rank=rank, world_size=world)
    found = work(Rank(rank, world, job.number, job.root, environ, Peers.join({}), output))
    output.with_suffix(".json").write_text(json.dumps(found))
    os._exit(0)  # as a worker that is killed, without the destructors of process groups


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path, tmp_path / "checkpoints")
    yield made
    for node in made.nodes:
        node.close()


# -- what ranks do -----------------------------------------------------------------------------------------------------


def model_of(rank: Rank, kind: str) -> nn.Module:
    torch.manual_seed(3)
    model: nn.Module = nn.Sequential(nn.Linear(40, 30), nn.BatchNorm1d(30), nn.Linear(30, 5))
    if kind == "sharded":
        fully_shard(model, mesh=init_device_mesh("cpu", (rank.world,)))
    if kind == "hybrid":
        fully_shard(model, mesh=init_device_mesh("cpu", (rank.world // 2, 2), mesh_dim_names=("replicate", "shard")))
    return model


def state_of(rank: Rank, kind: str) -> dict[str, Any]:
    model = model_of(rank, kind)
    return {"model": model, "opt": torch.optim.AdamW(model.parameters(), lr=0.1), "notes": {"by": rank.rank}}


def train(state: dict[str, Any], steps: int) -> None:
    """The same on all ranks, with optimizer states."""
    for step in range(steps):
        for at, parameter in enumerate(state["model"].parameters()):
            parameter.grad = torch.full_like(parameter, 0.5 + at + step)
        state["opt"].step()


def numbers(state: dict[str, Any]) -> list[float]:
    """Of the whole state, as all ranks have it together."""

    def whole(tensor: Any) -> torch.Tensor:
        return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor

    found = []
    for parameter in state["model"].parameters():
        slots = state["opt"].state[parameter]
        for tensor in (parameter, slots["exp_avg"], slots["exp_avg_sq"], slots["step"]):
            values = whole(tensor).detach().double().reshape(-1)
            found += [float(values.sum()), float((values * torch.arange(len(values))).sum())]
    return found


def save(rank: Rank, kind: str = "plain", steps: int = 3) -> dict[str, Any]:
    """Restore what there is, train, and make a checkpoint: in memory, and where the disk allows in storage."""
    state = state_of(rank, kind)
    checkpoints = rank.checkpointer(state)
    before = checkpoints.restore() or Position(0)
    train(state, steps)
    checkpoints.claim()
    saved = checkpoints.save(Position(before.step + steps, samples=7))
    return {"saved": saved, "numbers": numbers(state), "from": before.step}


def restore(rank: Rank, kind: str = "plain") -> dict[str, Any]:
    state = state_of(rank, kind)
    checkpoints = rank.checkpointer(state)
    position = checkpoints.restore()
    assert position is not None
    values = numbers(state)
    return {"step": position.step, "numbers": values, "notes": state["notes"], "sources": asdict(checkpoints.sources)}


def bytes_of_slots(node: Node) -> list[int]:
    """Of the pieces in each whole snapshot that a node has a part of."""
    found = [(slot, head) for slot in node.slots() if (head := slot.head())]
    return [sum(piece.bytes for piece in slot.table(head)) for slot, head in found]


def bytes_of(node: Node) -> int:
    """Of one snapshot in the memory of a node."""
    return sum(bytes_of_slots(node))


def forget(job: Job, *steps: int) -> None:
    """As if the processes had been killed before these checkpoints were complete."""
    for checkpoint in checkpoints_in(job.root):
        if checkpoint.step in steps:
            shutil.rmtree(checkpoint.path)


# -- replicated state --------------------------------------------------------------------------------------------------


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


@pytest.mark.long
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


@pytest.mark.long
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
