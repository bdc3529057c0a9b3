"""Launches in a failing cloud: nothing leaks, nothing doubles. Longer: make soak-launches."""

from __future__ import annotations

import pytest

from tests.clouds.asking import asked
from tests.clouds.storm import run_storm, storm_target

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    ("cloud", "launches"),
    [
        pytest.param("gcp", 40, id="gcp-sample"),
        *(pytest.param(name, 120, id=name, marks=pytest.mark.long) for name in ("aws", "gcp", "azure")),
    ],
)
def test_nothing_leaks_and_nothing_doubles(cloud: str, launches: int) -> None:
    with storm_target(cloud) as target:
        tally = run_storm(target, launches, seed=7)
    assert (tally.leaked, tally.doubled, tally.lost) == ([], [], [])
    assert tally.launched + tally.refused == launches
    assert tally.launched > launches * 2 / 3
    assert tally.unclear > launches / 40
    assert tally.deaths > launches / 60
    assert len(tally.faults) > (5 if launches >= 120 else 3)


@pytest.mark.parametrize(("cloud", "least"), [("aws", 1), ("gcp", 4), ("azure", 3)])
def test_what_it_costs_to_ask_for_machines_is_counted_call_by_call(cloud: str, least: int) -> None:
    cost = asked(cloud, 3, 0.0)
    assert cost.granted == 3
    assert cost.calls >= 3 * least
