"""Many readers follow jobs: they share each look, are woken by the journal, and those of output are few."""

from __future__ import annotations

import http.client
import json
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from spotsup_simulator.world import World

from supervisor.api import stream
from supervisor.api.jobs.changes import Scale
from supervisor.api.security.gate import Gate, Users
from supervisor.api.security.unix_socket import bind_socket
from supervisor.api.serving import ApiServer
from supervisor.api.stream import add_stream
from supervisor.planner.world import JobView
from supervisor.runtime.descriptors import MAX_DESCRIPTORS, raise_limit
from tests.sim.harness import service, training_world
from tests.support.machines import wait_for

pytestmark = pytest.mark.long

READERS = 20


class Streams:
    """The route alone, of a world that only the test changes."""

    def __init__(self, socket_path: Path) -> None:
        self.world: World = training_world(1, 2, 4)
        self.rows = 0
        self.sentence = "all is well"
        self.changed: Callable[[], None] = lambda: None
        self._path = socket_path
        app = FastAPI()
        self.row: Callable[[JobView], dict[str, Any]] = self._row

        def shown(view: JobView) -> dict[str, Any]:
            return self.row(view)

        users = Users()
        app.add_middleware(Gate, lambda: app.routes, users, lambda _: None, tuple)
        add_stream(app, service(self.world).jobs, shown, lambda _: self.sentence, users, self._listen)
        self.server = ApiServer(app, bind_socket(socket_path))

    def _row(self, view: JobView) -> dict[str, Any]:
        self.rows += 1
        return {"desired": view.record.desired_nodes, "sentence": self.sentence}

    def _listen(self, call: Callable[[], None]) -> None:
        self.changed = call

    @contextmanager
    def reading(self, query: str = "") -> Iterator[http.client.HTTPResponse]:
        with self.asking("", query) as connection:
            yield connection.getresponse()

    @contextmanager
    def asking(self, after: str, query: str = "") -> Iterator[http.client.HTTPConnection]:
        """A connection on which the stream was asked for."""
        connection = http.client.HTTPConnection("daemon", timeout=30.0)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(30.0)
        try:
            connection.sock.connect(str(self._path))
            connection.request("GET", f"/v1/jobs/job/stream{query}", headers={"last-event-id": after})
            yield connection
        finally:
            connection.close()

    def scale(self, nodes: int) -> None:
        service(self.world).commands.scale("job", Scale(nodes))
        self.changed()


@pytest.fixture
def streams(tmp_path: Path) -> Iterator[Streams]:
    made = Streams(tmp_path / "s")
    made.server.start()
    try:
        yield made
    finally:
        made.server.stop()


def status_of(reader: http.client.HTTPResponse) -> dict[str, Any]:
    """The next row that a reader gets."""
    while reader.readline() != b"event: status\n":
        pass
    found: dict[str, Any] = json.loads(reader.readline().removeprefix(b"data: "))
    return found


def test_readers_share_a_look_and_are_woken_by_a_change(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "LOOK_S", 3600.0)
    with ExitStack() as stack:
        readers = [stack.enter_context(streams.reading()) for _ in range(READERS)]
        assert [status_of(each)["desired"] for each in readers] == [2] * READERS
        before = streams.rows
        streams.scale(3)
        assert [status_of(each)["desired"] for each in readers] == [3] * READERS
        assert streams.rows - before <= 2, "a look is not repeated for each reader"


def test_what_the_last_tick_said_is_news_without_a_change_of_the_journal(streams: Streams) -> None:
    with streams.reading() as reader:
        assert status_of(reader)["sentence"] == "all is well"
        streams.sentence = "waits for one node"
        assert status_of(reader)["sentence"] == "waits for one node"


def test_a_reader_that_leaves_during_a_look_ends_it_for_no_other(streams: Streams) -> None:
    gate, begun = threading.Event(), threading.Event()
    row = streams.row

    def slow(view: JobView) -> dict[str, Any]:
        begun.set()
        assert gate.wait(30.0)
        return row(view)

    streams.row = slow
    with streams.reading() as stays:
        with streams.reading():
            assert begun.wait(30.0)
        gate.set()
        assert status_of(stays)["desired"] == 2


def test_readers_of_output_are_fewer(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MAX_OUTPUT_WATCHERS", 1)
    with streams.reading("?output=true") as first:
        assert status_of(first)["desired"] == 2
        with streams.reading("?output=true") as second:
            assert second.status == 503
            assert "without it" in json.loads(second.read())["error"]
        with streams.reading() as third:
            assert third.status == 200

    def is_free() -> bool:
        with streams.reading("?output=true") as reader:
            return reader.status == 200

    wait_for(is_free, "the end of the first reader")


def test_looks_at_a_time_are_limited(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reader has another cursor, so that nothing is shared, and no look ends."""
    monkeypatch.setattr(stream, "MAX_LOOKS", 3)
    gate, lock = threading.Event(), threading.Lock()
    running, most = 0, 0

    def counted(view: JobView) -> dict[str, Any]:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        assert gate.wait(30.0)
        with lock:
            running -= 1
        return {"desired": view.record.desired_nodes}

    streams.row = counted
    with ExitStack() as stack:
        readers = [stack.enter_context(streams.asking(f"job-{number}")) for number in range(9)]
        replies = [each.getresponse() for each in readers]  # each has begun, and looks
        with streams.reading("/none") as none:
            assert none.status == 404
        wait_for(lambda: running == 3, "looks")
        gate.set()
        assert [status_of(each)["desired"] for each in replies] == [2] * 9
    assert most == 3


def test_the_daemon_may_have_as_many_connections_as_its_ports_take() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
        assert raise_limit() == wanted
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (wanted, hard)
        assert raise_limit() == wanted, "it is never lowered"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
