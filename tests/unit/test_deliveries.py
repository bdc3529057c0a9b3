"""What each channel is sent and when, and what leaves the outbox: pure, with a far side in virtual time."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from supervisor.alerts.batches import (
    MAX_EVENTS,
    MAX_RETRY_AFTER_S,
    MAX_RETRY_S,
    ChannelState,
    after,
    next_batch,
)
from supervisor.alerts.routes import Channel, QuietHours
from supervisor.alerts.senders import Outgoing, Receipt
from supervisor.alerts.stories import Thread
from supervisor.alerts.texts import MAX_TEXT_CHARACTERS, slack_text
from supervisor.events import EventKind, Level
from supervisor.model import Event, JobState
from supervisor.planner.actions import AlertsDone, Commit, SendAlerts
from supervisor.planner.boundary import Boundary
from supervisor.planner.deliveries import (
    DROPPED_AT_ONCE,
    FAILING_TOLD_S,
    MAX_WAITING,
    absorb_delivery,
    channel_problems,
    clear_outbox,
    due_deliveries,
    failing_channels,
)
from supervisor.planner.problems import report
from supervisor.planner.world import Rules, VolatileState, World
from tests.unit.scene import KEYS, job, member, view
from tests.unit.scene import world_of as scene_world

K = EventKind
NOW = 1_000_000.0
OPS, MAIL = Channel("ops"), Channel("mail")
PAGER = Channel("pager", gather=None)  # gets each at once


def event(number: int, kind: EventKind = K.NOTICE, job: str = "big", at: float = NOW) -> Event:
    text = f"{job}-u-{number} will be preempted in 30 s (metadata service)"
    return Event(f"{job}-u-{number:06d}", at, job, kind, text, f"{job}-u-{number}")


def world(
    events: Sequence[Event], *channels: Channel, states: Mapping[str, ChannelState] | None = None, **more: object
) -> World:
    rules = Rules(alerts=True, channels=channels or (OPS,))
    volatile = VolatileState(alert_channels=states or {})
    return World({}, volatile, rules, (), alerts=tuple(events), **more)  # type: ignore[arg-type]


def written(commits: Sequence[Commit]) -> tuple[set[str], set[str]]:
    """Keys that are put, and keys that are deleted, below `world/`."""
    puts = {key.removeprefix(KEYS.world) for commit in commits for key in commit.put_keys}
    return puts, {key.removeprefix(KEYS.world) for commit in commits for key in commit.delete_keys}


def drive(
    channel: Channel,
    arrivals: Sequence[Event],
    far_side: Callable[[float, Sequence[Event]], Receipt],
    seconds: float,
    step_s: float = 0.1,
) -> list[tuple[float, tuple[Event, ...], Receipt]]:
    """A channel in virtual time: every attempt, with when it was, what was sent, and how it ended."""
    state, tried = ChannelState(), []
    coming = deque(sorted(arrivals, key=lambda each: each.at))
    pending: list[Event] = []
    for number in range(int(seconds / step_s)):
        now = NOW + number * step_s
        while coming and coming[0].at <= now:
            pending.append(coming.popleft())
        if events := next_batch(channel, state, pending, now):
            receipt = far_side(now, events)
            state = after(channel, state, Outgoing(events, at=now), receipt, now)
            pending = [each for each in pending if each.id not in state.delivered]
            tried.append((now, events, receipt))
    return tried


class OneASecond:
    """As Slack is said to be: one message a second, 429 with Retry-After beyond."""

    def __init__(self) -> None:
        self.at, self.refused = 0.0, 0

    def __call__(self, now: float, events: Sequence[Event]) -> Receipt:
        if now - self.at < 1.0:
            self.refused += 1
            return Receipt(error="Slack answered 429", retry_after_s=1.0)
        self.at = now
        return Receipt(delivered=tuple(each.id for each in events))


def nodes_named(text: str) -> set[str]:
    """The nodes that a text names, with its ranges spelt out."""
    found = set()
    for stem, ranges in re.findall(r"([\w-]+-u-)((?:\d+(?:…\d+)?(?:, )?)+)", text):
        for part in filter(None, ranges.split(", ")):
            low, _, high = part.partition("…")
            found |= {f"{stem}{number}" for number in range(int(low), int(high or low) + 1)}
    return found


@pytest.mark.parametrize("jobs", [1, 10, 1000])
@pytest.mark.parametrize(("channel", "most", "last_s"), [(OPS, 9, 150.0), (PAGER, 20, 70.0)])
def test_a_thousand_notices_in_a_minute_are_at_most_20_messages_with_everything_in_them(
    channel: Channel, most: int, last_s: float, jobs: int
) -> None:
    events = [event(number, job=f"big-{number % jobs}", at=NOW + number * 0.06) for number in range(1000)]
    slack = OneASecond()
    tried = drive(channel, events, slack, 180.0)
    messages = [slack_text(sent) for _, sent, receipt in tried if not receipt.error]
    assert len(messages) <= most
    assert slack.refused == 0
    assert {name for text in messages for name in nodes_named(text)} == {each.node for each in events}
    assert tried[-1][0] < NOW + last_s
    assert max(len(text) for text in messages) <= 3800


def test_a_message_has_room_for_so_many_events() -> None:
    events = [event(number) for number in range(2 * MAX_EVENTS)]
    assert len(next_batch(OPS, ChannelState(), events, NOW)) == MAX_EVENTS
    long = [event(number, K.JOB_FAILED, f"job{number}") for number in range(MAX_EVENTS)]
    sent = next_batch(OPS, ChannelState(), long, NOW)
    assert 20 < len(sent) < 60
    assert len(slack_text(sent)) <= MAX_TEXT_CHARACTERS


def test_where_nothing_is_gathered_those_of_one_recovery_are_sent_each_by_itself() -> None:
    events = [event(1), event(2, K.REPLACEMENT_REQUESTED, at=NOW + 3.0), event(3, K.REPLACEMENT_JOINED, at=NOW + 9.0)]
    tried = drive(PAGER, events, OneASecond(), 30.0)
    assert [len(sent) for _, sent, _ in tried] == [1, 1, 1]
    assert all(at - sent[0].at <= 0.2 for at, sent, _ in tried)


def test_what_comes_within_a_second_of_a_message_waits_for_a_second() -> None:
    tried = drive(PAGER, [event(number, at=NOW + 0.3 * number) for number in range(4)], OneASecond(), 30.0)
    assert [len(sent) for _, sent, _ in tried] == [1, 3]
    assert all(at - each.at <= 2.0 for at, sent, _ in tried for each in sent)


# -- what people read ---------------------------------------------------------------------------------------


def recovery(number: int, at: float, job: str = "big") -> list[Event]:
    """A preemption, and all that comes of it."""
    kinds = (K.NOTICE, K.REPLACEMENT_REQUESTED, K.NODE_LOST, K.REPLACEMENT_JOINED)
    nodes = (number, number + 5000, number, number + 5000)
    times = (0.0, 1.0, 120.0, 130.0)
    found = zip(kinds, nodes, times, strict=True)
    return [
        replace(event(node, kind, job, at + after_s), id=f"{job}-u-{kind}-{number}") for kind, node, after_s in found
    ]


def messages_of(channel: Channel, events: Sequence[Event], hours: float) -> list[tuple[float, tuple[Event, ...]]]:
    in_order = sorted(events, key=lambda each: each.at)
    tried = drive(channel, in_order, OneASecond(), hours * 3600.0, step_s=5.0)
    return [(at - NOW, sent) for at, sent, receipt in tried if not receipt.error]


def test_a_day_of_preemptions_every_five_minutes_is_a_message_each_half_an_hour_that_names_each_node() -> None:
    events = [each for number in range(288) for each in recovery(number, NOW + 300.0 * number, f"job{number % 7}")]
    found = messages_of(OPS, events, 25.0)
    assert len(found) <= 51
    assert found[0][0] <= 5.0, "the first is told at once"
    assert max(at + NOW - each.at for at, sent in found for each in sent) <= 1800.0 + 5.0
    named = {name for _, sent in found for name in nodes_named(slack_text(sent))}
    assert named == {each.node for each in events}


def test_a_preemption_on_a_quiet_day_is_told_at_once_and_so_is_its_replacement() -> None:
    events = [each for hour in range(0, 20, 2) for each in recovery(hour, NOW + 3600.0 * hour)]
    found = messages_of(OPS, events, 21.0)
    assert max(at + NOW - each.at for at, sent in found for each in sent) <= 125.0
    assert len(found) == 30


def test_what_is_critical_is_told_at_once_with_all_that_waits() -> None:
    routine = [each for number in range(12) for each in recovery(number, NOW + 100.0 * number)]
    failed = event(7000, K.JOB_FAILED, at=NOW + 1000.0)
    found = messages_of(OPS, [*routine, failed], 1.0)
    ((at, sent),) = [(at, sent) for at, sent in found if failed in sent]
    assert at == 1000.0
    assert len(sent) > 10
    assert slack_text(sent).splitlines()[0].startswith(":x:"), "and it is read first"


def test_one_that_comes_and_goes_is_urgent_three_times_an_hour_and_no_other_job_is_told_later_for_it() -> None:
    """P15: no cause of one job uses up another's share of being told."""
    flaps = [event(number, K.STEPS_HANG, "flaps", NOW + 20.0 * number) for number in range(720)]
    others = [event(number, K.STEPS_HANG, f"other{number}", NOW + 100.0 + 700.0 * number) for number in range(20)]
    found = messages_of(OPS, [*flaps, *others], 4.5)
    waits = {each.job: at + NOW - each.at for at, sent in found for each in sent if each.job != "flaps"}
    assert max(waits.values()) <= 5.0
    assert len(waits) == 20
    only_flaps = [at for at, sent in found if all(each.job == "flaps" for each in sent)]
    assert len(only_flaps) <= 3 * 4 + 2 * 4 + 3
    sent_ids = [each.id for _, sent in found for each in sent]
    assert sorted(sent_ids) == sorted(each.id for each in (*flaps, *others)), "each is sent, once"


