"""`spotsupctl bench-network` on the local cloud: a real sweep over two nodes, and the table that people read."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.programs import program_env
from tools.stack import ROOT, Stack

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(500)]


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    """A daemon that answers."""
    stack = Stack(tmp_path / "stack", cluster="test")
    stack.prepare()
    stack.start_daemon()
    yield stack
    assert stack.close().processes == ()


def command(stack: Stack, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "supervisor.cli.ctl", "--socket", str(stack.socket), "bench-network", *arguments]


def bench(stack: Stack, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, with the time that a whole job takes."""
    return subprocess.run(
        command(stack, *arguments),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
        cwd=ROOT,
        env=program_env(),
    )


def test_two_nodes_are_measured_and_given_back(stack: Stack, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("name: mine\nnodes: {min: 1, desired: 2, max: 4}\nrun: train.py\ncode: .\n")
    (tmp_path / "train.py").write_text("raise SystemExit('this is not what shall run')\n")
    done = bench(stack, str(job), "--from", "4K", "--to", "64K")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["SIZE", "(B)", "COUNT", "TIME", "(us)", "ALGBW", "(GB/s)", "BUSBW", "(GB/s)", "WRONG"]
    rows = [line.split() for line in lines[1:6]]
    assert [int(row[0]) for row in rows] == [4096, 8192, 16384, 32768, 65536]
    for size, count, time_us, algbw, busbw, wrong in rows:
        assert int(count) == int(size) // 4
        assert float(time_us) > 0
        assert busbw == algbw  # 2(n-1)/n of two ranks
        assert wrong == "0"
    assert lines[6].startswith("all_reduce of float32 over 2 ranks on 2 nodes (cpu), gloo, torch ")
    assert "best bus bandwidth" in lines[6]

    again = bench(stack, "--nodes", "1", "--to", "1K", "-o", "json")
    assert again.returncode == 0, again.stderr
    found = json.loads(again.stdout)
    assert (found["job"], found["nodes"], found["ranks"]) == ("bench-network", 1, 1)
    assert [(row["bytes"], row["busbw_gb_s"], row["wrong"]) for row in found["rows"]] == [(1024, 0.0, 0)]

    stack.wait_for(lambda: not stack.machines(), 60.0, "all machines to be released")
    assert {job["state"] for job in stack.ask("list")} == {"succeeded"}


def test_a_sweep_that_cannot_be_is_refused_before_anything_starts(stack: Stack) -> None:
    for arguments, text in [
        (("mine",), "'mine' is not a job file"),
        (("--nodes", "2", "--to", "64X"), "the size '64X' is not of the form"),
        (("--nodes", "2", "--from", "2K", "--to", "1K"), "goes from 2K to 1K"),
        (("--nodes", "999"), "999"),
    ]:
        refused = bench(stack, *arguments)
        assert refused.returncode == 2
        (sentence,) = refused.stderr.splitlines()
        assert text in sentence
    assert stack.ask("list") == []


def test_ctrl_c_gives_the_machines_back(stack: Stack) -> None:
    # Whoever runs the tests in the background has them ignore SIGINT, and so what they start.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        running = subprocess.Popen(
            command(stack, "--nodes", "2"), stderr=subprocess.PIPE, text=True, cwd=ROOT, env=program_env()
        )
    finally:
        signal.signal(signal.SIGINT, before)
    stack.wait_for(lambda: len(stack.machines()) == 2, 60.0, "two machines")
    running.send_signal(signal.SIGINT)
    _, output = running.communicate(timeout=60)
    assert running.returncode == 1
    assert output.splitlines()[-1] == "spotsupctl: bench-network: cancelling; its machines are released"
    stack.wait_for(lambda: not stack.machines(), 60.0, "all machines to be released")
    assert stack.ask("status", "bench-network")["state"] == "cancelled"
