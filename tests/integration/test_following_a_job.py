"""Following a job: each event once, its row when it changed, the end; and lists in pages."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from spotsup_simulator.world import World

from supervisor.api import stream
from supervisor.api.jobs.changes import Scale
from supervisor.api.stream import Cursor, Message, begin, look
from supervisor.planner.world import JobView
from tests.sim.harness import service, submit, training_world
from tests.sim.promises import jobs_of
from tests.support.https import ROOT, TOKEN, Https
from tests.support.machines import wait_for


def row(view: JobView) -> dict[str, Any]:
    return {"name": view.name, "state": view.record.state, "desired": view.record.desired_nodes, "usd": object()}


class Watch:
    """A reader of a job."""

    def __init__(self, world: World, after: str = "") -> None:
        self._world = world
        self.cursor: Cursor = begin(service(world).jobs, "job", after, output=True)

    def look(self) -> list[Message]:
        messages, self.cursor = look(service(self._world).jobs, row, self.cursor)
        return messages


def test_a_reader_gets_each_event_once_and_the_row_when_it_changed() -> None:
    world = training_world(1, 2, 4)
    following = Watch(world)
    first = following.look()
    events = [message for message in first if message.kind == "event"]
    assert events[0].data["kind"] == "submitted"
    assert [message.kind for message in first][len(events) :] == ["status"]
    assert following.look() == [], "money and time go on, and are no news"
    service(world).commands.scale("job", Scale(3))
    news = following.look()
    assert news[0].data["kind"] == "scaled"
    assert news[-1].kind == "status"
    again = Watch(world, after=events[-1].id).look()
    assert [each.id for each in again] == [each.id for each in news], "it goes on where it was"
    service(world).commands.cancel("job")
    world.run_until(lambda world: jobs_of(world)["job"].record.ended, 600.0)
    world.run_until(lambda world: not jobs_of(world)["job"].members, 600.0)
    last = following.look()[-1]
    assert (last.kind, last.data, following.cursor.ended) == ("end", {"reason": "cancelled"}, True)


def test_a_name_that_is_used_again_ends_it() -> None:
    world = training_world(1, 1, 1)
    following = Watch(world)
    following.look()
    service(world).commands.cancel("job")
    world.run_until(lambda world: jobs_of(world)["job"].record.ended, 600.0)
    world.run_until(lambda world: all(n.state == "gone" for n in jobs_of(world)["job"].nodes.values()), 600.0)
    submit(world, "job", 1, 1, 1)
    assert [each.data for each in following.look()] == [{"reason": "the name job was used again"}]
    assert following.cursor.ended


def test_a_message_is_one_event_whatever_is_in_it() -> None:
    text = Message("output", {"text": "a\r\n\n\ndata: b\u2028"}, "job-1").encode()
    assert text.count(b"\n") == 4
    assert text.startswith(b"id: job-1\nevent: output\ndata: {")
    assert text.endswith(b"\n\n")


# -- over the network --------------------------------------------------------------------------------------------------


@contextmanager
def reading(https: Https, name: str = "job") -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPSConnection("localhost", https.port, context=https.trusting(), timeout=30.0)
    try:
        connection.request("GET", f"/v1/jobs/{name}/stream", headers={"authorization": f"Bearer {TOKEN}"})
        yield connection.getresponse()
    finally:
        connection.close()


def test_it_is_read_over_the_network_by_a_bounded_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MAX_WATCHERS", 1)
    monkeypatch.setattr(stream, "LOOK_S", 0.05)
    monkeypatch.setattr(stream, "HEARTBEAT_S", 0.0)
    with Https.started(tmp_path, training_world(1, 2, 4)) as https:
        with reading(https) as first:
            assert (first.status, first.getheader("content-type")) == (200, "text/event-stream; charset=utf-8")
            assert first.readline().startswith(b"id: job-")
            assert first.readline() == b"event: event\n"
            assert json.loads(first.readline().removeprefix(b"data: "))["kind"] == "submitted"
            while first.readline() != b": still here\n":
                pass
            with reading(https) as second:
                assert (second.status, second.getheader("retry-after")) == (503, "5")

        def is_free() -> bool:
            with reading(https) as third:
                return third.status == 200

        wait_for(is_free, "the end of the first reader")
        with reading(https, "none") as none:
            assert none.status == 404
        monkeypatch.setattr(stream, "MAX_S", 0.0)
        wait_for(is_free, "the end of the one before")


@pytest.mark.parametrize("how", ["revoked", "expired"])
def test_it_ends_with_its_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(stream, "LOOK_S", 0.05)
    monkeypatch.setattr(stream, "MAX_S", 20.0)
    with Https.started(tmp_path, training_world(1, 2, 4)) as https, reading(https) as first:
        while b'"round"' not in first.readline():
            pass
        https.tokens = {} if how == "revoked" else {ROOT.id: replace(ROOT, expires_at=0.0)}
        assert first.read().endswith(b'event: end\ndata: {"reason": "the token has expired, or was revoked"}\n\n')
        with reading(https) as again:
            assert again.status == 401


def test_lists_come_in_pages(tmp_path: Path) -> None:
    world = training_world(1, 1, 1)
    for name in ("aa", "bb", "cc", "dd"):
        submit(world, name, 1, 1, 1)
    with Https.started(tmp_path, world) as https:
        path, seen = "/v1/jobs?limit=2", []
        while path:
            connection = http.client.HTTPSConnection("localhost", https.port, context=https.trusting(), timeout=30.0)
            connection.request("GET", path, headers={"authorization": f"Bearer {TOKEN}"})
            reply = connection.getresponse()
            seen.append([each["name"] for each in json.loads(reply.read())])
            link = reply.getheader("link") or ""
            path = link.partition(">")[0].removeprefix("<")
            connection.close()
        assert [len(each) for each in seen] == [2, 2, 1]
        assert sorted(name for each in seen for name in each) == ["aa", "bb", "cc", "dd", "job"]
        assert len(https.get("/v1/jobs")[1]) == 5
        assert https.get("/v1/jobs?limit=2&after=none")[0] == 404
        assert https.get("/v1/jobs?limit=0")[0] == 422
        assert len(https.get("/v1/jobs/job/events?limit=1")[1]) == 1
        (node,) = https.get("/v1/nodes?limit=1")[1]
        assert https.get(f"/v1/nodes?after={node['id']}")[1][0]["id"] != node["id"]