def test_what_a_message_has_no_room_for_follows_at_once() -> None:
    events = [event(number, K.JOB_DONE, f"job{number}") for number in range(300)]
    found = messages_of(OPS, events, 1.0)
    assert len(found) > 5
    assert found[-1][0] < 180.0
    *_, (at, _) = messages_of(OPS, [*events, event(1, at=NOW + 300.0)], 1.0)
    assert at == 300.0, "all of it was one message of the three"


def test_a_text_that_is_refused_does_not_make_others_wait() -> None:
    def far_side(_: float, events: Sequence[Event]) -> Receipt:
        return Receipt(error="msg_too_long", refused=True) if len(events) > 1 else Receipt((events[0].id,))

    tried = drive(OPS, [event(number) for number in range(1, 6)], far_side, 60.0)
    assert [len(sent) for _, sent, _ in tried] == [5, 1, 1, 1, 1, 1]


def test_retry_after_is_obeyed_with_a_little_jitter_and_up_to_an_hour() -> None:
    waits = []
    for seconds in (30.0, 1e9):
        for number in range(20):
            now = NOW + number
            state = after(OPS, ChannelState(), Outgoing((event(1),)), Receipt(error="429", retry_after_s=seconds), now)
            waits.append(state.next_at - now)
    assert all(30.0 < wait < 33.1 for wait in waits[:20])
    assert all(MAX_RETRY_AFTER_S < wait < 1.11 * MAX_RETRY_AFTER_S for wait in waits[20:])
    assert len({round(wait, 3) for wait in waits}) > 30


