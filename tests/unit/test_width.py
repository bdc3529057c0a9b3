"""How wide a change is: a key of a job file reaches all that takes or shows job files from the model alone."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import click
import pytest
from click.testing import CliRunner
from pydantic import Field
from spotsup import Client

from supervisor.api.jobs.runs import spec_row
from supervisor.api.jobs.views import job_row
from supervisor.cli.change import limits
from supervisor.cli.job_options import JobOption, merge
from supervisor.cli.runs import compared
from supervisor.cli.submit import plan, submit
from supervisor.spec import JobSpec
from supervisor.spec_limits import LimitChanges, Limits
from tests.unit.scene import NOW, job, view
from tests.unit.test_api_document import DOCUMENT
from tools import job_options, reference


class Thirst(Limits):
    """Limits with one more."""

    cups: Annotated[float, Field(gt=0)] | None = None
    """The job is paused after this many cups. A refill lets it go on."""


class Wider(JobSpec):
    """A job file with three keys more, which nothing else knows."""

    limits: Thirst = Thirst()
    flavours: tuple[str, ...] = ()
    """Only these flavours. Empty: any."""
    mood: Literal["calm", "wild"] = "calm"
    """How it runs."""


PLAIN = {"name": "tea", "nodes": 1, "run": "train.py", "checkpoints": "none"}
WIDE = {**PLAIN, "flavours": ["mint", "lime"], "mood": "wild", "limits": {"cups": 3}}


def parsed(spec: dict[str, Any]) -> Wider:
    """As strict models take it."""
    return Wider.model_validate({key: tuple(each) if isinstance(each, list) else each for key, each in spec.items()})


def test_a_new_key_is_in_the_schema_and_in_the_reference() -> None:
    assert {"flavours", "mood"} <= set(Wider.model_json_schema()["properties"])
    page = reference.job_file(Wider)
    assert "| `mood` | string, `calm`, `wild` | `calm` | How it runs. |" in page
    assert "| `flavours` | list of strings | empty | Only these flavours. Empty: any. |" in page
    below = page.split("\n## limits\n")[1]
    assert "| `cups` | number, above 0 | none | The job is paused after this many cups. A refill lets it" in below


def test_a_new_key_is_an_option_of_the_command_line() -> None:
    known = [JobOption(**each) for each in json.loads(job_options.text(Wider))]
    seen: dict[str, Any] = {}

    def run(**options: Any) -> None:
        seen.update(options)

    bare: Any = run
    for each in known:
        bare = each.add_to(bare)
    command = click.command()(bare)
    runner = CliRunner()
    given = ["--flavour", "mint", "--flavour", "lime", "--mood", "wild", "--cups", "3"]
    assert runner.invoke(command, given).exit_code == 0
    spec = dict(PLAIN)
    merge(spec, seen, known)
    assert parsed(spec) == parsed(WIDE)
    assert "The job is paused after this many cups.\n" in runner.invoke(command, ["--help"], terminal_width=200).output
    assert runner.invoke(command, ["--mood", "odd"]).exit_code == 2


def test_a_new_key_is_set_by_its_name() -> None:
    spec = dict(PLAIN)
    merge(spec, {"settings": ("flavours=[mint, lime]", "mood=wild", "limits.cups=3")})
    assert parsed(spec) == parsed(WIDE)


class Asked:
    """A daemon that has what it is asked."""

    def __init__(self) -> None:
        self.bodies: dict[str, Any] = {}

    def post(self, path: str, body: Any) -> Any:
        self.bodies[path] = body
        return {"name": "tea"}


def test_a_new_key_is_an_argument_of_the_client_and_goes_to_the_daemon_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client, asked = Client("https://spot.example.org"), Asked()
    monkeypatch.setattr(client, "_transport", asked)
    monkeypatch.setattr(client, "_stored", lambda _: "0" * 64)
    wide: dict[str, Any] = {key: each for key, each in WIDE.items() if key not in {"name", "run", "nodes"}}
    client.submit("train.py", name="tea", nodes=1, **wide)
    assert asked.bodies["/v1/jobs"]["spec"] == WIDE


def test_a_new_key_is_what_two_runs_differ_in() -> None:
    row: dict[str, Any] = dict.fromkeys(("name", "state", "reason", "trained_s", "step", "loss", "usd"))
    replies = [
        {"spec": spec_row(parsed(each), b"", show_env=True), "code_sha256": "", "row": row} for each in (PLAIN, WIDE)
    ]
    assert compared(*replies)["spec"] == {
        "limits.cups": [None, 3.0],
        "flavours": [None, ["mint", "lime"]],
        "mood": [None, "wild"],
    }


def keys(model: dict[str, Any], schema: dict[str, Any], prefix: str = "") -> list[str]:
    """All keys of a job file below each other, as `limits.hours`."""
    found = []
    for name, each in model["properties"].items():
        inner = dict(job_options.model_of(schema, each))
        found += keys(inner, schema, f"{prefix}{name}.") if inner else [f"{prefix}{name}"]
    return found


def options_of(command: click.Command) -> set[str]:
    return {flag for each in command.params for flag in each.opts}


def test_each_key_has_an_option_or_is_given_otherwise() -> None:
    schema = JobSpec.model_json_schema()
    of_keys = {each["key"]: each["flag"] for each in json.loads(job_options.text())}
    otherwise = {"run", "env", "resources.speed"}
    assert {each for each in keys(schema, schema) if not each.startswith("storage.")} - otherwise == of_keys.keys()
    assert {*of_keys.values(), "--env", "--storage", "--set"} <= options_of(submit)
    assert set(of_keys.values()) <= options_of(plan)
    assert len(set(of_keys.values())) == len(of_keys), "one flag stands for one key"


def test_each_limit_of_a_job_that_runs_is_shown_and_changed_everywhere() -> None:
    names = list(LimitChanges.model_fields)
    operation = DOCUMENT["paths"]["/v1/jobs/{name}/limits"]["post"]
    body = operation["requestBody"]["content"]["application/json"]["schema"]
    assert list(body["properties"]) == names
    assert list(job_row(view(job(), []), "", NOW)["limits"]) == names
    assert {f"--{each.replace('_', '-')}" for each in names} <= options_of(limits)
