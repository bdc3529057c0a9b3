"""What all ranks of a Session tell each other at each of its calls, in one small collective."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

from spotsup_trainer.session.course import SessionError
from spotsup_trainer.session.peers import LateError, Peers


class Call(IntEnum):
    """Which call a rank is in. Ranks in different calls would wait for each other forever."""

    INIT = 0
    STEP = 1
    CHECKPOINT_POINT = 2
    FINISH = 3
    SAVE = 4
    # The next batch of a wrapped loader.
    BATCH = 5
    LOADER = 6


_SHOWN = {
    Call.INIT: "Session()",
    Call.STEP: "step()",
    Call.CHECKPOINT_POINT: "checkpoint_point()",
    Call.FINISH: "finish()",
    Call.SAVE: "save() or save_best()",
    Call.BATCH: "the loop over a wrapped loader",
    Call.LOADER: "loader() or wrap()",
}


class Level(IntEnum):
    """What all ranks do next: the highest that any of them wants."""

    CONTINUE = 0
    CHECKPOINT = 1
    YIELD = 2


NO_BATCHES = (0, 0, 0, 0, 0)


def compare(
    peers: Peers, call: Call, step: int, level: Level, *, busy: bool, digest: int, batches: Sequence[int] = NO_BATCHES
) -> tuple[Level, list[int]]:
    """(what all do next, the highest of each of `batches`), for ranks of which each has completed `step`.

    `busy`: this rank is still writing a checkpoint. `digest`: of what all ranks must have alike. Raises SessionError,
    on every rank, if they are in different calls or steps, or have other batches.
    """
    highest, any_busy, alike, highest_of_batches = _exchanged(peers, call, step, level, busy, digest, batches)
    if not alike:
        raise SessionError(
            f"the batch_sampler of rank {peers.rank} gives other batches than that of another rank: it has "
            "to give the same ones on all ranks, from a seed of its own and the epoch that set_epoch() names"
        )
    # one rank's disk may still hang when the others have given up waiting for theirs
    agreed = Level.CONTINUE if highest == Level.CHECKPOINT and any_busy else Level(highest)
    return agreed, highest_of_batches


def compare_arguments(peers: Peers, call: Call, step: int, arguments: Mapping[str, Any]) -> None:
    """Raise SessionError, on every rank, naming one of `arguments` that is not alike on all ranks. Collective.

    Also if the ranks are in different calls. Values are compared as they are printed.
    """
    shown = {name: str(value) for name, value in arguments.items()}
    digest = int.from_bytes(hashlib.blake2b(repr(shown).encode(), digest_size=7).digest(), "big")
    if not _exchanged(peers, call, step, Level.CONTINUE, False, digest, NO_BATCHES)[2]:
        raise SessionError(difference(peers.from_all(shown)))


def difference(arguments: Sequence[Mapping[str, str]]) -> str:
    """The first argument in which a rank differs from rank 0, in one sentence."""
    first = arguments[0]
    for rank, other in enumerate(arguments):
        for name in (*first, *other):
            here, there = first.get(name, "not given"), other.get(name, "not given")
            if here != there:
                return f"{name} is {here} on rank 0 and {there} on rank {rank}; it has to be alike on all ranks"
    raise AssertionError("equal arguments have equal digests")


def _exchanged(
    peers: Peers, call: Call, step: int, level: Level, busy: bool, digest: int, batches: Sequence[int]
) -> tuple[int, bool, bool, list[int]]:
    """(highest level, whether any rank is busy, whether all digests are equal, the highest of each of `batches`)."""
    here = len(Call) * step + call
    compared = [level, here, -here, busy, digest, -digest, *batches]
    try:
        found = peers.highest(compared, f"in {_SHOWN[call]} after step {step}")
    except LateError as error:
        raise SessionError(str(error)) from error
    highest, furthest, neg_least, any_busy, digest_max, neg_digest_min, *highest_of_batches = found
    if furthest != -neg_least:
        first, last = (f"{_SHOWN[Call(at % len(Call))]} after step {at // len(Call)}" for at in (-neg_least, furthest))
        raise SessionError(
            f"the ranks made different Session calls: one is in {first}, another in {last} (this is rank "
            f"{peers.rank}, in {_SHOWN[call]}). Make each call on every rank, the same number of times: loader(), "
            "step(), checkpoint_point(), save() and finish(), and the batches of a wrapped loader"
        )
    return highest, bool(any_busy), digest_max == -neg_digest_min, highest_of_batches
