"""Slack alerts over real HTTP, to a server on loopback that stands in for Slack."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from supervisor.alerts.slack import Slack, message
from supervisor.model import ALERT_KINDS, Event, EventKind
from tests.support.serving import serving

TEXT = "chars-abcde-2 will be preempted in 30 s"
EVENT = Event("chars-abcde-000007", 1_800_000_000.0, "chars", EventKind.NOTICE, TEXT)


@dataclass
class Inbox:
    """What was posted, and how to answer."""

    url: str = ""
    status: int = 200
    texts: list[str] = field(default_factory=list)


@pytest.fixture
def slack() -> Iterator[Inbox]:
    inbox = Inbox()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            inbox.texts.append(body["text"])
            self.send_response(inbox.status)
            self.end_headers()
            self.wfile.write(b"ok" if inbox.status == 200 else b"no_service")

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with serving(HTTPServer(("127.0.0.1", 0), Handler)) as server:
        inbox.url = f"http://127.0.0.1:{server.server_port}/services/T/B/secret"
        yield inbox


def test_an_event_is_posted_with_its_job_its_time_and_its_id(slack: Inbox) -> None:
    assert Slack(slack.url).send(EVENT) == ""
    assert slack.texts == [message(EVENT)]
    for part in ("*chars*", "will be preempted in 30 s", "08:00:00 UTC", "chars-abcde-000007"):
        assert part in slack.texts[0]


def test_a_refusal_by_slack_is_reported_without_the_secret(slack: Inbox) -> None:
    slack.status = 404
    assert Slack(slack.url).send(EVENT) == "Slack answered 404 no_service"


def test_an_unreachable_slack_is_reported_without_the_secret() -> None:
    error = Slack("http://127.0.0.1:9/services/T/B/secret").send(EVENT)
    assert error.startswith("Slack did not answer")
    assert "secret" not in error


def test_every_alert_of_the_promise_has_its_sign() -> None:
    for kind in ALERT_KINDS:
        assert not message(Event("i", 0.0, "job", kind, "text")).startswith(":information_source:")


def test_a_slack_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.alerts.slack.TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        error = Slack(f"http://127.0.0.1:{silent.getsockname()[1]}/services/T/B/secret").send(EVENT)
    assert error.startswith("Slack did not answer: ")
    assert time.monotonic() - began < 20.0
