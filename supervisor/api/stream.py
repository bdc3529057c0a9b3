"""A job's events, status and output as they come: server-sent events, as browsers and `curl -N` read them.

One message is an event of the job (its id is the event's, so that `Last-Event-ID` goes on after it), its row when that
changed, a piece of output, or the end.

A reader is a cursor: what it has. Those of a job that have the same, as all have that keep up, share each look and its
bytes. One that reads slowly keeps its cursor and is behind: nothing queues for it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, TypeAlias

from fastapi import FastAPI, Header, Request
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from supervisor.access import Action
from supervisor.api.jobs.reading import Jobs
from supervisor.api.jobs.views import event_row
from supervisor.api.problems import REQUEST_ID, problem
from supervisor.api.security.gate import Users, caller_of_request
from supervisor.api.security.rules import may
from supervisor.errors import SpotsupError
from supervisor.planner.world import JobView

# Each holds a connection.
MAX_WATCHERS = 512
# Of them, those of output: one that does not read holds up to supervisor.journal.output.MAX_ANSWER_BYTES.
MAX_OUTPUT_WATCHERS = 64
# Looks at a time, in each event loop: others need the threads that would wait for etcd.
MAX_LOOKS = 8
# Output is not in the mirror, nor is the sentence of a tick.
LOOK_S = 0.5
# Changes within this are one look: a round of 64 nodes is hundreds of them.
REST_S = 0.1
# Proxies end connections on which nothing is sent.
HEARTBEAT_S = 15.0
# How soon a token that was revoked ends it.
CHECK_S = 2.0
# Then the reader connects again, maybe to another daemon.
MAX_S = 900.0
# What changes while nothing happens.
_CLOCKWORK = ("trained_s", "usd", "limits", "progress_at", "deadline")

Row: TypeAlias = Callable[[JobView], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Message:
    """One of the stream. `id`: of an event of the job."""

    kind: str  # event, status, output, end
    data: Any
    id: str = ""

    def encode(self) -> bytes:
        """Return bytes as the WHATWG's HTML standard has it; JSON has no line breaks."""
        head = f"id: {self.id}\n" if self.id else ""
        return f"{head}event: {self.kind}\ndata: {json.dumps(self.data)}\n\n".encode()


@dataclass(frozen=True, slots=True)
class Cursor:
    """What a reader has of a job."""

    name: str
    uid: str
    output: bool
    after: str = ""  # the id of the last event
    revision: int = -1  # of the job's record
    shown: bytes = b""  # a digest of the row
    position: int = 0  # of the output
    more: bool = False  # there is output already that it does not have
    ended: bool = False


def begin(jobs: Jobs, name: str, after: str, *, output: bool) -> Cursor:
    """Return the cursor of a new reader. `after`: the id of the last event that it has. Raises NotFoundError."""
    return Cursor(name, jobs.one(name).record.uid, output, after)


def look(jobs: Jobs, row: Row, cursor: Cursor) -> tuple[list[Message], Cursor]:
    """Return what is new since then. May block. The last message says why there are no more. Raises SpotsupError."""
    view = jobs.one(cursor.name)
    if view.record.uid != cursor.uid:
        return [Message("end", {"reason": f"the name {cursor.name} was used again"})], replace(cursor, ended=True)
    messages: list[Message] = []
    over = view.record.ended and not view.members
    if view.revision != cursor.revision:
        messages += [Message("event", event_row(each), each.id) for each in jobs.events(cursor.name, cursor.after)]
        cursor = replace(cursor, revision=view.revision, after=messages[-1].id if messages else cursor.after)
    found = row(view)
    kept = {key: value for key, value in found.items() if key not in _CLOCKWORK}
    shown = hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).digest()
    if shown != cursor.shown:
        cursor = replace(cursor, shown=shown)
        messages.append(Message("status", found))
    if cursor.output:
        part = jobs.logs(cursor.name, "", cursor.position)
        cursor, over = replace(cursor, position=part.position, more=part.more), over and not part.more
        for chunk in part.chunks:
            data = {"node": chunk.node, "chunk": chunk.number, "text": chunk.data.decode(errors="replace")}
            messages.append(Message("output", data))
    if over:
        cursor = replace(cursor, ended=True)
        messages.append(Message("end", {"reason": view.record.state}))
    return messages, cursor


