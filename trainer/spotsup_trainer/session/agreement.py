"""What all ranks of a Session tell each other at each of its calls, in one small collective."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from spotsup_trainer.session.course import SessionError
from spotsup_trainer.session.peers import LateError, Peers, Reading


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
# Where steps take longer, a step's agreement is waited for at once: it costs less than 1 % of it, and parking one step
# later would cost more of a notice than that (docs/decisions/0063-slow-nodes.md).
QUICK_STEP_S = 1.0


class Level(IntEnum):
    """What all ranks do next: the highest that any of them wants."""

    CONTINUE = 0
    CHECKPOINT = 1
    YIELD = 2


NO_BATCHES = (0, 0, 0, 0, 0)


class Wish(NamedTuple):
    """What one rank says. The highest of each number counts for all ranks."""

    level: Level
    # This rank is still writing a checkpoint.
    busy: bool = False
    # Of what all ranks must have alike.
    digest: int = 0
    batches: Sequence[int] = NO_BATCHES
    # How long a step of this rank usually takes; 0: not known yet.
    step_s: float = 0.0
    # All ranks are to say with the next step how long they work (session/work.py).
    asks: bool = False


class Agreed(NamedTuple):
    """What all ranks do."""

    level: Level
    # The highest of each of `Wish.batches`.
    batches: list[int]
    is_quick: bool
    asked: bool
    # By rank: what each said of its work; empty where none was asked.
    work: list[int]


class _Begun(NamedTuple):
    """An agreement that is on its way."""

    reading: Reading
    call: Call
    step: int


class Agreement:
    """Agrees at each call, at once; at most one agreement, that of a quick step, is read only at the call after it."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._begun: _Begun | None = None
        # Whether a step of all ranks usually takes so little that its agreement is not waited for.
        self.is_quick = self._asked = False
        # What ranks said when they were last asked, until it is taken.
        self._work: list[int] = []

    def at_once(self, call: Call, step: int, wish: Wish) -> Agreed:
        """Return what all do now, for ranks of which each has completed `step`.

        Raises SessionError, on every rank, if they are in different calls or steps, or have other batches.
        """
        self._read()
        self._begin(call, step, wish, ())
        agreed = self._read()
        assert agreed is not None
        return agreed

    def of_step(self, step: int, wish: Wish, say: Callable[[], tuple[int, int]], *, waits: bool) -> Level:
        """Return what all do after `step`: as agreed then, or, where steps are quick, as agreed one step before.

        Where ranks do more than go on, both are waited for: no checkpoint has a step of which the ranks did not find
        that they had the same samples. `waits`: alike on all ranks; this step's is waited for. `say`: this rank's
        work, asked for now and then. Raises SessionError, as above.
        """
        earlier = self._read()
        rank, world = self._peers.rank, self._peers.world
        said = (0, 0) * rank + say() + (0, 0) * (world - rank - 1) if self._asked else ()
        self._asked = False
        self._begin(Call.STEP, step, wish, said)
        goes_on = earlier is None or earlier.level is Level.CONTINUE
        if self.is_quick and goes_on and not waits:
            return Level.CONTINUE
        agreed = self._read()
        assert agreed is not None
        return agreed.level

    def take_work(self) -> list[int]:
        """Return what ranks said, by rank, when they were asked since the last call; empty: nothing yet."""
        taken, self._work = self._work, []
        return taken

    def _begin(self, call: Call, step: int, wish: Wish, work: tuple[int, ...]) -> None:
        here, step_ms = len(Call) * step + call, round(1000 * wish.step_s)
        sent = [wish.level, here, -here, wish.busy, wish.digest, -wish.digest, step_ms, wish.asks, *wish.batches, *work]
        self._begun = _Begun(self._peers.begin_highest(sent), call, step)

    def _read(self) -> Agreed | None:
        """Return what was agreed on last; None if that was read before."""
        if self._begun is None:
            return None
        begun, self._begun = self._begun, None
        agreed = _agreed(self._peers, begun)
        self.is_quick, self._asked = agreed.is_quick, self._asked or agreed.asked
        self._work = agreed.work or self._work
        return agreed


def compare_arguments(peers: Peers, call: Call, step: int, arguments: Mapping[str, Any]) -> None:
    """Raise SessionError, on every rank, naming one of `arguments` that is not alike on all ranks. Collective.

    Also if the ranks are in different calls. Values are compared as they are printed.
    """
    shown = {name: str(value) for name, value in arguments.items()}
    digest = int.from_bytes(hashlib.blake2b(repr(shown).encode(), digest_size=7).digest(), "big")
    here = len(Call) * step + call
    sent = [Level.CONTINUE, here, -here, 0, digest, -digest, 0, 0, *NO_BATCHES]
    begun = _Begun(peers.begin_highest(sent), call, step)
    if not _highest(peers, begun).alike:
        raise SessionError(difference(peers.from_all(shown)))


def difference(arguments: Sequence[Mapping[str, str]]) -> str:
    """Return the first argument in which a rank differs from rank 0, in one sentence."""
    first = arguments[0]
    for rank, other in enumerate(arguments):
        for name in (*first, *other):
            here, there = first.get(name, "not given"), other.get(name, "not given")
            if here != there:
                return f"{name} is {here} on rank 0 and {there} on rank {rank}; it has to be alike on all ranks"
    raise AssertionError("equal arguments have equal digests")


class _Highest(NamedTuple):
    level: int
    any_busy: bool
    # Whether all digests are equal.
    alike: bool
    step_ms: int
    asked: bool
    batches: list[int]
    work: list[int]


def _agreed(peers: Peers, begun: _Begun) -> Agreed:
    found = _highest(peers, begun)
    if not found.alike:
        raise SessionError(
            f"the batch_sampler of rank {peers.rank} gives other batches than that of another rank: it has "
            "to give the same ones on all ranks, from a seed of its own and the epoch that set_epoch() names"
        )
    # one rank's disk may still hang when the others have given up waiting for theirs
    level = Level.CONTINUE if found.level == Level.CHECKPOINT and found.any_busy else Level(found.level)
    is_quick = peers.world > 1 and 0 < found.step_ms < 1000 * QUICK_STEP_S
    return Agreed(level, found.batches, is_quick, found.asked, found.work)


def _highest(peers: Peers, begun: _Begun) -> _Highest:
    """Raise SessionError, on every rank, if they are in different calls or steps."""
    try:
        found = begun.reading.read(f"in {_SHOWN[begun.call]} after step {begun.step}")
    except LateError as error:
        raise SessionError(str(error)) from error
    level, furthest, neg_least, any_busy, digest_max, neg_digest_min, step_ms, asked, *others = found
    if furthest != -neg_least:
        first, last = (f"{_SHOWN[Call(at % len(Call))]} after step {at // len(Call)}" for at in (-neg_least, furthest))
        raise SessionError(
            f"the ranks made different Session calls: one is in {first}, another in {last} (this is rank "
            f"{peers.rank}, in {_SHOWN[begun.call]}). Make each call on every rank, the same number of times: "
            "loader(), step(), checkpoint_point(), save() and finish(), and the batches of a wrapped loader"
        )
    batches, work = others[: len(NO_BATCHES)], others[len(NO_BATCHES) :]
    alike = digest_max == -neg_digest_min
    return _Highest(level, bool(any_busy), alike, step_ms, bool(asked), batches, work)
