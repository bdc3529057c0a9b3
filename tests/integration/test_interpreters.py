"""The agent, and all of a node's side that needs no torch, on every interpreter that a node may bring."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import closing
from dataclasses import asdict
from email.message import Message
from pathlib import Path

import pytest
from spotsup_trainer.agent.child import launcher_command
from spotsup_trainer.etcd import Etcd
from spotsup_trainer.wire import AgentConfig, Ended, Keys, Metadata, decode

from tests.support.interpreters import INTERPRETERS, OLDEST_AND_NEWEST_FIRST, interpreter
from tests.support.serving import answering

TRAINER = Path(__file__).resolve().parents[2] / "trainer"
KEYS = Keys("test")
LIMIT_S = 60.0


def bare(python: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """As on a node: nothing is installed, and the trainer is on PYTHONPATH."""
    env = {"PATH": os.environ["PATH"], "HOME": str(cwd), "PYTHONPATH": str(TRAINER), "LANG": "C.UTF-8"}
    command = [str(python), *arguments]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=LIMIT_S)


@pytest.mark.parametrize("version", INTERPRETERS)
def test_every_module_without_torch_is_imported(version: str, tmp_path: Path) -> None:
    """A syntax or a name that came later shows at import; what imports torch gets only so far."""
    names = [
        ".".join(path.relative_to(TRAINER).with_suffix("").parts)
        for path in sorted((TRAINER / "spotsup_trainer").rglob("*.py"))
        if path.name not in ("__init__.py", "__main__.py")
    ]
    program = """
import importlib, json, sys
wrong = {}
for name in json.loads(sys.argv[1]):
    try:
        importlib.import_module(name)
    except ImportError as error:
        if error.name != "torch" and "lightning" not in str(error) and "transformers" not in str(error):
            wrong[name] = repr(error)
    except Exception as error:
        wrong[name] = repr(error)
print(json.dumps(wrong))
"""
    done = bare(interpreter(version), "-S", "-c", program, json.dumps(names), cwd=tmp_path)
    assert json.loads(done.stdout or "null") == {}, done.stderr


@pytest.mark.parametrize("version", OLDEST_AND_NEWEST_FIRST)
def test_an_agent_runs_a_job_to_its_end(version: str, etcd_endpoint: str, tmp_path: Path) -> None:
    """Agent, launcher, rendezvous and etcd client of a job that needs no torch."""
    python = interpreter(version)
    config = AgentConfig(
        cluster="test",
        job="job",
        task_id="job-1",
        node="n1",
        addr="127.0.0.1",
        etcd_endpoints=(etcd_endpoint,),
        metadata=Metadata("none", ""),
        python=str(python),
        code_dir=str(tmp_path),
        run_dir=str(tmp_path / "run"),
        log_dir=str(tmp_path / "log"),
        checkpoints=str(tmp_path),
        command=('echo "$0 says" hello; echo spotsup: progress 1',),
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=1,
        lease_ttl_s=2.0,
        kind="data",
    )
    (tmp_path / "agent.json").write_text(json.dumps(asdict(config)))
    done = bare(python, "-m", "spotsup_trainer.agent", "--config", "agent.json", cwd=tmp_path)
    log = tmp_path / "log" / "n1.log"
    assert done.returncode == 0, f"{done.stderr}\n{log.read_text() if log.exists() else ''}"
    with closing(Etcd((etcd_endpoint,))) as etcd:
        found = etcd.get(KEYS.ended("job", "n1"))
        assert found is not None
        assert decode(Ended, found.value).outcome == "success"
        written = b"".join(chunk.value for chunk in etcd.range(KEYS.logs("job", "n1")).kvs).decode()
    assert "says hello" in written


# By path: what each cloud's metadata service answers about a machine that will be taken at 2026-11-21, 08:02 UTC.
ANSWERS = {
    "/latest/api/token": "a-token",
    "/latest/meta-data/spot/instance-action": '{"action": "terminate", "time": "2026-11-21T08:02:00Z"}',
    "/metadata/instance/compute/name": "vm-1",
    "/metadata/scheduledevents": json.dumps(
        {
            "Events": [
                {
                    "EventId": "1",
                    "EventType": "Preempt",
                    "Resources": ["vm-1"],
                    "NotBefore": "Sat, 21 Nov 2026 08:02:00 GMT",
                }
            ]
        }
    ),
    "/computeMetadata/v1/instance/preempted": "TRUE",
}


@pytest.mark.parametrize("version", INTERPRETERS)
def test_every_clouds_notice_is_read(version: str, tmp_path: Path) -> None:
    program = """
import json, sys, time
from spotsup_trainer.agent.notices import reader_for
from spotsup_trainer.wire import Metadata
found = {kind: reader_for(Metadata(kind, sys.argv[1])).read() for kind in ("aws", "azure", "gcp")}
print(json.dumps({**found, "gcp": 0 < found["gcp"] - time.time() <= 30}))
"""

    def answer(path: str, _: Message) -> tuple[int, str]:
        found = ANSWERS.get(path.partition("?")[0])
        return (404, "") if found is None else (200, found)

    with answering(answer, headers={"ETag": "1"}) as url:
        done = bare(interpreter(version), "-S", "-c", program, url, cwd=tmp_path)
    assert json.loads(done.stdout or "null") == {"aws": 1795248120.0, "azure": 1795248120.0, "gcp": True}, done.stderr


def test_modules_beside_the_code_do_not_shadow_those_that_the_launcher_imports(tmp_path: Path) -> None:
    """As -P, which is unknown to Python 3.10."""
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')\n")
    config = AgentConfig(
        *("c", "j", "t", "n", "a", (), Metadata("", ""), "python", str(tmp_path), "", "", "", ("true",), 1, 1, 1),
        kind="data",
    )
    python, *arguments = launcher_command(config)
    done = bare(interpreter("3.10"), *arguments[:2], "json.tool", "--help", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "the wrong json" not in done.stderr
    assert python == "python"
