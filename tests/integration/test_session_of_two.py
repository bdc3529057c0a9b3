"""What two ranks of a Session hear that are not alike: a SessionError on both that names what differs, and no hang.

The ranks are forked once, and make all cases one after the other: after a SessionError both are still in step.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from spotsup_trainer.session import Session, peers
from spotsup_trainer.session.sampler import Cursor, Part, Plan, steps
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.long

FORKED = multiprocessing.get_context("fork")
LIMIT_S = 60.0
LATE_S = 1.0
DATA = torch.arange(40.0).reshape(40, 1)
Case = Callable[[int], Any]
CASES: dict[str, Case] = {}


def case(made: Case) -> Case:
    CASES[made.__name__] = made
    return made


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(1, 1, bias=False)


def session(net: nn.Module | None = None, **options: Any) -> Session:
    return Session({"model": DistributedDataParallel(model()) if net is None else net}, environ={}, **options)


def trained(one: Session, data: Any = DATA, net: Any = None, rate: float = 1e-4, **options: Any) -> int:
    """The number of steps until the loader's end. `rate`: of the first step."""
    net = net or one._gradients._modules[0]
    opt = torch.optim.SGD(net.parameters(), lr=rate)
    for batch in one.loader(data, **{"global_batch": 8, **options}):
        one.backward(net(batch).square().mean())
        if one.accumulating:
            continue
        opt.step()
        opt.zero_grad()
        opt.param_groups[0]["lr"] = 1e-4
        one.step()
    one.finish()
    return one.steps_done


# -- what has to be alike ------------------------------------------------------------------------------------------


@case
def lengths(rank: int) -> Any:
    return trained(session(), DATA[: 40 - rank])


@case
def seeds(rank: int) -> Any:
    return trained(session(), seed=rank)


@case
def orders(rank: int) -> Any:
    return trained(session(), shuffle=rank == 0)


@case
def ends(rank: int) -> Any:
    return trained(session(), drop_last=rank == 0)


@case
def global_batches(rank: int) -> Any:
    return trained(session(), global_batch=8 + 2 * rank)


@case
def epochs(rank: int) -> Any:
    return trained(session(), epochs=1 + rank)


@case
def batch_samplers(rank: int) -> Any:
    return trained(session(), global_batch=None, batch_sampler=[[0, 1], [2, 3]][: 1 + rank])


@case
def micro_batches_with_ddp(rank: int) -> Any:
    return trained(session(), micro_batch=3 + rank)


@case
def micro_batches_with_a_static_graph(rank: int) -> Any:
    """The weights of one process that has all samples."""
    net = DistributedDataParallel(model(), static_graph=True)
    trained(session(net), micro_batch=3)
    alone = model()
    opt = torch.optim.SGD(alone.parameters(), lr=1e-4)
    for step in steps(Plan(len(DATA), 8), Cursor(), Part(0, 1), 1, None):
        opt.zero_grad()
        alone(DATA[step.counted]).square().mean().backward()
        opt.step()
    return torch.allclose(net.module.weight, alone.weight, rtol=1e-5)


@case
def micro_batches_that_differ_with_a_static_graph(rank: int) -> Any:
    return trained(session(DistributedDataParallel(model(), static_graph=True)), micro_batch=1 + rank)


@case
def micro_batches_with_fsdp(rank: int) -> Any:
    return trained(session(fully_shard(model())), micro_batch=1 + rank)


@case
def intervals(rank: int) -> Any:
    return trained(session(every_steps=5 + rank))


@case
def kept(rank: int) -> Any:
    return trained(session(keep_every=rank or None))


@case
def states(rank: int) -> Any:
    more = {"best": {"loss": 0.0}} if rank == 0 else {}
    return Session({"model": DistributedDataParallel(model()), **more}, environ={})


@case
def wrapped(rank: int) -> Any:
    return session().wrap([], micro_batches=1 + rank)


# -- replicas ------------------------------------------------------------------------------------------------------


@case
def not_wrapped(rank: int) -> Any:
    return trained(session(model()))


@case
def wrapped_and_not_called(rank: int) -> Any:
    net = DistributedDataParallel(model())
    return trained(session(net), net=net.module)


@case
def not_wrapped_with_a_learning_rate_that_begins_at_0(rank: int) -> Any:
    return trained(session(model()), rate=0.0)


