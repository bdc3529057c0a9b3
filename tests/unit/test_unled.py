"""Nobody leads: people are told straight away, once, and again when it is over; and the daily summary."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from supervisor.alerts.routes import Channel
from supervisor.alerts.senders import Outgoing, Receipt
from supervisor.events import Level
from supervisor.journal.reading import Reading
from supervisor.model import ClusterRecord, JobState, NodeState, Transition
from supervisor.runtime.clock import SystemClock
from supervisor.runtime.daily import summary
from supervisor.runtime.loop import Status
from supervisor.runtime.unled import AFTER_S, MAX_EVENTS, RETRY_S, NoLeaderWatch, why_undecided
from tests.unit.scene import NOW, SOON, job, member, node, view


class Far:
    """A channel that takes everything, or nothing."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.error = ""

    def send(self, message: Outgoing) -> Receipt:
        if self.error:
            return Receipt(error=self.error)
        self.texts += [event.text for event in message.events]
        return Receipt(delivered=tuple(event.id for event in message.events))

    def try_without_sending(self) -> str:
        return ""


def at_once(call: Callable[[], Receipt], _: str) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(call())
    return future


class Scene:
    def __init__(self) -> None:
        self.now, self.problem = NOW, ""
        self.far, self.off = Far(), Far()
        channels = {"ops": (Channel("ops", Level.CRITICAL), self.far), "off": (Channel("off", Level.OFF), self.off)}
        clock = SystemClock(lambda: self.now, lambda: 0.0)
        self.watch = NoLeaderWatch(lambda: self.problem, channels, clock, "host:7", at_once)

    def pass_time(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.now += 1.0
            self.watch.follow()


def test_people_are_told_once_after_two_minutes_and_once_when_it_is_over() -> None:
    scene = Scene()
    scene.problem = "etcd does not answer"
    scene.pass_time(AFTER_S - 1)
    assert scene.far.texts == []
    scene.pass_time(600)
    assert scene.far.texts == ["host:7: nothing was decided for 2 min: etcd does not answer; training goes on"]
    scene.problem = ""
    scene.pass_time(5)
    assert scene.far.texts[1:] == ["host:7: decisions are made again, after 12 min"]
    assert scene.off.texts == []


def test_they_are_told_again_ever_more_seldom() -> None:
    scene = Scene()
    scene.problem = "etcd is full"
    scene.pass_time(AFTER_S + 1)
    scene.pass_time(8 * 3600)
    lasted = [text.partition(" for ")[2].partition(":")[0] for text in scene.far.texts]
    assert lasted == ["2 min", "62 min", "182 min", "422 min"]


KNOWN = ClusterRecord(NOW, "host:7")


@pytest.mark.parametrize(
    ("leader", "cluster", "away_since", "trouble", "why"),
    [
        ("host:7", KNOWN, 0.0, "", ""),
        ("host:7", KNOWN, NOW, "", "etcd does not answer"),
        ("host:7", KNOWN, 0.0, "etcd is full", "etcd is full"),
        ("host:7", None, 0.0, "", "etcd has no journal, but its machines run"),
        ("", None, 0.0, "", "no daemon leads"),
        ("", None, 0.0, "refused", "refused"),
        ("other:9", None, 0.0, "", ""),
    ],
    ids=["leads", "away", "full", "empty", "nobody leads", "may not lead", "another leads"],
)
def test_why_nothing_is_decided(
    leader: str, cluster: ClusterRecord | None, away_since: float, trouble: str, why: str
) -> None:
    reading = Reading(MappingProxyType({}), (), 9, live=True, unreadable={}, cluster=cluster)
    status = Status(
        NOW, "watching 1 job" if cluster else "etcd has no journal, but its machines run", {}, {}, away_since
    )
    assert why_undecided(status, reading, trouble, leading=leader == "host:7", leader=leader) == why


def test_a_short_gap_of_a_takeover_tells_nobody() -> None:
    scene = Scene()
    for _ in range(10):
        scene.problem = "" if scene.problem else "no daemon leads"
        scene.pass_time(60)
    assert scene.far.texts == []


def test_a_channel_that_is_away_too_gets_it_later_and_few_wait() -> None:
    scene = Scene()
    scene.far.error = "no route"
    for _ in range(MAX_EVENTS):
        scene.problem = "etcd does not answer"
        scene.pass_time(AFTER_S + 1)
        scene.problem = ""
        scene.pass_time(1)
    assert scene.far.texts == []
    scene.far.error = ""
    scene.pass_time(RETRY_S + 2)
    assert len(scene.far.texts) == MAX_EVENTS


def test_the_daily_summary_counts_what_is_and_what_the_last_day_brought() -> None:
    lost = replace(node(3, NodeState.GONE), history=(Transition(NOW - 60, "member", "lost", ""),))
    long_ago = replace(node(4, NodeState.GONE), history=(Transition(NOW - 90_000, "member", "lost", ""),))
    running = view(job(), [member(1), replace(member(2), notice=SOON), lost, long_ago])
    failed = view(replace(job(state=JobState.FAILED), name="other", ended_at=NOW - 3600), [])
    text = summary([running, failed], NOW)
    assert text.startswith(
        "1 job running on 2 nodes, 0 waiting, 0 paused; in the last day: 0 succeeded, 1 failed, 0 cancelled, "
        "1 preemption notices, 1 nodes lost; $"
    )
    assert text.endswith(" in 1970-01 so far")
    assert summary([], NOW).startswith("0 jobs running on 0 nodes")
