"""Launches in bad weather: nothing leaks, nothing doubles. Longer: make soak-launches."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from tests.clouds import aws
from tests.clouds.aws_storm import aws_weather
from tests.clouds.azure_storm import azure_weather
from tests.clouds.gcp_storm import gcp_weather
from tests.clouds.storm import Weather, run_storm


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in aws.ENVIRON.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    "weather_of",
    [
        pytest.param(aws_weather, id="aws", marks=pytest.mark.long),
        pytest.param(gcp_weather, id="gcp"),
        pytest.param(azure_weather, id="azure", marks=pytest.mark.long),
    ],
)
def test_nothing_leaks_and_nothing_doubles(weather_of: Callable[[], AbstractContextManager[Weather]]) -> None:
    with weather_of() as weather:
        tally = run_storm(weather, 120, seed=7)
    assert (tally.leaked, tally.doubled, tally.lost) == ([], [], [])
    assert tally.launched + tally.refused == 120
    assert tally.launched > 80
    assert tally.unclear > 3
    assert tally.deaths > 2
    assert len(tally.faults) > 5
