"""Faults of etcd, and their repair by systemd or an operator."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager

from spotsup_trainer.etcd import Etcd, EtcdError

from tests.chaos import space
from tests.chaos.context import Context, Outcome
from tests.chaos.plan import Planned
from tests.support.disks import Full

_DISK_PIECES = 60
_COMPACTIONS, _WRITES_EACH = 30, 20


@contextmanager
def etcd_killed(context: Context, planned: Planned, _outcome: Outcome) -> Iterator[None]:
    """kill -9 of one member."""
    number = int(planned.pick * context.members)
    context.testbed.etcd.kill(number)
    yield
    context.testbed.etcd.start(number)


@contextmanager
def etcd_frozen(context: Context, planned: Planned, _outcome: Outcome) -> Iterator[None]:
    """SIGSTOP of one member, and SIGCONT."""
    number = int(planned.pick * context.members)
    context.testbed.etcd.freeze(number)
    try:
        yield
    finally:
        context.testbed.etcd.thaw(number)


@contextmanager
def etcd_gone(context: Context, _planned: Planned, _outcome: Outcome) -> Iterator[None]:
    """kill -9 of every member."""
    for number in range(context.members):
        context.testbed.etcd.kill(number)
    yield
    context.testbed.etcd.start_all()


@contextmanager
def etcd_cut_off(context: Context, planned: Planned, _outcome: Outcome) -> Iterator[None]:
    """A network partition isolates one member."""
    assert context.networks is not None
    number = int(planned.pick * context.members)
    context.networks.cut(number)
    try:
        yield
    finally:
        context.networks.repair(number)


@contextmanager
def etcd_narrow(context: Context, _planned: Planned, _outcome: Outcome) -> Iterator[None]:
    """The members' network is slow and lossy."""
    assert context.networks is not None
    try:
        for number in range(context.members):
            context.networks.narrow(number)
        yield
    finally:
        for number in range(context.members):
            context.networks.repair(number)


@contextmanager
def etcd_compacted(context: Context, _planned: Planned, _outcome: Outcome) -> Iterator[None]:
    """Many writes, and the history is compacted again and again under every watch."""
    with contextlib.closing(Etcd(context.testbed.etcd.endpoints, timeout_s=10.0)) as etcd:
        for _ in range(_COMPACTIONS):
            revisions = [etcd.put(space.JUNK, b"") for _ in range(_WRITES_EACH)]
            etcd.compact(revisions[-1])
        etcd.delete(space.JUNK)
    yield


@contextmanager
def etcd_disk_full(context: Context, _planned: Planned, outcome: Outcome) -> Iterator[None]:
    """The disk of a member is full: it exits, at the latest when it has something to write."""
    assert context.etcd_disk is not None
    full, etcds = Full(context.etcd_disk), context.testbed.etcd
    try:
        full.inject()
        with contextlib.closing(Etcd(etcds.endpoints, timeout_s=2.0)) as etcd, contextlib.suppress(EtcdError):
            for number in range(_DISK_PIECES):
                if not etcds.pid(0):
                    break
                etcd.put(f"{space.JUNK}{number:05d}", bytes(2**18))
        yield
    finally:
        full.repair()
    outcome.notes["exited"] = 0.0 if etcds.pid(0) else 1.0
    if not etcds.pid(0):
        etcds.kill(0)
        etcds.start(0)
    _free_space(context, outcome)


@contextmanager
def etcd_no_space(context: Context, _planned: Planned, outcome: Outcome) -> Iterator[None]:
    """The alarm NOSPACE: etcd answers, and refuses writes."""
    etcds = context.testbed.etcd
    with contextlib.closing(Etcd(etcds.endpoints, timeout_s=10.0)) as etcd:
        try:
            outcome.notes["filled_mib"] = space.fill(etcd) / 2**20
            refused = context.testbed.any().ctl("scale", context.job, "3", "--max", "3")
            if refused.returncode != 1 or "etcd refuses writes" not in refused.stderr:
                outcome.broken.append(f"a command was answered with {refused.returncode}: {refused.stderr.strip()}")
            yield
            outcome.remark = str(context.testbed.any().health().get("headline", ""))
        finally:
            _free_space(context, outcome)


def _free_space(context: Context, outcome: Outcome) -> None:
    """As an operator does. etcd 3.4 has crashed while it was defragmented under reads (a nil pointer in its
    concurrentReadTx); systemd would start it again."""
    etcds = context.testbed.etcd
    try:
        space.free(etcds.endpoints)
    except EtcdError:
        dead = [number for number in range(context.members) if not etcds.pid(number)]
        if not dead:
            raise
        for number in dead:
            etcds.start(number)
        outcome.notes["etcd_died"] = float(len(dead))
        space.free(etcds.endpoints)
