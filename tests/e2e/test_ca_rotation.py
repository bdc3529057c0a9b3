"""The commands of docs/operations.md by which etcd gets another CA, while a job trains whose nodes use etcd through
tunnels. Its round never ends, although all have to connect anew under either CA."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.ticking import code_in, went_on
from tests.support.documents import blocks
from tools.stack import ROOT, Stack

pytestmark = pytest.mark.nightly

OPERATIONS = ROOT / "docs" / "operations.md"
NODES = "{min: 2, desired: 2, max: 3}"


def documented() -> list[str]:
    """The commands of the document, in order."""
    found = [block for block in blocks(OPERATIONS, "sh") if block.heading == "Another CA for etcd"]
    lines = [line for block in found for line in block.commands()]
    assert len(lines) == 5
    return lines


def did(stack: Stack, line: str) -> str:
    """What one of them prints, on the folder of an embedded etcd."""
    line = line.replace("sudo -u spotsup ", "").replace("/var/lib/spotsup/tls", '"$TLS"')
    line = line.replace("spotsupd ", f"{shlex.quote(sys.executable)} -m supervisor.cli.daemon ")
    environ = {**os.environ, "TLS": str(stack.state / "etcd" / "tls")}
    done = subprocess.run(
        ["sh", "-c", line], env=environ, capture_output=True, text=True, cwd=ROOT, timeout=150, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def trusted(stack: Stack) -> set[str]:
    """By which CAs the nodes trust etcd, as their files say."""
    files = list(stack.cloud_dir.rglob("etcd.json"))
    return {json.loads(file.read_text())["ca"] for file in files}


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
        make, trust, sign, renew, end = documented()
        old = bundle.read_text()
        assert trusted(stack) == {old}

        assert "made a CA and a certificate" in did(stack, make)
        did(stack, trust)
        both = bundle.read_text()
        assert both.startswith(old)
        assert both.count("BEGIN CERTIFICATE") == 2
        stack.wait_for(lambda: trusted(stack) == {both}, 90.0, "the nodes to trust both CAs")

        did(stack, sign)
        assert "made a certificate for localhost" in did(stack, renew)
        restart_etcd(stack)

        did(stack, end)
        new = bundle.read_text()
        assert both == old + new
        stack.wait_for(lambda: trusted(stack) == {new}, 90.0, "the nodes to trust the new CA only")
        restart_etcd(stack)
        assert stack.ask("status", "ticker")["round"] == formed
        went_on(tmp_path, began)

        # a node that is made now, and the round with it
        assert stack.ctl("scale", "ticker", "3").returncode == 0
        stack.wait_for(lambda: members(stack) == 3, 150.0, "three nodes to train")
        assert trusted(stack) == {new}
        assert stack.ctl("cancel", "ticker").returncode == 0
        stack.wait_for(lambda: not stack.machines(), 150.0, "the machines to be released")
    finally:
        left = stack.close()
    assert left.processes == ()