def test_failures_back_off_up_to_minutes_with_jitter_and_a_success_forgets_them() -> None:
    state, now, waits = ChannelState(), NOW, []
    for _ in range(12):
        state = after(OPS, state, Outgoing((event(1),)), Receipt(error="no answer"), now)
        waits.append(state.next_at - now)
        now = state.next_at
    assert 1.0 <= waits[0] <= 3.0
    assert all(MAX_RETRY_S / 2 <= wait <= 1.5 * MAX_RETRY_S for wait in waits[-4:])
    assert state.failing_since == NOW
    state = after(OPS, state, Outgoing((event(1),)), Receipt(delivered=(event(1).id,)), now)
    assert (state.failures, state.error, state.failing_since) == (0, "", 0.0)


def test_nothing_is_lost_in_a_day_without_slack_and_what_waited_comes_within_minutes() -> None:
    events = [event(number, K.NODE_LOST, f"j{number % 7}", NOW + 43.2 * number) for number in range(2000)]
    slack, back = OneASecond(), NOW + 86400.0

    def far_side(now: float, sent: Sequence[Event]) -> Receipt:
        return slack(now, sent) if now >= back else Receipt(error="Slack did not answer: timed out")

    tried = drive(OPS, events, far_side, 88000.0, step_s=5.0)
    failed = [at for at, _, receipt in tried if receipt.error]
    assert len(failed) < 86400.0 / (MAX_RETRY_S / 2)
    sent = [each for _, sent, receipt in tried if not receipt.error for each in sent]
    assert sorted(each.id for each in sent) == sorted(each.id for each in events)
    of_one = [each.at for each in sent if each.job == "j3"]
    assert of_one == sorted(of_one), "in order within a job"
    assert tried[-1][0] < back + 1.5 * MAX_RETRY_S + 300.0


