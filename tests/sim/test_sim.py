"""Stories drawn from seeds, crashes at every boundary, and that the same seed is the same story."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.sim.crashes import SCENARIOS, enumerate_crashes
from tests.sim.mutants import MUTANTS, ROOT, Mutant
from tests.sim.run import act, explain, quiet
from tests.sim.story import draw

HOURS = 2.0
SEEDS = 100
SEEDS_AT_ONCE = 10


@pytest.fixture(autouse=True)
def _quiet() -> None:
    quiet()


@pytest.mark.parametrize("start", range(1, SEEDS + 1, SEEDS_AT_ONCE))
def test_promises_hold_in_the_stories_of_seeds_and_calm_brings_everything_back(start: int) -> None:
    for seed in range(start, start + SEEDS_AT_ONCE):
        result = act(draw(seed, HOURS))
        assert not result.broken, explain(seed, HOURS, result.broken)
        assert result.virtual_s > HOURS * 3600
        assert result.injected.total() >= 20


@pytest.mark.parametrize("kind", ["writes lost", "backup restored", "watch lost"])
def test_an_etcd_that_was_set_back_or_read_anew_costs_no_machine_and_no_job(kind: str) -> None:
    for seed in (1, 2):
        story = draw(seed, HOURS)
        often = tuple(replace(each, kind=kind) if n % 4 == 0 else each for n, each in enumerate(story.strikes))
        result = act(replace(story, strikes=often))
        assert not result.broken, "\n".join([result.broken, *result.log])
        assert result.injected[kind] >= 5


def test_daemons_whose_clocks_are_a_minute_off_for_good_keep_all_promises() -> None:
    for seed in (1, 2, 3, 4):
        story = replace(draw(seed, HOURS), clocks_off_s=55.0)
        often = tuple(replace(each, kind="handover") if n % 3 == 0 else each for n, each in enumerate(story.strikes))
        result = act(replace(story, strikes=often))
        assert not result.broken, "\n".join([result.broken, *result.log])


def test_the_same_seed_is_the_same_story_in_another_process() -> None:
    said = [_run_one(7, hash_seed) for hash_seed in ("1", "2")]
    assert "digest" in said[0]
    assert said[0] == said[1]


def _run_one(seed: int, hash_seed: str) -> str:
    command = [sys.executable, "-m", "tests.sim.run", "--seed", str(seed), "--hours", "0.5"]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_a_crash_at_any_kind_of_boundary_changes_nothing_in_the_end(name: str) -> None:
    tally = enumerate_crashes((name,), ("crash",), most=1)
    assert tally.runs >= 8
    assert not tally.failures, "\n".join(tally.failures)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_text_of_each_mutant_is_where_it_says(mutant: Mutant) -> None:
    file = ROOT / Path(*mutant.module.split(".")).with_suffix(".py")
    assert file.read_text().count(mutant.old) == 1, f"{file} has moved on"


def test_a_daemon_without_its_fence_is_noticed() -> None:
    command = [sys.executable, "-m", "tests.sim.mutants", "--only", "by leadership", "--seeds", "8", "--jobs", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "not noticed: none" in done.stdout
