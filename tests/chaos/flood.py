"""A flood of requests: how many a daemon answers, how fast, and with how many threads."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.chaos.testbed import descriptors

_CLIENTS = 16
_IDLE_CONNECTIONS = 100
_TIMEOUT_S = 30.0
# Reads, and a command that changes nothing and is a transaction nevertheless.
_REQUESTS: tuple[tuple[str, str, dict[str, str] | None], ...] = (
    ("GET", "/v1/health", None),
    ("GET", "/v1/jobs", None),
    ("GET", "/v1/nodes", None),
    ("POST", "/v1/jobs/{job}/resume", {}),
    ("GET", "/v1/jobs/nobody", None),
)
_EXPECTED = frozenset({200, 404, 503, 507})


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("spotsupd", timeout=_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(_TIMEOUT_S)
        try:
            self.sock.connect(os.fspath(self._path))
        except BaseException:
            self.sock.close()
            raise


class Flood:
    """Floods a daemon while it is entered. `failure`: the first failed request."""

    def __init__(self, path: Path, job: str) -> None:
        self._path, self._job = path, job
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._took_s: list[float] = []
        self._failed = 0
        self.failure = ""
        self._idle: list[socket.socket] = []
        self._began = time.monotonic()
        self._threads = [threading.Thread(target=self._ask, args=(number,), daemon=True) for number in range(_CLIENTS)]

    def __enter__(self) -> Self:
        for _ in range(_IDLE_CONNECTIONS):
            end = socket.socket(socket.AF_UNIX)
            end.settimeout(_TIMEOUT_S)
            self._idle.append(end)
            with contextlib.suppress(OSError):
                end.connect(os.fspath(self._path))
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        for end in self._idle:
            end.close()
        for thread in self._threads:
            thread.join(_TIMEOUT_S)

    def measure(self, pid: int) -> dict[str, float]:
        """Answers and failures so far, answers a second, the 99th percentile, and the daemon's threads and files."""
        with self._lock:
            took_s, failed = list(self._took_s), self._failed
        threads = sum(1 for _ in Path(f"/proc/{pid}/task").iterdir())
        measured = {"answered": float(len(took_s)), "failed": float(failed), "threads": float(threads)}
        measured |= {"files": float(descriptors(pid))}
        if took_s:
            measured["per_s"] = round(len(took_s) / (time.monotonic() - self._began), 1)
            measured["p99_s"] = round(percentile(took_s, 0.99), 3)
        return measured

    def _ask(self, turn: int) -> None:
        connection = _UnixConnection(self._path)
        while not self._stopping.is_set():
            turn += 1
            method, path, body = _REQUESTS[turn % len(_REQUESTS)]
            began = time.monotonic()
            try:
                text = None if body is None else json.dumps(body)
                headers = {"Content-Type": "application/json"} if text else {}
                connection.request(method, path.format(job=self._job), text, headers)
                answer = connection.getresponse()
                content = answer.read()
            except (OSError, http.client.HTTPException) as error:
                self._note(None, repr(error))
                connection.close()
                continue
            fault = "" if answer.status in _EXPECTED else f"{method} {path}: {answer.status} {content[:200]!r}"
            self._note(time.monotonic() - began, fault)
        connection.close()

    def _note(self, took_s: float | None, fault: str) -> None:
        with self._lock:
            if fault and not self._stopping.is_set():
                self._failed += 1
                self.failure = self.failure or fault
            elif took_s is not None:
                self._took_s.append(took_s)