@case
def averaged_by_hand(rank: int) -> Any:
    net = model()

    def average(gradient: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(gradient)
        return gradient / 2

    for parameter in net.parameters():
        parameter.register_hook(average)
    return trained(session(net))


@case
def wrapped_beside_the_state(rank: int) -> Any:
    net = DistributedDataParallel(model())
    return trained(session(net.module), net=net)


# -- calls of one rank only ----------------------------------------------------------------------------------------


@case
def a_loader_of_rank_0(rank: int) -> Any:
    one = session()
    return one.loader(DATA, global_batch=4) if rank == 0 else one.step()


@case
def a_save_of_rank_0(rank: int) -> Any:
    one = session()
    one.step()
    return one.save() if rank == 0 else one.finish()


@case
def nothing(rank: int) -> Any:
    one = session()
    if rank == 1:
        time.sleep(2 * LATE_S)
    return trained(one)


@case
def a_save_of_rank_0_while_rank_1_trains(rank: int) -> Any:
    """The last case: gloo waits in two groups, each rank for the other, and rank 1 ends when rank 0 has."""
    peers.TIMEOUT_S = 4 * LATE_S
    one = session()
    (net,) = one._gradients._modules
    for batch in one.loader(DATA, global_batch=8, epochs=2):
        one.backward(net(batch).square().mean())
        one.step()
        if rank == 0 and one.steps_done == 5:
            one.save_best("loss", 1.0, mode="min")
    return one.steps_done


ALIKE = "; it has to be alike on all ranks"
EXPECTED: dict[str, Any] = {
    "lengths": f"the length of the data set is 40 on rank 0 and 39 on rank 1{ALIKE}",
    "seeds": f"seed is 0 on rank 0 and 1 on rank 1{ALIKE}",
    "orders": f"shuffle is True on rank 0 and False on rank 1{ALIKE}",
    "ends": f"drop_last is True on rank 0 and False on rank 1{ALIKE}",
    "global_batches": f"global_batch is 8 on rank 0 and 10 on rank 1{ALIKE}",
    "epochs": f"epochs is 1 on rank 0 and 2 on rank 1{ALIKE}",
    "batch_samplers": f"the number of batches of batch_sampler is 1 on rank 0 and 2 on rank 1{ALIKE}",
    "micro_batches_with_ddp": 5,
    "micro_batches_with_a_static_graph": True,
    "micro_batches_that_differ_with_a_static_graph": f"micro_batch is 1 on rank 0 and 2 on rank 1{ALIKE}",
    "micro_batches_with_fsdp": f"micro_batch is 1 on rank 0 and 2 on rank 1{ALIKE}",
    "intervals": f"every_steps is 5 on rank 0 and 6 on rank 1{ALIKE}",
    "kept": f"keep_every is None on rank 0 and 1 on rank 1{ALIKE}",
    "states": f"state is of model, best on rank 0 and of model on rank 1{ALIKE}",
    "wrapped": f"micro_batches is 1 on rank 0 and 2 on rank 1{ALIKE}",
    "not_wrapped": "rank 1 has other values than rank 0 in model.weight after step 1: nothing keeps the ranks' models",
    "wrapped_and_not_called": "rank 1 has other values than rank 0 in model.module.weight after step 1: ",
    "not_wrapped_with_a_learning_rate_that_begins_at_0": "rank 1 has other values than rank 0 in model.weight after "
    "step 2: ",
    "averaged_by_hand": 5,
    "wrapped_beside_the_state": 5,
    "a_loader_of_rank_0": "the ranks made different Session calls: one is in loader() or wrap() after "
    "step 0, another in step() after step 1",
    "a_save_of_rank_0": "the ranks made different Session calls: one is in finish() after step 1, another in "
    "save() or save_best() after step 1",
    "nothing": 5,
}
WAITS = "rank 0 is in save() or save_best() after step 5, and has waited {} s for another rank to make the same call"


def be_rank(rank: int, folder: Path) -> None:
    """In a process of its own."""
    sys.stderr = (folder / f"err.{rank}").open("w", buffering=1)
    os.dup2(sys.stderr.fileno(), 2)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    peers.LATE_S = LATE_S
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    found: dict[str, Any] = {}
    for name, made in CASES.items():
        try:
            found[name] = made(rank)
        except RuntimeError as error:
            found[name] = f"{type(error).__name__}: {error}"
        (folder / f"found.{rank}").write_text(json.dumps(found, default=repr))
    os._exit(0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the ranks have written what they found."""
    made = tmp_path_factory.mktemp("ranks")
    ranks = [FORKED.Process(target=be_rank, args=(rank, made)) for rank in (0, 1)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(LIMIT_S)
        process.kill()
    return made


@pytest.fixture
def errors(folder: Path) -> list[str]:
    """The standard error of each rank."""
    return [(folder / f"err.{rank}").read_text() for rank in (0, 1)]


@pytest.fixture
def found(folder: Path, errors: list[str]) -> list[dict[str, Any]]:
    """What each rank got, by the case."""
    print(*errors)
    return [json.loads((folder / f"found.{rank}").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("name", EXPECTED)
def test_ranks_that_are_not_alike_hear_so(name: str, found: list[dict[str, Any]]) -> None:
    for rank, of_rank in enumerate(found):
        assert name in of_rank, f"rank {rank} ended or hung before"
        got, expected = of_rank[name], EXPECTED[name]
        text = isinstance(expected, str)
        assert got.startswith(f"SessionError: {expected}") if text else got == expected, got


def test_a_rank_that_waits_for_others_says_where_and_gives_up(found: list[dict[str, Any]], errors: list[str]) -> None:
    assert found[0]["a_save_of_rank_0_while_rank_1_trains"] == f"SessionError: {WAITS.format(4)}"
    assert f"spotsup: {WAITS.format(1)}\n" in errors[0]
    assert "spotsup: rank 0 is in loader() or wrap() after step 0, and has waited 1 s for another rank" in errors[0]
