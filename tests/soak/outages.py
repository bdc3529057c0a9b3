"""What etcd does to a running job, case by case, and what a job must show meanwhile: nothing at all."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

from spotsup_trainer.etcd import Etcd
from spotsup_trainer.session.audit import Line
from spotsup_trainer.wire import Progress, encode

from tests.soak.bed import Bed
from tests.soak.job import KEYS
from tests.soak.nodes import JOB

# Writes to a job's keys while nobody looks, and while everybody does.
_UNSEEN_WRITES = 200
_SEEN_WRITES_S = 5.0
_COMPACT_EVERY = 20
_AWAY_S = 20.0


@dataclass(frozen=True, slots=True)
class Case:
    """`outage` holds for as long as it is entered, and then waits for `seconds`. `etcds`: members of the cluster.

    `loses`: a node is lost meanwhile, so that training stops until etcd is back.
    """

    name: str
    outage: Callable[[Bed], contextlib.AbstractContextManager[None]]
    seconds: float
    etcds: int = 1
    loses: bool = False


@contextmanager
def killed(bed: Bed) -> Iterator[None]:
    """kill -9, and a start with the same data."""
    bed.etcd.kill()
    yield
    bed.etcd.start(0)


@contextmanager
def frozen(bed: Bed) -> Iterator[None]:
    """SIGSTOP: connections stand, and nobody answers."""
    bed.etcd.freeze()
    yield
    bed.etcd.thaw()


@contextmanager
def emptied(bed: Bed) -> Iterator[None]:
    """kill -9, and a start with nothing."""
    bed.etcd.kill()
    bed.etcd.wipe()
    yield
    bed.etcd.start(0)


@contextmanager
def compacted_unseen(bed: Bed) -> Iterator[None]:
    """While no client reaches it, much is written and the history is compacted."""
    bed.etcd.kill()
    yield
    elsewhere = bed.etcd.elsewhere()
    bed.etcd.start(0, listen=elsewhere)
    with contextlib.closing(Etcd([elsewhere])) as etcd:
        _write(etcd, _UNSEEN_WRITES)
    bed.etcd.kill()
    bed.etcd.start(0)


@contextmanager
def compacted_seen(bed: Bed) -> Iterator[None]:
    """Much is written, and the history is compacted again and again, under every watch."""
    until = time.monotonic() + _SEEN_WRITES_S
    while time.monotonic() < until:
        _write(bed.job.etcd, _COMPACT_EVERY)
    yield


@contextmanager
def one_killed(bed: Bed) -> Iterator[None]:
    """The endpoint that all clients try first is gone."""
    bed.etcd.kill(0)
    yield
    bed.etcd.start(0)


@contextmanager
def one_frozen(bed: Bed) -> Iterator[None]:
    """The endpoint that all clients try first takes connections, and does not answer."""
    bed.etcd.freeze(0)
    yield
    bed.etcd.thaw(0)


def cases(*, quick: bool) -> list[Case]:
    """All of them, the long one last; `quick` leaves that out."""
    away = (5.0, 60.0) if quick else (5.0, 60.0, 600.0)
    return [
        Case("etcd starts anew without its data", emptied, 5.0),
        Case("its history is compacted while nobody watches", compacted_unseen, 1.0),
        Case("its history is compacted under every watch", compacted_seen, 0.0),
        Case("one of three endpoints is killed", one_killed, _AWAY_S, etcds=3),
        Case("one of three endpoints freezes", one_frozen, _AWAY_S, etcds=3),
        Case("a node is lost while etcd is away for 10 s", killed, 10.0, loses=True),
        *(Case(f"etcd freezes for {seconds:g} s", frozen, seconds) for seconds in away[:2]),
        *(Case(f"etcd is killed, and away for {seconds:g} s", killed, seconds) for seconds in away),
    ]


def completed(lines: Iterable[Line]) -> list[float]:
    """When each step was completed by the last of its ranks, in the order of time. UNIX seconds."""
    last: defaultdict[tuple[int, int], float] = defaultdict(float)
    for line in lines:
        last[line.round, line.step] = max(last[line.round, line.step], line.t)
    return sorted(last.values())


def largest_gap_s(times: Iterable[float], since: float, until: float) -> float:
    """The longest time without a completed step that touches the given span."""
    ordered = [*times, float("inf")]
    return max(
        (min(new, until) - max(old, since) for old, new in pairwise(ordered) if new > since and old < until),
        default=until - since,
    )


def _write(etcd: Etcd, count: int) -> None:
    """What agents write all the time, and then no history before it."""
    word = encode(Progress(round=1, step=1, at=0.0, first_step_at=0.0))
    revisions = [etcd.put(KEYS.progress(JOB), word) for _ in range(count)]
    etcd.compact(revisions[-1])
