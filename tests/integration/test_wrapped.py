"""Loaders of a program's own in one process: where a Session resumes them, and what it says of those that cannot."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from spotsup_trainer.session import Counted, Session, SessionError
from spotsup_trainer.session.peers import Peers, Reading
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

# torchdata 0.11 calls what torch 2.13 deprecates
pytestmark = [pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"), pytest.mark.long]
TEN = torch.arange(10)


@pytest.fixture(autouse=True)
def workers_end_soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """End the workers of loaders that were not read to their end with their test; torch waits 5 s for each."""
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1)
    gc.freeze()  # a large heap takes a second to look through
    yield
    gc.collect()


class Stream:
    """Batches 0 to length - 1 of an epoch, each a tensor of one number; a position, and the epochs before it."""

    def __init__(self, length: int = 5) -> None:
        self.length = length
        self.epoch = self.at = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        while self.at < self.length:
            self.at += 1
            yield torch.tensor([100 * self.epoch + self.at - 1])
        self.epoch, self.at = self.epoch + 1, 0

    def __len__(self) -> int:
        return self.length

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.at = state["epoch"], state["at"]


class Numbers(IterableDataset[int]):  # type: ignore[misc]  # torch is untyped here
    """A stream that data loading workers share, with a position in its iterator."""

    def __iter__(self) -> Iterator[int]:
        info = torch.utils.data.get_worker_info()
        return NumbersFrom(range(info.id, 40, info.num_workers) if info else range(40))


class NumbersFrom(Iterator[int]):
    def __init__(self, own: range) -> None:
        self.own, self.at = own, 0

    def __next__(self) -> int:
        if self.at == len(self.own):
            raise StopIteration
        self.at += 1
        return self.own[self.at - 1]

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class WithoutPosition(IterableDataset[int]):  # type: ignore[misc]  # torch is untyped here
    """As most streams are."""

    def __iter__(self) -> Iterator[int]:
        yield from range(40)


class Beside(Peers):
    """One of two ranks; the other one's values come from a function of this one's."""

    others: ClassVar[Any]

    def begin_highest(self, values: Sequence[int]) -> Reading:
        return Reading(0, [max(pair) for pair in zip(values, self.others(list(values)), strict=True)], None)


def session(root: Path | None, **options: Any) -> Session:
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    state = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
    return Session(state, checkpoints=root, environ={}, **options)


def numbers(batch: Any) -> list[int]:
    return [int(number) for number in batch.reshape(-1)]


def trained(one: Session, loader: Any, *, stop_after: int = 10**6, **options: Any) -> list[list[int]]:
    """What `loader` gives until training is over, or before step `stop_after`, with a step after each batch."""
    seen: list[list[int]] = []
    for batch in one.wrap(loader, **options):
        if one.steps_done == stop_after:
            break  # this batch is not trained on
        seen.append(numbers(batch))
        one.backward(batch.float().mean() * sum(each.sum() for each in one._gradients._modules[0].parameters()))
        if not one.accumulating:
            one.step()
    one.finish()
    return seen


MAKERS: dict[str, Callable[[], Any]] = {
    "a stream of one's own": lambda: Stream(7),
    "StatefulDataLoader in order": lambda: StatefulDataLoader(TEN, batch_size=3),
    "StatefulDataLoader shuffled": lambda: StatefulDataLoader(torch.arange(20), batch_size=3, shuffle=True),
    "StatefulDataLoader of a stream with a position, in workers": lambda: StatefulDataLoader(
        Numbers(), batch_size=3, num_workers=2, multiprocessing_context="fork"
    ),
    "Counted": lambda: Counted(lambda epoch: TEN.split(3)[:: 1 - 2 * (epoch % 2)]),
    "StatefulDataLoader of workers that stay": lambda: StatefulDataLoader(
        TEN, batch_size=2, num_workers=1, multiprocessing_context="fork", persistent_workers=True
    ),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_loader_goes_on_where_its_last_completed_step_was(make: Callable[[], Any], tmp_path: Path) -> None:
    """Whether the batch after it was taken, or the epoch was over, and its workers had read ahead."""
    whole = trained(session(tmp_path / "whole"), make(), epochs=3)
    per_epoch = len(whole) // 3
    for stops in ([2], [per_epoch], [1, per_epoch - 1, per_epoch + 1], [2 * per_epoch]):
        folder = tmp_path / str(stops)
        seen: list[list[int]] = []
        for stop in [*stops, 10**6]:
            seen += trained(session(folder), make(), epochs=3, stop_after=stop)
        assert seen == whole, stops
    again = session(tmp_path / "whole")
    assert (again.steps_done, again.epoch) == (len(whole), 3)
    assert trained(again, make(), epochs=3) == []


def test_a_step_of_several_batches_and_the_smaller_one_at_the_end_of_an_epoch(tmp_path: Path) -> None:
    one = session(tmp_path)
    batches = one.wrap(Stream(5), epochs=2, micro_batches=2)
    assert len(batches) == 12
    weights = []
    for batch in batches:
        weights.append((*numbers(batch), one.weight, one.accumulating))
        if not one.accumulating:
            one.step()
    assert weights[:5] == [(0, 0.5, True), (1, 0.5, False), (2, 0.5, True), (3, 0.5, False), (4, 1.0, False)]
    assert (one.steps_done, one.epoch) == (6, 2)
    half = session(tmp_path / "half")
    assert trained(half, Stream(5), micro_batches=2, stop_after=1) == [[0], [1]]
    assert trained(session(tmp_path / "half"), Stream(5), micro_batches=2) == [[2], [3], [4]]


def test_epochs_are_loops_of_their_own(tmp_path: Path) -> None:
    seen = []
    for stop in (3, 10**6):
        one = session(tmp_path)
        for epoch in one.wrap(Stream(2), epochs=3).epochs():
            lengths = len(epoch)
            for batch in epoch:
                if one.steps_done == stop:
                    break
                seen.append((epoch.number, lengths, *numbers(batch)))
                one.step()
            if one.steps_done == stop:
                break
        one.finish()
    assert seen == [(0, 2, 0), (0, 2, 1), (1, 2, 100), (1, 1, 101), (2, 2, 200), (2, 2, 201)]


def test_a_loop_that_was_left_goes_on_and_an_epoch_that_was_left_is_over() -> None:
    one = session(None)
    batches = one.wrap(Stream(3), epochs=2)
    seen = []
    for _ in range(3):
        for batch in batches:
            seen += numbers(batch)
            one.step()
            break
    assert seen == [0, 1, 2]
    other = session(None)
    lists = []
    for epoch in other.wrap(StatefulDataLoader(TEN, batch_size=4), epochs=2).epochs():
        for batch in epoch:
            lists.append(numbers(batch))
            other.step()
            if epoch.number == 0:
                break
    assert lists == [[0, 1, 2, 3], [0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_samples_of_batches_of_different_lengths_weigh_the_same() -> None:
    model = nn.Linear(1, 1, bias=False)
    one = Session({"model": model}, environ={})
    for batch in one.wrap(StatefulDataLoader(TEN.float(), batch_size=4), micro_batches=3):
        one.backward(model(batch.unsqueeze(1)).mean())
    assert model.weight.grad.item() == pytest.approx(4.5)
    one.step()
    assert one._course.position.samples == 10


def test_shards_are_as_many_loaders_in_one_process(tmp_path: Path) -> None:
    def make(number: int) -> StatefulDataLoader[int]:
        return StatefulDataLoader(TEN[number::3], batch_size=2)

    seen = trained(session(tmp_path), make, shards=3, stop_after=1)
    assert seen == [[0, 3], [1, 4], [2, 5]]
    assert trained(session(tmp_path), make, shards=3) == [[6, 9], [7], [8]]
    trained(session(tmp_path / "other"), make, shards=3, stop_after=1)
    other = session(tmp_path / "other")
    with pytest.raises(SessionError, match=r"\(3, 0, by a wrapped loader\), but this loader has \(2, 0"):
        other.wrap(make, shards=2)


# -- the worst days of a loader ------------------------------------------------------------------------------


class Locked(Stream):
    """Its state has what cannot be pickled."""

    def state_dict(self) -> dict[str, Any]:
        return {"lock": threading.Lock()}


class Raising(Stream):
    """It has no state while it is used."""

    def state_dict(self) -> dict[str, Any]:
        raise RuntimeError("the queue is closed")


class Another(Stream):
    """It expects another state."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["position"]


