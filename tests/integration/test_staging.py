"""The copy that a background checkpoint is written from, and how the ranks share it out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from spotsup_trainer.session.staging import Staging, fingerprint, share

SIZES = st.lists(st.integers(0, 60), max_size=12)


def state(*sizes: int) -> dict[str, Any]:
    """A model with tensors of these lengths, and an optimizer that has one for each, and settings."""
    weights = {f"layer.{at}": torch.full((size,), float(at)) for at, size in enumerate(sizes)}
    slots = {name: {"step": torch.tensor(3.0), "average": weight / 2} for name, weight in weights.items()}
    groups = [{"lr": torch.tensor(0.5), "betas": (0.9, 0.99), "params": list(weights)}]
    return {"model": weights, "optimizer": {"state": slots, "param_groups": groups}, "schedule": {"pickled": b"x"}}


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(value, (dict, list)):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(part, (*path, key))
    else:
        yield path, value


def assert_same(one: Any, other: Any) -> None:
    left, right = dict(leaves(one)), dict(leaves(other))
    assert left.keys() == right.keys()
    for path, value in left.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, right[path]), path
        else:
            assert value == right[path], path


def test_a_copy_does_not_change_with_the_original_until_the_next_one() -> None:
    original = state(4, 2)
    staging = Staging()
    first = staging.copy(original)
    original["model"]["layer.0"] += 1
    original["optimizer"]["param_groups"][0]["lr"] *= 2
    original["optimizer"]["param_groups"][0]["params"].append("another")
    assert_same(first, state(4, 2))
    second = staging.copy(original)
    assert_same(second, original)


def test_the_memory_of_a_copy_is_used_again() -> None:
    original = state(4, 2)
    staging = Staging()
    first = {path: leaf.data_ptr() for path, leaf in leaves(staging.copy(original)) if isinstance(leaf, torch.Tensor)}
    again = {path: leaf.data_ptr() for path, leaf in leaves(staging.copy(original)) if isinstance(leaf, torch.Tensor)}
    assert first == again
    assert len(first) == 7


def test_a_state_that_changes_its_layout_is_copied_to_new_memory() -> None:
    staging = Staging()
    staging.copy(state(1, 8))
    for sizes in ((8, 1), (8, 1, 5), (), (3,)):  # a copy of 1 number into 8 would not even fail
        assert_same(staging.copy(state(*sizes)), state(*sizes))
    assert_same(staging.copy({"model": {"w": torch.ones(3).double()}}), {"model": {"w": torch.ones(3).double()}})


@given(SIZES, st.integers(1, 5))
def test_each_tensor_is_written_by_one_rank_and_the_rest_by_all(sizes: list[int], world: int) -> None:
    whole = dict(leaves(state(*sizes)))
    shares = [dict(leaves(share(state(*sizes), rank, world))) for rank in range(world)]
    for path, value in whole.items():
        writers = sum(path in part for part in shares)
        shared_out = isinstance(value, torch.Tensor) and "param_groups" not in path
        assert writers == (1 if shared_out else world)
    assert set().union(*shares) == whole.keys()
    loads = [sum(leaf.nbytes for leaf in part.values() if isinstance(leaf, torch.Tensor)) for part in shares]
    assert max(loads) - min(loads) <= max((4 * size for size in sizes), default=4) + 4


def test_only_ranks_with_the_same_tensors_share_them_out() -> None:
    assert fingerprint(state(4, 2)) == fingerprint(state(4, 2)) < 2**63
    others = [state(2, 4), state(4), state(4, 2, 2), {**state(4, 2), "second": {"w": torch.ones(1)}}]
    assert fingerprint(state(4, 2)) not in {fingerprint(other) for other in others}
    as_doubles = {"w": torch.ones(1).double()}
    assert fingerprint({"w": torch.ones(1)}) != fingerprint(as_doubles)
