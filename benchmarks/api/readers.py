"""Those who use the API in `make bench-api`: people who read, tabs of the dashboard, and those who follow a job.

All are in one event loop; each reads its connection as it comes and notes what it took.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import ssl
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

# As the dashboard's script: a page asks for itself again.
REFRESH_S = 5.0
# One read of a person: the list, a job, its events, its cost, a page of nodes.
PATHS = (
    "/v1/jobs",
    "/v1/jobs/{job}",
    "/v1/jobs/{job}/events?limit=50",
    "/v1/jobs/{job}/cost",
    "/v1/nodes?limit=100",
    "/v1/health",
)
PAGES = ("/", "/jobs/{job}", "/fleet", "/queue", "/money")
HEAD_END = b"\r\n\r\n"


@dataclass
class Seen:
    """What all of them have seen."""

    # Seconds from when each read was due to the end of its answer: a late answer delays none of the later ones' marks.
    reads_s: list[float] = field(default_factory=list)
    pages_s: list[float] = field(default_factory=list)
    # Seconds from before a step was written to etcd until a reader that follows the job had it.
    news_s: list[float] = field(default_factory=list)
    following: int = 0
    refused: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Target:
    """The daemon."""

    port: int
    tokens: Sequence[str]
    context: ssl.SSLContext
    jobs: Sequence[str]

    async def connect(self, number: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Over TLS. `number`: of the reader; a few share an address."""
        return await asyncio.open_connection(
            "127.0.0.1",
            self.port,
            ssl=self.context,
            server_hostname="localhost",
            local_addr=(f"127.0.0.{2 + number % 8}", 0),
            limit=1 << 22,
        )

    def request(self, path: str, number: int, job: int) -> bytes:
        """A GET of a user."""
        token = self.tokens[number % len(self.tokens)]
        path = path.format(job=self.jobs[job % len(self.jobs)])
        return f"GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\r\n".encode()


async def _answer(reader: asyncio.StreamReader) -> tuple[int, int]:
    """Status and length of an answer with a Content-Length, which is read."""
    head = (await reader.readuntil(HEAD_END)).decode("latin-1")
    status = int(head.split(" ", 2)[1])
    lengths = [line.partition(":")[2] for line in head.split("\r\n") if line.lower().startswith("content-length:")]
    length = int(lengths[0])
    await reader.readexactly(length)
    return status, length


async def read(target: Target, number: int, every_s: float, seen: Seen) -> None:
    """One person, who reads each so often; what is due while an answer is late is read right after it."""
    reader, writer = await target.connect(number)
    due = time.monotonic() + every_s * (number % 10) / 10
    try:
        for turn in itertools.count(number):
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            writer.write(target.request(PATHS[turn % len(PATHS)], number, turn))
            status, _ = await _answer(reader)
            seen.reads_s.append(time.monotonic() - due)
            if status != 200:
                seen.refused.append(f"a read was answered with {status}")
            due += every_s
    finally:
        writer.close()


async def show_dashboard(target: Target, number: int, of: int, seen: Seen) -> None:
    """One open tab, which its reader opened at a moment of their own."""
    await asyncio.sleep(REFRESH_S * number / of)
    reader, writer = await target.connect(number)
    try:
        while True:
            began = time.monotonic()
            writer.write(target.request(PAGES[number % len(PAGES)], number, number))
            status, _ = await _answer(reader)
            seen.pages_s.append(time.monotonic() - began)
            if status != 200:
                seen.refused.append(f"a page was answered with {status}")
            await asyncio.sleep(max(0.0, began + REFRESH_S - time.monotonic()))
    finally:
        writer.close()


async def follow(target: Target, number: int, written: dict[tuple[str, int], float], seen: Seen) -> None:
    """One who follows a job. `written`: when each step of a job was written."""
    reader, writer = await target.connect(number)
    try:
        writer.write(target.request("/v1/jobs/{job}/stream", number, number))
        head = await reader.readuntil(HEAD_END)
        if b" 200 " not in head[:20]:
            seen.refused.append(f"a reader that follows was answered with {head[9:12].decode('latin-1')}")
            return
        seen.following += 1
        while line := await reader.readline():
            if line.startswith(b"data: ") and b'"step"' in line:
                row = json.loads(line.removeprefix(b"data: "))
                at = written.get((str(row.get("name")), int(row.get("step") or 0)))
                if at is not None:
                    seen.news_s.append(time.monotonic() - at)
    finally:
        writer.close()


async def end(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel all. Raises the error of one that had ended by itself."""
    failed = [task.exception() for task in tasks if task.done() and not task.cancelled()]
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError, OSError, asyncio.IncompleteReadError):
            await task
    for error in failed:
        if error is not None:
            raise error