def _encoded_look(jobs: Jobs, row: Row, cursor: Cursor) -> tuple[bytes, Cursor]:
    """Return the same as bytes; an error is the end."""
    try:
        messages, cursor = look(jobs, row, cursor)
    except SpotsupError as error:
        messages, cursor = [Message("end", {"reason": str(error)})], replace(cursor, ended=True)
    return b"".join(each.encode() for each in messages), cursor


@dataclass(eq=False, slots=True)
class _Feed:
    """The readers of one job, with or without its output, in one event loop."""

    name: str
    output: bool
    turn: asyncio.Event = field(default_factory=asyncio.Event)  # replaced at each turn
    looks: dict[Cursor, asyncio.Task[tuple[bytes, Cursor]]] = field(default_factory=dict)  # of this turn
    readers: int = 0
    seen: tuple[JobView | None, str] = (None, "")

    def begin_turn(self, seen: tuple[JobView | None, str]) -> None:
        """Let its readers look again, if there can be anything new."""
        self.looks.clear()
        is_same = seen[0] is self.seen[0] and seen[1] == self.seen[1]
        if is_same and not self.output:
            return
        self.seen = seen
        self.turn.set()
        self.turn = asyncio.Event()


class _Hub:
    """Of one event loop: begins turns when the journal has changed."""

    def __init__(self, jobs: Jobs, row: Row, about: Callable[[JobView], str]) -> None:
        self._jobs, self._row, self._about = jobs, row, about
        self._feeds: dict[tuple[str, bool], _Feed] = {}
        self.changed = asyncio.Event()
        self._turning: asyncio.Task[None] | None = None
        self._places = asyncio.Semaphore(MAX_LOOKS)

    @contextmanager
    def feed(self, name: str, *, output: bool) -> Iterator[_Feed]:
        """Yield the feed of a job, for one reader."""
        feed = self._feeds.setdefault((name, output), _Feed(name, output))
        feed.readers += 1
        try:
            yield feed
        finally:
            feed.readers -= 1
            if not feed.readers:
                del self._feeds[name, output]

    async def look(self, feed: _Feed, cursor: Cursor) -> tuple[bytes, Cursor]:
        """Return the bytes that are new to a reader; those with its cursor get the same ones."""
        task = feed.looks.get(cursor)
        if task is None:
            task = asyncio.ensure_future(self._look(cursor))
            feed.looks[cursor] = task
        # A reader that leaves ends no look of others.
        return await asyncio.shield(task)

    async def _look(self, cursor: Cursor) -> tuple[bytes, Cursor]:
        async with self._places:
            return await run_in_threadpool(_encoded_look, self._jobs, self._row, cursor)

    async def wait(self, turn: asyncio.Event, limit_s: float) -> bool:
        """True if a feed's next turn came within so long."""
        if self._turning is None or self._turning.done():
            self._turning = asyncio.ensure_future(self._turn())
        return await _is_set(turn, limit_s)

    async def _turn(self) -> None:
        while self._feeds:
            await _is_set(self.changed, LOOK_S)
            self.changed.clear()
            for feed in list(self._feeds.values()):
                view = self._jobs.known(feed.name)
                feed.begin_turn((view, self._about(view) if view else ""))
            await asyncio.sleep(REST_S)


async def _is_set(event: asyncio.Event, limit_s: float) -> bool:
    try:
        return await asyncio.wait_for(event.wait(), limit_s)
    except TimeoutError:
        return event.is_set()  # both may have happened


