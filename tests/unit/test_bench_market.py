"""What `make bench-market` computes: variants of recordings, causes of losses, and whether goals are met."""

from __future__ import annotations

import importlib
import pkgutil
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spotsup_simulator.replay import oracle
from spotsup_simulator.replay.costs import Costs
from spotsup_simulator.replay.ledger import HOUR_S
from spotsup_simulator.replay.losses import AHEAD, spread
from spotsup_simulator.replay.recording import Recording, Series, made

from benchmarks.market import __main__ as market
from benchmarks.market import cases, knobs, play, together
from benchmarks.market.cases import USD, USEFUL, VARIANTS, Case
from benchmarks.market.together import Wish
from benchmarks.recovery.watch import BenchError
from benchmarks.results import Row, summarise
from supervisor import market as market_package
from supervisor.features.gang.record import GangRules
from supervisor.features.moves.record import MovesRules
from supervisor.features.queue.rule import is_pausable
from supervisor.market.hazard import HazardRules
from supervisor.planner.world import Rules

ROWS = ((2, 0), (4, 1), (0, 3), (3, 3))


def recording(rows: tuple[tuple[int, ...], ...] = ROWS, row_s: float = 6 * HOUR_S) -> Recording:
    seconds = tuple(row_s * number for number in range(len(rows)))
    prices = Series((0.0, row_s), ((1.0, 2.0), (3.0, 4.0)))
    return made("hand", ("a", "b"), Series(seconds, rows), prices, row_s * len(rows))


def machine_hours(found: Recording, zone: int) -> float:
    series = found.capacity
    ends = (*series.seconds[1:], found.end_s)
    spans = zip(series.seconds, ends, series.rows, strict=True)
    return sum((end - start) * row[zone] for start, end, row in spans) / HOUR_S


@pytest.mark.parametrize("variant", ["shuffled", "shifted"])
@given(seed=st.integers(0, 1000))
def test_another_order_and_other_times_offer_as_much_in_all(variant: str, seed: int) -> None:
    found = VARIANTS[variant](recording(), seed)
    assert found.end_s == recording().end_s
    for zone in range(2):
        assert machine_hours(found, zone) == pytest.approx(machine_hours(recording(), zone))
    for series in (found.capacity, found.prices):
        assert series is not None
        assert series.seconds[0] == 0
        assert list(series.seconds) == sorted(set(series.seconds))


def test_shuffled_pieces_keep_zones_and_prices_together() -> None:
    found = cases.shuffled(recording(), 3)
    assert sorted(found.capacity.rows) == sorted(ROWS)
    assert found.capacity.rows != ROWS
    assert found.prices is not None
    begin = found.capacity.rows.index(ROWS[0])
    assert [found.prices.at(6 * HOUR_S * number + 1.0)[0] == 1.0 for number in range(4)] == [
        number == begin for number in range(4)
    ]


def test_a_short_recording_is_shuffled_too() -> None:
    eleven_hours = recording(tuple((number, 0) for number in range(11)), HOUR_S)
    found = cases.shuffled(eleven_hours, 1)
    assert found.capacity.rows != eleven_hours.capacity.rows
    assert machine_hours(found, 0) == pytest.approx(machine_hours(eleven_hours, 0))


def test_shifted_zones_lose_what_they_had_in_common() -> None:
    found = cases.shifted(recording(), 1)
    assert len(found.capacity.seconds) > len(ROWS)
    assert {row[1] for row in found.capacity.rows} == {0, 1, 3}


def test_jobs_of_several_users_are_played_within_limits_beside_first_come_first_served() -> None:
    found = together.play(recording(((8, 8), (16, 4), (16, 16)), 6 * HOUR_S), 1, 3)
    case = cases.JOBS_20
    samples = list(market.samples_of(case, found))
    ours = {sample.metric: sample.value for sample in samples if sample.subject == market.SPOTSUP}
    assert (ours[cases.UNFINISHED], ours[cases.BEYOND]) == (0.0, 0.0)
    assert (ours[cases.FEW_AND_NONE_ADDED] or 0.0) <= cases.HELD_S
    assert (ours[cases.UNFAIR] or 9.0) < 3.0
    rows = summarise(samples)
    assert market.table(rows).row_count == market.losses_table(rows).row_count == 0
    assert market.jobs_table(rows).row_count == len(together.UNITS)
    assert [each.endswith("met") for each in market.verdicts([case], rows)] == [True] * 4


