"""A daemon on a real etcd whose Slack has its worst day: 429 with Retry-After, 5xx, resets, slow answers. All of it in
real time: a thousand notices in a minute, and how soon a single event is posted."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from random import Random

import pytest
from spotsup_trainer.etcd import Etcd
from spotsup_trainer.wire import Keys

from benchmarks.control.daemon import PaperNodes
from supervisor.alerts.routes import Channel
from supervisor.alerts.slack import SlackWebhook
from supervisor.events import EventKind
from supervisor.identity import Identity
from supervisor.journal.journal import Journal
from supervisor.journal.store import EtcdStore
from supervisor.model import Event
from supervisor.planner.actions import Commit
from supervisor.planner.world import Rules
from supervisor.runtime.actor import Effects, ThreadActor
from supervisor.runtime.clock import SystemClock
from supervisor.runtime.leader import Leadership
from supervisor.runtime.loop import Loop, rest_s
from supervisor.runtime.senders import BoundedSender
from tests.support.far_sides import Answer, FarSide, far_side
from tests.support.machines import wait_for
from tests.unit.test_deliveries import nodes_named

NOTICES, MINUTE_S = 1000, 60.0
TICK_S = 1.0  # as supervisor.config has it
FAULTS = (
    Answer(429, "", {"Retry-After": "3"}),
    Answer(500, "fatal_error"),
    Answer(reset=True),
    Answer(503, "<html>", after_s=1.0),
    Answer(after_s=3.0),
    Answer(429, "", {"Retry-After": "2"}),
    Answer(reset=True),
)


SLACK = Channel("slack")


class WorstDay:
    """Slack: takes one message a second, and every second time a message comes something else is wrong, until there
    have been all of FAULTS."""

    def __init__(self, slack: FarSide) -> None:
        self._slack = slack
        self._faults = list(FAULTS)
        self.taken: list[tuple[float, str]] = []
        self.too_fast = 0
        slack.on_post = self._choose

    def _choose(self) -> None:
        now = time.monotonic()
        if self.taken and now - self.taken[-1][0] < 1.0:
            self.too_fast += 1
            answer = Answer(429, "", {"Retry-After": "1"})
        elif self._faults and len(self._slack.posted) % 2:
            answer = self._faults.pop(0)
        else:
            answer = Answer()
        if answer.status == 200 and not answer.reset:
            self.taken.append((now, self._slack.texts[-1]))
        self._slack.answers = [answer]

    @property
    def is_over(self) -> bool:
        return not self._faults


class Daemon:
    """The real loop, planner, journal and actor; it has no cloud, and one channel."""

    def __init__(self, endpoint: str, url: str, channel: Channel) -> None:
        keys, self._wake, clock = Keys("slack"), threading.Event(), SystemClock()
        self._etcd = Etcd([endpoint])
        self._store = EtcdStore(self._etcd, keys.world, self._wake.set)
        self._store.start(60.0)
        self.journal = Journal(self._store, keys)
        self._leader = Leadership(self._etcd, f"{keys.root}leader", "slack", 10.0, self._wake.set)
        identity, paper = Identity(b"s" * 32), PaperNodes(self._etcd, Random(1))
        effects = Effects(
            owner=identity.owner("slack"),
            provisioners={},
            identity=identity,
            preparer=paper,
            evidence=paper,
            senders={"slack": BoundedSender("slack", SlackWebhook(f"{url}/services/T0/B0/x"))},
            clock=clock,
        )
        rules = Rules(alerts=True, channels=(channel,))
        self._loop = Loop(self.journal, self._leader, ThreadActor(effects.perform, self._wake.set), clock, rules, ())
        self._stop, self._thread = threading.Event(), threading.Thread(target=self._run)
        self._leader.start()
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            began = time.perf_counter()
            self._loop.tick()
            self._stop.wait(rest_s(time.perf_counter() - began))
            self._wake.wait(TICK_S)

    def happened(self, events: Sequence[Event]) -> None:
        """As the planner writes it."""
        assert self.journal.commit(Commit("", {}, alerts=events), ())

    def waiting(self) -> int:
        """Events that Slack has not got yet."""
        return len(self.journal.read().alerts)

    def close(self) -> None:
        self._stop.set()
        self._wake.set()
        self._thread.join(30.0)
        self._leader.stop()
        self._store.close()
        self._etcd.close()


@contextmanager
def running(endpoint: str, slack: FarSide, channel: Channel = SLACK) -> Iterator[Daemon]:
    with closing(Daemon(endpoint, slack.url, channel)) as daemon:
        wait_for(lambda: daemon._leader.leading, "a leader")
        yield daemon


def notices(begin: int, end: int) -> list[Event]:
    now = time.time()
    return [_notice(number, now) for number in range(begin, end)]


def _notice(number: int, now: float) -> Event:
    node = f"big-u-{number}"
    text = f"{node} will be preempted in 30 s"
    return Event(f"big-u-{number:06d}", now, "big", EventKind.NOTICE, text, node)


def _failure(number: int) -> Event:
    job = f"job-{number}"
    return Event(f"{job}-u-000001", time.time(), job, EventKind.JOB_FAILED, f"{job} failed: the program failed", "")


@pytest.mark.nightly
def test_a_thousand_notices_in_a_minute_are_at_most_20_messages_with_everything_in_them(etcd_endpoint: str) -> None:
    at_once = replace(SLACK, gather=None)  # how often Slack takes one is asked here, not how often people read one
    with far_side() as slack, running(etcd_endpoint, slack, at_once) as daemon:
        day, began, said = WorstDay(slack), time.monotonic(), 0
        while said < NOTICES:
            due = min(NOTICES, int((time.monotonic() - began) / MINUTE_S * NOTICES) + 1)
            for first in range(said, due, 50):
                daemon.happened(notices(first, min(due, first + 50)))
            said = due
            time.sleep(0.25)
        wait_for(lambda: not daemon.waiting(), "all in Slack", 90.0)
        texts = [text for _, text in day.taken]
    assert day.is_over
    assert len(texts) <= 20
    assert day.too_fast == 0
    assert {name for text in texts for name in nodes_named(text)} == {f"big-u-{number}" for number in range(NOTICES)}


@pytest.mark.long
def test_the_first_event_and_each_critical_one_is_in_slack_within_two_seconds(etcd_endpoint: str) -> None:
    took_s = []
    with far_side() as slack, running(etcd_endpoint, slack) as daemon:
        for number in range(5):
            began = time.monotonic()
            daemon.happened([_failure(number) if number else _notice(number, time.time())])
            wait_for(lambda count=number: len(slack.posted) > count, "the message")  # type: ignore[misc]
            took_s.append(time.monotonic() - began)
            wait_for(lambda: not daemon.waiting(), "its receipt in the journal")
            time.sleep(1.2)  # what comes within a second of a message waits for that: Slack takes one a second
    assert "big-u-0 will" in slack.texts[0], "the first one of a quiet day"
    assert [f"job-{number} failed" in text for number, text in enumerate(slack.texts)] == [False] + [True] * 4
    assert statistics.median(took_s) <= 2.0, took_s
