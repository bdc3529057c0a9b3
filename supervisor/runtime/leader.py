"""One active daemon: a key under a lease. Whoever created it leads; every commit is guarded by its revision (P10).

etcd's own lock does not exclude (a holder may be paused beyond its lease); the guard in each transaction does. An etcd
that was set back to a backup counts its revisions from there once more: the key names its lease, too, and that must be
ours. etcd makes leases' ids of the time; none comes twice.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Sequence

import structlog
from spotsup_trainer.etcd import Compare, Etcd, EtcdError, EtcdRefusedError, KeyValue, Put

from supervisor.journal.store import FULL, describe

# How late a standby sees that nobody leads any more. One small read: 4 a second are no load.
LOOK_S = 0.25

log = structlog.get_logger("spotsupd")

_MIN_CALL_S = 0.3  # an etcd that is well may take that when it is busy


def call_limit_s(ttl_s: float, endpoints: int) -> float:
    """What one endpoint gets to answer: as many as etcd can do without may hang, one after the other, and the lease is
    renewed by another before it ends."""
    dispensable = max(1, (endpoints - 1) // 2)
    return max(_MIN_CALL_S, ttl_s / 3 / dispensable)


class Leadership:
    """Keeps trying to lead, and to go on leading. `guard` is what a commit must carry."""

    def __init__(
        self, etcd: Etcd, key: str, name: str, ttl_s: float, on_change: Callable[[], None] = lambda: None
    ) -> None:
        self._etcd = etcd
        self._key = key
        self._name = name
        self._ttl_s = ttl_s
        self._on_change = on_change
        self._lease = 0  # a standby has one, too: with it, leading takes one write
        self._revision = 0
        self._renewed_at = 0.0
        self._said = self._full = ""
        self._leader_name = ""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leadership", daemon=True)

    @property
    def leading(self) -> bool:
        """Whether this daemon leads, as far as it knows; the guard is what counts."""
        return self._revision > 0

    def lease_valid(self) -> bool:
        """Whether it leads for certain: the lease was renewed so lately that it cannot have ended (P10).

        What no transaction guards, a call to a cloud, is not begun without it: this process may have been frozen for
        long since it was decided.
        """
        return self.leading and time.monotonic() - self._renewed_at < self._ttl_s

    def etcd_problem(self) -> str:
        """What is wrong with etcd: for a leader, that it is full; for others, why they can neither lead nor follow."""
        return self._full if self.leading else self._said

    @property
    def leader(self) -> str:
        """The name of whoever leads."""
        return self._name if self.leading else self._leader_name

    def guard(self) -> Sequence[Compare]:
        """Holds only as long as the key that this daemon created exists."""
        return (Compare(self._key, "create", self._revision or -1), Compare(self._key, "value", self._word()))

    def start(self) -> None:
        """Begin to campaign."""
        self._thread.start()

    def stop(self) -> None:
        """Step down, so that another need not wait for the lease."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=self._ttl_s)
        lease, self._lease, self._revision = self._lease, 0, 0
        if lease:
            try:
                self._etcd.revoke(lease)
            except EtcdError:
                return  # the lease ends by itself

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._step()
                self._said = ""
            except EtcdError as error:
                # Away for now: the lease may live on, and the guard decides.
                self._tell(error)
            self._stopping.wait(self._ttl_s / 4 if self.leading and not self._said else LOOK_S)

    def _step(self) -> None:
        if self._lease:
            self._renew()
        found = self._etcd.get(self._key)
        if self.leading:
            if found is None or (found.create_revision, found.value) != (self._revision, self._word()):
                self._lose()
            else:
                self._look_for_alarms()
        elif found is None or found.lease == self._lease:
            self._leader_name = ""
            self._campaign()
        else:
            self._follow(found)
            self._have_lease()

    def _renew(self) -> None:
        begun = time.monotonic()
        if not self.leading and begun - self._renewed_at < self._ttl_s / 4:
            return
        if self._etcd.keepalive(self._lease) == 0:
            self._lose()
        else:
            self._renewed_at = begun

    def _look_for_alarms(self) -> None:
        """An etcd that is full answers as ever until somebody writes; each member knows of it, and says so."""
        with contextlib.suppress(EtcdRefusedError):  # who may not ask is told when it writes
            full = any("NOSPACE" in str(text) for text in self._etcd.status().get("errors", []))
            self._full, before = FULL if full else "", self._full
            if self._full != before:
                self._on_change()

    def _have_lease(self) -> None:
        if not self._lease:
            begun = time.monotonic()
            self._lease, self._renewed_at = self._etcd.grant(self._ttl_s), begun

    def _follow(self, found: KeyValue) -> None:
        name = leader_name(found.value)
        if name != self._leader_name:
            self._leader_name = name
            self._on_change()

    def _campaign(self) -> None:
        self._have_lease()
        mine = Put(self._key, self._word(), lease=self._lease)
        created = self._etcd.txn([Compare(self._key, "create", 0)], [mine])
        if created.succeeded:
            self._revision = created.revision
            self._on_change()
            return
        found = self._etcd.get(self._key)
        if found is None:
            return
        if found.lease == self._lease:
            # Also where our own earlier attempt succeeded and its answer was lost.
            self._revision = found.create_revision
            self._on_change()
        else:
            self._follow(found)

    def _word(self) -> bytes:
        return json.dumps({"name": self._name, "lease": self._lease}).encode()

    def _tell(self, error: EtcdError) -> None:
        """Each problem once, not at every try."""
        if describe(error) != self._said:
            self._said = describe(error)
            log.warning("cannot lead, or follow who leads, for now; trying on", error=self._said)

    def _lose(self) -> None:
        self._lease = self._revision = 0
        self._on_change()


def leader_name(value: bytes) -> str:
    """Who leads, by the leader's key; of one that no daemon has written: that it is unknown."""
    with contextlib.suppress(ValueError):
        said = json.loads(value)
        if isinstance(said, dict):
            return str(said.get("name", ""))
    return "an unknown daemon"
