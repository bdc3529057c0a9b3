"""The cloud over HTTP on a Unix socket.

    GET   /v1/ping                              who serves
    GET   /v1/offers                            all that can be asked for
    POST  /v1/launch                            LaunchBody -> View
    GET   /v1/machines?cluster=C&key_mark=K&token=T   Views, as old as the listing lag
    GET   /v1/admin/machines                    Views as of now, of all clusters
    POST  /v1/machines/ID/terminate             accepted; the listing shows the end
    POST  /v1/admin/machines/ID/preempt         NoticeBody -> View; the metadata service says so already
    POST  /v1/admin/machines/ID/withdraw        View; there is no announcement any more, for the metadata service either
    POST  /v1/admin/machines/ID/kill            View, once no process is left
    POST  /v1/admin/machines/ID/freeze          View, once every process is stopped; listings call it running
    POST  /v1/admin/machines/ID/thaw            View; every process goes on
    GET   /v1/admin/settings, PATCH             Settings; SettingsPatch -> Settings

Errors are a Refusal; every body is strict JSON. Calls run on worker threads; the event loop only carries bytes.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import uvicorn
from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from provisioners.base import EndCause
from provisioners.localcloud import rules
from provisioners.localcloud.cloud import Cloud
from provisioners.localcloud.engine import Engine
from provisioners.localcloud.machine.main import PR_SET_CHILD_SUBREAPER
from provisioners.localcloud.models import (
    Fault,
    LaunchBody,
    Machine,
    NoticeBody,
    OfferView,
    Ping,
    Refusal,
    RefusedError,
    SettingsPatch,
    View,
    sentence,
)
from provisioners.localcloud.programs import SshPrograms
from provisioners.localcloud.store import Store

log = logging.getLogger("spotsup.localcloud")

HANG_S = 120.0
KILL_WAIT_S = 15.0
_MAX_BODY_BYTES = 1 << 20
_STATUS = {"bad-request": 400, "fatal": 400, "not-found": 404, "throttled": 429, "transient": 503}
_VIEWS = TypeAdapter(list[View])
_OFFERS = TypeAdapter(list[OfferView])

Body = TypeVar("Body", bound=BaseModel)
Handler = Callable[[Request], Awaitable[Response]]


def _half_answer() -> Response:
    """Promises more than it sends: the server then breaks the connection, as a cloud does that fails in mid-answer."""
    return StreamingResponse(iter([b"{"]), media_type="application/json", headers={"content-length": "1000"})


def _json(payload: bytes | str, status: int = 200) -> Response:
    return Response(payload, status, media_type="application/json")


def _refusal(refusal: Refusal) -> Response:
    return _json(refusal.model_dump_json(), _STATUS.get(refusal.kind, 409))


async def _parse(request: Request, kind: type[Body]) -> Body:
    raw = bytearray()
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > _MAX_BODY_BYTES:
            raise RefusedError(Refusal(kind="bad-request", message=f"the body is over {_MAX_BODY_BYTES} bytes"))
    try:
        return kind.model_validate_json(bytes(raw))
    except ValidationError as error:
        raise RefusedError(Refusal(kind="bad-request", message=sentence(error))) from error


class _Api:
    """The handlers over one cloud."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud

    def _answer(self, machine: Machine) -> Response:
        seen = rules.view(machine, self._cloud.now())
        assert seen is not None
        return _json(rules.as_listed(self._cloud.settings(), seen).model_dump_json())

    async def ping(self, _: Request) -> Response:
        return _json(Ping(pid=os.getpid(), cloud=self._cloud.birth.id).model_dump_json())

    async def offers(self, _: Request) -> Response:
        return _json(_OFFERS.dump_json(rules.offers(self._cloud.settings())))

    async def launch(self, request: Request) -> Response:
        body = await _parse(request, LaunchBody)
        launched = await run_in_threadpool(self._cloud.launch, body)
        if launched.fault is Fault.TWICE:
            launched = await run_in_threadpool(self._cloud.launch, body)
        if launched.fault is Fault.HANG:
            await _until_disconnected(request, HANG_S)
        if launched.fault is Fault.DONE_BUT_ERROR:
            return Response("Internal Server Error", 500)
        if launched.machine is None or launched.fault is Fault.DROP_REPLY:
            return _half_answer()
        return self._answer(launched.machine)

    async def machines(self, request: Request) -> Response:
        cluster, key_mark, token = (request.query_params.get(name, "") for name in ("cluster", "key_mark", "token"))
        known = rules.owned(self._cloud.machines().values(), cluster, key_mark)
        settings, now = self._cloud.settings(), self._cloud.now()
        if token:
            return _json(_VIEWS.dump_json(rules.tokened(settings, known, token, now)))
        return _json(_VIEWS.dump_json(rules.listing(settings, known, now)))

    async def all_machines(self, _: Request) -> Response:
        now = self._cloud.now()
        seen = (rules.view(machine, now) for machine in self._cloud.machines().values())
        return _json(_VIEWS.dump_json([each for each in seen if each is not None]))

    async def preempt(self, request: Request) -> Response:
        machine, notice = request.path_params["machine"], await _parse(request, NoticeBody)
        preempt = partial(self._cloud.preempt, false_alarm=notice.false_alarm)
        return self._answer(await run_in_threadpool(preempt, machine, notice.notice_s))

    async def kill(self, request: Request) -> Response:
        machine = request.path_params["machine"]
        await run_in_threadpool(self._cloud.end, machine, EndCause.FAILED)
        return self._answer(await run_in_threadpool(self._cloud.wait_ended, machine, KILL_WAIT_S))

    def changes(self, change: Callable[[str], Machine]) -> Handler:
        """Return a handler that needs only the machine's id."""

        async def handle(request: Request) -> Response:
            return self._answer(await run_in_threadpool(change, request.path_params["machine"]))

        return handle

    async def settings(self, _: Request) -> Response:
        return _json(self._cloud.settings().model_dump_json())

    async def patch(self, request: Request) -> Response:
        change = await _parse(request, SettingsPatch)
        return _json((await run_in_threadpool(self._cloud.patch, change)).model_dump_json())


