"""Two daemons on one etcd: the standby takes over without touching a machine."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.cli.client import Client
from supervisor.journal.etcd_server import EmbeddedEtcd
from tools.stack import CONFIG, ROOT, Stack

pytestmark = pytest.mark.e2e

# The daemon's own default: a busy computer must not take a leader for dead.
LEASE_S = 6.0
TIMING = CONFIG.replace("leader_ttl_s = 3.0", f"leader_ttl_s = {LEASE_S}")
TAKEOVER_S = LEASE_S + 2.0
JOB = """\
name: ticker
nodes: {min: 1, desired: 1, max: 2}
run: train.py
"""
TRAIN = """\
import os, sys, time
while True:
    with open(sys.argv[1], "a") as file:
        file.write(f"{time.time()}\\n")
    time.sleep(0.1)
"""


class Second:
    """Another daemon, as on another machine, with its own state folder and socket."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self.state = stack.folder / "second"
        self.state.mkdir()
        shutil.copy(stack.state / "cluster.key", self.state / "cluster.key")
        self.socket = stack.socket.with_name("second.sock")
        text = TIMING.format(
            cluster="test", state_dir=json.dumps(str(self.state)), socket=json.dumps(str(self.socket)), lease_ttl_s=4.0
        )
        endpoint = EmbeddedEtcd(stack.state / "etcd").endpoint
        text += f"[etcd]\nendpoints = [{json.dumps(endpoint)}]\n[local]\ndir = {json.dumps(str(stack.cloud_dir))}\n"
        (self.state / "spotsupd.toml").write_text(text)
        command = [sys.executable, "-m", "supervisor.cli.daemon", "run", "--config", str(self.state / "spotsupd.toml")]
        with (self.state / "log").open("wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT, env=dict(os.environ)
            )

    def ctl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`spotsupctl`, asking this daemon."""
        return subprocess.run(
            [sys.executable, "-m", "supervisor.cli.ctl", "--socket", str(self.socket), *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=ROOT,
        )

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    stack = Stack(tmp_path / "stack", cluster="test")
    stack.prepare()
    config = stack.folder / "spotsupd.toml"
    config.write_text(config.read_text().replace("leader_ttl_s = 3.0", f"leader_ttl_s = {LEASE_S}"))
    stack.start_daemon()
    yield stack
    assert stack.close().processes == ()


@pytest.fixture
def second(stack: Stack) -> Iterator[Second]:
    second = Second(stack)
    yield second
    second.kill()


def health(path: Path) -> dict[str, Any]:
    """A daemon's own status; empty before it listens."""
    with socket.socket(socket.AF_UNIX) as probe:
        if probe.connect_ex(str(path)) != 0:
            return {"leading": False, "leader": None, "headline": ""}
    with contextlib.closing(Client(path)) as client:
        answer: dict[str, Any] = client.get("/v1/health")
    return answer


def ticks(file: Path) -> list[float]:
    return [float(line) for line in file.read_text().split()] if file.exists() else []


def test_a_standby_answers_takes_commands_and_takes_over(stack: Stack, second: Second, tmp_path: Path) -> None:
    leader, steps = f":{stack.daemon_pid()}", tmp_path / "steps"
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(TRAIN)
    (tmp_path / "code" / "job.yaml").write_text(JOB.replace("train.py", f"train.py {steps}"))
    stack.wait_for(lambda: leader in (health(second.socket)["leader"] or ""), 90.0, "the standby to know its leader")

    # a standby stores a command and names the leader, which acts on it
    done = second.ctl("submit", str(tmp_path / "code" / "job.yaml"))
    assert (done.returncode, done.stdout) == (0, "ticker\n"), done.stderr
    assert f"{leader} leads and acts on commands" in done.stderr
    stack.wait_for(lambda: bool(ticks(steps)), 150.0, "the first step")
    row = json.loads(second.ctl("status", "ticker", "-o", "json").stdout)
    assert (row["name"], row["sentence"].partition(";")[0]) == ("ticker", "standby")
    machines = [machine["id"] for machine in stack.machines()]
    node = json.loads(second.ctl("top", "-o", "json").stdout)["nodes"][0]["id"]
    assert node in second.ctl("cost", "ticker").stdout
    done = second.ctl("ssh", node, "--", "echo hello; exit 7")
    assert (done.returncode, done.stdout) == (7, "hello\n"), done.stderr

    # a leader that is frozen for longer than its lease loses the lead, and changes nothing when it wakes
    stack.wait_for(lambda: stack.ask("status", "ticker")["state"] == "running", 90.0, "the job to run")
    commits = health(stack.socket)["counters"]["commits"]
    os.kill(stack.daemon_pid(), signal.SIGSTOP)
    took_s = [stack.wait_for(lambda: health(second.socket)["leading"], 90.0, "the standby to lead")]
    os.kill(stack.daemon_pid(), signal.SIGCONT)
    stack.wait_for(lambda: health(stack.socket)["headline"].startswith("standby"), 90.0, "the old leader to yield")
    assert health(stack.socket)["counters"]["commits"] == commits
    assert stack.ask("scale", "ticker", "1", "--max", "3")["nodes"]["max"] == 3

    # and kill -9 of the leader
    second.kill()
    took_s.append(stack.wait_for(lambda: health(stack.socket)["leading"], 90.0, "the first daemon to lead again"))
    assert min(took_s) <= TAKEOVER_S, "the rest is this computer's load"
    job = json.loads(stack.ctl("status", "ticker", "-o", "json").stdout)
    assert job["nodes"]["max"] == 3, "what was acknowledged is stored"
    stack.wait_for(lambda: stack.ask("status", "ticker")["state"] == "running", 90.0, "the job to be looked after")
    assert [machine["id"] for machine in stack.machines()] == machines
    seen = ticks(steps)
    assert time.time() - seen[-1] < 2.0
    assert max(after - before for before, after in itertools.pairwise(seen)) < 2.0, "training went on"
    assert stack.ctl("cancel", "ticker").returncode == 0
    stack.wait_for(lambda: not stack.machines(), 150.0, "the machine to be released")