class Spent(Stream):
    """It can be iterated over once."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        while self.at < self.length:
            self.at += 1
            yield torch.tensor([self.at])


def test_a_loader_that_cannot_say_where_it_is_is_refused_with_its_first_batch() -> None:
    wrongs = {
        Locked: r"the position of rank 0's loader \(Locked\) cannot be pickled, and so not be saved in a checkpoint: ",
        Raising: r"the position of rank 0's loader \(Raising\) is unknown: state_dict\(\) raised RuntimeError",
    }
    for wrong, reason in wrongs.items():
        with pytest.raises(SessionError, match=reason):
            next(iter(session(None).wrap(wrong())))
    for workers in (0, 1):
        counting = StatefulDataLoader(
            WithoutPosition(), num_workers=workers, multiprocessing_context="fork" if workers else None
        )
        with pytest.raises(SessionError, match="torchdata would leave out as many once more"):
            next(iter(session(None).wrap(counting)))


def test_a_position_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    trained(session(tmp_path), Stream(), stop_after=2)
    with pytest.raises(SessionError, match=r"\(Another\) cannot be restored: load_state_dict\(\) raised KeyError"):
        session(tmp_path).wrap(Another())
    with pytest.raises(SessionError, match=r"epoch 0 was begun with length, seed, order = .*by a wrapped loader"):
        session(tmp_path).loader(TEN, global_batch=2)


def test_loaders_without_a_position_and_wrong_arguments_are_refused() -> None:
    one = session(None)
    with pytest.raises(TypeError, match=r"DataLoader has no state_dict\(\) and .*torchdata's StatefulDataLoader"):
        one.wrap(DataLoader(TEN))
    for wrong in ({"micro_batches": 0}, {"shards": 0}, {"shards": 2, "reshard": max}):
        with pytest.raises(ValueError, match=r"at least 1|no reshard"):
            one.wrap(Stream(), **wrong)
    with pytest.raises(TypeError, match="a function that makes number 0"):
        one.wrap(Stream(), shards=2)
    with pytest.raises(TypeError, match="a function that makes number 0"):
        one.wrap(lambda _: Stream())


def test_a_loader_that_begins_no_second_epoch_is_an_error_and_no_endless_loop() -> None:
    one = session(None)
    batches = iter(one.wrap(Spent(2), epochs=2))
    for _ in range(2):
        next(batches)
        one.step()
    with pytest.raises(SessionError, match="no rank's loader gave a batch in epoch 1"):
        next(batches)


def test_one_loader_is_wrapped_once_in_an_epoch() -> None:
    one = session(None)
    stream = Stream()
    next(iter(one.wrap(stream)))
    one.step()
    with pytest.raises(SessionError, match="wrap one loader once"):
        one.wrap(stream)
    other = session(None)
    seen = []
    for epochs in (1, 2):
        for batch in other.wrap(stream, epochs=epochs):
            seen += numbers(batch)
            other.step()
    assert seen[-5:] == [100, 101, 102, 103, 104]


def test_a_position_of_all_ranks_is_that_before_a_step_that_was_not_completed(tmp_path: Path) -> None:
    """As of Mosaic's loader, which tests/frameworks has: here in an epoch, at its end, and with a batch taken."""
    seen = []
    for stop in (2, 3, 4, 5, 10**6):
        one = session(tmp_path)
        batches = one.wrap(Stream(3), epochs=3)
        batches._sources[0].knows_all = True
        for epoch in batches.epochs():
            for batch in epoch:
                if one.steps_done == stop:
                    break
                seen += numbers(batch)
                one.step()
            if one.steps_done == stop:
                break
            assert one.save()  # as after an evaluation
        one.finish()
    assert seen == [0, 1, 2, 100, 101, 102, 200, 201, 202]
    assert trained(session(tmp_path), Stream(3), epochs=4) == [[300], [301], [302]]


