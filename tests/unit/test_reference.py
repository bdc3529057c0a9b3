"""docs/reference/: what is generated is up to date, its examples are taken, and every variable is in the table."""

from __future__ import annotations

import os
import re
import tomllib
from typing import Any

import pytest
import yaml

from supervisor.cli.common import EXIT_CODES
from supervisor.config import Config, parse_config
from supervisor.errors import SpotsupError
from supervisor.spec import JobSpec, parse_spec
from tools import job_options, reference

ROOT = reference.FOLDER.parent.parent
PRODUCT = (
    "supervisor",
    "provisioners",
    "bootstrap",
    "trainer/spotsup_trainer",
    "simulator/spotsup_simulator",
    "systemd",
)


@pytest.mark.parametrize("name", reference.documents())
def test_the_reference_is_what_the_code_says(name: str) -> None:
    if os.environ.get("SPOTSUP_WRITE_DOCS") == "1":
        reference.write()
    written = (reference.FOLDER / name).read_text(encoding="utf-8")
    assert written == reference.documents()[name], "run `make docs` and commit docs/reference/"


def test_the_options_of_a_job_are_those_of_the_model() -> None:
    assert job_options.WRITTEN.read_text(encoding="utf-8") == job_options.text(), "run `make docs` and commit them"


@pytest.mark.parametrize("model", [JobSpec, Config])
def test_every_key_has_a_text(model: type[JobSpec | Config]) -> None:
    schema = model.model_json_schema()
    described = {f"{model.__name__}.{key}": each for key, each in schema["properties"].items()}
    for name, inner in schema["$defs"].items():
        described |= {f"{name}.{key}": each for key, each in inner["properties"].items()}
    assert [key for key, each in described.items() if not each.get("description") and "$ref" not in each] == []


def test_the_examples_are_taken() -> None:
    parse_spec(yaml.safe_load(reference.JOB_EXAMPLE))
    config = parse_config(tomllib.loads(reference.CONFIG_EXAMPLE), "the example")
    assert all(getattr(config, table) is not None for table in Config.model_fields)


def test_the_exit_codes_are_those_of_the_errors() -> None:
    errors: list[Any] = [SpotsupError, *SpotsupError.__subclasses__()]
    assert {0, *(error.exit_code for error in errors)} == set(EXIT_CODES)


def test_every_environment_variable_is_in_the_table() -> None:
    files = [each for folder in PRODUCT for each in (ROOT / folder).rglob("*") if each.is_file()]
    texts = [each.read_text() for each in files if each.suffix in {".py", ".sh", ".service", ".socket", ".conf"}]
    named = {name for text in texts for name in re.findall(r"SPOTSUP_[A-Z0-9_]*[A-Z0-9]", text)}
    rows = re.findall(r"^\| `(SPOTSUP_\w+)`", (reference.FOLDER / "environment.md").read_text(), re.MULTILINE)
    assert len(rows) == len(set(rows))
    assert set(rows) == named, (
        "docs/reference/environment.md names every SPOTSUP_ variable of the product, and no other"
    )
