"""Writes to etcd from one thread: the newest value of each key, retried until it is written."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from dataclasses import dataclass, replace

from spotsup_trainer.etcd import Compare, Etcd, EtcdError, EtcdRefusedError, EtcdUnavailableError, Put
from spotsup_trainer.timing import LeaseTimes, retry_s
from spotsup_trainer.vitals import Pulse

_NOT_FOUND = 5  # grpc's code for a lease that has ended

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Write:
    value: bytes
    leased: bool
    # Write only if the key's last change is this revision; None: in any case.
    over: int | None
    due_at: float = 0.0


class Outbox:
    """Puts that never block the caller and never pile up: while etcd is away, only each key's newest value is kept.

    Keys put with `leased=True` live under one lease, which the thread renews three times in its length. If it ends
    anyway (this process was stopped or cut off for long; etcd lost its data), another is granted and those keys are
    put again. Other keys are not: they are updated soon (progress), or final, and the daemon has lost its records too.

    The time limit of `etcd` must be well below `ttl_s` (timing.LeaseTimes), or a dead endpoint could use up the lease.
    """

    def __init__(self, etcd: Etcd, *, ttl_s: float, name: str = "outbox") -> None:
        self._etcd = etcd
        self._ttl_s = ttl_s
        self._renew_s = LeaseTimes(ttl_s, len(etcd.endpoints)).renew_s
        self._lease = 0
        self._keepalive_at = 0.0
        self._answered_at = 0.0
        self._leased: dict[str, bytes] = {}
        self._pending: dict[str, _Write] = {}
        self._changed = threading.Condition()
        self._stopping = False
        self._logged = ""
        self._pulse = Pulse()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def put(
        self, key: str, value: bytes, *, leased: bool = False, over: int | None = None, after_s: float = 0.0
    ) -> None:
        """Write `key` soon, or in `after_s` seconds. Replaces a value that is not written yet.

        `over`: write only if the key was last changed by this revision (0: does not exist), else drop the value.
        """
        with self._changed:
            if leased:
                self._leased[key] = value
            self._pending[key] = _Write(value, leased, over, time.monotonic() + after_s)
            self._changed.notify_all()

    def repeat(self) -> None:
        """Write all leased keys again."""
        with self._changed:
            self._pending |= {key: _Write(value, leased=True, over=None) for key, value in self._leased.items()}
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Write everything now and wait for it; False when `timeout_s` ran out first."""
        with self._changed:
            self._pending = {key: replace(write, due_at=0.0) for key, write in self._pending.items()}
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not self._pending, timeout_s)

    def answered_at(self) -> float:
        """Return when etcd last answered (monotonic seconds); 0 for never."""
        return self._answered_at

    def close(self, *, revoke: bool = True) -> None:
        """Stop within seconds, and drop what is not written. With `revoke` the leased keys vanish at once."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout=self._etcd.timeout_s * len(self._etcd.endpoints) + 1)
        lease, self._lease = self._lease, 0
        if lease and revoke:
            # If etcd is away the lease expires by itself.
            with contextlib.suppress(EtcdError):
                self._etcd.revoke(lease)

    def _run(self) -> None:
        failures = 0
        while True:
            with self._changed:
                while not self._is_due():
                    self._changed.wait(self._idle_s())
                if self._stopping:
                    return
            try:
                self._work()
                self._answered_at = time.monotonic()
                failures = 0
                self._logged = ""
            except Exception as error:  # noqa: BLE001 - whatever it is: without this thread the lease would end
                if isinstance(error, EtcdError):
                    self._log(error)
                else:
                    self._pulse.fault(error)
                with self._changed:
                    self._changed.wait_for(lambda: self._stopping, retry_s(failures))
                failures += 1

    def _is_due(self) -> bool:
        return self._stopping or bool(self._due()) or self._keepalive_is_due()

    def _due(self) -> dict[str, _Write]:
        now = time.monotonic()
        return {key: write for key, write in self._pending.items() if write.due_at <= now}

    def _keepalive_is_due(self) -> bool:
        return bool(self._leased) and time.monotonic() >= self._keepalive_at

    def _idle_s(self) -> float | None:
        moments = [write.due_at for write in self._pending.values()] + ([self._keepalive_at] if self._leased else [])
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    def _work(self) -> None:
        if self._keepalive_is_due():
            self._keep_alive()
        with self._changed:
            pending = self._due()
        refused: EtcdRefusedError | None = None
        for key, write in pending.items():
            try:
                self._write(key, write)
            except EtcdRefusedError as error:
                refused = error  # try the other keys first
                if write.leased and error.code == _NOT_FOUND:
                    self._lease, self._keepalive_at = 0, 0.0
                continue
            with self._changed:
                if self._pending.get(key) is write:
                    del self._pending[key]
                self._changed.notify_all()
        if refused is not None:
            raise refused

    def _write(self, key: str, write: _Write) -> None:
        lease = self._lease if write.leased else 0
        if write.over is None:
            self._etcd.put(key, write.value, lease)
        else:
            self._etcd.txn([Compare(key, "mod", write.over)], [Put(key, write.value, lease)])

    def _keep_alive(self) -> None:
        if self._lease and self._etcd.keepalive(self._lease) <= 0:
            log.warning("the lease of %s has ended; granting another", ", ".join(self._leased))
            self._lease = 0
        if not self._lease:
            self._lease = self._etcd.grant(self._ttl_s)
            self.repeat()
        self._keepalive_at = time.monotonic() + self._renew_s

    def _log(self, error: EtcdError) -> None:
        """Log each problem once, not at every retry."""
        text = "etcd does not answer" if isinstance(error, EtcdUnavailableError) else str(error)
        if text != self._logged:
            self._logged = text
            log.warning("%s: %s; retrying", self._thread.name, error)
