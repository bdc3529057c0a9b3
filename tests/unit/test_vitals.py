"""When a thread of the daemon cannot be relied on any more."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from spotsup_trainer.vitals import Vitals

from supervisor.errors import ThreadFailedError
from supervisor.runtime.supervision import FAULTS_WITHIN_S, MAX_FAULTS, MAX_GAP_S, Seen, Supervision, look

WELL = Vitals(pulse=1, limit_s=60.0)


def verdicts(*vitals: Vitals, passed_s: float = 1.0) -> list[str]:
    seen, found = Seen(), []
    for each in vitals:
        seen, why = look(seen, each, passed_s)
        found.append(why)
    return found


def test_a_thread_that_has_ended_is_named_at_once() -> None:
    assert verdicts(WELL, replace(WELL, ended="leadership")) == ["", "its thread 'leadership' has ended"]


def test_a_pulse_that_stays_the_same_beyond_its_limit_hangs() -> None:
    found = verdicts(*[WELL] * 62)
    assert not any(found[:61])
    assert found[61] == "it has made no progress for 61 s"
    assert not any(verdicts(*[replace(WELL, pulse=second // 50) for second in range(200)])), "it beats in time"
    assert not any(verdicts(*[replace(WELL, pulse=None)] * 200)), "it has nothing to do"


def test_a_process_that_was_stopped_blames_no_thread() -> None:
    assert not any(verdicts(*[WELL] * 10, passed_s=3600.0))
    assert verdicts(*[WELL] * 14, passed_s=3600.0)[-1] == f"it has made no progress for {13 * MAX_GAP_S:.0f} s"


def test_errors_are_outlived_up_to_a_number_within_a_time() -> None:
    faulty = [replace(WELL, pulse=n, faults=n, fault="KeyError: 'a'") for n in range(MAX_FAULTS + 1)]
    found = verdicts(*faulty)
    assert not any(found[:-1])
    assert found[-1] == "5 unforeseen errors within 10 min, the last: KeyError: 'a'"
    assert verdicts(faulty[0], faulty[-1])[-1] == found[-1], "all between two looks"
    seen, why = Seen(), ""
    for second in range(int(20 * FAULTS_WITHIN_S)):
        each = replace(WELL, pulse=second, faults=int(second // (FAULTS_WITHIN_S / (MAX_FAULTS - 1) + 1)))
        seen, why = look(seen, each, 1.0)
        assert not why, "now and then one is outlived for ever"
    assert len(seen.faults_at) < MAX_FAULTS


def test_the_daemon_ends_with_a_sentence_that_names_the_part_and_the_reason() -> None:
    vitals = {"mirror": WELL, "leadership": replace(WELL, faults=1)}
    now = 0.0
    supervision = Supervision({name: partial(vitals.__getitem__, name) for name in vitals}, lambda: now)
    supervision.check()
    assert supervision.counters == {"faults_leadership": 1}
    vitals["mirror"] = replace(WELL, ended="mirror /a")
    with pytest.raises(ThreadFailedError, match=r"^mirror: its thread 'mirror /a' has ended\. This daemon ends"):
        supervision.check()
