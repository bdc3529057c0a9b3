"""A machine of an ended job waits for the next one: real SSH, real processes, nothing of the first job is found."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from tools.stack import ROOT, Stack

pytestmark = pytest.mark.timeout(300)

JOB = "name: {name}\nkind: data\ncode: {code}\nrun: {run}\n"
# A process that has left its parents and its session, files in the folders of the node, and the login to etcd.
LEAVES = (
    'test -n "$SPOTSUP_AGENT_FOLDER" && echo secret > "$SPOTSUP_AGENT_FOLDER/run/scratch" && '
    "(setsid sleep 600 >/dev/null 2>&1 &) ; ls -R ~/.spotsup/nodes; echo left by $SPOTSUP_AGENT_FOLDER"
)
LOOKS = "ls -1 ~/.spotsup/nodes; ls -1 ~/.spotsup/code | wc -l; cat ~/.spotsup/nodes/*/run/scratch || true"


def run_job(stack: Stack, folder: Path, name: str, run: str) -> float:
    """Seconds from the submission to the job's first round."""
    job = JOB.format(name=name, code=ROOT / "trainer" / "examples", run=json.dumps(run))
    (folder / f"{name}.yaml").write_text(job)
    began = time.time()
    submitted = stack.ctl("submit", str(folder / f"{name}.yaml"))
    assert submitted.returncode == 0, submitted.stderr
    stack.wait_for(lambda: stack.ask("status", name)["state"] == "succeeded", 90.0, f"{name} to end")
    events = stack.ask("events", name)
    return float(min(event["at"] for event in events if event["kind"] == "round")) - began


def test_the_next_job_begins_on_the_same_machine_and_finds_nothing_of_the_first(stack: Stack, tmp_path: Path) -> None:
    stack.stop_daemon()
    stack.configure("[warm]\nkeep_s = 600\n", os.environ)
    stack.start_daemon()
    cold_s = run_job(stack, tmp_path, "first", LEAVES)
    stack.wait_for(
        lambda: [each["state"] for each in stack.ask("status", "first")["node_list"]] == ["warm"], 60.0, "it to wait"
    )
    (first,) = stack.ask("status", "first")["node_list"]
    left = [command for command in stack.processes_of(first["id"]).values() if "sleep 600" in command]
    assert not left
    assert "1 machine waits until" in stack.ctl("status", "first").stdout

    warm_s = run_job(stack, tmp_path, "second", LOOKS)
    (second,) = stack.ask("status", "second")["node_list"]
    assert second["instance_id"] == first["instance_id"]
    assert len(stack.machines()) == 1
    stack.wait_for(lambda: second["id"] in stack.ctl("logs", "second").stdout, 30.0, "its log")
    printed = stack.ctl("logs", "second").stdout
    assert "secret" not in printed
    assert first["id"] not in printed
    print(f"cold {cold_s:.1f} s, warm {warm_s:.1f} s")
    assert warm_s < cold_s
    stack.wait_for(
        lambda: [each["state"] for each in stack.ask("status", "second")["node_list"]] == ["warm"], 60.0, "it to wait"
    )
    let_go = stack.ctl("drain", second["id"])
    assert let_go.returncode == 0, let_go.stderr
    stack.wait_for(lambda: not [m for m in stack.machines() if m["state"] == "running"], 60.0, "it to end")
