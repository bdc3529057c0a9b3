"""The pure parts of `make chaos`: which faults are drawn, what steps they may cost, and what counts as growth."""

from __future__ import annotations

import random
from itertools import islice

import pytest
from spotsup_trainer.session.audit import Report, RoundChange, RoundSpan

from tests.chaos.context import Outcome
from tests.chaos.faults import FAULTS
from tests.chaos.flood import percentile
from tests.chaos.growth import BOUNDS, MIB, MIN_SPAN_S, WARM_S, Growth, Sample, growth
from tests.chaos.machine_faults import parts
from tests.chaos.plan import HARMLESS, ORDERLY, Kind, Planned, schedule
from tests.chaos.probes import largest_gap_s, lost_steps

pytestmark = pytest.mark.long


def test_a_seed_draws_the_same_faults_again_and_each_kind_comes() -> None:
    kinds = list(Kind)
    drawn = list(islice(schedule(7, kinds), 3 * len(kinds)))
    assert drawn == list(islice(schedule(7, kinds), 3 * len(kinds)))
    assert drawn != list(islice(schedule(8, kinds), 3 * len(kinds)))
    for begin in range(0, len(drawn), len(kinds)):
        assert {planned.kind for planned in drawn[begin : begin + len(kinds)]} == set(kinds)
    assert [planned.number for planned in drawn] == list(range(1, len(drawn) + 1))
    assert all(0 < planned.hold_s <= 900 and 0 <= planned.pick < 1 for planned in drawn)
    assert list(schedule(7, [])) == []


def test_each_kind_has_its_fault() -> None:
    assert set(FAULTS) == set(Kind)
    assert set(Kind) > HARMLESS | ORDERLY
    assert not HARMLESS & ORDERLY


@pytest.mark.parametrize(
    ("kind", "lost", "text"),
    [
        (Kind.MACHINE_LOST, 10, ""),
        (Kind.MACHINE_LOST, 11, "11 steps were lost between rounds 2 and 3 (fault 1, machine lost); at most 10 may be"),
        (Kind.MACHINE_NOTICE, 0, ""),
        (Kind.MACHINE_NOTICE, 1, "(fault 1, machine with notice); at most 0 may be"),
    ],
)
def test_lost_steps_are_attributed_to_the_fault_before_the_new_round(kind: Kind, lost: int, text: str) -> None:
    spans = tuple(RoundSpan(number, 2, 1, 2, 100.0 * number, 100.0 * number + 90.0) for number in (1, 2, 3))
    changes = RoundChange(1, 2, 9, 0.5), RoundChange(2, 3, lost, 0.5)
    report = Report(spans, changes, 10, 100, 0, 0, 1.0, 0.5)
    fault = Outcome(Planned(1, kind, 1.0, 0.5, 1.0), at_s=50.0)
    broken = lost_steps(report, [fault], 200.0, 10)
    assert len(broken) == (1 if text else 0)
    assert text in "".join(broken)


def lives(what: str, starts: list[float], per_hour: float, minutes: int, noise: float = 0.0) -> list[Sample]:
    """One process after the other, each sampled once a minute."""
    rng = random.Random(1)
    return [
        Sample("spotsupd", f"{life}", at, at, {what: begin + per_hour * at / 3600 + rng.uniform(-noise, noise)})
        for life, begin in enumerate(starts)
        for at in (60.0 * minute for minute in range(minutes))
    ]


def only(found: list[Growth]) -> Growth:
    (one,) = found
    return one


def test_growth_is_found_within_lives_and_not_between_them() -> None:
    steady = only(growth(lives("rss", [80 * MIB, 120 * MIB, 100 * MIB], 0.0, 20, noise=MIB)))
    assert steady.per_hour == pytest.approx(0.0, abs=8 * MIB)
    assert steady.broken() == []
    leaking = only(growth(lives("rss", [80 * MIB, 120 * MIB, 100 * MIB], 90 * MIB, 20, noise=MIB)))
    assert leaking.per_hour == pytest.approx(90 * MIB, rel=0.1)
    assert "rss grew by" in leaking.broken()[0]


def test_an_exceeded_limit_is_reported_however_short_the_measurement() -> None:
    bound = BOUNDS["spotsupd", "files"]
    found = only(growth(lives("files", [bound.most + 1], 0.0, 3)))
    assert found.per_hour is None
    assert found.broken() == [f"spotsupd: files was {bound.most + 1:.3g}; limit {bound.most:.3g}"]


def test_a_start_is_not_growth() -> None:
    minutes = int(MIN_SPAN_S / 60) + 10
    samples = lives("rss", [80 * MIB], 0.0, minutes)
    filling = [Sample(s.role, s.life, s.at, s.age_s, {"rss": 10.0 * MIB}) if s.age_s < WARM_S else s for s in samples]
    found = only(growth(filling))
    assert found.per_hour == pytest.approx(0.0)
    assert found.most == 80 * MIB


def test_workers_are_distinguished_from_what_forks_them_by_their_ancestors() -> None:
    launcher = "python -P -m spotsup_trainer.launcher worker.py"
    commands = {
        1: "python -m spotsup_trainer.agent --config x",
        2: launcher,
        3: launcher,
        4: launcher,
        5: "/usr/sbin/sshd -D",
    }
    parents = {1: 0, 2: 1, 3: 2, 4: 3, 5: 0}
    assert parts(commands, parents) == {1: "agent", 2: "launcher", 3: "fork server", 4: "worker", 5: "sshd"}


def test_a_percentile_is_a_value_that_was_measured() -> None:
    assert percentile([3.0], 0.95) == 3.0
    assert percentile([float(n) for n in range(1, 101)], 0.95) == 95.0
    assert percentile([1.0, 2.0], 0.5) == 1.0


@pytest.mark.parametrize(
    ("times", "gap_s"),
    [
        ([9.0, 11.0, 12.0, 19.5, 21.0], 7.5),
        ([5.0, 14.0, 15.0, 16.0, 21.0], 4.0),
        ([11.0, 12.0, 13.0], 7.0),
        ([1.0, 2.0], 10.0),
        ([], 10.0),
    ],
)
def test_the_largest_gap_is_that_of_the_outage(times: list[float], gap_s: float) -> None:
    """From 10 to 20: what came before does not count, and steps that never came again do."""
    assert largest_gap_s(times, 10.0, 20.0) == gap_s
