"""Stub clouds, and the daemon's API over them, without a socket: offers and refusals before money is spent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import httpx
from fastapi import FastAPI

from provisioners.base import Offer, OfferQuery, Provisioner
from supervisor.api.app import create_app
from supervisor.api.quote import Quotes
from supervisor.api.security.unix_socket import PEER
from supervisor.api.service import Service
from tests.sim.harness import empty_world

Answer: TypeAlias = Callable[[OfferQuery], Sequence[Offer]]


class Stub:
    """A cloud that does nothing but offer; `answer` says what."""

    name = "local"

    def __init__(self, answer: Answer) -> None:
        self.offered = answer

    def offers(self, query: OfferQuery, timeout_s: float) -> Sequence[Offer]:
        return self.offered(query)

    def _never(self, *_: object) -> Any:
        raise AssertionError("asking for a price calls for nothing else")

    launch = find = instances = coverage = terminate = leftovers = remove = console = check = _never


def raising(error: Exception) -> Answer:
    """It cannot be asked, or has nothing."""

    def answer(_query: OfferQuery) -> Sequence[Offer]:
        raise error

    return answer


class Api:
    """The daemon's API, called without a socket."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    def post(self, path: str, json: dict[str, Any]) -> httpx.Response:
        async def call() -> httpx.Response:
            transport = httpx.ASGITransport(self._app, client=(PEER, 0))
            async with httpx.AsyncClient(transport=transport, base_url="http://spotsupd") as client:
                return await client.post(path, json=json, timeout=60.0)

        return asyncio.run(call())


def service_over(quotes: Quotes, *clouds: str, rented: bool = False) -> tuple[Service, FastAPI]:
    world = empty_world()
    daemon = world.daemon
    hosted = () if rented else clouds
    service = Service(daemon.journal, daemon.leader, world.clock, clouds, lambda *_: True, quotes.quote, hosted=hosted)
    return service, create_app(service, lambda: daemon.loop.status, world.clock, "0")


def api(**clouds: Provisioner) -> Api:
    """The daemon's API over these clouds."""
    _, app = service_over(Quotes(clouds, timeout_s=60.0, provider_s=55.0), *clouds)
    return Api(app)


def spec(**more: Any) -> dict[str, Any]:
    """The body of a submission: a job of 3 nodes and a spare, and `more` keys."""
    return {"spec": {"name": "job", "nodes": {"min": 2, "desired": 3, "max": 4, "spares": 1}, "run": "t.py", **more}}
