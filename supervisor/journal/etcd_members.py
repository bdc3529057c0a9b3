"""How the members of an etcd are: which serve, with what version and clock, and what to do. `judged` is pure."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from spotsup_trainer.etcd import Etcd

from provisioners.base import Finding
from supervisor.journal.connection import EtcdLogin

MIN_VERSION = (3, 4)
# Certificates and tokens are judged by clocks; a member's says whole seconds.
MAX_CLOCK_S = 10.0
_CALL_S = 3.0
_MAX_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Seen:
    """What one endpoint said. `problem`: why it does not serve. `ahead_s`: its clock, against this computer's."""

    endpoint: str
    problem: str = ""
    version: str = ""
    ahead_s: float = 0.0


def look(login: EtcdLogin) -> list[Seen]:
    """Look at all endpoints, one after another. Raises StartError where a file of the login cannot be used."""
    with contextlib.closing(login.connect(_CALL_S)) as etcd:
        return [_seen(etcd, index) for index in range(len(etcd.endpoints))]


def _seen(etcd: Etcd, index: int) -> Seen:
    """Look at an endpoint by what etcd answers everyone, whether it has users or not."""
    endpoint = etcd.endpoints[index]
    try:
        with contextlib.closing(etcd.connect(index)) as connection:
            version, date = _asked(connection, "/version")
        ahead_s = parsedate_to_datetime(date).timestamp() - time.time() if date else 0.0
    except (OSError, http.client.HTTPException) as error:
        return Seen(endpoint, getattr(error, "reason", "") or str(error) or type(error).__name__)
    except (ValueError, TypeError, AttributeError) as error:
        return Seen(endpoint, f"this is no answer of etcd: {error}")
    return Seen(endpoint, "", str(version.get("etcdserver", "")), ahead_s)


def _asked(connection: http.client.HTTPConnection, path: str) -> tuple[Mapping[str, Any], str]:
    connection.request("GET", path)
    answer = connection.getresponse()
    return json.loads(answer.read(_MAX_BYTES)), answer.getheader("Date", "")


def count_of(etcd: Etcd) -> int:
    """Return how many members etcd has. Raises EtcdError."""
    return len(etcd.call("/v3/cluster/member/list", {}).get("members", ()))


def judged(seen: Sequence[Seen], count: int, remedy: Callable[[str], str]) -> list[Finding]:
    """Return what is to be said about them. `count`: of members, 0 where etcd does not say. `remedy`: for an error's
    text."""
    serve = [each for each in seen if not each.problem]
    count = max(count, len(seen))
    away = "; ".join(f"{each.endpoint}: {each.problem} ({remedy(each.problem)})" for each in seen if each.problem)
    how_many = f"{len(serve)} of {count} members serve"
    if away and len(serve) > count // 2:
        spare = len(serve) - count // 2 - 1
        found = [_bad(f"{how_many}, and {spare or 'none'} more may be lost: {away}")]
    elif away:
        found = [_bad(f"{how_many}, which is no majority: {away}")]
    elif count > len(seen):
        found = [_bad(f"etcd has {count} members, and only {len(seen)} are named: name all, so that any may be lost")]
    else:
        found = [
            Finding("members", ok=True, message=f"{how_many}, etcd {', '.join(sorted({e.version for e in seen}))}")
        ]
    for each in serve:
        if _numbers(each.version) < MIN_VERSION:
            message = f"{each.endpoint} is etcd {each.version or 'of no version'}: 3.4 or newer is needed"
            found.append(Finding("version", ok=False, message=message))
        if abs(each.ahead_s) > MAX_CLOCK_S:
            side = "ahead of" if each.ahead_s > 0 else "behind"
            message = (
                f"the clock of {each.endpoint} is {abs(each.ahead_s):.0f} s {side} this computer's: set both by NTP"
            )
            found.append(Finding("clock", ok=False, message=message))
    return found


def _bad(message: str) -> Finding:
    return Finding("members", ok=False, message=message)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(each) for each in version.partition("-")[0].split(".")[:2] if each.isdigit())
