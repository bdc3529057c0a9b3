"""The daemon and its command line as users see them: real processes, a real etcd, bad input, and restarts."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.support.documents import blocks
from tests.support.programs import run_module
from tools.stack import ROOT, Stack, StackError

JOB = """\
name: sleeper
nodes: {min: 1, desired: 1, max: 2}
run: train.py
"""


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("import time\ntime.sleep(3600)\n")
    file = tmp_path / "code" / "job.yaml"
    file.write_text(JOB)
    return file


def run_daemon(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """`spotsupd run`, which is expected to end at once."""
    return run_module("supervisor.cli.daemon", "run", *arguments, environ=environ)


def one_sentence(done: subprocess.CompletedProcess[str], code: int, *parts: str) -> None:
    """Expect the documented exit code, and one line on stderr that contains all parts."""
    assert done.returncode == code, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    for part in parts:
        assert part in done.stderr


def test_wrong_input_is_reported_in_one_sentence_with_the_documented_exit_code(stack: Stack, job_file: Path) -> None:
    assert stack.ctl("list").stdout.startswith("no jobs")
    one_sentence(stack.ctl("status", "missing"), 4, "no job is named 'missing'", "jobs: none")
    one_sentence(stack.ctl("logs", "missing"), 4, "no job is named 'missing'")
    one_sentence(stack.ctl("cancel", "missing"), 4, "no job is named 'missing'")
    assert stack.ctl("scale", "missing").returncode == 2
    assert stack.ctl("frobnicate").returncode == 2
    one_sentence(
        stack.ctl("submit", "/nowhere/job.yaml"), 2, "cannot read the job file /nowhere/job.yaml: No such file"
    )
    for text, parts in [
        (JOB + "colour: red\n", ["unknown key `colour`"]),
        (JOB.replace("min: 1", "min: 3"), ["min ≤ desired ≤ max is needed, but min is 3"]),
        (JOB.replace("train.py", "missing.py"), ["the script missing.py is not in"]),
        (JOB.replace("name: sleeper", "name: 7"), ["`name` is 7"]),
        ("name: [", ["is not YAML"]),
        ("- a\n- b\n", ["a job file is a mapping of keys"]),
        (JOB + "placement: {cloud: aws}\n", []),
    ]:
        job_file.write_text(text)
        one_sentence(stack.ctl("submit", str(job_file)), 5 if "aws" in text else 2, *parts)
    assert stack.ask("list") == []


def test_a_wrong_job_is_refused_before_its_code_is_packed(stack: Stack, job_file: Path) -> None:
    with (job_file.parent / "weights.bin").open("wb") as file:
        file.truncate(64 * 1024 * 1024)  # more than is packed
    for text, code, part in [
        (JOB + "colour: red\n", 2, "unknown key `colour`"),
        (JOB.replace("max: 2", "max: 2, spares: 99"), 2, "`nodes.spares` is 99"),
        (JOB + "placement: {cloud: aws}\n", 5, "is not in the daemon's configuration"),
        (JOB, 2, "that may be shipped"),
    ]:
        job_file.write_text(text)
        one_sentence(stack.ctl("submit", str(job_file)), code, part)


def metrics(stack: Stack) -> str:
    """What Prometheus would get from the running daemon."""
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(stack.socket)), trust_env=False) as client:
        return client.get("http://spotsupd/metrics").raise_for_status().text


def dashboard(stack: Stack) -> str:
    """The first page, by the link of the documented command."""
    (documented,) = blocks(ROOT / "docs" / "dashboard.md", "sh")
    program, *arguments = documented.commands()[0].split()
    assert program == "spotsupctl"
    command = [sys.executable, "-m", "supervisor.cli.ctl", "--socket", str(stack.socket), *arguments, "--no-browser"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            link = running.stdout.readline().strip()
            with httpx.Client(trust_env=False, follow_redirects=True, timeout=20.0) as browser:
                return browser.get(link).raise_for_status().text
        finally:
            running.terminate()  # SIGINT is ignored below a shell that runs the tests in the background


@pytest.mark.main
def test_a_job_is_stored_refused_twice_scaled_within_bounds_and_cancelled(stack: Stack, job_file: Path) -> None:
    done = stack.ctl("submit", str(job_file))
    assert (done.returncode, done.stdout) == (0, "sleeper\n")
    one_sentence(stack.ctl("submit", str(job_file)), 5, "the name sleeper is in use", "choose another, or cancel")
    assert [job["name"] for job in stack.ask("list")] == ["sleeper"]
    one_sentence(stack.ctl("scale", "sleeper", "9"), 5, "cannot scale sleeper", "max 2", "--max")
    one_sentence(stack.ctl("scale", "sleeper", "0"), 5, "min is 1, desired 0")
    assert stack.ask("scale", "sleeper", "2")["nodes"]["desired"] == 2
    assert stack.ctl("scale", "sleeper", "3", "--max", "3").stdout == "sleeper: 3 nodes wanted (min 1, max 3)\n"
    one_sentence(stack.ctl("scale", "sleeper", "--spares", "17"), 5, "spares is 17; it can be 0 to 16")
    scaled = stack.ctl("scale", "sleeper", "2", "--spares", "1").stdout
    assert scaled == "sleeper: 2 nodes wanted (min 1, max 3, spares 1)\n"
    one_sentence(stack.ctl("logs", "sleeper", "--node", "n9"), 4, "job sleeper has no node 'n9'")
    stack.wait_for(lambda: len(stack.machines()) == 3, 60.0, "three machines")
    found = metrics(stack)
    assert 'spotsup_job_nodes_desired{spotsup_job="sleeper"} 2.0' in found
    assert 'spotsup_thread_faults_total{part="loop"} 0.0' in found
    stack.wait_for(lambda: 'answer="granted"' in metrics(stack), 10.0, "the pool's answers")
    assert "sleeper" in dashboard(stack)
    assert stack.ctl("cancel", "sleeper").returncode == 0
    stack.wait_for(lambda: not stack.machines(), 60.0, "the machines to be released")
    stack.wait_for(lambda: stack.ask("status", "sleeper")["nodes"]["active"] == 0, 30.0, "the nodes to be gone")
    assert stack.ask("status", "sleeper")["state"] == "cancelled"
    one_sentence(stack.ctl("scale", "sleeper", "1"), 5, "job sleeper has ended (cancelled)")
    assert stack.ctl("submit", str(job_file)).returncode == 0, "an ended job's name may be used again"
    stack.ctl("cancel", "sleeper")
    stack.wait_for(lambda: not stack.machines(), 60.0, "the machines to be released")


def test_options_make_a_job_without_a_file(stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("")
    done = stack.ctl(
        *("submit", "--name", "opts", "--min", "1", "--nodes", "2", "--max", "3", "--spares", "1"),
        *("--code", str(tmp_path / "code"), "--env", "LR=0.1", "-o", "json", "--", "train.py", "--lr", "0.1"),
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["nodes"] | {"active": 0} == {
        "min": 1,
        "desired": 2,
        "max": 3,
        "spares": 1,
        "training": 0,
        "spares_ready": 0,
        "active": 0,
    }
    assert stack.ask("status", "opts")["command"] == ["train.py", "--lr", "0.1"]
    assert stack.ctl("cancel", "opts").returncode == 0
    stack.wait_for(lambda: not stack.machines(), 60.0, "the machines to be released")


def test_a_submission_survives_kill_9_of_the_daemon(stack: Stack, job_file: Path) -> None:
    assert stack.ctl("submit", str(job_file)).returncode == 0
    stack.kill_daemon()
    one_sentence(stack.ctl("list"), 3, "no spotsupd answers at", "spotsupd run --embedded-etcd")
    stack.start_daemon()
    assert [job["name"] for job in stack.ask("list")] == ["sleeper"]
    stack.wait_for(lambda: len(stack.machines()) == 1, 60.0, "its machine")
    assert stack.ctl("cancel", "sleeper").returncode == 0
    stack.wait_for(lambda: not stack.machines(), 60.0, "the machine to be released")


def test_a_second_daemon_is_refused(stack: Stack) -> None:
    config = str(stack.folder / "spotsupd.toml")
    one_sentence(run_daemon("--config", config, "--embedded-etcd"), 1, "another spotsupd uses the state folder")
    other = str(stack.folder / "other")
    one_sentence(
        run_daemon("--config", config, "--embedded-etcd", "--state-dir", other),
        1,
        "another spotsupd listens at",
    )


def test_an_unreachable_etcd_is_reported_in_one_sentence(tmp_path: Path) -> None:
    config = tmp_path / "spotsupd.toml"
    config.write_text(
        f'state_dir = "{tmp_path}/state"\n[etcd]\nendpoints = ["http://127.0.0.1:9"]\nwait_s = 1.0\n'
        f'[api]\nsocket = "{tmp_path}/s"\n'
    )
    one_sentence(run_daemon("--config", str(config)), 1, "http://127.0.0.1:9 does not answer: is it running")


def test_a_port_in_use_is_reported_in_one_sentence(tmp_path: Path) -> None:
    etcd = tmp_path / "state" / "etcd"
    etcd.mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (etcd / "embedded.json").write_text(json.dumps({"client_port": port, "peer_port": port}))
        done = run_daemon("--state-dir", str(tmp_path / "state"), "--socket", str(tmp_path / "s"), "--embedded-etcd")
    one_sentence(done, 1, f"port {port} on 127.0.0.1", "is in use")


def test_a_missing_etcd_program_is_reported_with_the_command_that_installs_it(tmp_path: Path) -> None:
    if any(Path(folder, "etcd").exists() for folder in ("/usr/local/sbin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")):
        pytest.skip("etcd is installed on this computer")
    arguments = ("--state-dir", str(tmp_path / "state"), "--socket", str(tmp_path / "s"), "--embedded-etcd")
    one_sentence(run_daemon(*arguments, PATH="/nowhere", SPOTSUP_TOOLS="/nowhere"), 1, "apt-get install etcd-server")


def test_a_wait_that_times_out_names_what_it_waited_for(tmp_path: Path) -> None:
    stack = Stack(tmp_path / "stack")
    stack.prepare()
    stack.log.write_text("last line\n")
    with pytest.raises(StackError, match="nothing did not happen within 0 s; the end of spotsupd's log: last line"):
        stack.wait_for(lambda: False, 0.0, "nothing")


def test_a_stack_cleans_up_after_one_that_was_killed(tmp_path: Path) -> None:
    """As `make demo` does after a demo that was ended by kill -9."""
    killed = Stack(tmp_path / "stack")
    killed.prepare()
    killed.start_daemon()
    survivor = killed.daemon_pid()
    later = Stack(tmp_path / "stack")
    later.prepare()
    assert killed.reap() == 0, "the orphan was asked to stop, and did"
    assert not Path(f"/proc/{survivor}").exists()
    assert later.close().processes == ()


def test_an_embedded_etcd_that_is_killed_comes_back_and_meanwhile_reading_says_so(stack: Stack, job_file: Path) -> None:
    stack.ctl("daemon", "pause")  # nothing is launched: the job is only kept
    assert stack.ctl("submit", str(job_file)).returncode == 0
    running = stack.state / "etcd" / "embedded.json"
    pid = json.loads(running.read_text())["pid"]
    # one that is frozen is not started again: the outage lasts until it is killed
    os.kill(pid, signal.SIGSTOP)
    stack.wait_for(lambda: "etcd has not answered" in stack.ctl("list").stderr, 60.0, "the outage to be noticed")
    for command in ("list", "nodes", "cost"):
        shown = stack.ctl(command)
        assert (shown.returncode, "shown as of then" in shown.stderr) == (0, True), shown
    assert stack.ctl("status", "sleeper").stdout.startswith("sleeper  queued")
    row = json.loads(stack.ctl("list", "-o", "json").stdout)[0]
    assert (row["name"], row["etcd_away_since"] > 0) == ("sleeper", True)
    os.kill(pid, signal.SIGKILL)
    stack.wait_for(lambda: not stack.ctl("list").stderr, 60.0, "etcd to be started again")
    assert json.loads(running.read_text())["pid"] != pid
    assert json.loads(stack.ctl("list", "-o", "json").stdout)[0]["etcd_away_since"] is None
    assert stack.ctl("cancel", "sleeper").returncode == 0
