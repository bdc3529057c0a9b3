"""Which event goes to which channel, and when: levels, jobs, quiet hours; and what each message says."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from supervisor.alerts.batches import fitting
from supervisor.alerts.digests import MAX_LINES, MIN_BULK_JOBS, node_names
from supervisor.alerts.routes import Channel, QuietHours
from supervisor.alerts.stories import Story, Thread, decode_thread
from supervisor.alerts.texts import MAX_TEXT_CHARACTERS, first_message, plain_text, slack_text
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


def test_how_nodes_of_a_job_come_and_go_is_one_line_that_names_each_after_what_needs_a_person() -> None:
    events = [
        *(event(number) for number in (1, 2, 3, 7)),
        *(event(number + 20, K.REPLACEMENT_REQUESTED) for number in (1, 2, 3)),
        event(9, K.JOB_FAILED, text="exit 1"),
        *(event(number, K.NODE_LOST) for number in (1, 8)),
        replace(event(5, K.NODE_LOST), data={"seen_at": 900.0}),
        event(6, K.NODE_SUSPECT),
        event(21, K.REPLACEMENT_JOINED),
        event(1, job="b", at=1060.0),
    ]
    assert slack_text(events).splitlines() == [
        ":x: *resnet*: exit 1  (00:16:40 UTC, resnet-abcde-000009)",
        (
            ":arrows_counterclockwise: *resnet*: 4 nodes preempted: resnet-abcde-1…3, 7; 1 node lost without a notice: "
            "resnet-abcde-8; 1 node gone as announced before: resnet-abcde-5; 1 node silent: resnet-abcde-6; "
            "1 replacement joined: resnet-abcde-21; 2 replacements requested: resnet-abcde-22…23  (00:16:40 UTC, "
            "resnet-abcde-000001 to resnet-abcde-000021)"
        ),
        ":warning: *b*: b-abcde-1 will go  (00:17:40 UTC, b-abcde-000001)",
    ]


def test_other_things_that_come_in_bulk_are_a_line_for_each_kind() -> None:
    events = [event(number, K.NODE_UNHEALTHY) for number in (1, 2, 3)] + [event(1, K.WORKERS_STUCK)]
    first, second = plain_text(events).splitlines()
    assert first.startswith("resnet: 3 nodes have unhealthy GPUs and are replaced: resnet-abcde-1…3  (")
    assert second.startswith("resnet: resnet-abcde-1 will go")


def test_the_same_of_very_many_jobs_is_one_line_and_other_news_have_their_own() -> None:
    events = [event(1, job=f"j{number}") for number in range(MIN_BULK_JOBS)]
    assert len(slack_text(events[:-1]).splitlines()) == MIN_BULK_JOBS - 1
    events.insert(3, event(2, K.JOB_FAILED, "j3", "exit 1"))
    failed, rest = slack_text(events).splitlines()
    assert failed.startswith(":x: *j3*: exit 1")
    assert rest.startswith(f":arrows_counterclockwise: *{MIN_BULK_JOBS} jobs*: {MIN_BULK_JOBS} nodes preempted: j0-abc")


def test_a_job_has_five_lines_in_a_message_and_the_rest_is_counted_with_the_command_that_lists_it() -> None:
    flood = [event(number, K.CHECKPOINTS_RESUMED, text=f"saved {number}") for number in range(40)]
    flood.insert(0, event(99, K.JOB_FAILED, text="exit 1"))
    events = [*flood, *(event(number) for number in (50, 51, 52)), event(1, K.JOB_DONE, "other", "finished")]
    lines = plain_text(events).splitlines()
    assert lines[0].startswith("resnet: exit 1")
    assert [line.split("  (")[0] for line in lines[1:MAX_LINES]] == [f"resnet: saved {n}" for n in (36, 37, 38, 39)]
    assert "3 nodes preempted: resnet-abcde-50…52" in lines[MAX_LINES]
    assert lines[-2].startswith("other: finished")
    assert lines[-1] == "resnet: and 36 more alerts: `spotsupctl events resnet` lists them"


def test_so_has_a_kind_that_concerns_no_job() -> None:
    events = [event(number, K.UNDECIDED, "", f"fault {number}") for number in range(7)] + [event(50, K.FLOODED, "")]
    lines = plain_text(events).splitlines()
    assert len(lines) == 7
    assert lines[-1] == "spotsup: and 2 more alerts of the kind undecided: `spotsupctl events` lists them"


def test_no_node_is_cut_from_a_line_and_a_message_takes_what_it_has_room_for() -> None:
    events = tuple(event(1, job=f"a-rather-long-name-of-a-job-{number}") for number in range(400))
    sent = fitting(events)
    assert 20 < len(sent) < 200
    assert all(each.node in slack_text(sent) for each in sent)
    assert len(slack_text(sent)) <= MAX_TEXT_CHARACTERS


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
