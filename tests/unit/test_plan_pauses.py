"""Pauses of training, as nodes measured them: reported once each, and only what can be."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from spotsup_trainer.wire import Pause, Pauses, WireError, decode, encode

from supervisor.api.jobs.views import job_detail
from supervisor.events import EventKind
from supervisor.planner.pauses import MAX_PAUSE_S, MAX_PAUSES, MAX_RESTORED_BYTES, MAX_STEPS_AGAIN, pauses_of
from tests.unit.scene import NOW, job, member, name, round_of, scene, view

KILL = Pause(2, NOW - 40, 5.31, 5.0, 0.0, 0.11, 0.12, 0.05, 0.02, 0.01)
READ = replace(KILL, own_bytes=3 * 2**33, peers_bytes=2**33, storage_bytes=0)
PARK = Pause(3, NOW - 10, None, None, None, 0.1, 0.2, None, 0.3, 0.004)


def said(*pauses: Pause, number: int = 3, by: str = "") -> dict[str, Any]:
    return {"round": round_of(1, 2, number=number), "pauses": Pauses(by or name(1), pauses)}


def test_each_pause_is_an_event_once_with_what_is_known() -> None:
    record = replace(job(), rounds=replace(job().rounds, reported=3))
    after = scene(member(1), member(2), record=record, **said(KILL, PARK))
    assert after.event_kinds == [EventKind.TRAINING_PAUSED, EventKind.TRAINING_PAUSED]
    kill, park = after.events
    assert kill.text == (
        "training paused for 5.31 s before round 2: detect 5 s, checkpoint 0 s, agree 0.11 s, start 0.12 s, "
        "connect 0.05 s, restore 0.02 s, first step 0.01 s"
    )
    assert kill.node == name(1)
    assert kill.data == {
        "round": 2,
        "ended_at": NOW - 40,
        "pause_s": 5.31,
        "detect_s": 5.0,
        "checkpoint_s": 0.0,
        "agree_s": 0.11,
        "start_s": 0.12,
        "connect_s": 0.05,
        "restore_s": 0.02,
        "first_step_s": 0.01,
        "usd": round(5.31 / 3600 * 2 * 0.5, 6),
    }
    assert park.text.startswith("training paused for a time that is not known before round 3: detect unknown, ")
    assert set(park.data) == {"round", "ended_at", "agree_s", "start_s", "restore_s", "first_step_s"}
    assert after.job.rounds.downtime_reported == 3
    again = scene(member(1), member(2), record=after.job, **said(KILL, PARK))
    assert again.events == []


def test_an_event_says_how_much_came_from_where() -> None:
    record = replace(job(), rounds=replace(job().rounds, reported=3))
    (event,) = scene(member(1), member(2), record=record, **said(READ)).events
    assert event.text.endswith(
        ", first step 0.01 s; restored from own memory 24.00 GiB, other ranks 8.00 GiB, storage 0"
    )
    assert {name: event.data[f"{name}_bytes"] for name in ("own", "peers", "storage")} == {
        "own": 3 * 2**33,
        "peers": 2**33,
        "storage": 0,
    }


@pytest.mark.parametrize(
    ("again", "words"), [(0, "no step lost"), (1, "1 step made again"), (12, "12 steps made again")]
)
def test_an_event_says_how_many_steps_are_made_again(again: int, words: str) -> None:
    record = replace(job(), rounds=replace(job().rounds, reported=3))
    (event,) = scene(member(1), member(2), record=record, **said(replace(READ, steps_again=again))).events
    assert event.text.endswith(f", storage 0; {words}")
    assert event.data["steps_again"] == again


def test_a_message_of_an_earlier_agent_is_read() -> None:
    """It does not say what was restored from where."""
    text = encode(Pauses(name(1), (KILL,))).decode()
    for field in ("own", "peers", "storage"):
        text = text.replace(f',"{field}_bytes":null', "").replace(f'"{field}_bytes":null,', "")
    assert "_bytes" not in text
    assert decode(Pauses, text) == Pauses(name(1), (KILL,))
    with pytest.raises(WireError, match="storage_bytes is not a whole number"):
        decode(Pauses, encode(Pauses(name(1), (replace(READ, storage_bytes=2**53 + 1),))))


@pytest.mark.parametrize(
    "pause",
    [
        Pause(4, NOW, 1.0),  # of a round that there is not
        Pause(1, NOW, 1.0),  # before the first one
        Pause(-3, NOW, 1.0),
        Pause(3, NOW, -1.0),
        Pause(3, NOW, 1.0, detect_s=-1.0),
        Pause(3, NOW, MAX_PAUSE_S * 2),
        Pause(3, NOW, 1.0, storage_bytes=-1),
        Pause(3, NOW, 1.0, peers_bytes=MAX_RESTORED_BYTES + 1),
        Pause(3, NOW, 1.0, steps_again=-1),
        Pause(3, NOW, 1.0, steps_again=MAX_STEPS_AGAIN + 1),
    ],
)
def test_what_cannot_be_is_left_out(pause: Pause) -> None:
    assert (
        scene(
            member(1), member(2), record=replace(job(), rounds=replace(job().rounds, reported=3)), **said(pause)
        ).events
        == []
    )


def test_a_flood_of_pauses_is_bounded_and_a_strangers_name_is_not_taken_over() -> None:
    many = [Pause(number, NOW, 1.0) for number in range(2, 3000)]
    messages = said(*many, number=3000, by="somebody")
    after = scene(member(1), member(2), record=replace(job(), rounds=replace(job().rounds, reported=3000)), **messages)
    assert len(after.events) == MAX_PAUSES
    assert {event.node for event in after.events} == {""}


def test_status_has_the_last_pauses_in_order() -> None:
    found = job_detail(view(job(), [member(1)], **said(PARK, READ)), "", NOW)["pauses"]
    assert found[0]["restored_from"] == {"own_bytes": 3 * 2**33, "peers_bytes": 2**33, "storage_bytes": 0}
    assert [each["round"] for each in found] == [2, 3]
    assert found[0]["parts"] == {
        "detect_s": 5.0,
        "checkpoint_s": 0.0,
        "agree_s": 0.11,
        "start_s": 0.12,
        "connect_s": 0.05,
        "restore_s": 0.02,
        "first_step_s": 0.01,
    }
    assert found[1]["pause_s"] is None
    assert pauses_of(view(job(), [member(1)])) == ()


def test_a_message_comes_back_as_it_was_sent_and_infinity_is_not_known() -> None:
    sent = Pauses(name(1), (READ, PARK, Pause(4, NOW, math.inf)))
    assert decode(Pauses, encode(sent)) == Pauses(name(1), (READ, PARK, Pause(4, NOW, None)))
