"""Scenarios drawn from seeds, crashes at every boundary, mutants; and equal seeds give equal scenarios."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.sim.crashes import SCENARIOS, enumerate_crashes
from tests.sim.mutants import ROOT
from tests.sim.run import explain, quiet, run_scenario
from tests.sim.scenario import ACCESS_WEIGHTS, ETCD_WEIGHTS, FORGERY_WEIGHTS, HARSH_WEIGHTS, Scenario, draw

HOURS = 2.0
KINDS = sorted(HARSH_WEIGHTS | ACCESS_WEIGHTS | ETCD_WEIGHTS | FORGERY_WEIGHTS)
SEEDS = 24  # `make sim` has a hundred
SEEDS_AT_ONCE = 4


@pytest.fixture(autouse=True)
def _quiet() -> None:
    quiet()


@pytest.mark.parametrize(
    "start",
    [
        start if start == 1 else pytest.param(start, marks=pytest.mark.nightly)
        for start in range(1, SEEDS + 1, SEEDS_AT_ONCE)
    ],
)
@pytest.mark.timeout(600)
def test_promises_hold_in_the_scenarios_of_seeds_and_every_job_recovers(start: int) -> None:
    for seed in range(start, start + SEEDS_AT_ONCE):
        result = run_scenario(draw(seed, HOURS))
        assert not result.broken, explain(seed, HOURS, result.broken)
        assert result.virtual_s > HOURS * 3600
        assert result.injected.total() >= 20


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("kind", ["writes lost", "backup restored", "watch lost"])
def test_an_etcd_that_was_rolled_back_or_reread_costs_no_machine_and_no_job(kind: str, seed: int) -> None:
    result = run_scenario(with_often(draw(seed, HOURS / 2 if seed == 1 else HOURS), kind, every=4))
    assert not result.broken, "\n".join([result.broken, *result.log])
    assert result.injected[kind] >= 5


def with_often(scenario: Scenario, *kinds: str, every: int) -> Scenario:
    """The scenario in which each of `kinds` is one of `every` injections."""
    of = {n * every // len(kinds): kind for n, kind in enumerate(kinds)}
    injections = [replace(each, kind=of.get(n % every, each.kind)) for n, each in enumerate(scenario.injections)]
    return replace(scenario, injections=tuple(injections))


@pytest.mark.long
@pytest.mark.timeout(600)  # 10 s alone, and 166 s where all of another test's processes started beside it
@pytest.mark.parametrize("kinds", list(zip(KINDS[::2], [*KINDS[1::2], KINDS[0]], strict=True)), ids=" and ".join)
def test_harsh_faults_that_strike_again_and_again_break_no_promise(kinds: tuple[str, str]) -> None:
    result = run_scenario(with_often(draw(1, HOURS / 4), *kinds, every=4))
    assert not result.broken, "\n".join([result.broken, *result.log])
    assert min(result.injected[kind] for kind in kinds) >= 15


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_a_harsh_fault_that_strikes_for_hours_breaks_no_promise(kind: str) -> None:
    result = run_scenario(with_often(draw(7, HOURS), kind, every=2))
    assert not result.broken, "\n".join([result.broken, *result.log])
    assert result.injected[kind] >= 20


@pytest.mark.nightly
def test_daemons_whose_clocks_are_permanently_a_minute_off_keep_all_promises() -> None:
    for seed in (1, 2, 3, 4):
        scenario = replace(draw(seed, HOURS), max_clock_error_s=55.0)
        result = run_scenario(with_often(scenario, "handover", every=3))
        assert not result.broken, "\n".join([result.broken, *result.log])


@pytest.mark.long
def test_the_same_seed_is_the_same_scenario_in_another_process() -> None:
    outputs = [_run_one(7, hash_seed) for hash_seed in ("1", "2")]
    assert "digest" in outputs[0]
    assert outputs[0] == outputs[1]


def _run_one(seed: int, hash_seed: str) -> str:
    command = [sys.executable, "-m", "tests.sim.run", "--seed", str(seed), "--hours", "0.5"]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    "name",
    [each if each == "kill" else pytest.param(each, marks=pytest.mark.long) for each in sorted(SCENARIOS)],
)
def test_a_crash_at_any_kind_of_boundary_does_not_change_the_end(name: str) -> None:
    tally = enumerate_crashes((name,), ("crash",), limit=1)
    assert tally.runs >= 8
    assert not tally.failures, "\n".join(tally.failures)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_a_daemon_without_its_fence_is_detected() -> None:
    command = [sys.executable, "-m", "tests.sim.mutants", "--only", "by leadership", "--seeds", "20", "--jobs", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1770, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "not detected: none" in done.stdout
