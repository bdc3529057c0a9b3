"""Which members of a round still run in it, by its store alone: real threads, a store in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from spotsup_trainer.rendezvous.heartbeat import Heartbeat
from spotsup_trainer.timing import LeaseTimes

from tests.unit.members import round_of

TIMES = LeaseTimes(1.0, 1)
ROUND = round_of("abc")


class MemoryStore:
    """As torch's TCPStore. `fault`: what every call raises."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.fault: Exception | None = None
        self._lock = threading.Lock()

    def connect(self) -> MemoryStore:
        self._fail()
        return self

    def add(self, key: str, amount: int) -> int:
        self._fail()
        with self._lock:
            number = int(self.values.get(key, b"0")) + amount
            self.values[key] = str(number).encode()
            return number

    def set(self, key: str, value: str) -> None:
        self._fail()
        self.values[key] = value.encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def get(self, key: str) -> bytes:
        return self.values[key]

    def _fail(self) -> None:
        if self.fault:
            raise self.fault


Beat = Callable[[str], Heartbeat]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def beat(store: MemoryStore) -> Iterator[Beat]:
    made: list[Heartbeat] = []

    def start(node: str) -> Heartbeat:
        made.append(Heartbeat(ROUND, node, TIMES, store.connect))
        made[-1].start()
        return made[-1]

    yield start
    for each in made:
        each.close()


def becomes(heartbeat: Heartbeat, missing: str, heard: str) -> bool:
    until = time.monotonic() + 20.0
    while heartbeat.heard(frozenset(missing)) != frozenset(heard):
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def test_members_that_run_are_heard_also_by_a_launcher_outside_and_one_that_never_ran_is_not(
    store: MemoryStore, beat: Beat
) -> None:
    leader, _, outside = beat("a"), beat("b"), beat("")
    for heartbeat in (leader, outside):
        assert becomes(heartbeat, "bc", "b")
        assert becomes(heartbeat, "abc", "ab")


def test_one_that_leaves_in_order_is_not_heard_at_once_and_one_that_dies_soon(store: MemoryStore, beat: Beat) -> None:
    leader, second = beat("a"), beat("b")
    assert becomes(leader, "b", "b")
    second.close(wait=True)
    assert store.values["spotsup/count/b"] == b"-1000000000"
    assert becomes(leader, "b", "")
    store.values["spotsup/count/c"] = store.values["spotsup/count"]  # its last note
    assert becomes(leader, "c", "")


def test_nobody_is_heard_once_the_leader_has_ended_or_its_store_hangs(store: MemoryStore, beat: Beat) -> None:
    beat("a")
    second = beat("b")
    assert becomes(second, "ac", "a")
    store.fault = ConnectionRefusedError()
    assert becomes(second, "ac", "")
    store.fault = None
    assert becomes(second, "ac", "a")
    store.fault = RuntimeError("timed out")
    assert becomes(second, "ac", "")


def test_one_that_was_not_looked_for_yet_counts_as_heard_for_as_long_as_a_sign_of_it_would(store: MemoryStore) -> None:
    store.fault = RuntimeError("no route")
    heartbeat = Heartbeat(ROUND, "b", TIMES, store.connect)
    assert heartbeat.heard(frozenset("c")) == frozenset("c")
    assert becomes(heartbeat, "c", "")


def test_who_stood_still_itself_looks_again_before_anyone_is_missed(store: MemoryStore) -> None:
    now = [0.0]
    second = Heartbeat(ROUND, "b", TIMES, store.connect, lambda: now[0])
    store.values |= {"spotsup/count": b"7", "spotsup/count/a": b"7"}
    second.start()
    try:
        assert becomes(second, "ac", "a")
        store.fault = RuntimeError("this process has not run since")
        now[0] += 60.0
        assert second.heard(frozenset("ac")) == frozenset("a")
        now[0] += TIMES.heard_s * 0.9
        assert second.heard(frozenset("ac")) == frozenset("a")
        now[0] += TIMES.heard_s * 0.2
        assert second.heard(frozenset("ac")) == frozenset()
    finally:
        second.close()
