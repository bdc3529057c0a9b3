"""Parsing only what changed gives the same as parsing everything."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from spotsup_trainer.etcd import KeyValue
from spotsup_trainer.etcd.mirror import MAX_LOGGED_KEYS, ChangeLog, MirrorView
from spotsup_trainer.wire import AgentStatus, Done, Ended, Keys, Member, Notice, Progress, Round, RoundMember, encode

from benchmarks.control.daemon import population
from supervisor.alerts.stories import Thread
from supervisor.journal.codec import MAX_RECORD_BYTES, dump, load
from supervisor.journal.reading import Reader, Reading
from supervisor.model import JobRecord, NodeRecord, NodeState

KEYS = Keys("bench")
WHOLE = population(3, 2, 1_000_000.0)
FOREIGN = {
    f"{KEYS.run('job-000')}hint": b"{}",
    f"{KEYS.run('job-001')}notice/somebody": b"not even JSON",
    f"{KEYS.run('unheard-of')}hint": b"{}",
    f"{KEYS.world}alerts/one": b"{}",
    f"{KEYS.world}alerts/two": b"{}",
    f"{KEYS.world}alerted/slack/one": b"{}",
    f"{KEYS.world}threads/bot/job-000-bench": Thread("C1", "1.2").encode(),
    KEYS.tombstone("job-002", "job-002-bench-1"): b"{}",
}
STEPS = [
    (KEYS.progress(job), encode(Progress(1, step, 1.0, 1.0))) for job in ("job-000", "unheard-of") for step in (7, 8)
]
EVERYTHING = [*sorted((WHOLE | FOREIGN).items()), *STEPS, (KEYS.progress("job-000"), b"no progress")]


def view_of(keys: dict[str, KeyValue], revision: int) -> MirrorView:
    return MirrorView(MappingProxyType(dict(keys)), revision, live=True)


class Views:
    """As a mirror makes them, with its log."""

    def __init__(self) -> None:
        self._log = ChangeLog()
        self._keys = {key: KeyValue(key, value, 1, 1) for key, value in WHOLE.items()}
        self.made = [self._view(0)]

    def change(self, batch: list[tuple[tuple[str, bytes], bool]]) -> None:
        serial = len(self.made)
        for (key, value), there in batch:
            self._keys.pop(key, None)
            if there:
                self._keys[key] = KeyValue(key, value, 1, serial)
        self._log.add(serial, tuple(key for (key, _), _ in batch))
        self.made.append(self._view(serial))

    def copy_again(self) -> None:
        self._keys = {key: replace(kv) for key, kv in self._keys.items() if "job-001" not in key}
        self._log.forget(len(self.made))
        self.made.append(self._view(len(self.made)))

    def _view(self, serial: int) -> MirrorView:
        return MirrorView(MappingProxyType(dict(self._keys)), serial, live=True, serial=serial, log=self._log)


def read_by_a_new_reader(view: MirrorView) -> Reading:
    return Reader(KEYS).read(view)


HINT, PROGRESS = KEYS.hint("job-000"), KEYS.progress("job-000")


@example([[((HINT, b"{}"), False)], [((HINT, b"{}"), True), ((PROGRESS, b"no progress"), True)]])
@given(st.lists(st.lists(st.tuples(st.sampled_from(EVERYTHING), st.booleans()), max_size=12), max_size=12))
def test_after_any_changes_a_reader_has_what_a_new_one_reads(
    batches: list[list[tuple[tuple[str, bytes], bool]]],
) -> None:
    reader, keys = Reader(KEYS), {key: KeyValue(key, value, 1, 1) for key, value in WHOLE.items()}
    for revision, batch in enumerate(batches, start=2):
        before = reader.read(view_of(keys, revision - 1)).jobs
        for (key, value), there in batch:
            if there:
                keys[key] = KeyValue(key, value, 1, revision)
            else:
                keys.pop(key, None)
        view = view_of(keys, revision)
        found = reader.read(view)
        assert found == read_by_a_new_reader(view)
        untouched = before.keys() & found.jobs.keys() - {name for (key, _), _ in batch for name in key.split("/")}
        assert all(found.jobs[name] is before[name] for name in untouched)


BATCHES = st.lists(st.tuples(st.sampled_from(EVERYTHING), st.booleans()), max_size=6)


@given(st.lists(st.none() | BATCHES, max_size=10), st.lists(st.integers(0, 10), max_size=15))
def test_views_in_any_order_are_read_by_the_log_as_a_new_reader_reads_them(
    batches: list[list[tuple[tuple[str, bytes], bool]] | None], order: list[int]
) -> None:
    """Threads read views in another order than they were made; a copy that was made again forgets the log."""
    views, reader = Views(), Reader(KEYS)
    for batch in batches:
        if batch is None:
            views.copy_again()
        else:
            views.change(batch)
    for number in (*order, len(batches)):
        view = views.made[min(number, len(batches))]
        assert reader.read(view) == read_by_a_new_reader(view)


def test_only_keys_that_changed_are_looked_at() -> None:
    class Counting(dict[str, KeyValue]):
        looked_at = 0

        def __getitem__(self, key: str) -> KeyValue:
            self.looked_at += 1
            return super().__getitem__(key)

        def __iter__(self) -> Iterator[str]:
            raise AssertionError("all keys are compared")

    views, reader = Views(), Reader(KEYS)
    reader.read(views.made[0])
    views.change([(STEPS[0], True)])
    view = replace(views.made[1], keys=Counting(views.made[1].keys))
    assert reader.read(view).jobs["job-000"].progress == Progress(1, 7, 1.0, 1.0)
    assert view.keys.looked_at == 1  # type: ignore[attr-defined]


def test_a_log_that_is_full_forgets_its_oldest_changes() -> None:
    log = ChangeLog()
    for serial in range(1, 4):
        log.add(serial, tuple(f"{serial}-{number}" for number in range(MAX_LOGGED_KEYS // 2)))
    assert log.between(0, 3) is None
    changed = log.between(1, 3)
    assert changed is not None
    assert len(changed) == MAX_LOGGED_KEYS
    assert log.between(3, 2) == sorted(f"3-{number}" for number in range(MAX_LOGGED_KEYS // 2))
    assert log.between(3, 3) == []
    log.forget(4)
    assert log.between(3, 4) is None


def test_a_step_changes_only_the_jobs_progress() -> None:
    reader, keys = Reader(KEYS), {key: KeyValue(key, value, 1, 1) for key, value in WHOLE.items()}
    before = reader.read(view_of(keys, 1)).jobs["job-000"]
    key, value = STEPS[0]
    keys[key] = KeyValue(key, value, 1, 2)
    after = reader.read(view_of(keys, 2)).jobs["job-000"]
    assert after.progress == Progress(1, 7, 1.0, 1.0)
    assert after.nodes is before.nodes
    assert after.members is before.members


def test_keys_with_the_same_bytes_are_not_parsed_again() -> None:
    reader = Reader(KEYS)
    first = reader.read(view_of({key: KeyValue(key, value, 1, 1) for key, value in WHOLE.items()}, 1))
    again = reader.read(view_of({key: KeyValue(key, value, 7, 7) for key, value in WHOLE.items()}, 7))
    node = next(iter(first.jobs["job-000"].nodes))
    assert again.jobs["job-000"].nodes[node] is first.jobs["job-000"].nodes[node]
    assert again.jobs["job-000"].revisions[node] == 7


JOB = "job-000"
NODE = next(key for key in WHOLE if key.startswith(f"{KEYS.world}nodes/{JOB}/")).rpartition("/")[2]
OTHER = next(key for key in WHOLE if key.startswith(f"{KEYS.world}nodes/job-001/")).rpartition("/")[2]
LIES = {
    KEYS.notice(JOB, NODE): Notice(OTHER, 9.0, 1.0, "aws"),
    KEYS.member(JOB, NODE): Member(OTHER, "i", "10.0.0.1", 1, "waiting"),
    KEYS.agent(JOB, NODE): AgentStatus(OTHER, "b", 1, 1.0, "1"),
    KEYS.ended(JOB, NODE): Ended(OTHER, "failure", 1, "", 1.0),
}


@pytest.mark.parametrize("key", sorted(LIES))
def test_a_message_that_names_another_node_than_its_key_is_ignored(key: str) -> None:
    keys = {each: KeyValue(each, value, 1, 1) for each, value in WHOLE.items()}
    expected = read_by_a_new_reader(view_of({each: kv for each, kv in keys.items() if each != key}, 1))
    found = read_by_a_new_reader(view_of({**keys, key: KeyValue(key, encode(LIES[key]), 1, 1)}, 1))
    assert found.jobs == expected.jobs
    assert f"of another node: '{OTHER}'" in found.unreadable[key]


RECORD = json.loads(WHOLE[f"{KEYS.world}jobs/{JOB}"])


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"[" * 200_000, "recursion limit"),
        (b"\xff", "is not a valid JobRecord"),
        (b"[]", "not a JSON object"),
        (b" " * (MAX_RECORD_BYTES + 1), "at most 1048576 are read"),
        (json.dumps(RECORD | {"name": "job-001"}).encode(), "its name is 'job-001'"),
        (json.dumps(RECORD | {"desired_nodes": "2"}).encode(), "desired_nodes: Input should be a valid integer"),
        (json.dumps(RECORD | {"cancel_requested": 1}).encode(), "cancel_requested: Input should be a valid boolean"),
        (json.dumps(RECORD | {"submitted_at": math.inf}).encode(), "is not a valid JobRecord"),
        (json.dumps(RECORD | {"submitted_at": "?"}).replace('"?"', "1e999").encode(), "a number is too large"),
    ],
)
def test_a_record_that_cannot_be_read_refuses_its_job_and_no_other(value: bytes, why: str) -> None:
    keys = {each: KeyValue(each, raw, 1, 1) for each, raw in WHOLE.items()}
    record = f"{KEYS.world}jobs/{JOB}"
    found = read_by_a_new_reader(view_of({**keys, record: KeyValue(record, value, 1, 1)}, 1))
    whole = read_by_a_new_reader(view_of(keys, 1))
    assert found.jobs == {name: view for name, view in whole.jobs.items() if name != JOB}
    assert list(found.refused) == [JOB]
    assert why in found.refused[JOB]


def test_messages_of_nodes_that_are_gone_or_unknown_are_left_over_readable_or_not() -> None:
    there, gone = sorted(key for key in WHOLE if key.startswith(f"{KEYS.world}nodes/job-000/"))
    record = load(NodeRecord, WHOLE[gone], gone)
    ids = {"there": there.rsplit("/", 1)[1], "gone": record.id, "unknown": "job-000-bench-99"}
    keys = WHOLE | {gone: dump(replace(record, state=NodeState.GONE))}
    by_node = (KEYS.notice, KEYS.health, KEYS.ended, KEYS.done, KEYS.tombstone)
    keys |= {key("job-000", node): b"not even JSON" for key in by_node for node in ids.values()}
    keys |= {KEYS.agent("job-000", ids["unknown"]): b"a lease ends it", f"{KEYS.run('job-000')}notice/": b"of no node"}
    found = {key: KeyValue(key, value, 1, 1) for key, value in keys.items()}
    left = read_by_a_new_reader(view_of(found, 1)).jobs["job-000"].leftover_messages
    assert set(left) == {key("job-000", ids[which]) for key in by_node for which in ("gone", "unknown")}


@pytest.mark.parametrize(("number", "kept"), [(3, True), (2, False)])
def test_a_round_that_goes_on_without_a_node_keeps_its_word_that_it_is_done(number: int, kept: bool) -> None:
    key = max(key for key in WHOLE if key.startswith(f"{KEYS.world}nodes/job-000/"))
    gone = load(NodeRecord, WHOLE[key], key)
    members = tuple(RoundMember(node, "i", "10.0.0.1", 1) for node in ("job-000-other", gone.id))
    done = {node: Done(node, "i", number, 1.0) for node in (gone.id, "job-000-unknown")}
    keys = WHOLE | {
        key: dump(replace(gone, state=NodeState.GONE)),
        KEYS.round("job-000"): encode(Round(3, members, 1.0)),
    }
    keys |= {KEYS.done("job-000", node): encode(said) for node, said in done.items()}
    view = read_by_a_new_reader(view_of({each: KeyValue(each, raw, 1, 1) for each, raw in keys.items()}, 1))
    job = view.jobs["job-000"]
    assert job.done == done
    assert (KEYS.done("job-000", gone.id) not in job.leftover_messages) is kept
    assert KEYS.done("job-000", "job-000-unknown") in job.leftover_messages
    ended = json.dumps(RECORD | {"state": "succeeded", "ended_at": 1.0}).encode()
    keys |= {f"{KEYS.world}jobs/{JOB}": ended}
    after = read_by_a_new_reader(view_of({each: KeyValue(each, raw, 1, 1) for each, raw in keys.items()}, 1))
    assert KEYS.done("job-000", gone.id) in after.jobs["job-000"].leftover_messages


def test_what_counts_only_while_a_job_has_nodes_is_known_readable_or_not() -> None:
    told = (KEYS.ca("job-000"), KEYS.hint("job-000"), KEYS.rank_times("job-000"))
    keys = {key: KeyValue(key, value, 1, 1) for key, value in {**WHOLE, **dict.fromkeys(told, b"no JSON")}.items()}
    assert read_by_a_new_reader(view_of(keys, 1)).jobs["job-000"].passing == told


def test_whatever_raises_while_one_jobs_keys_are_read_refuses_only_that_job() -> None:
    class Broken(KeyValue):
        @property
        def value(self) -> bytes:
            raise LookupError("unforeseen")

    keys = {each: KeyValue(each, raw, 1, 1) for each, raw in WHOLE.items()}
    keys[KEYS.hint(JOB)] = Broken.__new__(Broken)
    found = read_by_a_new_reader(view_of(keys, 1))
    assert JOB not in found.jobs
    assert len(found.jobs) == 2
    assert found.refused == {JOB: "its keys in etcd cannot be read: LookupError: unforeseen"}


def test_a_node_that_publishes_below_another_job_holds_up_nothing() -> None:
    key = KEYS.agent("elsewhere", "job-000-bench-99")
    raw = encode(AgentStatus("job-000-bench-99", "b", 1, 1.0, "1"))
    assert read_by_a_new_reader(view_of({key: KeyValue(key, raw, 1, 1)}, 1)).unjournaled == frozenset()
    own = KEYS.agent("job-000", "job-000-bench-99")
    assert read_by_a_new_reader(view_of({own: KeyValue(own, raw, 1, 1)}, 1)).unjournaled == {"job-000-bench-99"}


def test_a_record_that_the_mirror_has_shown_is_not_parsed_again() -> None:
    reader = Reader(KEYS)
    reading = reader.read(view_of({key: KeyValue(key, value, 1, 1) for key, value in WHOLE.items()}, 1))
    job = reading.jobs["job-000"].record
    key = f"{KEYS.world}jobs/job-000"
    assert reader.known(JobRecord, KeyValue(key, WHOLE[key], 1, 1)) is job
    assert reader.known(JobRecord, KeyValue(key, WHOLE[key] + b" ", 1, 2)) is None
    assert reader.known(JobRecord, KeyValue(f"{KEYS.world}jobs/job-999", WHOLE[key], 1, 1)) is None
    (first, *_) = reading.jobs["job-000"].nodes.values()
    key = f"{KEYS.world}nodes/job-000/{first.id}"
    assert reader.known(NodeRecord, KeyValue(key, WHOLE[key], 1, 1)) is first
