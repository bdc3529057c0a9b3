"""What is done to etcd, and what systemd or an operator would mend of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager

from spotsup_trainer.etcd import Etcd, EtcdError

from tests.chaos import space
from tests.chaos.ground import Ground, Outcome
from tests.chaos.plan import Planned
from tests.support.disks import Full

_DISK_PIECES = 60


@contextmanager
def etcd_killed(ground: Ground, planned: Planned, _outcome: Outcome) -> Iterator[None]:
    """kill -9 of one member."""
    number = int(planned.pick * ground.members)
    ground.site.etcd.kill(number)
    yield
    ground.site.etcd.start(number)


@contextmanager
def etcd_frozen(ground: Ground, planned: Planned, _outcome: Outcome) -> Iterator[None]:
    """SIGSTOP of one member, and SIGCONT."""
    number = int(planned.pick * ground.members)
    ground.site.etcd.freeze(number)
    try:
        yield
    finally:
        ground.site.etcd.thaw(number)


@contextmanager
def etcd_gone(ground: Ground, _planned: Planned, _outcome: Outcome) -> Iterator[None]:
    """kill -9 of every member."""
    for number in range(ground.members):
        ground.site.etcd.kill(number)
    yield
    ground.site.etcd.start_all()


@contextmanager
def etcd_cut_off(ground: Ground, planned: Planned, _outcome: Outcome) -> Iterator[None]:
    """One member is heard by nobody."""
    assert ground.rooms is not None
    number = int(planned.pick * ground.members)
    ground.rooms.cut(number)
    try:
        yield
    finally:
        ground.rooms.mend(number)


@contextmanager
def etcd_narrow(ground: Ground, _planned: Planned, _outcome: Outcome) -> Iterator[None]:
    """What members say to each other comes late, and in parts is lost."""
    assert ground.rooms is not None
    try:
        for number in range(ground.members):
            ground.rooms.narrow(number)
        yield
    finally:
        for number in range(ground.members):
            ground.rooms.mend(number)


@contextmanager
def etcd_disk_full(ground: Ground, _planned: Planned, outcome: Outcome) -> Iterator[None]:
    """A member whose disk is full ends itself, at the latest when it has something to write."""
    assert ground.etcd_disk is not None
    full, etcds = Full(ground.etcd_disk), ground.site.etcd
    try:
        full.strike()
        with contextlib.closing(Etcd(etcds.endpoints, timeout_s=2.0)) as etcd, contextlib.suppress(EtcdError):
            for number in range(_DISK_PIECES):
                if not etcds.pid(0):
                    break
                etcd.put(f"{space.JUNK}{number:05d}", bytes(2**18))
        yield
    finally:
        full.repair()
    outcome.notes["ended_itself"] = 0.0 if etcds.pid(0) else 1.0
    if not etcds.pid(0):
        etcds.kill(0)
        etcds.start(0)
    _mend(ground, outcome)


@contextmanager
def etcd_no_space(ground: Ground, _planned: Planned, outcome: Outcome) -> Iterator[None]:
    """The alarm NOSPACE: etcd answers, and stores nothing."""
    etcds = ground.site.etcd
    with contextlib.closing(Etcd(etcds.endpoints, timeout_s=10.0)) as etcd:
        try:
            outcome.notes["filled_mib"] = space.use_up(etcd) / 2**20
            refused = ground.site.any().ctl("scale", ground.job, "3", "--max", "3")
            if refused.returncode != 1 or "etcd refuses writes" not in refused.stderr:
                outcome.broken.append(f"a command was answered with {refused.returncode}: {refused.stderr.strip()}")
            yield
            outcome.said = str(ground.site.any().health().get("headline", ""))
        finally:
            _mend(ground, outcome)


def _mend(ground: Ground, outcome: Outcome) -> None:
    """As an operator does. etcd 3.4 was seen to die of a defragmentation under reads (a nil pointer in its
    concurrentReadTx): it is started again, as systemd does."""
    etcds = ground.site.etcd
    try:
        space.mend(etcds.endpoints)
    except EtcdError:
        dead = [number for number in range(ground.members) if not etcds.pid(number)]
        if not dead:
            raise
        for number in dead:
            etcds.start(number)
        outcome.notes["etcd_died"] = float(len(dead))
        space.mend(etcds.endpoints)
