"""Job files: what is written as a text stays one, and `env` has the very texts that are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from supervisor.cli.check_job import read_job
from supervisor.cli.job_options import merge
from supervisor.cli.submission import read_job_file
from supervisor.cli.sweep import axis
from supervisor.errors import UsageError
from supervisor.job_text import read_yaml
from supervisor.spec import parse_spec


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("-7", -7),
        ("0", 0),
        ("2.5", 2.5),
        ("1e-4", 1e-4),
        (".5", 0.5),
        ("1.", 1.0),
        (".inf", float("inf")),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        *[(text, text) for text in ("1:30", "1:30:00", "0777", "007", "0x1f", "0o17", "0b1", "1_000", "2026-12-24")],
        *[(text, text) for text in ("yes", "no", "on", "Off", "y", "N", "=", "1e", "e5", "+", ".", "1.2.3", "24h")],
        ("2026-12-24T22:00Z", "2026-12-24T22:00Z"),
        ("[1, 1:30, yes]", [1, "1:30", "yes"]),
        ("'7'", "7"),
        ("{a: {env: 3.10}}", {"a": {"env": 3.1}}),
        ("!!int 7", 7),
    ],
)
def test_numbers_are_what_yaml_1_2_calls_so(text: str, value: Any) -> None:
    assert repr(read_yaml(text)) == repr(value)


ENV = "{PORT: 0777, T: 1:30, PY: 3.10, SHA: 01234567, BIG: 1_000, HEX: 0x1f, F: 0.10, ON: yes, TRUE: true, E: 1e5}"
TEXTS = {"PORT": "0777", "T": "1:30", "PY": "3.10", "SHA": "01234567", "BIG": "1_000", "HEX": "0x1f", "F": "0.10"} | {
    "ON": "yes",
    "TRUE": "true",
    "E": "1e5",
}


def test_the_values_of_env_are_the_texts_that_are_written(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(f"name: job\nnodes: 1\nrun: train.py\nenv: {ENV}\n")
    assert read_job_file(file)["env"] == TEXTS
    assert read_job(file).env == TEXTS
    spec: dict[str, Any] = {}
    merge(spec, {"settings": [f"env={ENV}"]})
    assert spec["env"] == TEXTS
    merge(spec, {"settings": ["env.PY=12.10", "env.NEW=1:30"], "env": ["F=0.20"]})
    assert spec["env"] == TEXTS | {"PY": "12.10", "NEW": "1:30", "F": "0.20"}
    assert axis("env.PY=3.10,3.9") == ("env.PY", ["3.10", "3.9"])
    assert axis("limits.hours=1.5,2") == ("limits.hours", [1.5, 2])


def test_hours_and_minutes_are_not_ninety_hours(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("name: job\nnodes: 1\nrun: train.py\nlimits: {hours: 1:30}\n")
    with pytest.raises(UsageError, match=r"`limits\.hours` is '1:30'"):
        parse_spec(read_job_file(file))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\n---\nb: 2\n", "has several documents, separated by ---"),
        ("a: [", "is not YAML: "),
        ("a: 1\na: 2\n", "the key 'a' occurs twice"),
        ("[" * 2000, "is nested too deeply"),
        ("- 1\n", "a job file is a mapping of keys"),
        ("env: 3\n", None),
    ],
)
def test_what_cannot_be_read_is_said_in_one_sentence(tmp_path: Path, text: str, message: str | None) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    if message is None:
        assert read_job_file(file)
        return
    with pytest.raises(UsageError) as refused:
        read_job_file(file)
    assert message in str(refused.value)
    assert str(refused.value).startswith(str(file))
    assert "\n" not in str(refused.value)
