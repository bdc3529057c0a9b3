"""Launches in a failing cloud: nothing leaks, nothing doubles. Longer: make soak-launches."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from tests.clouds import aws
from tests.clouds.aws_storm import aws_target
from tests.clouds.azure_storm import azure_target
from tests.clouds.gcp_storm import gcp_target
from tests.clouds.storm import Target, run_storm


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in aws.ENVIRON.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("target_of", "launches"),
    [
        pytest.param(gcp_target, 40, id="gcp-sample"),
        pytest.param(aws_target, 120, id="aws", marks=pytest.mark.long),
        pytest.param(gcp_target, 120, id="gcp", marks=pytest.mark.long),
        pytest.param(azure_target, 120, id="azure", marks=pytest.mark.long),
    ],
)
def test_nothing_leaks_and_nothing_doubles(
    target_of: Callable[[], AbstractContextManager[Target]], launches: int
) -> None:
    with target_of() as target:
        tally = run_storm(target, launches, seed=7)
    assert (tally.leaked, tally.doubled, tally.lost) == ([], [], [])
    assert tally.launched + tally.refused == launches
    assert tally.launched > launches * 2 / 3
    assert tally.unclear > launches / 40
    assert tally.deaths > launches / 60
    assert len(tally.faults) > (5 if launches >= 120 else 3)
