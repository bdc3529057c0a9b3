"""Before money is spent: `spotsupctl plan` and `submit`, with a real daemon and EC2's test cloud."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clouds.base import CloudServer, wire_cloud
from tools.stack import Stack

JOB = """\
name: planned
nodes: {min: 1, desired: 2, max: 2}
resources: {gpu: T4, gpus_per_node: 1}
placement: {cloud: aws}
run: train.py
checkpoints: none
"""


@pytest.fixture
def server() -> Iterator[CloudServer]:
    with wire_cloud("aws") as running:
        yield running


@pytest.fixture
def stack(tmp_path: Path, server: CloudServer) -> Iterator[Stack]:
    """A daemon that knows the local cloud and EC2."""
    stack = Stack(tmp_path / "stack", cluster="test", environ=server.environ)
    stack.prepare()
    with (stack.folder / "spotsupd.toml").open("a") as file:
        file.write(f'[local]\nenabled = true\n[aws]\nregions = ["us-east-1"]\nendpoint = {json.dumps(server.url)}\n')
    stack.start_daemon()
    yield stack
    assert stack.close().processes == ()


LOCAL_JOB = """\
name: sleeper
nodes: {min: 1, desired: 1, max: 1}
placement: {cloud: local}
run: train.py
"""


@pytest.mark.nightly
def test_what_a_job_held_is_recorded_and_served_to_the_next_plan(stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("import time\ntime.sleep(3600)\n")
    job = tmp_path / "code" / "job.yaml"
    job.write_text(LOCAL_JOB)
    before = stack.ctl("plan", str(job), "--simulate")
    assert (before.returncode, before.stdout) == (5, "")
    assert "nothing is recorded of any pool that this job may use" in before.stderr
    assert stack.ctl("submit", str(job)).returncode == 0

    def is_recorded() -> bool:
        return "with 1 requests; at least 1 h are needed" in stack.ctl("plan", str(job), "--simulate").stderr

    stack.wait_for(is_recorded, 120.0, "the machine's pool is recorded")


def test_a_plan_a_refusal_and_a_cloud_that_is_away(stack: Stack, server: CloudServer, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("")
    job = tmp_path / "code" / "job.yaml"
    job.write_text(JOB)

    planned = stack.ctl("plan", str(job), "--limit", "2")
    assert planned.returncode == 0
    (warning,) = planned.stderr.splitlines()
    assert "planned has no limit of money, and costs $" in warning
    lines = planned.stdout.splitlines()
    assert lines[0].split() == ["CLOUD", "ZONE", "TYPE", "GPUS", "MARKET", "USD/HOUR", "PRICE", "FROM"]
    assert lines[1].split()[0] == "aws"
    assert "EC2 spot price history, read" in lines[1]
    assert lines[3].startswith("and ")
    assert lines[4].startswith("2 nodes: $")
    found = stack.ask("plan", str(job), "--nodes", "1", "--limit", "3")
    assert (len(found["offers"]), found["nodes"]) == (3, 1)
    on_local = stack.ctl("plan", "--name", "mine", "--cloud", "local", "--code", str(job.parent), "--", "train.py")
    assert on_local.returncode == 0
    assert "local-a" in on_local.stdout

    explained = stack.ctl("submit", str(job), "--explain", "--hours", "8")
    assert (explained.returncode, explained.stderr) == (0, "")
    assert explained.stdout.splitlines()[0] == lines[0]
    assert "  assumed: the image has NVIDIA driver 580, and 1 healthy T4\n" in explained.stdout
    assert "  mounts      nothing needed: no storage is asked for\n" in explained.stdout
    assert explained.stdout.endswith("\nnothing was submitted\n")
    assert stack.ctl("submit", str(job), "--explain", "--follow").returncode == 2

    for option, text in (("H9999", "no machine with a GPU 'H9999' is known for aws"), ("K80", "K80")):
        refused = stack.ctl("submit", str(job), "--gpu", option)
        assert refused.returncode == 5
        assert len(refused.stderr.splitlines()) == 1
        assert text in refused.stderr
        assert stack.ctl("plan", str(job), "--gpu", option).returncode == 5
    on_local = stack.ctl("submit", str(job), "--cloud", "local")
    assert on_local.returncode == 5
    assert "no machine with 1 × T4 (spot)" in on_local.stderr
    assert stack.ask("list") == []
    assert not server.cloud.fleet.records

    server.stop()
    planned = stack.ctl("plan", str(job))
    assert (planned.returncode, planned.stdout) == (1, "")
    submitted = stack.ctl("submit", str(job))
    assert (submitted.returncode, submitted.stdout) == (0, "planned\n")
    warning, endless = submitted.stderr.splitlines()
    assert endless.endswith("planned has no limit of money, and costs money until it ends: `--usd 100` pauses it there")
    assert warning.startswith("spotsupctl: warning: aws did not list its offers (EC2 in us-east-1 cannot be reached")
    assert stack.ctl("cancel", "planned").returncode == 0
