"""No secret of a job or an installation reaches a log: not by a traceback, and not by the repr of what holds one."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from spotsup_trainer.etcd.client import Compare, KeyValue, Put, WatchEvent
from spotsup_trainer.wire import AgentConfig, Metadata

from provisioners.base import Market, Offer
from supervisor.api.secrets import SecretBody
from supervisor.api.submit.routes import SubmitBody
from supervisor.cli.daemon import set_up_logging
from supervisor.config import parse_config
from supervisor.errors import UsageError
from supervisor.model import NodeRecord
from supervisor.new_job import new_job
from supervisor.planner.actions import Bootstrap
from supervisor.sealed import SecretRecord
from supervisor.spec import JobSpec, parse_spec
from supervisor.sweep import SweepRecord
from tests.unit.test_imports import HOMES

MARK = "hf-marked-secret"
JOB = {"name": "job", "nodes": 1, "run": "train.py", "env": {"HF_TOKEN": MARK}, "placement": {"cloud": "local"}}
DIGEST = "0" * 64
CONFIG = {
    "node": {"env": {"TOKEN": MARK}, "index_url": f"https://me:{MARK}@index.example", "wheelhouse": f"https://{MARK}"},
    "alerts": {"webhook": [{"name": "mine", "url": f"https://{MARK}.example/", "secret_file": "/etc/secret"}]},
}
OFFER = Offer("local", "r", "z", "t", Market.SPOT, 1.0)
# A field of a class by one of these names holds what nobody may read in a log.
SECRET = re.compile(r"env|environ|password|\w+(_private|_openssh)|index_url")


def carriers() -> list[Any]:
    """One of each kind that carries the mark."""
    job = new_job(parse_spec(JOB), DIGEST, "x", 1.0)
    node = NodeRecord("job-x-1", "job", "job-x-1", OFFER, created_at=1.0, state_since=1.0)
    names = ("c", "job", "x", "job-x-1", "127.0.0.1", (), Metadata("none"), "python", "code", "run", "log", "", ())
    agent = AgentConfig(*names, min_nodes=1, max_nodes=1, nproc_per_node=1, env={"TOKEN": MARK})
    config = parse_config(CONFIG, "toml")
    raw = json.dumps(JOB).encode()
    return [
        *(job.spec, job, Bootstrap(node, job), agent, config),
        *(SecretBody(value=MARK), SecretRecord("TOKEN", "me", MARK, 1.0, 1.0)),
        *(SubmitBody(spec=JOB, code_sha256=DIGEST), SweepRecord("s", "x", "me", JOB, DIGEST, 1.0, 1, ())),
        *(KeyValue("k", raw, 1, 1), Compare("k", "value", raw), Put("k", raw), WatchEvent("k", raw, 1)),
    ]


@pytest.fixture
def logging() -> Iterator[None]:
    """As in a process of its own, and put back at the end."""
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


@pytest.mark.usefixtures("logging")
@pytest.mark.parametrize("form", ["text", "json"])
def test_a_logged_exception_shows_no_secret(
    form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPOTSUP_LOG", form)
    set_up_logging()
    log = structlog.get_logger("spotsupd")

    def prepare(held: Any, env: str) -> None:
        assert env in str(JOB)
        raise RuntimeError(f"unforeseen: {held!r}")

    for held in carriers():
        try:
            prepare(held, MARK)
        except RuntimeError:
            log.exception("an action failed unexpectedly", action=held, held=[held])
    try:
        JobSpec.model_validate(JOB | {"checkpoints": 7, "env": {"HF_TOKEN": [MARK]}})
    except ValueError:
        log.exception("a record is not valid")
    shown = capsys.readouterr().err
    assert shown.count("an action failed unexpectedly") == len(carriers())
    assert "2 validation errors" in shown
    assert [line for line in shown.splitlines() if MARK in line] == []


@pytest.mark.parametrize("wrong", [{"HF_TOKEN": MARK}, f"HF_TOKEN={MARK}", [{"HF_TOKEN": MARK}], [[MARK]]])
def test_a_value_where_a_secrets_name_belongs_is_not_repeated(wrong: Any) -> None:
    with pytest.raises(UsageError, match="`secrets") as refused:
        parse_spec({**JOB, "env": {}, "secrets": wrong})
    assert MARK not in str(refused.value)


def test_a_configuration_that_is_refused_shows_no_variable() -> None:
    with pytest.raises(Exception, match=r"node\.env\.TOKEN") as refused:
        parse_config({"node": {"env": {"TOKEN": [MARK]}}}, "toml")
    assert MARK not in str(refused.value)


def test_a_field_with_a_secret_is_left_out_of_its_class_repr() -> None:
    assert [found for package, home in HOMES.items() for found in shown_secrets(home / package)] == []


def shown_secrets(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*.py")):
        found = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for kind in (each for each in found if isinstance(each, ast.ClassDef)):
            if {"TypedDict", "Protocol"} & set(map(ast.unparse, kind.bases)):
                continue
            for each in (each for each in kind.body if isinstance(each, ast.AnnAssign)):
                name = ast.unparse(each.target)
                if SECRET.fullmatch(name) and "repr=False" not in ast.unparse(each):
                    yield f"{path.relative_to(folder.parent)}: {kind.name}.{name}"
