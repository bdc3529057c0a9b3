"""What two ranks agree on in quick steps, one step later: none waits for the other, and both stop at the same step."""

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
from spotsup_trainer.session import Session, SessionError
from spotsup_trainer.session.agreement import QUICK_STEP_S, Agreement, Level, Wish
from spotsup_trainer.session.peers import Peers
from spotsup_trainer.wire import RankTimes, decode
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.support.agents import wait_for

pytestmark = pytest.mark.long

FORKED = multiprocessing.get_context("fork")
LIMIT_S = 90.0
Case = Callable[[int, Path], Any]
CASES: dict[str, Case] = {}
QUICK = Wish(Level.CONTINUE, step_s=0.01)


def case(made: Case) -> Case:
    CASES[made.__name__] = made
    return made


def silent() -> tuple[int, int]:
    return 0, 0


def trained(one: Session, rank: int, folder: Path, *, until: int, ask_at: int) -> None:
    """Quick steps; after `ask_at` of them rank 1 is asked to yield."""
    net = one._gradients._modules[0]
    while one.steps_done < until:
        one.backward(net(torch.ones(1, 1)).sum())
        if rank == 1 and one.steps_done == ask_at:
            (folder / "yield-1").touch()
        one.step()


def session(rank: int, folder: Path, **options: Any) -> Session:
    environ = {
        f"SPOTSUP_{name.upper()}_FILE": str(folder / f"{name}-{rank}") for name in ("yield", "parked", "session")
    }
    environ |= {"SPOTSUP_RANK_TIMES_FILE": str(folder / "times"), "SPOTSUP_ROUND": "7"}
    model = DistributedDataParallel(nn.Linear(1, 1))
    state = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.0)}
    return Session(state, environ=environ, checkpoints=folder / "saved", park_timeout_s=0.1, **options)


@case
def waits_for_nobody(rank: int, folder: Path) -> list[str]:
    """Rank 1 comes to its step only once rank 0 has left its own."""
    agreement = Agreement(Peers.join({}))
    found = [agreement.of_step(step, QUICK, silent, waits=False).name for step in (1, 2)]
    if rank == 1:
        wait_for((folder / "left").exists)
    found.append(agreement.of_step(3, QUICK, silent, waits=False).name)
    (folder / "left").touch()
    return [*found, agreement.of_step(4, QUICK, silent, waits=False).name]


@case
def acts_one_step_later(rank: int, folder: Path) -> list[str]:
    agreement = Agreement(Peers.join({}))
    levels = [Level.CONTINUE] * 3 + [Level.YIELD] * 2 if rank == 1 else [Level.CONTINUE] * 5
    return [agreement.of_step(n, QUICK._replace(level=each), silent, waits=False).name for n, each in enumerate(levels)]


@case
def acts_at_once_in_slow_steps(rank: int, folder: Path) -> list[str]:
    """The longest steps of any rank count."""
    agreement = Agreement(Peers.join({}))
    levels = [Level.CONTINUE] * 3 + [Level.YIELD] if rank == 1 else [Level.CONTINUE] * 4
    wish = QUICK._replace(step_s=QUICK_STEP_S) if rank == 0 else QUICK
    return [agreement.of_step(n, wish._replace(level=each), silent, waits=False).name for n, each in enumerate(levels)]


@case
def compares_what_it_acts_on(rank: int, folder: Path) -> str:
    """Other samples in the step before a checkpoint are found before that begins."""
    agreement = Agreement(Peers.join({}))
    try:
        for step in range(5):
            wish = QUICK._replace(level=Level(step >= 2), digest=rank if step == 3 else 0)
            agreement.of_step(step, wish, silent, waits=False)
    except SessionError as error:
        return f"{step}: {error}"
    return "nothing"


@case
def says_its_work_once_it_is_asked(rank: int, folder: Path) -> list[list[int]]:
    agreement, found = Agreement(Peers.join({})), []
    for step in range(6):
        asks = rank == 0 and step == 2
        agreement.of_step(step, QUICK._replace(asks=asks), lambda: (10 + rank, rank), waits=False)
        found.append(agreement.take_work())
    return found


