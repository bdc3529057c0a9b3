"""/v1/openapi.json: every route is described, and whatever is sent to one is no fault of the daemon."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.api.app import create_app
from supervisor.api.daemon.metrics import add_metrics
from supervisor.api.problems import MEDIA_TYPE
from supervisor.api.security.gate import Users
from supervisor.api.security.rules import rules_of
from supervisor.api.security.throttle import Throttle
from supervisor.api.security.unix_socket import PEER
from supervisor.api.sweeps import Sweeps, add_sweeps
from supervisor.market.admission import QueueRules
from supervisor.runtime.loop import Status
from tests.sim.harness import service, training_world

WORLD = training_world(1, 1, 2)
SERVICE = service(WORLD)
APP = create_app(
    SERVICE,
    lambda: Status(0.0, "", {}, {}),
    WORLD.clock,
    "0",
    audit=list,
    users=Users(per_token=Throttle(1e9, 1e9)),
)
add_metrics(APP, bytes)
add_sweeps(APP, Sweeps(SERVICE, WORLD.daemon.journal, WORLD.clock, QueueRules()))
DOCUMENT: dict[str, Any] = APP.openapi()
OPERATIONS = [(method, path) for path, found in DOCUMENT["paths"].items() for method in found]
# A stream has no end.
CALLED = [(method, path) for method, path in OPERATIONS if not path.endswith("/stream")]


def test_every_route_is_described_with_its_errors_and_who_may() -> None:
    described = {f"{method.upper()} {path}" for method, path in OPERATIONS}
    rules = rules_of(APP.routes)
    assert described == rules.keys() - {"GET /v1/openapi.json"}
    for method, path in OPERATIONS:
        operation = DOCUMENT["paths"][path][method]
        assert operation["responses"]["default"]["content"].keys() == {MEDIA_TYPE}, path
        rule = rules[f"{method.upper()} {path}"]
        assert rule is not None
        assert operation["x-spotsup-action"] == rule.action
        assert operation["security"] == ([] if path == "/v1/ca" else [{"token": []}])
    assert DOCUMENT["components"]["securitySchemes"] == {"token": {"type": "http", "scheme": "bearer"}}
    assert json.loads(json.dumps(DOCUMENT)) == DOCUMENT


TEXTS = st.text(max_size=20) | st.sampled_from(["job", "job-aaaaa-1", "job.1", "..", "%2e%2e", "\0", "1e309", "é", ""])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
SPEC = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["new", "job"]) | TEXTS,
        "run": st.just("train.py") | JSON,
        "nodes": st.integers(-1, 3) | JSON,
    },
    optional={"limits": JSON, "env": JSON, "placement": JSON, "checkpoints": JSON, "resources": JSON, "schedule": JSON},
)
KEYS = sorted({key for each in DOCUMENT["components"]["schemas"].values() for key in each.get("properties", {})})
BODIES = st.dictionaries(st.sampled_from(KEYS), JSON, max_size=5) | st.fixed_dictionaries({"spec": SPEC}) | JSON
QUERIES = st.dictionaries(
    st.sampled_from(["after", "limit", "past", "node", "on_demand", "port", "gpus", "job"]), TEXTS
)


def call(method: str, path: str, content: bytes, query: dict[str, str], header: str) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(APP, client=(PEER, 0))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
            headers = {"content-type": "application/json", "if-match": header, "last-event-id": header}
            return await http.request(method, path, content=content, params=query, headers=headers)

    return asyncio.run(send())


def check(data: st.DataObject) -> None:
    method, template = data.draw(st.sampled_from(CALLED))
    name, node = (quote(data.draw(TEXTS), safe="") or "job" for _ in range(2))
    body = data.draw(BODIES)
    content = json.dumps(body).encode() if method == "post" else b""
    header = data.draw(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20))
    path = template.format(name=name, node=node, sweep=name, sha256=name)
    reply = call(method, path, content, data.draw(QUERIES), header)
    assert reply.status_code < 500, reply.text
    if reply.status_code >= 400:
        assert reply.headers["content-type"] == MEDIA_TYPE
        assert reply.json()["status"] == reply.status_code


@pytest.mark.long
@given(st.data())
def test_nothing_that_is_sent_is_a_fault_of_the_daemon(data: st.DataObject) -> None:
    check(data)