def application(cloud: Cloud) -> Starlette:
    """Return the routes over a cloud."""
    api = _Api(cloud)
    routes: list[tuple[str, str, Handler]] = [
        ("GET", "/v1/ping", api.ping),
        ("GET", "/v1/offers", api.offers),
        ("POST", "/v1/launch", api.launch),
        ("GET", "/v1/machines", api.machines),
        ("POST", "/v1/machines/{machine}/terminate", api.changes(partial(cloud.end, cause=EndCause.USER))),
        ("GET", "/v1/admin/machines", api.all_machines),
        ("POST", "/v1/admin/machines/{machine}/preempt", api.preempt),
        ("POST", "/v1/admin/machines/{machine}/withdraw", api.changes(cloud.withdraw)),
        ("POST", "/v1/admin/machines/{machine}/kill", api.kill),
        ("POST", "/v1/admin/machines/{machine}/freeze", api.changes(cloud.freeze)),
        ("POST", "/v1/admin/machines/{machine}/thaw", api.changes(cloud.thaw)),
        ("GET", "/v1/admin/settings", api.settings),
        ("PATCH", "/v1/admin/settings", api.patch),
    ]
    return Starlette(
        routes=[Route(path, handler, methods=[method]) for method, path, handler in routes],
        exception_handlers={RefusedError: _on_refused, 404: _on_no_route, 405: _on_no_route},
    )


async def _on_refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError)
    return _refusal(error.refusal)


async def _on_no_route(request: Request, _: Exception) -> Response:
    message = f"there is no {request.method} {request.url.path}"
    return _refusal(Refusal(kind="bad-request", message=message))


async def _until_disconnected(request: Request, limit_s: float) -> None:
    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            continue

    try:
        await asyncio.wait_for(disconnected(), limit_s)
    except TimeoutError:
        return


def serve(store: Store, programs: SshPrograms, change: SettingsPatch) -> int:
    """Serve until SIGTERM or SIGINT; the machines go on. Returns the exit code. Raises StoreError."""
    # First of all: a machine's orphans must become our children, and without this they would not.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    birth = store.create()
    store.lock(serves=True)
    store.forget_endpoint()
    cloud = Cloud(store, birth, programs, change.applied_to(store.settings()))
    config = uvicorn.Config(
        application(cloud), log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)

    def stop() -> None:
        server.should_exit = True

    engine = Engine(cloud, on_failure=stop)
    # uvicorn raises the signal that ended it once more when it is done; for us that is an orderly end.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    path = store.socket_path()
    with _listener(str(path)) as listener:
        engine.start()
        store.publish_endpoint(path)
        server.run(sockets=[listener])
    engine.close()
    store.forget_endpoint()
    store.unlock()
    return 1 if engine.failure else 0


def _listener(path: str) -> socket.socket:
    """Return a socket that only we may connect to, from the moment it exists."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(path)
    finally:
        os.umask(before)
    listener.listen(256)
    return listener


def log_to_stderr() -> None:
    """Log one line per happening, for a terminal or a log file."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # it logs each of our broken answers as an error