def test_a_text_that_is_refused_holds_up_no_other() -> None:
    poison = event(3)

    def far_side(_: float, events: Sequence[Event]) -> Receipt:
        if poison in events:
            return Receipt(error="msg_too_long", refused=True)
        return Receipt(delivered=tuple(each.id for each in events))

    tried = drive(OPS, [event(number) for number in range(1, 6)], far_side, 60.0)
    delivered = [each.id for _, sent, receipt in tried if not receipt.error for each in sent]
    assert delivered == [event(number).id for number in (1, 2, 4, 5)]
    assert len(tried) == 6


def test_of_a_part_that_was_delivered_only_the_rest_is_sent_again() -> None:
    state = after(
        OPS, ChannelState(), Outgoing((event(1), event(2)), at=NOW), Receipt((event(1).id,), error="closed"), NOW
    )
    known = world([event(1), event(2)], states={"ops": replace(state, next_at=0.0)})
    ((sent,),) = [
        [each.message.events for each in due_deliveries(known, Boundary(), NOW + 2.0) if isinstance(each, SendAlerts)]
    ]
    assert sent == (event(2),)


# -- the outbox --------------------------------------------------------------------------------------------


def test_each_channel_has_one_delivery_at_a_time_and_none_waits_for_another() -> None:
    known = world([event(1)], OPS, MAIL, busy=frozenset({"alerts:ops"}))
    assert [each.key for each in due_deliveries(known, Boundary(), NOW)] == ["alerts:mail"]


def test_an_event_leaves_the_outbox_when_all_channels_that_take_it_have_it() -> None:
    critical = replace(PAGER, level=Level.CRITICAL)
    events = [event(1), event(2), event(3, K.JOB_FAILED)]
    states = {"ops": ChannelState(delivered=frozenset(each.id for each in events))}
    puts, deletes = written(clear_outbox(world(events, OPS, critical, states=states), KEYS, NOW)[0])
    assert deletes == {f"alerts/{event(1).id}", f"alerts/{event(2).id}"}
    assert puts == {f"alerted/ops/{event(3).id}"}