@case
def parks(rank: int, folder: Path) -> dict[str, Any]:
    """Rank 1 is asked during its 10th step."""
    one = session(rank, folder, every_s=3600.0)
    try:
        trained(one, rank, folder, until=100, ask_at=9)
    except SystemExit as error:
        return {"exit": str(error).split(";")[0], **json.loads((folder / f"parked-{rank}").read_text())}
    return {}


@case
def checkpoints_by_steps_stay_where_they_are(rank: int, folder: Path) -> list[int]:
    one = session(rank, folder, every_steps=10, keep=100)
    begun = []
    assert one._checkpoints is not None
    begin = one._checkpoints.begin
    one._checkpoints.begin = lambda position: begun.append(position.step) or begin(position)  # type: ignore[func-returns-value, method-assign]
    net = one._gradients._modules[0]
    while one.steps_done < 45:
        one.backward(net(torch.ones(1, 1)).sum())
        one.step()
        one._checkpoints.settle()
    return begun


@case
def a_slow_rank_is_seen(rank: int, folder: Path) -> None:
    """Rank 1 computes three times as long, and rank 0 waits for it in each backward pass."""
    one = session(rank, folder)
    one._work._asked_at -= 25.0  # asked after 5 s
    net = one._gradients._modules[0]
    until = time.monotonic() + 40.0
    for batch in one.loader(torch.ones(100, 1), global_batch=2, epochs=10**6):
        time.sleep(0.03 if rank == 1 else 0.01)
        one.backward(net(batch).sum())
        one.step()
        gone_on = torch.tensor(float(not (folder / "times").exists() and time.monotonic() < until))
        dist.all_reduce(gone_on, op=dist.ReduceOp.MIN)
        if not gone_on:
            return


EXPECTED: dict[str, Any] = {
    "waits_for_nobody": ["CONTINUE"] * 4,
    "acts_one_step_later": ["CONTINUE", "CONTINUE", "CONTINUE", "CONTINUE", "YIELD"],
    "acts_at_once_in_slow_steps": ["CONTINUE", "CONTINUE", "CONTINUE", "YIELD"],
    "says_its_work_once_it_is_asked": [[], [], [], [], [10, 0, 11, 1], []],
    "parks": {"exit": "spotsup: parked after step 11", "step": 11, "saved": True},
    "checkpoints_by_steps_stay_where_they_are": [10, 20, 30, 40],
    "a_slow_rank_is_seen": None,
}


def be_rank(rank: int, folder: Path) -> None:
    """In a process of its own."""
    sys.stderr = (folder / f"err.{rank}").open("w", buffering=1)
    os.dup2(sys.stderr.fileno(), 2)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    found: dict[str, Any] = {}
    for name, made in CASES.items():
        (folder / name).mkdir(exist_ok=True)
        dist.barrier()
        found[name] = made(rank, folder / name)
        (folder / f"found.{rank}").write_text(json.dumps(found))
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
    print(*((made / f"err.{rank}").read_text() for rank in (0, 1)))
    return made


def found(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"found.{rank}").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("name", EXPECTED)
def test_quick_steps_are_agreed_on_one_step_later(name: str, folder: Path) -> None:
    for rank, of_rank in enumerate(found(folder)):
        assert name in of_rank, f"rank {rank} ended or hung before"
        assert of_rank[name] == EXPECTED[name]


def test_no_checkpoint_has_a_step_with_other_samples(folder: Path) -> None:
    for rank, of_rank in enumerate(found(folder)):
        assert of_rank["compares_what_it_acts_on"].startswith(
            f"3: the batch_sampler of rank {rank} gives other batches"
        )


def test_the_report_names_the_rank_that_works_for_longer_and_not_the_one_that_waits(folder: Path) -> None:
    times = decode(RankTimes, (folder / "a_slow_rank_is_seen" / "times").read_bytes())
    assert times.round == 7
    first, second = times.step_s
    assert 0.009 < first < 0.6 * second
    assert times.sample_s == pytest.approx(times.step_s), "of one sample each"
