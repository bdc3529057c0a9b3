"""Writes to etcd from one thread: the newest value of each key, again and again until it is there."""

from __future__ import annotations

import contextlib
import logging
import threading
import time

from spotsup_trainer.etcd import Etcd, EtcdError, EtcdRefusedError

RETRY_S = (0.1, 0.2, 0.5, 1.0)
_NOT_FOUND = 5  # grpc's code for a lease that has ended

log = logging.getLogger(__name__)


class Outbox:
    """Puts that never block their caller and never pile up: while etcd is away, only each key's newest value is kept.

    Keys put with `leased=True` live under one lease, which the thread keeps alive. Should the lease end nevertheless
    (this process was stopped for long, or cut off), a new one is granted and those keys are put again.

    Give it an Etcd of its own whose time limit is well below `ttl_s`: a keepalive must not be spent on a dead endpoint.
    """

    def __init__(self, etcd: Etcd, *, ttl_s: float, name: str = "outbox") -> None:
        self._etcd = etcd
        self._ttl_s = ttl_s
        self._lease = 0
        self._keepalive_at = 0.0
        self._leased: dict[str, bytes] = {}
        self._pending: dict[str, tuple[bytes, bool]] = {}
        self._changed = threading.Condition()
        self._stopping = False
        self._said = ""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def put(self, key: str, value: bytes, *, leased: bool = False) -> None:
        """Have `key` written soon. A value that was not written yet is replaced."""
        with self._changed:
            if leased:
                self._leased[key] = value
            self._pending[key] = (value, leased)
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until all is written; False when `timeout_s` ran out first."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._pending, timeout_s)

    def close(self, *, revoke: bool = True) -> None:
        """Stop within seconds; what is not written is dropped. With `revoke` the leased keys vanish at once."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout=self._etcd.timeout_s * len(self._etcd.endpoints) + 1)
        lease, self._lease = self._lease, 0
        if lease and revoke:
            # Where etcd is away the lease ends by itself.
            with contextlib.suppress(EtcdError):
                self._etcd.revoke(lease)

    def _run(self) -> None:
        failures = 0
        while True:
            with self._changed:
                self._changed.wait_for(self._is_due, self._idle_s())
                if self._stopping:
                    return
            try:
                self._work()
                failures = 0
                self._said = ""
            except EtcdError as error:
                self._tell(error)
                failures += 1
                with self._changed:
                    self._changed.wait_for(lambda: self._stopping, RETRY_S[min(failures, len(RETRY_S)) - 1])

    def _is_due(self) -> bool:
        return self._stopping or bool(self._pending) or self._keepalive_is_due()

    def _keepalive_is_due(self) -> bool:
        return bool(self._leased) and time.monotonic() >= self._keepalive_at

    def _idle_s(self) -> float | None:
        return max(0.0, self._keepalive_at - time.monotonic()) if self._leased else None

    def _work(self) -> None:
        if self._keepalive_is_due():
            self._keep_alive()
        with self._changed:
            pending = dict(self._pending)
        refused: EtcdRefusedError | None = None
        for key, (value, leased) in pending.items():
            try:
                self._etcd.put(key, value, self._lease if leased else 0)
            except EtcdRefusedError as error:
                refused = error  # the other keys may have more luck
                if leased and error.code == _NOT_FOUND:
                    self._lease, self._keepalive_at = 0, 0.0
                continue
            with self._changed:
                if self._pending.get(key) == (value, leased):
                    del self._pending[key]
                self._changed.notify_all()
        if refused is not None:
            raise refused

    def _keep_alive(self) -> None:
        if self._lease and self._etcd.keepalive(self._lease) <= 0:
            log.warning("the lease of %s has ended; granting another", ", ".join(self._leased))
            self._lease = 0
        if not self._lease:
            self._lease = self._etcd.grant(self._ttl_s)
            with self._changed:
                self._pending |= {key: (value, True) for key, value in self._leased.items()}
        self._keepalive_at = time.monotonic() + self._ttl_s / 3

    def _tell(self, error: EtcdError) -> None:
        """Each problem once, not at every retry."""
        if str(error) != self._said:
            self._said = str(error)
            log.warning("%s: %s; trying on", self._thread.name, error)
