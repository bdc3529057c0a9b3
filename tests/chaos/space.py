"""etcd's space quota: fill it, and free it as docs/operations.md describes, over etcd's own API."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from spotsup_trainer.etcd import Etcd, EtcdRefusedError

from tools.stack import StackError

JUNK = "/junk/"
_PIECE_BYTES = 512 * 1024
_MAX_PIECES = 2000


def fill(etcd: Etcd) -> int:
    """Write until etcd refuses; returns the bytes written. Raises StackError if etcd accepts all of them."""
    for number in range(_MAX_PIECES):
        try:
            etcd.put(f"{JUNK}{number:05d}", bytes(_PIECE_BYTES))
        except EtcdRefusedError:
            return number * _PIECE_BYTES
    raise StackError(f"etcd accepted {_MAX_PIECES * _PIECE_BYTES} bytes: is its quota small?")


def free(endpoints: Sequence[str]) -> None:
    """Delete the junk, compact, defragment each member, disarm the alarm. Raises EtcdError."""
    with contextlib.closing(Etcd(endpoints, timeout_s=30.0)) as etcd:
        etcd.delete(JUNK, prefix=True)
        with contextlib.suppress(EtcdRefusedError):  # etcd has compacted by itself meanwhile
            etcd.compact(etcd.range(JUNK, limit=1).revision)
        for endpoint in endpoints:
            etcd.call("/v3/maintenance/defragment", {}, endpoint=endpoint)
        for alarm in alarms(etcd):
            etcd.call("/v3/maintenance/alarm", {"action": "DEACTIVATE", **alarm})


def alarms(etcd: Etcd) -> list[dict[str, str]]:
    """The raised alarms: {"memberID": …, "alarm": "NOSPACE"}."""
    found: list[dict[str, str]] = etcd.call("/v3/maintenance/alarm", {"action": "GET"}).get("alarms", [])
    return found


def size_bytes(etcd: Etcd) -> int:
    """The size of the data, without the free part of the database file."""
    return int(etcd.status().get("dbSizeInUse", 0))
