"""A job's events, status and output as they come: server-sent events, as browsers and `curl -N` read them.

One message is an event of the job (its id is the event's, so that `Last-Event-ID` goes on after it), its row when that
changed, a piece of output, or the end.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import FastAPI, Header, Request
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from supervisor.api.gate import Users, caller_of_request
from supervisor.api.problems import REQUEST_ID, problem
from supervisor.api.service import Service
from supervisor.api.views import event_row
from supervisor.errors import SpotsupError
from supervisor.planner.world import JobView

# Each holds a connection, and asks etcd when its job changes.
MAX_WATCHERS = 64
LOOK_S = 0.5
# Proxies end connections on which nothing is sent.
HEARTBEAT_S = 15.0
# Then the reader connects again, maybe to another daemon.
MAX_S = 900.0
# What changes while nothing happens.
_CLOCKWORK = ("trained_s", "usd", "limits", "progress_at", "deadline")


@dataclass(frozen=True, slots=True)
class Message:
    """One of the stream. `id`: of an event of the job."""

    kind: str  # event, status, output, end
    data: Any
    id: str = ""

    def encode(self) -> bytes:
        """As the WHATWG's HTML standard has it; JSON has no line breaks."""
        head = f"id: {self.id}\n" if self.id else ""
        return f"{head}event: {self.kind}\ndata: {json.dumps(self.data)}\n\n".encode()


class Watch:
    """What is new of a job since the last look. For one reader."""

    def __init__(
        self, service: Service, name: str, row: Callable[[JobView], dict[str, Any]], after: str, *, output: bool
    ) -> None:
        """`after`: the id of the last event that the reader has. Raises NotFoundError."""
        self._service, self._name, self._row, self._output = service, name, row, output
        self._uid = service.job(name).record.uid
        self._after = after
        self._revision = -1
        self._shown: dict[str, Any] = {}
        self._position = 0
        self.ended = False

    def look(self) -> Iterator[Message]:
        """May block. The last message says why there are no more. Raises SpotsupError."""
        view = self._service.job(self._name)
        if view.record.uid != self._uid:
            self.ended = True
            yield Message("end", {"reason": f"the name {self._name} was used again"})
            return
        over = view.record.ended and not view.members
        if view.revision != self._revision:
            self._revision = view.revision
            for event in self._service.events(self._name, self._after):
                self._after = event.id
                yield Message("event", event_row(event), event.id)
        row = self._row(view)
        shown = {key: value for key, value in row.items() if key not in _CLOCKWORK}
        if shown != self._shown:
            self._shown = shown
            yield Message("status", row)
        if self._output:
            found = self._service.logs(self._name, "", self._position)
            self._position, over = found.position, over and not found.more
            for chunk in found.chunks:
                data = {"node": chunk.node, "chunk": chunk.number, "text": chunk.data.decode(errors="replace")}
                yield Message("output", data)
        if over:
            self.ended = True
            yield Message("end", {"reason": view.record.state})


class _Watchers:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.count = 0

    def enter(self) -> bool:
        with self._lock:
            fits = self.count < MAX_WATCHERS
            self.count += fits
            return fits

    def leave(self) -> None:
        with self._lock:
            self.count -= 1


class _Stream(StreamingResponse):
    """Refused if there are too many others."""

    def __init__(self, messages: AsyncIterator[bytes], watchers: _Watchers) -> None:
        super().__init__(messages, media_type="text/event-stream", headers={"cache-control": "no-store"})
        self._watchers = watchers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._watchers.enter():
            text = f"{MAX_WATCHERS} readers follow jobs already: try again in a moment"
            await problem(503, text, scope.get(REQUEST_ID, ""), retry_after="5")(scope, receive, send)
            return
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._watchers.leave()


def add_stream(app: FastAPI, service: Service, row: Callable[[JobView], dict[str, Any]], users: Users) -> None:
    """The route. `row`: a job as JSON."""
    watchers = _Watchers()

    @app.get("/v1/jobs/{name}/stream", response_class=StreamingResponse)
    def stream(
        name: str,
        request: Request,
        *,
        output: bool = False,
        last_event_id: Annotated[str, Header(max_length=200)] = "",
    ) -> StreamingResponse:
        watch = Watch(service, name, row, last_event_id, output=output)
        return _Stream(_encoded(watch, request, users), watchers)


async def _encoded(watch: Watch, request: Request, users: Users) -> AsyncIterator[bytes]:
    caller = caller_of_request(request)
    began = sent = time.monotonic()
    while not watch.ended and time.monotonic() - began < MAX_S and not await request.is_disconnected():
        if not users.lets_in(caller):
            yield Message("end", {"reason": "the token has expired, or was revoked"}).encode()
            return
        try:
            messages = await run_in_threadpool(lambda: list(watch.look()))
        except SpotsupError as error:
            yield Message("end", {"reason": str(error)}).encode()
            return
        if messages:
            yield b"".join(message.encode() for message in messages)
            sent = time.monotonic()
        elif time.monotonic() - sent > HEARTBEAT_S:
            yield b": still here\n\n"
            sent = time.monotonic()
        if not watch.ended:
            await asyncio.sleep(LOOK_S)
