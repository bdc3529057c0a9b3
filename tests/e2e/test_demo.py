"""The whole path, as `make demo` plays it, on the local cloud and EC2's test cloud; and Ctrl-C at several moments."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.demo.__main__ import most_lost
from tests.demo.clouds import KINDS
from tests.support.programs import program_env
from tools.stack import ROOT


@contextmanager
def demo(folder: Path, *arguments: str, **environ: str) -> Iterator[subprocess.Popen[str]]:
    """The demo as its own process, in its own session, its output a pipe."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "tests.demo", "--folder", str(folder), "--json", f"{folder}.json", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=program_env() | environ,
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=90)
        if process.stdout is not None:
            process.stdout.close()


def survivors(folder: Path) -> list[str]:
    """Processes that have anything to do with the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            output = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if os.fsencode(folder) in output:
            found.append(f"{entry.name} {output[:120]!r}")
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "secured", [pytest.param((), id="plain"), pytest.param(("--tls",), id="tls", marks=pytest.mark.nightly)]
)
def test_a_job_survives_preemption_end_to_end_and_its_daemon_too(tmp_path: Path, secured: tuple[str, ...]) -> None:
    output, _ = check_demo(tmp_path / "a demo", *secured)
    assert ("secured by TLS and users" in output) == bool(secured)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_so_it_does_on_ec2_whatever_account_the_user_has(tmp_path: Path) -> None:
    # Nothing listens at the proxy.
    user = {"AWS_PROFILE": "mine", "AWS_SESSION_TOKEN": "his", "http_proxy": "http://127.0.0.1:9"}
    folder = tmp_path / "demo"
    output, result = check_demo(folder, "--cloud", "aws", "--daemon-away-s", "1", **user)
    assert "EC2's test cloud" in output
    assert "not the real EC2" in output
    assert result["calls"]["ec2:RunInstances"] >= 6
    assert "mine" not in (folder / "spotsupd.log").read_text()


def test_an_unknown_cloud_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with demo(tmp_path / "demo", "--cloud", "foo") as process:
        output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (2, "the demo knows no cloud 'foo'; it runs on local, aws, gcp, azure\n")
    assert not list(tmp_path.iterdir())


def check_demo(folder: Path, *arguments: str, **environ: str) -> tuple[str, dict[str, Any]]:
    """Run the demo and check its promises. Returns its output and its result."""
    # Steps that take long leave the CPU to a busy computer.
    pace = ("--late-s", "15", "--step-time", "0.2")
    with demo(folder, "--kill-daemon", *pace, *arguments, **environ) as process:
        output, _ = process.communicate(timeout=550)
    assert process.returncode == 0, output
    result: dict[str, Any] = json.loads(Path(f"{folder}.json").read_text())
    assert result["ok"], output
    assert [event["kind"] for event in result["events"]] == ["notice", "kill", "scale"]
    notice, kill, scale = result["events"]
    assert notice["request_latency_s"] < 16.0 + (0.0 if result["cloud"] == "local" else KINDS["aws"].slowness_s)
    assert (notice["steps_lost"], scale["steps_lost"]) == (0, 0)
    assert kill["steps_lost"] <= most_lost(kill)
    assert (result["samples_repeated"], result["samples_missed"]) == (0, 0)
    assert (result["nodes_leaked"], result["processes_leaked"]) == (0, 0)
    assert result["loss_last"] < result["loss_first"]
    assert "every promise was kept" in output
    assert survivors(folder) == []
    return output, result


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("cloud", "moment"),
    [
        ("local", "starting spotsupd"),
        ("local", "is pending"),
        ("local", "is bootstrapping"),
        ("local", "a preemption notice"),
        ("aws", "is bootstrapping"),
    ],
)
def test_ctrl_c_leaves_nothing_behind(tmp_path: Path, cloud: str, moment: str) -> None:
    folder = tmp_path / "demo"
    with demo(folder, "--cloud", cloud) as process:
        assert process.stdout is not None
        assert any(moment in line for line in process.stdout), f"the demo never came to {moment!r}"
        process.send_signal(signal.SIGINT)
        drain = threading.Thread(target=process.stdout.read)
        drain.start()
        time.sleep(0.2)  # a second Ctrl-C, as people press it, while the first is being obeyed
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) == 130
        drain.join()
    assert survivors(folder) == []
    assert json.loads(Path(f"{folder}.json").read_text())["broken"] == ["interrupted"]
