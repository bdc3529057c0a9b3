"""Leader election: the daemon that created the leader key leads; the key's revision guards every commit (P10).

A lock alone does not exclude: its holder may be suspended beyond its lease. The guard in each transaction does. An etcd
that was restored from a backup may count the same revisions again, so the key also names its lease, and guards compare
that, too: etcd derives lease ids from the time, and none comes twice.

A lease that lives does not prove that its holder does: older versions of etcd let everyone renew it (docs/security.md).
So the leader also writes its key again and again, which only daemons may; a standby takes a key that stays as it is.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog
from spotsup_trainer.etcd import Compare, Etcd, EtcdError, EtcdRefusedError, KeyValue, Put
from spotsup_trainer.vitals import Pulse, Vitals

from supervisor.journal.maintenance import refuses_writes
from supervisor.journal.store import FULL, describe
from supervisor.runtime.clock import boottime_s

# How late a standby notices that the leader is gone. Four small reads a second are no load for etcd.
POLL_S = 0.25

log = structlog.get_logger("spotsupd")

# A leader that has not written its key for so many times its lease is dead, whoever renews the lease.
SILENT_TTLS = 3
STUCK_S = 60.0  # its thread hangs if a step takes so long beyond the time limits of its calls
_CALLS_PER_STEP = 6


@dataclass
class Silence:
    """How long a standby has seen the leader's key as it is. A look that is `break_s` late begins anew: the leader's
    host may have stood still as this one did."""

    limit_s: float
    break_s: float
    _revision: int = 0
    _since: float = 0.0
    _looked_at: float = 0.0

    def lasts(self, revision: int, now: float) -> bool:
        """True if the key has not been written for longer than the limit. Call it at each look."""
        if revision != self._revision or now - self._looked_at > self.break_s:
            self._revision, self._since = revision, now
        self._looked_at = now
        return now - self._since > self.limit_s

    def restart(self) -> None:
        """etcd did not answer: the leader, too, may not have been able to write."""
        self._revision = 0


class Election:
    """Campaigns for leadership and keeps it, one `step` after another. Every commit must carry `guard`."""

    def __init__(
        self,
        etcd: Etcd,
        key: str,
        name: str,
        ttl_s: float,
        on_change: Callable[[], None] = lambda: None,
        now_s: Callable[[], float] = boottime_s,
    ) -> None:
        """`now_s`: a clock that never goes back, and counts suspends: a lease does not wait for them."""
        self._etcd = etcd
        self._key = key
        self._name = name
        self._ttl_s = ttl_s
        self._on_change = on_change
        self._now_s = now_s
        self._lease = 0  # a standby holds one, too: taking over is then one write
        self._revision = 0
        self._renewed_at = 0.0
        # When the key was last written, or at least found to be this daemon's.
        self._held_at = 0.0
        self._silence = Silence(SILENT_TTLS * ttl_s, ttl_s)
        # Until when a daemon that took the key must not lead: the one before may count as leading until then.
        self._taken_until = 0.0
        self._call_problem = self._space_problem = ""
        self._leader_name = ""

    @property
    def leading(self) -> bool:
        """True if this daemon believes that it leads; only the guard is proof."""
        return self._revision > 0

    def lease_valid(self) -> bool:
        """True if it leads for certain: the lease was renewed, and the key found to be this daemon's, recently enough
        that the one cannot have ended, and no standby that has taken the other can lead yet (P10).

        No transaction guards a call to a cloud, so none starts without this: the process may have been suspended since
        the call was decided.
        """
        return self.leading and self._now_s() - min(self._renewed_at, self._held_at) < self._ttl_s

    def etcd_problem(self) -> str:
        """Return what is wrong with etcd, or "". For a leader: that it is full. For others: why they can neither lead
        nor follow."""
        return self._space_problem if self.leading else self._call_problem

    @property
    def leader(self) -> str:
        """Return the name of the leader, "" if unknown."""
        return self._name if self.leading else self._leader_name

    def guard(self) -> Sequence[Compare]:
        """Guards that hold only while the key that this daemon created exists."""
        return (Compare(self._key, "create", self._revision or -1), Compare(self._key, "value", self._value()))

    @property
    def pause_s(self) -> float:
        """Return how long to wait until the next step."""
        return self._ttl_s / 4 if self.leading and not self._call_problem else POLL_S

    def step(self) -> None:
        """Renew, and hold or seek leadership. Raises whatever etcd's client does that is no EtcdError."""
        try:
            self._step()
            self._call_problem = ""
        except EtcdError as error:
            # The lease may still be valid; the guard decides.
            self._silence.restart()
            self._log_once(error)

    def step_down(self) -> None:
        """So that a standby need not wait for the lease to end."""
        lease, self._lease, self._revision = self._lease, 0, 0
        if lease:
            with contextlib.suppress(EtcdError):  # the lease ends by itself
                self._etcd.revoke(lease)

    def _step(self) -> None:
        if self._lease:
            self._renew()
        if self.leading:
            self._hold()
        else:
            self._seek()

    def _seek(self) -> None:
        found = self._etcd.get(self._key)
        if found is None or found.lease == self._lease:
            self._leader_name = ""
            if self._now_s() >= self._taken_until:
                self._campaign()
        else:
            self._follow(found)
            self._ensure_lease()
            if self._silence.lasts(found.mod_revision, self._now_s()):
                self._take(found)

    def _hold(self) -> None:
        """Write the key as it is, if it is still this daemon's.

        A full etcd refuses that. Its leader goes on: no standby can write either, and machines that are to end still
        cost money. Once etcd takes writes again, a standby may have found the key silent for long: see `_take`.
        """
        begun = self._now_s()
        mine = Put(self._key, self._value(), lease=self._lease)
        try:
            holds = self._etcd.txn(self.guard(), [mine]).succeeded
        except EtcdRefusedError:
            found = self._etcd.get(self._key)
            holds = found is not None and (found.create_revision, found.value) == (self._revision, self._value())
        if holds:
            self._held_at = begun
            self._check_alarms()
        else:
            self._lose()

    def _take(self, found: KeyValue) -> None:
        """Take the key of one whose lease somebody else keeps, or who cannot write, and lead once that one must know.

        It may have read just before that the key is its own, and counts as leading for one TTL from then on.
        """
        log.warning("the leader is silent, and its lease is renewed: taking over", leader=self._leader_name)
        begun = self._now_s()
        lease = self._etcd.grant(self._ttl_s)  # that of a standby has no key, and so others may have revoked it
        mine = Put(self._key, self._value(lease), lease=lease)
        if self._etcd.txn([Compare(self._key, "mod", found.mod_revision)], [mine]).succeeded:
            self._lease, self._renewed_at = lease, begun
            self._taken_until = self._now_s() + self._ttl_s

    def _renew(self) -> None:
        begun = self._now_s()
        if not self.leading and begun - self._renewed_at < self._ttl_s / 4:
            return
        if self._etcd.keepalive(self._lease) == 0:
            self._lose()
        else:
            self._renewed_at = begun

    def _check_alarms(self) -> None:
        """Check the alarms. A full etcd refuses writes only; every member reports its alarms in its status."""
        with contextlib.suppress(EtcdRefusedError):  # without the permission to ask, the next write shows it
            self._space_problem, before = FULL if refuses_writes(self._etcd) else "", self._space_problem
            if self._space_problem != before:
                self._on_change()

    def _ensure_lease(self) -> None:
        if not self._lease:
            begun = self._now_s()
            self._lease, self._renewed_at = self._etcd.grant(self._ttl_s), begun

    def _follow(self, found: KeyValue) -> None:
        name = leader_name(found.value)
        if name != self._leader_name:
            self._leader_name = name
            self._on_change()

    def _campaign(self) -> None:
        self._ensure_lease()
        begun = self._now_s()
        mine = Put(self._key, self._value(), lease=self._lease)
        created = self._etcd.txn([Compare(self._key, "create", 0)], [mine])
        if created.succeeded:
            self._lead(created.revision, begun)
            return
        found = self._etcd.get(self._key)
        if found is None:
            return
        if found.lease == self._lease:
            # Our own earlier attempt succeeded, and its reply was lost.
            self._lead(found.create_revision, begun)
        else:
            self._follow(found)

    def _lead(self, revision: int, begun: float) -> None:
        self._revision, self._held_at = revision, begun
        self._silence.restart()
        self._on_change()

    def _value(self, lease: int | None = None) -> bytes:
        return json.dumps({"name": self._name, "lease": self._lease if lease is None else lease}).encode()

    def _log_once(self, error: EtcdError) -> None:
        """Log each new problem, not each attempt."""
        if describe(error) != self._call_problem:
            self._call_problem = describe(error)
            log.warning("cannot lead or follow; will retry", error=self._call_problem)

    def _lose(self) -> None:
        self._lease = self._revision = 0
        self._on_change()


