"""A job whose nodes write without end: what is kept of it, and what becomes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from spotsup_trainer.etcd import KeyValue
from spotsup_trainer.etcd.mirror import MirrorView
from spotsup_trainer.etcd.quota import Kept, Quota

from supervisor.events import EventKind
from supervisor.features.flood.record import MAX_MESSAGE_BYTES, messages_quota
from supervisor.features.flood.rule import FLOOD
from supervisor.features.pause.record import PauseRecord
from supervisor.journal.reading import Reader
from supervisor.model import NodeState
from tests.unit.scene import KEYS, NOW, J, N, job, member, node, scene
from tests.unit.test_reading import KEYS as OF_WHOLE
from tests.unit.test_reading import WHOLE, read_by_a_new_reader

SMALL = Quota(lambda key: key.partition("/")[0], max_keys=3, max_bytes=100, max_value_bytes=50)


def test_so_many_keys_of_each_group_are_kept_and_no_more() -> None:
    kept = Kept(SMALL)
    assert [kept.put(f"evil/{number}", 1) for number in range(5)] == [True, True, True, False, False]
    assert [kept.put(f"ann/{number}", 1) for number in range(3)] == [True] * 3
    assert kept.over == {"evil"}
    kept.delete("evil/0")
    assert kept.over == {"evil"}, "what was left out is still there"
    assert kept.put("evil/9", 1), "and there is room for one"


def test_so_many_bytes_are_kept_and_no_value_that_is_larger_than_one_may_be() -> None:
    kept = Kept(SMALL)
    assert not kept.put("a/1", 51)
    assert kept.put("a/1", 40)
    assert kept.put("a/1", 45), "a key that is written again takes the room of before"
    assert not kept.put("a/2", 50)
    assert not kept.put("a/1", 51)
    assert kept.put("a/2", 50), "what grew beyond it is not kept"


def test_a_group_of_which_nothing_is_left_is_like_a_new_one() -> None:
    kept = Kept(SMALL)
    for number in range(5):
        kept.put(f"evil/{number}", 1)
    for number in range(5):
        kept.delete(f"evil/{number}")
    assert (kept.over, kept.put("evil/1", 1)) == (frozenset(), True)


def test_what_the_daemon_writes_has_no_quota_and_every_message_of_a_node_has() -> None:
    quota = messages_quota(KEYS.world)
    assert quota.group_of(KEYS.agent("job", "job-1")) == quota.group_of(f"{KEYS.run('job')}odd") == "job"
    assert [quota.group_of(key) for key in (KEYS.hint("job"), KEYS.ca("job"), f"{KEYS.world}jobs/job")] == [""] * 3
    kept = Kept(quota)
    assert not kept.put(KEYS.agent("job", "x"), MAX_MESSAGE_BYTES + 1)


def test_the_job_is_marked_while_it_is_over_and_others_are_not() -> None:
    keys = {key: KeyValue(key, value, 1, 1) for key, value in WHOLE.items()}
    found = read_by_a_new_reader(MirrorView(keys, 1, live=True, over=frozenset({"job-000", "unknown"})))
    assert [view.record.name for view in found.jobs.values() if view.floods] == ["job-000"]


def test_the_job_with_too_much_output_is_marked_also_where_no_key_has_changed() -> None:
    keys = {key: KeyValue(key, value, 1, 1) for key, value in WHOLE.items()}
    reader, seen = Reader(OF_WHOLE), MirrorView(keys, 1, live=True)
    marked = []
    for over in [{"job-000", "unknown"}, {"job-000"}, {"unknown"}, set[str]()]:
        jobs = reader.read(seen, frozenset(over)).jobs.values()
        marked.append([each.record.name for each in jobs if each.floods_output])
    assert marked == [["job-000"], ["job-000"], [], []]


# -- what is decided --------------------------------------------------------------------------------------------------


def test_a_job_that_floods_pauses_with_a_reason_and_what_to_do() -> None:
    after = scene(member(1), member(2), floods=True)
    assert after.job.pause == PauseRecord(NOW, FLOOD)
    (event,) = [each for each in after.events if each.kind is EventKind.FLOODED]
    assert "5,000 keys or 8 MiB into etcd, or keep more than 192 MiB of output there, which neither" in event.text
    assert "`spotsupctl resume job`" in event.text
    again = scene(member(1), member(2), record=after.job, floods=True)
    assert EventKind.FLOODED not in again.event_kinds, "once"


def test_a_job_with_too_much_output_pauses_too_and_its_messages_stay() -> None:
    after = scene(member(1), member(2), floods_output=True)
    assert after.job.pause == PauseRecord(NOW, FLOOD)
    assert EventKind.FLOODED in after.event_kinds
    gone = scene(node(1, N.GONE), record=replace(job(2, J.PAUSED), pause=after.job.pause), floods_output=True)
    assert KEYS.run("job") not in gone.commit.delete_keys


@pytest.mark.parametrize(
    ("changes", "state", "deleted"),
    [
        ({"pause": PauseRecord(NOW - 60, FLOOD)}, N.GONE, True),
        ({"pause": PauseRecord(NOW - 60, FLOOD)}, N.TERMINATING, False),
        ({"state": J.CANCELLED, "ended_at": NOW - 60}, N.GONE, True),
    ],
)
def test_its_messages_are_deleted_once_no_machine_is_left(
    changes: dict[str, Any], state: NodeState, deleted: bool
) -> None:
    record = replace(job(2, changes.pop("state", J.PAUSED)), **changes)
    after = scene(node(1, state), record=record, floods=True)
    assert (KEYS.run("job") in after.commit.delete_keys) is deleted