def test_a_fair_share_of_a_market_is_a_fourth_of_it_in_the_order_of_submission() -> None:
    jobs = [Wish(name, owner, 0.0, 1, 1, 12.0) for name, owner in (("a", "ann"), ("b", "ann"), ("c", "bob"))]
    assert together.fair_waits_h(jobs, recording(((8, 8), (0, 0), (8, 8)))) == {"a": 0.0, "b": 3.0, "c": 0.0}
    jobs = [replace(each, work_node_h=26.0) for each in jobs]
    found = together.fair_waits_h(jobs, recording(((8, 8), (0, 0), (8, 8))))
    assert found["b"] == 12.5, "while nothing is there, nobody's share is used"


def test_thinned_zones_grant_nothing_for_a_fifth_of_their_hours() -> None:
    whole = recording(((5, 5),), 1000 * HOUR_S)
    found = cases.thinned(whole, 1)
    for zone in range(2):
        assert machine_hours(found, zone) / machine_hours(whole, zone) == pytest.approx(0.8, abs=0.05)
    assert found.drops[0] != found.drops[1]


def test_a_scaled_recording_takes_half_the_time() -> None:
    found = cases.scaled(recording(), 1)
    assert (found.end_s, found.capacity.seconds[1]) == (12 * HOUR_S, 3 * HOUR_S)
    assert found.drops == ((6 * HOUR_S,), ())
    assert found.prices is not None
    assert found.prices.seconds == (0.0, 3 * HOUR_S)


def row(case: str, metric: str, low: float, high: float) -> Row:
    return Row(case, "spotsup", metric, "1", (low + high) / 2, low, high, 2)


def test_the_worst_of_all_seeds_decides_about_a_goal() -> None:
    rows = [row("v100-9zones", USD, 1.001, 1.004), row("v100-9zones", USEFUL, 0.9971, 0.999)]
    assert list(market.verdicts([cases.ZONES_9], rows)) == [
        "v100-9zones: USD per useful hour, of the oracle's 1.004 (goal at most 1.003): missed",
        "v100-9zones: useful, of the oracle's 0.9971 (goal at least 0.997): met",
    ]


def test_each_variant_has_a_goal_and_a_part_of_a_recording_only_its_own() -> None:
    played = cases.chosen(quick=False, variants=True)
    assert len(played) == len(cases.WHOLE) + 3 * len(VARIANTS)
    assert len({case.name for case in played}) == len(played)
    varied = [case for case in played if case.variant]
    assert all([(goal.metric, goal.limit)] == [(USEFUL, 0.98)] for case in varied for goal in cases.goals_of(case))
    assert {goal.case for goal in cases.GOALS} <= {case.name for case in played}
    assert cases.goals_of(cases.DAYS_10) == []
    assert [case.name for case in cases.chosen(quick=True, variants=False, only="p3,240")] == [
        "v100-9zones, 240 h",
        "p3-32nodes",
    ]


def test_without_recordings_it_says_where_they_are_missing(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"TRACES is not set: name a folder with p3-32nodes.csv, v100-16nodes.csv"):
        market.folder_of("")
    (tmp_path / "p3-32nodes.csv").touch()
    with pytest.raises(BenchError, match=rf"{tmp_path} has no v100-16nodes.csv, v100-9zones-availability.csv"):
        market.folder_of(str(tmp_path))


def test_node_seconds_are_spread_over_the_rows_that_they_are_in() -> None:
    assert spread([(5.0, 25.0, 2.0), (30.0, 40.0, 1.0), (-5.0, 0.0, 9.0)], [0.0, 10.0, 20.0]) == [10.0, 20.0, 20.0]


def test_the_oracles_course_adds_up_to_its_result() -> None:
    best, course = oracle.course(recording(), 1, 4, Costs(), 100.0)
    assert [leg.zone for leg in course] == [0, 0, 1, 0], "both zones have three then, and the first is cheaper"
    assert [leg.nodes for leg in course] == [2, 4, 3, 3]
    assert sum(leg.useful_s for leg in course) / HOUR_S == pytest.approx(best.useful_node_h)


