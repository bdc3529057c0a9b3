"""`Session.report`: what a program says by name arrives in its progress, bounded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from spotsup_trainer.session.metrics import MAX_METRICS
from spotsup_trainer.wire import Progress, decode

from supervisor.sweep import METRIC
from tests.integration.sessions import session


def test_the_last_value_of_each_name_is_in_the_progress_at_once(tmp_path: Path) -> None:
    file = tmp_path / "progress.json"
    one = session(None, environ={"SPOTSUP_PROGRESS_FILE": str(file)})
    one.report(accuracy=0.1)
    assert not file.exists(), "without a step there is no progress"
    one.step(0.5)
    one.report(accuracy=0.5, **{"val/f1": torch.tensor(0.25)})
    one.report(accuracy=0.75)
    assert decode(Progress, file.read_bytes()).metrics == {"accuracy": 0.75, "val/f1": 0.25}
    one.report(accuracy=float("nan"))
    assert decode(Progress, file.read_bytes()).metrics == {"accuracy": None, "val/f1": 0.25}


@pytest.mark.parametrize("name", ["two words", "", "x" * 65, "1st", "ä"])
def test_a_name_that_cannot_be_one_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cannot name a metric"):
        session(None).report(**{name: 1.0})


def test_more_than_some_are_refused_and_the_others_stay() -> None:
    one = session(None)
    one.report(**{f"m{number}": number for number in range(MAX_METRICS)})
    one.report(m0=7)
    with pytest.raises(ValueError, match=f"at most {MAX_METRICS}"):
        one.report(another=1.0)
    assert one._metrics.values["m0"] == 7.0
    assert len(one._metrics.values) == MAX_METRICS


def test_progress_of_an_older_agent_has_none_and_sweeps_know_the_same_names() -> None:
    old = b'{"round":1,"step":3,"at":5.0,"first_step_at":4.0}'
    assert decode(Progress, old).metrics == {}
    from spotsup_trainer.session.metrics import NAME

    assert NAME.pattern == METRIC
