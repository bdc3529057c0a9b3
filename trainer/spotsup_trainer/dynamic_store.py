"""torch's key-value Store on etcd keys: what torchrun's agents tell each other while a round forms and when it ends."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar

from torch.distributed import DistStoreError, Store

from spotsup_trainer.dynamic_link import Link
from spotsup_trainer.etcd import Compare, Etcd, EtcdError, KeyValue, Put

_POLL_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
Answer = TypeVar("Answer")


class EtcdStore(Store):  # type: ignore[misc]  # mypy does not read torch
    """All keys below `prefix`. `timeout_s`: how long to wait for a key, unless a caller says otherwise.

    Keep a reference for as long as a PrefixStore uses it: to C++ it is not the object that has these methods otherwise.
    Raises DistStoreError where a key does not come in time, or etcd does not answer, or refuses.

    It outlives every node of the job. Waiting is by polls: torch's handler itself polls, once per second.
    """

    def __init__(self, link: Link, prefix: str, timeout_s: float) -> None:
        super().__init__()
        self.set_timeout(timedelta(seconds=timeout_s))
        self._link = link
        self._keys = f"{prefix}key/"
        self._own_mark = f"{prefix}adder/{uuid.uuid4().hex}"
        self._adding = threading.Lock()

    def set(self, key: str, value: bytes | str) -> None:
        """Write."""
        self._write(lambda etcd, lease: etcd.put(self._keys + key, _raw(value), lease))

    def get(self, key: str) -> bytes:
        """The value, once it is there."""
        return self._wait_for(key, self._deadline(self.timeout))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Return when all keys are there."""
        deadline = self._deadline(self.timeout if timeout is None else timeout)
        for key in keys:
            self._wait_for(key, deadline)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys are there."""
        return all(self._look(key) is not None for key in keys)

    def add(self, key: str, amount: int) -> int:
        """Add to a decimal number, 0 where there is none; the sum. Each call counts once, whatever etcd does meanwhile.

        A write whose answer was lost is tried again, and then finds its own work changed: the mark beside it tells.
        """
        with self._adding:
            stamp, deadline = uuid.uuid4().hex.encode(), self._deadline(self.timeout)
            while time.monotonic() < deadline:
                found = self._look(key)
                total = amount + (int(found.value) if found else 0)
                puts = {self._keys + key: str(total).encode(), self._own_mark: stamp}
                if self._replace(key, found, puts) or self._is_mark(stamp):
                    return total
        raise DistStoreError(f"others have changed {key} all the time for {self.timeout}")

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        """Write `desired` where the value is `expected`, or where there is none and `expected` is empty.

        Returns what is there afterwards, or `expected` where there is nothing: as torch's own stores do.
        """
        wanted, deadline = _raw(expected), self._deadline(self.timeout)
        while time.monotonic() < deadline:
            found = self._look(key)
            if (found.value if found else b"") != wanted:
                return found.value if found else wanted
            if self._replace(key, found, {self._keys + key: _raw(desired)}):
                return _raw(desired)
        raise DistStoreError(f"others have changed {key} all the time for {self.timeout}")

    # C++ asks for these two by their C++ names.
    def deleteKey(self, key: str) -> bool:  # noqa: N802
        """Delete; whether there was one."""
        return self._read(lambda etcd: etcd.delete(self._keys + key)) > 0

    def getNumKeys(self) -> int:  # noqa: N802
        """How many keys there are."""
        return len(self._read(lambda etcd: etcd.range(self._keys, keys_only=True)).kvs)

    # -- inside --------------------------------------------------------------------------------------------

    def _deadline(self, timeout: timedelta) -> float:
        return time.monotonic() + timeout.total_seconds()

    def _wait_for(self, key: str, deadline: float) -> bytes:
        looks = 0
        while (found := self._look(key)) is None:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise DistStoreError(f"nobody has written {key} to etcd in time; is a node gone?")
            time.sleep(min(left_s, _POLL_S[min(looks, len(_POLL_S) - 1)]))
            looks += 1
        return found.value

    def _look(self, key: str) -> KeyValue | None:
        return self._read(lambda etcd: etcd.get(self._keys + key))

    def _replace(self, key: str, found: KeyValue | None, values: dict[str, bytes]) -> bool:
        """Write `values` if `key` is still as it was found."""
        guard = Compare(self._keys + key, "mod", found.mod_revision if found else 0)
        return self._write(
            lambda etcd, lease: etcd.txn([guard], [Put(name, value, lease) for name, value in values.items()])
        ).succeeded

    def _is_mark(self, stamp: bytes) -> bool:
        mark = self._read(lambda etcd: etcd.get(self._own_mark))
        return mark is not None and mark.value == stamp

    def _read(self, attempt: Callable[[Etcd], Answer]) -> Answer:
        try:
            return self._link.read(attempt)
        except EtcdError as error:
            raise DistStoreError(str(error)) from error

    def _write(self, attempt: Callable[[Etcd, int], Answer]) -> Answer:
        try:
            return self._link.write(attempt)
        except EtcdError as error:
            raise DistStoreError(str(error)) from error


def _raw(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else value