def test_a_play_says_what_was_lost_and_why_and_the_causes_add_up() -> None:
    case = Case("hand", "", 2, 3, baselines=False)
    market_of_an_hour = recording(((3, 0), (0, 3), (1, 2), (3, 3)), 900.0)
    found = play.play(case, market_of_an_hour, 1)
    daemon, best = found["results"]
    assert (daemon["policy"], best["policy"]) == ("spotsup", "oracle")
    lost = found["losses"]
    missing = best["useful_node_h"] - daemon["useful_node_h"]
    assert missing > 0
    assert sum(lost.values()) - 2 * lost[AHEAD] == pytest.approx(missing)
    assert all(node_h >= 0 for node_h in lost.values())
    rows = summarise(market.samples_of(case, found))
    by_metric = {(each.subject, each.metric): each.median for each in rows}
    assert by_metric["spotsup", USEFUL] == pytest.approx(daemon["useful_node_h"] / best["useful_node_h"], abs=1e-4)
    assert by_metric["oracle", USEFUL] == 1.0
    assert by_metric["spotsup", USD] is not None


def test_a_job_that_is_played_moves_to_a_fuller_zone_and_may_pause_for_others() -> None:
    case = Case("hand", "", 2, 4, baselines=False)
    found = play.play(case, recording(((2, 0), (2, 4), (2, 4)), 1800.0), 1)["results"][0]
    assert found["moves"] == 1, "both zones are there all the time: nothing but the planner's wish moves it"
    assert found["useful_node_h"] > 1.1 * 2 * 1.5, "it has four nodes afterwards"
    assert is_pausable(play.job_of(case))
    wish = together.wishes(1, 1)[0]
    assert is_pausable(together._replay(recording(), Costs(), 1, wish, 0).spec)


# -- numbers of the policy -------------------------------------------------------------------------------------

ROOT = Path(__file__).resolve().parents[2]


def numbers_of_the_policy() -> set[str]:
    """Constants of supervisor/market, fields of HazardRules, and of Rules those that say how a job moves."""
    modules = [
        importlib.import_module(f"supervisor.market.{each.name}")
        for each in pkgutil.iter_modules(market_package.__path__)
    ]
    found = {
        name
        for module in modules
        for name, value in vars(module).items()
        if name.isupper() and not name.startswith("_") and isinstance(value, int | float)
    }
    parts = {"moves": MovesRules, "gang": GangRules, "hazard": HazardRules}
    return found | {f"{part}.{each.name}" for part, rules in parts.items() for each in fields(rules)}


def test_each_number_of_the_policy_is_one_whose_worth_is_measured_or_says_why_not() -> None:
    measured = [knob.name for knob in knobs.KNOBS]
    assert len(measured) == len(set(measured))
    assert not set(measured) & knobs.OTHERS.keys()
    assert numbers_of_the_policy() - knobs.OTHERS.keys() <= set(measured)
    assert knobs.OTHERS.keys() <= numbers_of_the_policy() | {each.name for each in fields(Rules)}


def test_the_document_has_numbers_of_the_policy_as_the_code_has_them() -> None:
    text = (ROOT / "docs/simulate.md").read_text(encoding="utf-8").partition("## The numbers of the policy")[2]
    shown = dict(re.findall(r"^\| `([\w.]+)` \| ([\d.,]+) ", text, re.MULTILINE))
    now = {knob.name: knob.value for knob in knobs.KNOBS}
    assert shown
    assert {name: float(value.replace(",", "")) for name, value in shown.items()} == {name: now[name] for name in shown}


@pytest.mark.nightly
def test_a_number_is_changed_for_its_play_only() -> None:
    before, spec = [knob.value for knob in knobs.KNOBS], play.job_of(Case("hand", "", 1, 2))
    found = knobs.play(recording(((0, 0), (2, 1), (0, 0), (0, 3)), HOUR_S / 4), spec, 1, "asking")["knobs"]
    settings = [knobs.setting(knob, factor) for knob in knobs.GROUPS["asking"] for factor in knobs.FACTORS]
    assert set(found) == {knobs.NOW, *settings}
    assert found["gang.retry_s x2"][cases.REQUESTS] < found["gang.retry_s x0.5"][cases.REQUESTS]
    assert [knob.value for knob in knobs.KNOBS] == before
    case = replace(cases.KNOBS, knobs="asking")
    samples = market.samples_of(case, {"knobs": found, "cpu_s": 1.0})
    assert market.knobs_table(summarise(samples)).row_count == 1 + len(knobs.GROUPS["asking"])
