"""A sample of `make fuzz`; and what the fuzzer must find: rules that are removed."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import structlog
from spotsup_trainer import decoding

from tests.fuzz.target import Target


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with structlog.testing.capture_logs():
        yield


def first_finding(seed: int, ticks: int) -> tuple[str, Target]:
    target, rng = Target(), Random(seed)
    return next(filter(None, (target.fuzz(rng) for _ in range(ticks))), ""), target


def test_of_a_sample_of_broken_inputs_none_changes_another_jobs_decision_or_escapes() -> None:
    found, target = first_finding(7, 40)
    assert found == ""
    assert target.inputs.total() > 600
    assert len(target.inputs) >= 15
    assert target.decoded.total() > 50, "many are still messages: the planner sees them"
    assert target.contained == {}


def unchecked(value: Any) -> Any:
    return value


@pytest.mark.parametrize("rules", [(decoding._number, decoding._unix_time), (decoding._text,)])
def test_a_rule_that_is_removed_is_found(rules: tuple[Any, ...]) -> None:
    codes = [rule.__code__ for rule in rules]
    try:
        for rule in rules:
            rule.__code__ = unchecked.__code__
        assert first_finding(3, 200)[0]
    finally:
        for rule, code in zip(rules, codes, strict=True):
            rule.__code__ = code
