"""Which event goes to which channel, and when: levels, jobs, quiet hours; and what each message says."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from supervisor.alerts.routes import Channel, QuietHours
from supervisor.alerts.stories import Story, Thread, decode_thread
from supervisor.alerts.texts import (
    MAX_TEXT_CHARACTERS,
    first_message,
    grouped,
    node_names,
    plain_text,
    slack_text,
)
from supervisor.events import EventKind, Level
from supervisor.model import Event

K = EventKind
NIGHT = datetime(2026, 11, 24, 23, 30, tzinfo=UTC).timestamp()


def event(number: int, kind: EventKind = K.NOTICE, job: str = "resnet", text: str = "", at: float = 1000.0) -> Event:
    name = f"{job}-abcde" if job else "spot"
    return Event(f"{name}-{number:06d}", at, job, kind, text or f"{name}-{number} will go", f"{name}-{number}")


def test_each_kind_of_alert_has_a_level_at_which_it_is_sent_and_a_sign_of_slack() -> None:
    assert {each.alert.level for each in K if each.alert} == {Level.INFO, Level.WARNING, Level.CRITICAL}
    assert not [each for each in K if each.alert and not re.fullmatch(r":[a-z_]+:", each.alert.sign)]


def test_each_kind_has_a_level_and_a_tone_of_the_dashboard() -> None:
    assert (str(K.NOTICE), K.NOTICE.level, K.SCALED.level) == ("notice", Level.INFO, Level.INFO)
    assert {each.tone for each in K} == {"bad", "near", "good", "calm"}


@pytest.mark.parametrize(
    ("channel", "taken"),
    [
        (Channel(), "notice node-lost job-failed budget-near"),
        (Channel(level=Level.WARNING), "node-lost job-failed budget-near"),
        (Channel(level=Level.CRITICAL), "job-failed"),
        (Channel(level=Level.OFF), ""),
        (Channel(level=Level.OFF, jobs={"res*": Level.INFO}), "notice node-lost job-failed"),
        (Channel(jobs={"resnet": Level.CRITICAL, "res*": Level.INFO}), "job-failed budget-near"),
        (Channel(jobs={"other": Level.OFF}, cluster=Level.CRITICAL), "notice node-lost job-failed"),
    ],
)
def test_a_channel_takes_events_from_its_level_on_which_may_differ_by_job(channel: Channel, taken: str) -> None:
    events = [event(1, kind) for kind in (K.NOTICE, K.NODE_LOST, K.JOB_FAILED)] + [event(2, K.BUDGET_NEAR, "")]
    assert " ".join(each.kind for each in events if channel.takes(each)) == taken


@pytest.mark.parametrize(
    ("quiet", "lasts"),
    [
        (QuietHours(22 * 60, 7 * 60), True),
        (QuietHours(7 * 60, 22 * 60), False),
        (QuietHours(23 * 60 + 30, 23 * 60 + 31), True),
        (QuietHours(22 * 60, 23 * 60 + 30), False),
        (QuietHours(0, 60), False),
        (QuietHours(0, 60, ZoneInfo("Europe/Vienna")), True),
    ],
)
def test_quiet_hours_are_of_a_time_zone_and_may_reach_over_midnight(quiet: QuietHours, lasts: bool) -> None:
    assert quiet.lasts(NIGHT) is lasts


def test_in_quiet_hours_critical_events_are_sent_with_what_their_job_has_before_them() -> None:
    channel = Channel(quiet=QuietHours(22 * 60, 7 * 60))
    pending = [event(1), event(1, job="bert"), event(2, K.STEPS_HANG), event(3), event(2, job="bert")]
    assert [each.id for each in channel.due(pending, NIGHT)] == ["resnet-abcde-000001", "resnet-abcde-000002"]
    assert channel.due(pending, NIGHT + 8 * 3600) == pending


# -- texts -------------------------------------------------------------------------------------------------


def test_one_event_is_a_line_with_its_sign_job_time_and_id() -> None:
    assert slack_text([event(7)]) == (":warning: *resnet*: resnet-abcde-7 will go  (00:16:40 UTC, resnet-abcde-000007)")
    assert plain_text([event(7)]) == "resnet: resnet-abcde-7 will go  (00:16:40 UTC, resnet-abcde-000007)"


def test_no_text_of_a_job_is_a_mention_or_a_link_in_slack() -> None:
    hostile = event(1, K.JOB_FAILED, text="<!channel> <@U123> <https://evil.example|click> a & b")
    text = slack_text([hostile])
    assert not {"<", ">"} & set(text)
    assert "&lt;!channel&gt; &lt;@U123&gt; &lt;https://evil.example|click&gt; a &amp; b" in text
    assert "&lt;!here&gt;" in first_message(Story("<!here>", "t", "running", 1, 1))


def test_a_long_text_is_cut_and_never_within_an_escape() -> None:
    text = slack_text([event(1, K.JOB_FAILED, text="&" * 2000)])
    assert len(text) <= MAX_TEXT_CHARACTERS
    assert text.count("&") == text.count("&amp;") > 500


def test_bulk_losses_are_one_line_per_kind_that_names_each_node() -> None:
    events = [event(number) for number in (1, 2, 3, 7)] + [
        event(9, K.JOB_FAILED, text="exit 1"),
        event(8),
        event(1, job="b"),
    ]
    lines = slack_text(events).splitlines()
    assert lines[0] == (
        ":warning: *resnet*: 4 nodes will be preempted: resnet-abcde-1…3, 7  "
        "(00:16:40 UTC, resnet-abcde-000001 to resnet-abcde-000007)"
    )
    assert [line.split(":")[1] for line in lines] == ["warning", "x", "warning", "warning"]
    assert [len(group) for group in grouped(events)] == [4, 1, 1, 1], "what follows a failure stays after it"


def test_the_same_loss_of_many_jobs_is_one_line_and_a_job_with_other_news_has_its_own() -> None:
    events = [event(1, job=f"j{number}") for number in range(12)]
    events.insert(3, event(2, K.JOB_FAILED, "j3", "exit 1"))
    first, *others = slack_text(events).splitlines()
    assert first.startswith(":warning: *11 jobs*: 11 nodes will be preempted: j0-abcde-1; j1-abcde-1; ")
    assert [line.split("*")[1] for line in others] == ["j3", "j3"]


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["a-1", "a-2", "a-3", "b-7"], "a-1…3; b-7"),
        (["i-0abc", "i-0def"], "i-0abc; i-0def"),
        (["a-3", "a-1", "a-3"], "a-1, 3"),
    ],
)
def test_nodes_are_named_in_ranges(names: list[str], shown: str) -> None:
    assert node_names(names) == shown


@pytest.mark.parametrize(
    ("story", "sentence"),
    [
        (Story("j", "t", "running", 4, 4), "running, at 4 nodes"),
        (Story("j", "t", "running", 4, 4, pauses=1, pause_s=12.34), "running, back at 4 nodes; last pause 12.3 s"),
        (
            Story("j", "t", "degraded", 3, 4, leaving=1, noticed_at=43205.0),
            "1 node going, noticed 12:00:05 UTC → at 3 of 4",
        ),
        (
            Story("j", "t", "degraded", 3, 4, leaving=1, noticed_at=43205.0, replacing=1),
            "1 node going, noticed 12:00:05 UTC → replacing: 1 on the way → at 3 of 4",
        ),
        (Story("j", "t", "degraded", 2, 4), "degraded, at 2 of 4 nodes"),
        (Story("j", "t", "failed", 0, 4, reason="exit 1", pauses=2, pause_s=None), "failed: exit 1"),
    ],
)
def test_the_first_message_says_how_a_job_is_in_one_sentence(story: Story, sentence: str) -> None:
    assert story.sentence() == sentence
    assert first_message(story) == f"*j*: {sentence}; $0.00 so far".replace(">", "&gt;")


def test_a_thread_survives_the_journal_and_what_is_none_is_none() -> None:
    thread = Thread("C1", "123.4", "running", 5.0)
    assert decode_thread(thread.encode()) == thread
    for raw in (
        b"",
        b"[]",
        b"{}",
        b"null",
        b'{"channel": 1, "ts": "1"}',
        b'{"channel": "C", "ts": "1", "at": Infinity}',
    ):
        assert decode_thread(raw) is None
