"""Alerts over real sockets, to far sides on loopback that are unkind: Slack's webhook and API, and a
signed webhook."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from supervisor.alerts.routes import Channel
from supervisor.alerts.senders import Outgoing, Receipt, Sender
from supervisor.alerts.signed import SignedWebhook
from supervisor.alerts.slack import SlackBot, SlackWebhook
from supervisor.alerts.stories import Story, Thread
from supervisor.alerts.texts import slack_text
from supervisor.cli.daemon import main as spotsupd
from supervisor.events import EventKind
from supervisor.model import Event
from supervisor.planner.actions import AlertsDone, SendAlerts
from supervisor.runtime.actor import ThreadActor
from supervisor.runtime.senders import BoundedSender
from tests.support.far_sides import Answer, FarSide, closed_port, far_side

SECRET = "T00/B00/hunter2hunter2"  # noqa: S105 - of no one
TOKEN = "xoxb-hunter2hunter2"  # noqa: S105
TEXT = "chars-abcde-2 will be preempted in 30 s <!channel>"
EVENT = Event("chars-abcde-000007", 1_800_000_000.0, "chars", EventKind.NOTICE, TEXT, "chars-abcde-2")
LATER = Event("chars-abcde-000009", 1_800_000_009.0, "chars", EventKind.REPLACEMENT_JOINED, "back", "chars-abcde-3")
IDS = (EVENT.id, LATER.id)
BOTH = Outgoing((EVENT, LATER), at=1_800_000_010.0)
DOCS = Path(__file__).resolve().parents[2] / "docs" / "alerts.md"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("slack", "signed"):
        monkeypatch.setattr(f"supervisor.alerts.{module}.TIMEOUT_S", 1.0)


@pytest.fixture
def slack() -> Iterator[FarSide]:
    with far_side() as found:
        yield found


def webhook(slack: FarSide) -> SlackWebhook:
    return SlackWebhook(f"{slack.url}/services/{SECRET}")


def bot(slack: FarSide) -> SlackBot:
    return SlackBot(TOKEN, "#ops", f"{slack.url}/api/")


def signed(slack: FarSide) -> SignedWebhook:
    return SignedWebhook(f"{slack.url}/hook?key=hunter2hunter2", "hunter2hunter2!!", "prod", lambda: 1_800_000_011.0)


# -- Slack's webhook ---------------------------------------------------------------------------------------


def test_events_are_posted_as_one_escaped_message(slack: FarSide) -> None:
    assert webhook(slack).send(BOTH) == Receipt(delivered=IDS)
    assert slack.texts == [slack_text(BOTH.events)]
    for part in ("*chars*", "will be preempted in 30 s &lt;!channel&gt;", "08:00:00 UTC", "chars-abcde-000007"):
        assert part in slack.texts[0]


@pytest.mark.parametrize(
    ("answer", "receipt"),
    [
        (Answer(429, "", {"Retry-After": "7"}), Receipt(error="Slack answered 429", retry_after_s=7.0)),
        (Answer(429, "", {"Retry-After": "soon"}), Receipt(error="Slack answered 429")),
        (Answer(500, "rollup_error"), Receipt(error="Slack answered 500 rollup_error")),
        (Answer(404, "no_service"), Receipt(error="Slack answered 404 no_service")),
        (Answer(400, "a proxy's page"), Receipt(error="Slack answered 400 a proxy's page")),
        (Answer(400, "invalid_payload"), Receipt(error="Slack answered 400 invalid_payload", refused=True)),
        (Answer(200, "<html>log in"), Receipt(error="Slack answered 200 <html>log in")),
        (Answer(403, f"not {SECRET}"), Receipt(error="Slack answered 403 not …")),
    ],
)
def test_what_slack_answers_says_when_to_try_again_and_never_names_the_secret(
    slack: FarSide, answer: Answer, receipt: Receipt
) -> None:
    slack.usual = answer
    found = webhook(slack).send(BOTH) if "…" not in receipt.error else SlackWebhook(f"{slack.url}/{SECRET}").send(BOTH)
    assert found == receipt


@pytest.mark.parametrize("answer", [Answer(hang=True), Answer(cut=True), Answer(500, cut=True)])
def test_an_answer_that_does_not_come_or_ends_within_is_an_unknown_outcome(
    slack: FarSide, answer: Answer, caplog: pytest.LogCaptureFixture
) -> None:
    slack.usual = answer
    with caplog.at_level(logging.DEBUG):
        for sender in (webhook(slack), bot(slack)):
            receipt = sender.send(BOTH)
            assert receipt.error.startswith("Slack did not answer: ")
            assert receipt.delivered == ()
        assert "hunter2" not in receipt.error + caplog.text
    assert len(slack.posted) == 2, "nothing is tried twice by itself"


def test_a_slack_that_is_away_is_reported_without_the_secret() -> None:
    slack = FarSide(f"http://127.0.0.1:{closed_port()}")
    for sender in (webhook(slack), bot(slack), signed(slack)):
        error = sender.send(BOTH).error
        assert "did not answer: " in error
        assert "hunter2" not in error + sender.try_without_sending()
        assert "it does not answer" in sender.try_without_sending() or "did not answer" in sender.try_without_sending()


# -- a bot's threads ---------------------------------------------------------------------------------------

STORY = Story("chars", "chars-abcde", "degraded", 3, 4, leaving=1, noticed_at=1_800_000_000.0)


def told(slack: FarSide) -> list[tuple[str, str, str]]:
    """Method, thread and text of each call."""
    calls = [(each.path.rpartition("/")[2], each.fields) for each in slack.posted]
    return [(method, call.get("thread_ts") or call.get("ts", ""), call["text"].split(":")[1]) for method, call in calls]


def test_the_first_event_of_a_job_begins_its_thread_and_later_ones_are_replies(slack: FarSide) -> None:
    slack.usual = Answer.of_api()
    first = bot(slack).send(Outgoing((EVENT,), {"chars-abcde": STORY}, at=5.0))
    thread = Thread("C1", "17.5", STORY.sentence(), 5.0)
    assert first == Receipt((EVENT.id,), threads={"chars-abcde": thread})
    assert [each[:2] for each in told(slack)] == [("chat.postMessage", ""), ("chat.postMessage", "17.5")]
    assert slack.texts[0].startswith("*chars*: 1 node going, noticed 08:00:00 UTC")
    assert slack.posted[0].fields["channel"] == "#ops"
    assert slack.posted[0].headers["Authorization"] == f"Bearer {TOKEN}"
    back = Story("chars", "chars-abcde", "running", 4, 4, pauses=1, pause_s=9.0, usd=3.5)
    later = bot(slack).send(Outgoing((LATER,), {"chars-abcde": back}, {"chars-abcde": thread}, at=9.0))
    assert [each[:2] for each in told(slack)[2:]] == [("chat.postMessage", "17.5"), ("chat.update", "17.5")]
    assert slack.texts[-1] == "*chars*: running, back at 4 nodes; last pause 9 s; $3.50 so far"
    assert later.threads == {"chars-abcde": Thread("C1", "17.5", back.sentence(), 9.0)}


def test_a_message_of_many_jobs_is_one_digest_and_no_thread(slack: FarSide) -> None:
    slack.usual = Answer.of_api()
    events = tuple(Event(f"j{n}-u-000001", 5.0, f"j{n}", EventKind.NOTICE, "text", f"j{n}-u-1") for n in range(30))
    stories = {f"j{n}-u": Story(f"j{n}", f"j{n}-u", "running", 1, 1) for n in range(30)}
    assert bot(slack).send(Outgoing(events, stories)).delivered == tuple(each.id for each in events)
    assert len(slack.posted) == 1
    assert all(event.node in slack.texts[0] for event in events)


@pytest.mark.parametrize(
    ("answer", "receipt"),
    [
        (Answer.of_api("invalid_auth"), Receipt(error="Slack answered 200 invalid_auth")),
        (Answer.of_api("not_in_channel"), Receipt(error="Slack answered 200 not_in_channel")),
        (Answer.of_api("msg_too_long"), Receipt(error="Slack answered 200 msg_too_long", refused=True)),
        (
            Answer.of_api("message_not_found"),
            Receipt(error="Slack answered 200 message_not_found", threads={"chars-abcde": None}),
        ),
        (Answer(200, "no JSON"), None),
        (Answer(503, "<html>"), None),
    ],
)
def test_what_slacks_api_refuses_is_said_and_a_thread_that_is_gone_is_forgotten(
    slack: FarSide, answer: Answer, receipt: Receipt | None
) -> None:
    slack.usual = answer
    threads = {"chars-abcde": Thread("C1", "17.5", "old", 1.0)}
    found = bot(slack).send(Outgoing((EVENT,), {"chars-abcde": STORY}, threads))
    assert found == receipt if receipt else found.error
    assert "hunter2" not in found.error


def test_what_was_posted_before_a_429_is_not_posted_again(slack: FarSide) -> None:
    slack.usual = Answer.of_api()
    slack.answers = [Answer.of_api(ts="1.1"), Answer.of_api(), Answer(429, "{}", {"Retry-After": "30"})]
    other = Event("bert-u-000001", 5.0, "bert", EventKind.NOTICE, "text", "bert-u-1")
    stories = {"chars-abcde": STORY, "bert-u": Story("bert", "bert-u", "running", 1, 1)}
    receipt = bot(slack).send(Outgoing((EVENT, other), stories, at=5.0))
    assert (receipt.delivered, receipt.retry_after_s) == ((EVENT.id,), 30.0)
    assert receipt.threads["chars-abcde"] == Thread("C1", "1.1", STORY.sentence(), 5.0)


# -- a signed webhook --------------------------------------------------------------------------------------


def test_a_signed_webhook_has_everything_and_the_code_of_the_documents_verifies_it(slack: FarSide) -> None:
    assert signed(slack).send(BOTH) == Receipt(delivered=IDS)
    (posted,) = slack.posted
    body = json.loads(posted.body)
    assert [each["id"] for each in body["events"]] == list(IDS)
    assert body["events"][0] == {
        "id": EVENT.id,
        "at": EVENT.at,
        "job": "chars",
        "node": "chars-abcde-2",
        "kind": "notice",
        "level": "info",
        "text": TEXT,
        "data": {},
    }
    (code,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    names: dict[str, object] = {}
    exec(code, names)  # noqa: S102 - the code of our own documents
    verify = names["verify"]
    assert callable(verify)
    at, sign = posted.headers["Spotsup-Timestamp"], posted.headers["Spotsup-Signature"]
    assert verify("hunter2hunter2!!", at, sign, posted.body, 1_800_000_100.0)
    assert not verify("another secret!!", at, sign, posted.body, 1_800_000_100.0)
    assert not verify("hunter2hunter2!!", at, sign, posted.body + b" ", 1_800_000_100.0)
    assert not verify("hunter2hunter2!!", at, sign, posted.body, 1_800_000_400.0), "it is too old"


@pytest.mark.parametrize(
    ("answer", "receipt"),
    [
        (Answer(204, ""), Receipt(delivered=IDS)),
        (
            Answer(503, "later", {"Retry-After": "12"}),
            Receipt(error="the webhook answered 503 later", retry_after_s=12.0),
        ),
        (Answer(302, "", {"Location": "http://127.0.0.1:1/"}), Receipt(error="the webhook answered 302")),
        (Answer(400, "bad hunter2hunter2!!"), Receipt(error="the webhook answered 400 bad …")),
        (Answer(413, "too large"), Receipt(error="the webhook answered 413 too large", refused=True)),
    ],
)
def test_any_2xx_of_a_webhook_is_a_receipt_and_nothing_else_is(
    slack: FarSide, answer: Answer, receipt: Receipt
) -> None:
    slack.usual = answer
    assert signed(slack).send(BOTH) == receipt


# -- all of them -------------------------------------------------------------------------------------------


class Hanging:
    """A sender that hangs until the end of the test."""

    def __init__(self) -> None:
        self.calls, self.over = 0, threading.Event()

    def send(self, message: Outgoing) -> Receipt:
        self.calls += 1
        self.over.wait(60.0)
        return Receipt(delivered=tuple(each.id for each in message.events))

    def try_without_sending(self) -> str:
        return ""


def test_a_delivery_that_hangs_for_ever_is_given_up_and_no_other_begins_meanwhile() -> None:
    hanging = Hanging()
    bounded = BoundedSender("ops", hanging, limit_s=0.05)
    assert bounded.send(BOTH).error == "the delivery did not end within 0.05 s"
    assert bounded.send(BOTH).error == "an earlier delivery has not ended yet"
    assert hanging.calls == 1
    hanging.over.set()
    deadline = time.monotonic() + 20.0
    while bounded.send(BOTH).error and time.monotonic() < deadline:
        time.sleep(0.01)
    assert hanging.calls == 2


def test_a_channel_that_hangs_delays_no_other(slack: FarSide) -> None:
    hanging, woken = Hanging(), threading.Event()
    senders: dict[str, Sender] = {"dead": BoundedSender("dead", hanging), "ops": BoundedSender("ops", webhook(slack))}

    def perform(action: object) -> AlertsDone:
        assert isinstance(action, SendAlerts)
        return AlertsDone(action.channel, action.message, senders[action.channel.name].send(action.message))

    actor = ThreadActor(perform, woken.set)
    for name in ("dead", "ops"):
        actor.start(SendAlerts(Channel(name), BOTH))
    assert woken.wait(20.0)
    ((_, done),) = actor.collect()
    assert isinstance(done, AlertsDone)
    assert (done.channel.name, done.receipt) == ("ops", Receipt(delivered=IDS))
    hanging.over.set()


def test_alert_test_sends_one_message_to_each_channel_and_says_what_each_answered(
    slack: FarSide, tmp_path: Path
) -> None:
    slack.answers = [Answer(404, "no_service")]
    (tmp_path / "hook").write_text(f"{slack.url}/services/{SECRET}\n")
    (tmp_path / "secret").write_text("hunter2hunter2!!\n")
    config = tmp_path / "spotsupd.toml"
    with far_side() as own:
        config.write_text(
            f"""
            [[alerts.slack]]
            name = "gone"
            level = "critical"
            webhook_file = "{tmp_path}/hook"
            [[alerts.webhook]]
            name = "own"
            url = "{own.url}/hook"
            secret_file = "{tmp_path}/secret"
            """
        )
        with contextlib.chdir(tmp_path):
            done = CliRunner().invoke(spotsupd, ["alert", "test", "--config", str(config), "-o", "json"])
    rows = json.loads(done.stdout)
    assert (done.exit_code, rows["ok"]) == (1, False)
    assert {each["channel"]: each["error"] for each in rows["channels"]} == {
        "gone": "Slack answered 404 no_service",
        "own": "",
    }
    assert (len(slack.posted), len(own.posted)) == (1, 1)
    assert "hunter2" not in done.output