def test_a_rank_without_a_shard_has_no_length() -> None:
    one = session(None)
    batches = one.wrap(lambda _: Stream(), shards=1)
    batches._sources = []
    with pytest.raises(TypeError, match="no shard, and so no length"):
        len(batches)


@pytest.mark.nightly
def test_one_line_says_what_was_wrapped(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    one = session(tmp_path, every_steps=5)
    wrapped = one.wrap(Stream(), epochs=3, micro_batches=2)
    for _ in zip(range(2), wrapped, strict=False):  # the first step
        pass
    one.step()
    one.save()
    again = session(tmp_path, every_steps=5)
    again.wrap(Stream(), epochs=3, micro_batches=2)
    session(None).wrap(lambda _: Stream(), shards=8)
    assert [line for line in capfd.readouterr().err.splitlines() if "spotsup: 1 rank, " in line] == [
        f"spotsup: 1 rank, a step has {steps}"
        for steps in (
            (
                "2 batches of each rank's own loader, epoch 0 from step 0 of 3 epochs, checkpoints every 5 steps to "
                f"{tmp_path}"
            ),
            (
                "2 batches of each rank's own loader, epoch 0 from step 1 of 3 epochs, checkpoints every 5 steps to "
                f"{tmp_path}"
            ),
            "a batch of each of 8 shards, epoch 0 from step 0 of 1 epochs, no checkpoints",
        )
    ]


def test_a_large_position_is_named_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    class Hoarding(Stream):
        def state_dict(self) -> dict[str, Any]:
            return {**super().state_dict(), "read": torch.zeros(65 << 20, dtype=torch.uint8)}

    one = session(tmp_path)
    for _ in one.wrap(Hoarding(2)):
        one.step()
        assert one.save()
    printed = capfd.readouterr().err
    assert printed.count("the position of rank 0's loader has 65 MiB, and training stops at each checkpoint") == 1


def test_a_failure_on_another_rank_is_an_error_here() -> None:
    one = session(None)
    one._peers = Beside(0, 2, None)
    Beside.others = staticmethod(lambda values: values if len(values) > 1 else [1])
    with pytest.raises(SessionError, match="the loader of rank 1 failed: see the SessionError in its output"):
        one.wrap(Stream())


def test_checkpoints_without_positions_are_read(tmp_path: Path) -> None:
    """Those of an earlier version."""
    one = session(tmp_path)
    assert one._checkpoints is not None
    one._checkpoints._state = {name: one._checkpoints._state[name] for name in ("model", "optimizer")}
    one.step()
    one.finish()
    again = session(tmp_path)
    assert again.steps_done == 1
    assert trained(again, Stream(2)) == [[0], [1]]


@pytest.mark.nightly
def test_an_epoch_of_which_some_ranks_positions_are_unknown_begins_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    trained(session(tmp_path), Stream(), stop_after=3)

    def of_two_ranks() -> Session:
        again = session(tmp_path)
        again._positions._restored = replace(again._positions._restored, count=2)
        return again

    with pytest.raises(SessionError, match=r"reshard\(\) failed on rank 0: ZeroDivisionError"):
        of_two_ranks().wrap(Stream(), reshard=lambda *_: 1 // 0)
    assert trained(of_two_ranks(), Stream(), stop_after=3) == []
    assert trained(of_two_ranks(), Stream(), reshard=lambda *_: {"epoch": 0, "at": 4}) == [[3], [4]]
    printed = capfd.readouterr().err
    assert printed.count("there were 2 ranks with loaders of their own, and there are 1 now") == 1
    assert "epoch 0 begins again, and its samples come a second time" in printed
