"""What all ranks of a Session tell each other at each of its calls, in one small collective."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from spotsup_trainer.session.course import SessionError
from spotsup_trainer.session.peers import Peers


class Call(IntEnum):
    """Which call a rank is in. Ranks in different calls would wait for each other forever."""

    INIT = 0
    STEP = 1
    CHECKPOINT_POINT = 2
    FINISH = 3
    SAVE = 4
    # The next batch of a wrapped loader.
    BATCH = 5


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
    here = len(Call) * step + call
    compared = [level, here, -here, busy, digest, -digest, *batches]
    highest, furthest, least, any_busy, digest_max, neg_digest_min, *highest_of_batches = peers.highest(compared)
    if furthest != -least:
        raise SessionError(
            f"the ranks made different Session calls (this is rank {peers.rank}, after step {step}): call step(), "
            "checkpoint_point(), save() and finish(), and take a wrapped loader's batches, on every rank, the same "
            "number of times"
        )
    if digest_max != -neg_digest_min:
        raise SessionError(
            f"the batch_sampler of rank {peers.rank} gives other batches than that of another rank: it has "
            "to give the same ones on all ranks, from a seed of its own and the epoch that set_epoch() names"
        )
    # one rank's disk may still hang when the others have given up waiting for theirs
    agreed = Level.CONTINUE if highest == Level.CHECKPOINT and any_busy else Level(highest)
    return agreed, highest_of_batches