class Leadership(Election):
    """An election with a thread of its own."""

    def __init__(
        self,
        etcd: Etcd,
        key: str,
        name: str,
        ttl_s: float,
        on_change: Callable[[], None] = lambda: None,
        now_s: Callable[[], float] = boottime_s,
    ) -> None:
        """As Election."""
        super().__init__(etcd, key, name, ttl_s, on_change, now_s)
        self._pulse = Pulse()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leadership", daemon=True)

    @property
    def leading(self) -> bool:
        """As Election. One whose thread has ended does not lead."""
        return super().leading and self._thread.is_alive()

    def vitals(self) -> Vitals:
        """Return how its thread is."""
        call_s = self._etcd.timeout_s * len(self._etcd.endpoints)
        return self._pulse.vitals(STUCK_S + _CALLS_PER_STEP * call_s, self._thread)

    def start(self) -> None:
        """Start the campaign."""
        self._thread.start()

    def stop(self) -> None:
        """Step down."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=self._ttl_s)
        self.step_down()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.step()
            except Exception as error:  # noqa: BLE001 - whatever it is: the next step asks etcd how things are
                self._pulse.fault(error)
                self._call_problem = "the leader election fails, see the log"
            self._pulse.beat()
            self._stopping.wait(self.pause_s)


def leader_name(value: bytes) -> str:
    """Return the leader's name from the value of the leader key, which may have been written by anything."""
    with contextlib.suppress(ValueError):
        parsed = json.loads(value)
        if isinstance(parsed, dict):
            return str(parsed.get("name", ""))
    return "an unknown daemon"
