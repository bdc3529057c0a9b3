"""A DataLoader that a program has made, given to a Session's loader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from spotsup_trainer.session import Session, SessionError
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    WeightedRandomSampler,
)

from tests.integration.sessions import TEN, session


def batches(one: Session, loader: Any, **options: Any) -> list[Any]:
    found = []
    for batch in one.loader(loader, **options):
        found.append(batch.tolist())
        if not one.accumulating:
            one.step()
    return found


def test_the_batch_size_is_that_of_a_micro_batch_and_the_order_the_sessions() -> None:
    given = batches(session(None), DataLoader(TEN, batch_size=3), global_batch=6)
    assert given == [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]
    same = batches(session(None), TEN, global_batch=6, micro_batch=3, seed=4)
    assert batches(session(None), DataLoader(TEN, 3, shuffle=True), global_batch=6, seed=4) == same
    distributed = DistributedSampler(TEN, 2, 0, seed=4)
    assert batches(session(None), DataLoader(TEN, 3, sampler=distributed), global_batch=6) == same
    dropped = DataLoader(TEN, 3, drop_last=True, collate_fn=lambda samples: torch.stack(samples) + 100)
    assert batches(session(None), dropped, global_batch=6) == [[100, 101, 102], [103, 104, 105]]
    assert batches(session(None), dropped, global_batch=6, micro_batch=6, drop_last=False, collate_fn=torch.stack) == [
        [0, 1, 2, 3, 4, 5],
        [6, 7, 8, 9],
    ]


def test_options_are_taken_over() -> None:
    def begin(worker: int) -> None:
        pass

    loader = DataLoader(
        *(TEN, 2),
        num_workers=1,
        prefetch_factor=3,
        persistent_workers=True,
        timeout=20.0,
        worker_init_fn=begin,
        multiprocessing_context="fork",
    )
    one = session(None)
    made = one.loader(loader, global_batch=4)
    assert len(list(made)) == 5
    taken = made._loader
    assert (taken.num_workers, taken.prefetch_factor, taken.persistent_workers, taken.timeout) == (1, 3, True, 20.0)
    assert taken.worker_init_fn is begin
    assert taken.multiprocessing_context.get_start_method() == "fork"


def test_a_batch_sampler_of_its_own_gives_the_batches_of_all_ranks() -> None:
    own = [[3, 1], [9, 8, 7]]
    assert batches(session(None), DataLoader(TEN, batch_sampler=own)) == own
    with pytest.raises(SessionError, match="leave global_batch out if its batches are those of all ranks together"):
        session(None).loader(DataLoader(TEN, batch_sampler=BatchSampler(range(10), 2, False)), global_batch=4)


class Stream(IterableDataset[int]):  # type: ignore[misc]  # torch is untyped here
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


class Shifted(DataLoader[int]):  # type: ignore[misc]  # torch is untyped here
    def __iter__(self) -> Iterator[Any]:
        return iter([torch.tensor([1])])


@pytest.mark.parametrize(
    ("loader", "kind", "sentence"),
    [
        (
            DataLoader(TEN, 2, sampler=WeightedRandomSampler([1.0] * 10, 10)),
            SessionError,
            "WeightedRandomSampler cannot",
        ),
        (DataLoader(TEN, 2, sampler=RandomSampler(TEN, True)), SessionError, "RandomSampler cannot be taken over"),
        (DataLoader(TEN, 2, sampler=RandomSampler(TEN, num_samples=4)), SessionError, "RandomSampler cannot be taken"),
        (DataLoader(TEN, 2, sampler=SequentialSampler(Subset(TEN, [1]))), SessionError, "SequentialSampler cannot"),
        (DataLoader(TEN, batch_size=None), SessionError, "has batch_size=None, so its data set makes the batches"),
        (Shifted(TEN, 2), SessionError, "Shifted has an __iter__ of its own"),
        (DataLoader(TEN, 2, in_order=False), SessionError, "takes no in_order=False"),
        (DataLoader(Stream(), 2), TypeError, "Stream has no length or no index"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_what_cannot_be_taken_over_is_refused(loader: Any, kind: type[Exception], sentence: str) -> None:
    with pytest.raises(kind, match=sentence):
        session(None).loader(loader, global_batch=4)


def test_without_a_global_batch_it_is_refused_and_so_is_a_loop_that_does_not_wait_for_micro_batches() -> None:
    with pytest.raises(ValueError, match="either a global_batch or a batch_sampler: the samples of all"):
        session(None).loader(DataLoader(TEN, 2))
    one = session(None)
    next(iter(one.loader(DataLoader(TEN, 2), global_batch=4)))
    with pytest.raises(SessionError, match=r"write `if session.accumulating: continue` after"):
        one.step()
    two = session(None)
    for _ in two.loader(DataLoader(TEN, 4), global_batch=4):  # one batch with any number of ranks
        two.step()
    assert two.steps_done == 3
