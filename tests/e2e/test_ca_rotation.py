"""The commands of docs/operations.md by which etcd gets another CA, while a job trains whose nodes use etcd through
tunnels. Its round never ends, although all have to connect anew under either CA."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from spotsup_trainer.etcd.access import fingerprints

from tests.e2e.ticking import code_in, went_on
from tests.support.documents import blocks
from tools.stack import ROOT, Stack

pytestmark = pytest.mark.nightly

OPERATIONS = ROOT / "docs" / "operations.md"
NODES = "{min: 2, desired: 2, max: 3}"
PREFIX = "sudo -u spotsup spotsupd "


def documented(step: str) -> list[str]:
    """The arguments of the command in the document that does this step."""
    found = [block for block in blocks(OPERATIONS, "sh") if block.heading == "Another CA for etcd"]
    (line,) = (line for block in found for line in block.commands() if line.endswith(f" {step}"))
    assert line.startswith(PREFIX)
    return line.removeprefix(PREFIX).split()


def spotsupd(stack: Stack, *arguments: str) -> subprocess.CompletedProcess[str]:
    config = ("--config", str(stack.folder / "spotsupd.toml"), "--embedded-etcd")
    command = [sys.executable, "-m", "supervisor.cli.daemon", *arguments, *config]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=150, check=False)


def did(stack: Stack, step: str) -> str:
    done = spotsupd(stack, *documented(step))
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(stack: Stack, *arguments: str) -> str:
    done = spotsupd(stack, "etcd-ca", *arguments)
    assert done.returncode == 5, done.stdout + done.stderr
    return done.stderr


def trusted(stack: Stack) -> set[tuple[str, ...]]:
    """By which CAs the nodes trust etcd, as their files say."""
    files = list(stack.cloud_dir.rglob("etcd.json"))
    return {fingerprints(json.loads(file.read_text())["ca"]) for file in files}


def members(stack: Stack) -> int:
    return [each["state"] for each in stack.ask("status", "ticker")["node_list"]].count("member")


def restart_etcd(stack: Stack) -> None:
    """All connections are new ones after this, and all logins."""
    file = stack.state / "etcd" / "embedded.json"
    before = json.loads(file.read_text())["pid"]
    os.kill(before, signal.SIGKILL)
    stack.wait_for(lambda: json.loads(file.read_text())["pid"] != before, 90.0, "etcd to be started again")
    # Nodes and jobs are shown as they were before, while etcd is away.
    stack.wait_for(lambda: "etcd has not answered" not in stack.ctl("list").stderr, 90.0, "the daemon to hear etcd")
    stack.wait_for(lambda: members(stack) == 2, 90.0, "the nodes to be heard again")


def test_a_job_trains_through_the_rotation_of_the_ca(tmp_path: Path) -> None:
    stack = Stack(tmp_path / "a stack", cluster="test", lease_ttl_s=4.0, secure=True)
    stack.prepare()
    stack.configure('[local]\nreach = "ssh"\n', os.environ)
    bundle = stack.state / "etcd" / "tls" / "ca.crt"
    try:
        stack.start_daemon()
        stack.ask("submit", str(code_in(tmp_path, NODES)))
        stack.wait_for(lambda: stack.ask("status", "ticker")["state"] == "running", 150.0, "two nodes to train")
        began, formed = time.time(), stack.ask("status", "ticker")["round"]
        (old,) = fingerprints(bundle.read_text())
        assert trusted(stack) == {(old,)}

        assert "there is no new CA: `begin` first" in refused(stack, "sign")
        assert "made a CA that is valid until" in did(stack, "begin")
        assert "made a CA" not in did(stack, "begin")
        _, new = fingerprints(bundle.read_text())
        assert "still of the old CA: `sign` first" in refused(stack, "finish")

        assert "made a certificate for localhost" in did(stack, "sign")
        assert trusted(stack) == {(old, new)}
        assert "made a certificate" not in did(stack, "sign")
        restart_etcd(stack)
        assert "the last rotation is not over" in refused(stack, "begin")

        assert "holds the new CA only" in did(stack, "finish")
        assert "settled: one CA" in did(stack, "finish")
        stack.wait_for(lambda: trusted(stack) == {(new,)}, 90.0, "the nodes to trust the new CA only")
        restart_etcd(stack)
        assert stack.ask("status", "ticker")["round"] == formed
        went_on(tmp_path, began)

        # a node that is made now, and the round with it
        assert stack.ctl("scale", "ticker", "3").returncode == 0
        stack.wait_for(lambda: members(stack) == 3, 150.0, "three nodes to train")
        assert trusted(stack) == {(new,)}
        assert stack.ctl("cancel", "ticker").returncode == 0
        stack.wait_for(lambda: not stack.machines(), 150.0, "the machines to be released")
    finally:
        left = stack.close()
    assert left.processes == ()
