"""`spotsupd check --from-node`: a machine says what its own way to everything lacks, and is ended again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from supervisor.cli.check_node import check_from_node, probe_spec
from supervisor.spec import parse_spec
from tests.support.programs import program_env
from tools.stack import ROOT, Stack

JOB = {
    "name": "resnet50-with-a-name-as-long-as-they-may",
    "nodes": {"min": 2, "desired": 4},
    "resources": {"gpu": "V100"},
    "placement": {"cloud": "aws"},
    "storage": [{"mount": "/mnt/out", "nfs": "fs-0a1b2c3d.efs.us-east-1.amazonaws.com:/"}],
    "environment": "requirements.txt",
    "setup": "make",
    "run": "train.py",
    "checkpoints": "s3://bucket/jobs",
}


def test_the_machine_needs_what_the_jobs_nodes_need_and_no_gpu() -> None:
    spec = parse_spec(probe_spec(JOB, "m7i.large"))
    assert (spec.name, spec.nodes.max, spec.run) == ("resnet50-with-a-name-as-long-as-th-check", 1, "-m platform")
    assert (spec.resources[0].instance_types, spec.resources[0].gpu) == (("m7i.large",), "")
    assert (spec.environment, spec.setup, spec.checkpoints) == ("requirements.txt", "", "s3://bucket/jobs")
    assert spec.storage[0].mount == "/mnt/out"
    bare = {key: JOB[key] for key in ("name", "nodes", "run")}
    assert parse_spec(probe_spec(bare, "small")).checkpoints == "none"


def test_without_a_job_no_torch_is_needed() -> None:
    data = {**JOB, "kind": "data", "run": "make data"}
    del data["checkpoints"], data["nodes"]
    for job, storage in ((None, 0), (data, 1)):
        spec = parse_spec(probe_spec(job, "m7i.large"))
        assert (spec.kind, spec.run, len(spec.storage)) == ("data", "true", storage)


def check(stack: Stack, *arguments: str) -> tuple[Any, str]:
    """The finding from a node, and what was said meanwhile."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "supervisor.cli.daemon", "check", "--embedded-etcd", "-o", "json"),
            *("--config", str(stack.folder / "spotsupd.toml"), *arguments),
        ],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=ROOT,
        env=program_env(),
    )
    report = json.loads(done.stdout)
    assert done.returncode == (0 if report["ok"] else 1), report
    (found,) = [each for each in report["findings"] if each["subject"] == "node"]
    return found, done.stderr


@pytest.mark.timeout(900)
def test_a_node_is_booted_tries_all_and_is_gone(stack: Stack, tmp_path: Path) -> None:
    found, _ = check(stack, "--from-node", "m7i.large")
    assert not found["ok"]
    assert found["message"] == (
        "local cannot give what node-check asks for: no machine of type m7i.large (spot); "
        "ask for other `resources`, or for another `placement`"
    )
    found, said = check(stack, "--from-node", "local.small")
    assert (found["ok"], found["message"][:53]) == (True, "a node reached all that it needs, and ran a program, ")
    assert "job node-check boots one local.small at $0.1 an hour" in said
    assert not stack.machines()
    assert stack.ask("status", "node-check")["state"] == "succeeded"

    code = tmp_path / "code"
    code.mkdir()
    job = code / "job.yaml"
    job.write_text("name: mine\nnodes: 4\nrun: train.py\nenvironment: requirements.txt\n")
    (code / "train.py").touch()
    (code / "requirements.txt").write_text("no-such-package==1.0\n")
    found, _ = check(stack, "--from-node", "local.small", "--job", str(job))
    assert not found["ok"]
    assert "bootstrap of mine-check-" in found["message"]
    assert "requirements.txt" in found["message"]
    stack.wait_for(lambda: not stack.machines(), 30.0, "the machine to end")
    assert stack.ask("status", "mine-check")["state"] == "cancelled"


@pytest.mark.nightly
def test_a_machine_that_never_comes_is_given_up_and_cancelled(stack: Stack) -> None:
    stack.cloud("set", "--launch-delay", "600")
    said: list[str] = []
    found = check_from_node(stack.socket, None, "local.small", said.append, limit_s=2.0)
    assert not found.ok
    assert found.message.startswith("no node was ready in time: ")
    assert stack.ask("status", "node-check")["state"] == "cancelled"
    assert not stack.machines()


@pytest.mark.nightly
def test_without_a_daemon_it_says_who_boots_the_machine(tmp_path: Path) -> None:
    stack = Stack(tmp_path / "stack", cluster="test")
    stack.prepare()
    try:
        found, _ = check(stack, "--from-node", "local.small")
        assert not found["ok"]
        assert found["message"].endswith("; the running daemon boots the machine")
    finally:
        stack.close()