class _Watchers:
    """How many readers there are, and the hub of each event loop: HTTPS and the socket have one each."""

    def __init__(self, hub: Callable[[], _Hub]) -> None:
        self._lock = threading.Lock()
        self._hub = hub
        self._hubs: dict[asyncio.AbstractEventLoop, _Hub] = {}
        self._counts = {False: 0, True: 0}

    def hub(self) -> _Hub:
        """Return the hub of the running loop."""
        with self._lock:
            self._hubs = {loop: hub for loop, hub in self._hubs.items() if not loop.is_closed()}
            return self._hubs.setdefault(asyncio.get_running_loop(), self._hub())

    def changed(self) -> None:
        """Take note that the journal has changed. For any thread."""
        with self._lock:
            for loop, hub in self._hubs.items():
                if not loop.is_closed():
                    loop.call_soon_threadsafe(hub.changed.set)

    def enter(self, *, output: bool) -> str:
        """Count one more, or say why not."""
        with self._lock:
            if sum(self._counts.values()) >= MAX_WATCHERS:
                return f"{MAX_WATCHERS} readers follow jobs already: try again in a moment"
            if output and self._counts[True] >= MAX_OUTPUT_WATCHERS:
                return (
                    f"{MAX_OUTPUT_WATCHERS} readers follow jobs' output already: try again in a moment, or without it"
                )
            self._counts[output] += 1
            return ""

    def leave(self, *, output: bool) -> None:
        with self._lock:
            self._counts[output] -= 1


class _Stream(StreamingResponse):
    """Refused if there are too many others."""

    def __init__(self, cursor: Cursor, watchers: _Watchers, may_read: Callable[[], bool]) -> None:
        content = _content(cursor, watchers, may_read)
        super().__init__(content, media_type="text/event-stream", headers={"cache-control": "no-store"})
        self._output = cursor.output
        self._watchers = watchers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if why := self._watchers.enter(output=self._output):
            await problem(503, why, scope.get(REQUEST_ID, ""), retry_after="5")(scope, receive, send)
            return
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._watchers.leave(output=self._output)


def add_stream(
    app: FastAPI,
    jobs: Jobs,
    row: Row,
    about: Callable[[JobView], str],
    users: Users,
    listen: Callable[[Callable[[], None]], None] = lambda _: None,
) -> None:
    """Add the route. `row`: a job as JSON. `about`: what the last tick said of it, which is no part of the journal.

    `listen`: has a function called, from any thread, when the journal has changed; without it, changes are looked for.
    """
    watchers = _Watchers(lambda: _Hub(jobs, row, about))
    listen(watchers.changed)

    @app.get("/v1/jobs/{name}/stream", response_class=StreamingResponse, openapi_extra=may(Action.READ))
    def stream(
        name: str,
        request: Request,
        *,
        output: bool = False,
        last_event_id: Annotated[str, Header(max_length=200)] = "",
    ) -> StreamingResponse:
        caller, cursor = caller_of_request(request), begin(jobs, name, last_event_id, output=output)
        return _Stream(cursor, watchers, partial(users.lets_in, caller))


async def _content(cursor: Cursor, watchers: _Watchers, may_read: Callable[[], bool]) -> AsyncIterator[bytes]:
    began = sent = time.monotonic()
    hub = watchers.hub()
    with hub.feed(cursor.name, output=cursor.output) as feed:
        is_new = True
        while not cursor.ended and time.monotonic() - began < MAX_S:
            if not may_read():
                yield Message("end", {"reason": "the token has expired, or was revoked"}).encode()
                return
            turn, news = feed.turn, b""  # the turn before the look: what changes meanwhile begins the next one
            if is_new:
                news, cursor = await hub.look(feed, cursor)
            if not news and time.monotonic() - sent >= HEARTBEAT_S:
                news = b": still here\n\n"
            if news:
                yield news
                sent = time.monotonic()
            if not cursor.ended and not cursor.more:
                left_s = max(LOOK_S, sent + HEARTBEAT_S - time.monotonic())
                is_new = await hub.wait(turn, min(CHECK_S, left_s))
