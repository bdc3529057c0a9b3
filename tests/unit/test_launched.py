"""What Hydra's launcher asks for, as keys of a job file."""

from __future__ import annotations

import pytest
from spotsup.launched import name_of, overrides_of_job

from supervisor.spec import parse_spec


@pytest.mark.parametrize("text", ["train", "My App_2", "", "9-lives", "x" * 100, "-"])
def test_names_are_those_of_jobs(text: str) -> None:
    name = name_of(text, "a1b2c3")
    assert name.endswith("-a1b2c3")
    assert parse_spec({"name": name, "nodes": 1, "run": "t.py"}).name == name


def test_a_job_gets_its_own_overrides() -> None:
    given = ["lr=0.1", "hydra/launcher=spotsup", "+hydra.launcher.spec.x=1", "hydra.sweep.dir=x", "+model=big", "~a"]
    assert overrides_of_job(given) == ["lr=0.1", "+model=big", "~a"]