def test_a_takeover_sends_again_only_what_no_mark_acknowledges() -> None:
    events = [event(1), event(2)]
    known = world(events, OPS, MAIL, alerted={"ops": frozenset({event(1).id})})
    sent = {
        each.channel.name: each.message.events
        for each in due_deliveries(known, Boundary(), NOW)
        if isinstance(each, SendAlerts)
    }
    assert sent == {"ops": (event(2),), "mail": (event(1), event(2))}
    done = replace(
        known, volatile=VolatileState(alert_channels={"mail": ChannelState(delivered=frozenset({event(1).id}))})
    )
    assert written(clear_outbox(done, KEYS, NOW)[0]) == (set(), {f"alerts/{event(1).id}", f"alerted/ops/{event(1).id}"})


def test_what_no_channel_takes_any_more_is_cleared_and_so_are_marks_of_nothing() -> None:
    known = replace(world([event(1)]), rules=Rules(alerts=False), alerted={"old": frozenset({"x"})})
    assert written(clear_outbox(known, KEYS, NOW)[0]) == (set(), {f"alerts/{event(1).id}", "alerted/old/x"})


def test_what_was_delivered_is_remembered_until_the_outbox_shows_it() -> None:
    done = AlertsDone(OPS, Outgoing((event(1),)), Receipt((event(1).id,)))
    volatile = absorb_delivery(VolatileState(), done, NOW)
    known = replace(world([event(1)]), volatile=volatile)
    assert due_deliveries(known, Boundary(), NOW + 60.0) == []
    _, volatile = clear_outbox(known, KEYS, NOW)
    assert volatile.alert_channels["ops"].delivered == {event(1).id}
    _, volatile = clear_outbox(replace(known, alerts=()), KEYS, NOW)
    assert volatile.alert_channels["ops"].delivered == frozenset()


def test_beyond_thousands_the_oldest_of_the_least_level_are_dropped_and_people_are_told() -> None:
    events = [
        event(number, K.NODE_LOST if number % 2 else K.NOTICE, at=NOW + number) for number in range(MAX_WAITING + 1)
    ]
    (commit,), _ = clear_outbox(world(events), KEYS, NOW)
    oldest = [each.id for each in events if each.kind is K.NOTICE][:DROPPED_AT_ONCE]
    assert written([commit]) == (set(), {f"alerts/{each}" for each in oldest})
    (told,) = commit.alerts
    assert (told.kind, told.data) == (K.ALERTS_DROPPED, {"count": DROPPED_AT_ONCE})
    assert written(clear_outbox(world(events[1:]), KEYS, NOW)[0]) == (set(), set())


def test_a_channel_that_fails_for_a_minute_is_named_in_the_daemons_status() -> None:
    state = ChannelState(error="Slack answered 404 no_service", failing_since=NOW - 61.0)
    (text,) = failing_channels(world([event(1)], states={"ops": state}), NOW)
    assert text == "alerts wait for ops since 13:45 UTC: Slack answered 404 no_service"
    assert failing_channels(world([event(1)], states={"ops": replace(state, failing_since=NOW - 5.0)}), NOW) == ()


def test_people_are_told_of_a_channel_that_fails_through_the_others() -> None:
    state = ChannelState(error="Slack answered 404 no_service", failing_since=NOW - FAILING_TOLD_S)
    known = world([], OPS, PAGER, states={"ops": state})
    (one,) = channel_problems(known)
    commits, _, headline = report(known, known.volatile, [one], NOW)
    (event,) = [each for commit in commits for each in commit.alerts]
    assert (event.kind, PAGER.takes(event), headline) == (K.CHANNEL_FAILING, True, ())
    assert "404 no_service. They are kept, and sent once it takes them" in event.text
    assert report(known, known.volatile, [one], NOW - 1.0)[0] == []
    assert list(channel_problems(world([], OPS, PAGER))) == []


