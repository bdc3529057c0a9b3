"""etcd for torch's own rendezvous handler, which takes any error for the end: bridges short outages, and writes
nothing that would stay for ever."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from spotsup_trainer.etcd import Etcd, EtcdRefusedError, EtcdUnavailableError
from spotsup_trainer.timing import retry_s

_NOT_FOUND = 5  # grpc's code for a lease that has ended

log = logging.getLogger(__name__)
Answer = TypeVar("Answer")


class Link:
    """Asks etcd until it answers, for any thread.

    Once etcd has been away for `outage_s`, all calls raise EtcdUnavailableError, however long each has waited itself;
    what etcd refuses (EtcdRefusedError) is not asked again. `back_at`: when it last came back, UNIX seconds.

    What is written is under a lease that nobody renews: after `lease_ttl_s` a new one takes over. So a key lives for
    that long after its last write, for twice that at most, and no process has to be there to delete it.
    """

    def __init__(self, etcd: Etcd, *, lease_ttl_s: float, outage_s: float) -> None:
        self.back_at = 0.0
        self._etcd = etcd
        self._lease_ttl_s = lease_ttl_s
        self._outage_s = outage_s
        self._lease = 0
        self._lease_until = 0.0
        self._away_since: float | None = None

    def read(self, attempt: Callable[[Etcd], Answer]) -> Answer:
        """What `attempt` returns, once etcd answers."""
        failures = 0
        while True:
            try:
                answer = attempt(self._etcd)
            except EtcdUnavailableError as error:
                self._endure(error)
                time.sleep(retry_s(failures))
                failures += 1
                continue
            self._note_answer()
            return answer

    def write(self, attempt: Callable[[Etcd, int], Answer]) -> Answer:
        """What `attempt` returns for the lease that it shall write under. It may have been carried out more than once:
        an etcd that went away says nothing of its last deeds.
        """

        def under_a_lease(etcd: Etcd) -> Answer:
            try:
                return attempt(etcd, self._current_lease(etcd))
            except EtcdRefusedError as error:
                if error.code != _NOT_FOUND:
                    raise
            # it ended before its time: this process slept for long, or etcd lost its data
            self._lease_until = 0.0
            return attempt(etcd, self._current_lease(etcd))

        return self.read(under_a_lease)

    def _current_lease(self, etcd: Etcd) -> int:
        now = time.monotonic()
        if now >= self._lease_until:
            self._lease = etcd.grant(2 * self._lease_ttl_s)
            self._lease_until = now + self._lease_ttl_s
        return self._lease

    def _endure(self, error: EtcdUnavailableError) -> None:
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
            log.warning("%s; waiting for it, up to %g s", error, self._outage_s)
        if now - self._away_since >= self._outage_s:
            raise error

    def _note_answer(self) -> None:
        since, self._away_since = self._away_since, None
        if since is not None:
            self.back_at = time.time()
            log.warning("etcd answers again after %.1f s", time.monotonic() - since)