def test_quiet_hours_hold_events_back_until_their_end() -> None:
    quiet = Channel("ops", quiet=QuietHours(13 * 60, 15 * 60))  # NOW is 13:46 UTC
    assert due_deliveries(world([event(1)], quiet), Boundary(), NOW) == []
    assert len(due_deliveries(world([event(1)], quiet), Boundary(), NOW + 7200.0)) == 1


# -- threads -----------------------------------------------------------------------------------------------

THREADS = Channel("bot", threads=True)


def with_job(state: JobState = JobState.RUNNING, thread: Thread | None = None, **more: object) -> World:
    known = scene_world(view(job(2, state), [member(1), member(2)]))
    rules = replace(known.rules, alerts=True, channels=(THREADS,))
    threads = {"bot": {"job-u": thread}} if thread else {}
    return replace(known, rules=rules, threads=threads, **more)  # type: ignore[arg-type]


def test_events_of_a_job_go_out_with_its_story_and_its_thread() -> None:
    thread = Thread("C1", "1.2", "old", 0.0)
    known = with_job(thread=thread, alerts=(Event("job-u-000007", NOW, "job", K.NOTICE, "text"),))
    (action,) = due_deliveries(known, Boundary(), NOW)
    assert isinstance(action, SendAlerts)
    assert action.message.threads == {"job-u": thread}
    assert action.message.stories["job-u"].sentence() == "running, at 2 nodes"


def test_a_story_that_fails_holds_up_no_alert() -> None:
    broken = with_job(alerts=(Event("job-u-000007", NOW, "job", K.NOTICE, "text"),))
    view_of_job = replace(broken.jobs["job"], nodes={"job-u-1": None})  # type: ignore[dict-item]
    boundary = Boundary()
    (action,) = due_deliveries(replace(broken, jobs={"job": view_of_job}), boundary, NOW)
    assert isinstance(action, SendAlerts)
    assert (len(action.message.events), action.message.stories) == (1, {})
    assert list(boundary.faults) == ["(the story of job)"]


def test_a_first_message_that_is_out_of_date_is_changed_without_an_event() -> None:
    known = with_job(thread=Thread("C1", "1.2", "degraded, at 1 of 2 nodes", NOW - 60.0))
    (action,) = due_deliveries(known, Boundary(), NOW)
    assert isinstance(action, SendAlerts)
    assert action.message.events == ()
    assert action.message.stories.keys() == {"job-u"}
    assert (
        due_deliveries(with_job(thread=Thread("C1", "1.2", "running, at 2 nodes", NOW - 60.0)), Boundary(), NOW) == []
    )
    assert due_deliveries(with_job(thread=Thread("C1", "1.2", "other", NOW - 1.0)), Boundary(), NOW) == [], (
        "not so soon again"
    )


def test_threads_are_journaled_and_forgotten_once_they_are_gone_or_over() -> None:
    new = Thread("C1", "9.9", "x", NOW)
    done = AlertsDone(THREADS, Outgoing(()), Receipt(threads={"job-u": new}))
    known = with_job()
    volatile = absorb_delivery(known.volatile, done, NOW)
    commits, _ = clear_outbox(replace(known, volatile=volatile), KEYS, NOW)
    assert [dict(each.put_keys) for each in commits] == [{f"{KEYS.world}threads/bot/job-u": new.encode()}]
    there = with_job(thread=new)
    gone = absorb_delivery(
        there.volatile, AlertsDone(THREADS, Outgoing(()), Receipt(threads={"job-u": None}, error="gone")), NOW
    )
    assert written(clear_outbox(replace(there, volatile=gone), KEYS, NOW)[0]) == (set(), {"threads/bot/job-u"})
    over = replace(there, jobs={})
    assert written(clear_outbox(over, KEYS, NOW)[0]) == (set(), {"threads/bot/job-u"})


def test_a_delivery_is_of_its_decision() -> None:
    (action,) = due_deliveries(world([event(1)]), Boundary(), NOW)
    assert action == SendAlerts(OPS, Outgoing((event(1),), at=NOW))
