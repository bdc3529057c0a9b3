"""Container images: the digest from a registry, the interpreter that stands for an image, and its first process."""

from __future__ import annotations

import json
import math
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from spotsup.archive import Archive
from spotsup_trainer import wire
from spotsup_trainer.agent.child import _KILL_WAIT_S, Child
from spotsup_trainer.launcher import container_init

from bootstrap.container.image import Image
from bootstrap.container.scripts import (
    Inside,
    check_image,
    interpreter,
    pull_by_apptainer,
    pull_by_docker,
)
from bootstrap.container.step import container, interpreter_of
from bootstrap.facts import Containers, Facts, System, facts_script, parse_facts
from bootstrap.model import Paths, Setup, Skip
from bootstrap.templates import fill
from supervisor.cli.registry import pinned
from supervisor.errors import UsageError
from tests.support.hosts import host_on
from tests.support.registry import registry

DIGEST = f"sha256:{'a' * 64}"
IMAGE = Image("nvcr.io", "nvidia/pytorch", digest=DIGEST)
NAMED = f"nvcr.io/nvidia/pytorch@{DIGEST}"


# -- the digest --------------------------------------------------------------------------------------------


def test_a_tag_is_resolved_once_and_a_digest_is_not() -> None:
    with registry() as server:
        digest = server.add("v1", {}, b"{}")
        assert pinned(Image(server.host, "box", "v1")) == Image(server.host, "box", digest=digest)
        assert server.requests == ["/v2/box/manifests/v1"]
        assert pinned(IMAGE) == IMAGE
        with pytest.raises(UsageError, match=r"has no 127.0.0.1:\d+/box:v2: check its name and tag"):
            pinned(Image(server.host, "box", "v2"))
    with pytest.raises(UsageError, match="name the image by its digest"):
        pinned(Image(server.host, "box", "v1"))


def test_a_registry_that_requires_a_login_gets_it_and_no_error_shows_it() -> None:
    with registry("me:hunter2") as server:
        digest = server.add("v1", {}, b"{}")
        assert pinned(Image(server.host, "box", "v1"), "me", "hunter2").digest == digest
        for login in (("", ""), ("me", "hunter3")):
            with pytest.raises(UsageError, match="set SPOTSUP_REGISTRY_USER and SPOTSUP_REGISTRY_PASSWORD") as refused:
                pinned(Image(server.host, "box", "v1"), *login)
            assert "hunter" not in str(refused.value)


# -- the interpreter ---------------------------------------------------------------------------------------

# Logs its arguments, one per line, and its environment; then runs the command as it is.
RUNTIME = r"""#!/bin/sh
printf '%s\n' "$0" "$@" >>"{log}"
env >>"{log}.env"
case $1 in
container | rm) exit 1 ;;
pull) for last; do :; done; [ "${0##*/}" != apptainer ] || echo sif >"$2"; exit 0 ;;
login) cat >>"{log}.password"; exit 0 ;;
esac
while [ "$1" != -I ]; do shift; done
exec "{python}" "$@"
"""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with a docker and an apptainer that keep a log."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in ("docker", "apptainer"):
        script = RUNTIME.replace("{log}", str(tmp_path / "log")).replace("{python}", sys.executable)
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    (folder / "python3").symlink_to(sys.executable)
    return folder


def setup_in(root: Path) -> Setup:
    trainer = Archive.of(b"trainer")
    place = root / "trainer" / trainer.name / "spotsup_trainer"
    place.mkdir(parents=True)
    (place / "launcher").mkdir()
    (place / "launcher" / "container_init.py").write_text(Path(container_init.__file__).read_text())
    config = json.dumps({"checkpoints": str(root.parent / "out put")}).encode()
    env = {"KEY": "two words", "SPOTSUP_REGISTRY_USER": "me", "SPOTSUP_REGISTRY_PASSWORD": "hunter2"}
    return Setup("n1", config, Archive.of(b"c"), trainer, root=str(root), env=env, image=IMAGE)


def facts_in(root: Path, containers: Containers) -> Facts:
    return Facts("me", str(root), "b0", 5000, "/usr/bin/python3", (3, 12), containers=containers, system=System())


def environ(programs: Path, **more: str) -> dict[str, str]:
    return {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": "/nowhere", "SPOTSUP_JOB": "j", "OTHER": "1", **more}


@pytest.mark.parametrize("runtime", ["docker", "apptainer"])
def test_the_interpreter_runs_in_the_image_and_only_what_is_named_goes_in(
    runtime: str, tmp_path: Path, programs: Path
) -> None:
    root = tmp_path / "the root"
    setup = setup_in(root)
    there = Containers(docker="works") if runtime == "docker" else Containers(apptainer=str(programs / "apptainer"))
    found = interpreter_of(facts_in(root, there), setup)
    Path(found.folder).mkdir(parents=True)
    Path(found.path).write_text(found.script)
    Path(found.path).chmod(0o755)
    env = environ(programs, **setup.env)
    done = subprocess.run(
        [found.path, "-c", "print('ran'); raise SystemExit(7)"],
        env=env, cwd=root, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("ran\n", 7), done.stderr
    arguments = (tmp_path / "log").read_text().splitlines()
    assert Path(arguments[0]).name == runtime
    assert f"{root}:{root}" in arguments
    assert "two words" not in (tmp_path / "log").read_text(), "no value is on a command line"
    assert not [each for each in arguments if "REGISTRY" in each or each in ("OTHER", "PATH")]
    if runtime == "docker":
        names = {arguments[i + 1].partition("=")[0] for i, each in enumerate(arguments) if each == "--env"}
        assert names == {"KEY", "SPOTSUP_JOB", "HOME", "USER", "LOGNAME"}
        assert arguments[arguments.index("-I") - 1] == NAMED
        assert "--interactive" not in arguments
    else:
        given = dict(line.partition("=")[::2] for line in (tmp_path / "log.env").read_text().splitlines())
        assert {name for name in given if name.startswith("APPTAINERENV_")} == {
            "APPTAINERENV_KEY", "APPTAINERENV_SPOTSUP_JOB"
        }  # fmt: skip
        assert given["APPTAINERENV_KEY"] == "two words"
        assert "--pid" in arguments
    assert f"{tmp_path}/out put:{tmp_path}/out put" in arguments
    assert (tmp_path / "out put").is_dir(), "the checkpoints' folder is there before it is mounted"


def test_a_second_plan_finds_all_there(tmp_path: Path) -> None:
    setup = setup_in(tmp_path)
    facts = facts_in(tmp_path, Containers(docker="works", image=True))
    checked = frozenset({interpreter_of(facts, setup).name})
    again = replace(facts, containers=replace(facts.containers, checked=checked))
    decision = container(again, setup)
    assert isinstance(decision, Skip)
    other = replace(setup, host=host_on("local"), env={**setup.env, "MORE": "1"})
    assert interpreter_of(again, other).name not in checked, "one that is given more is another one"


def test_an_image_is_pulled_with_a_login_that_is_neither_shown_nor_kept(tmp_path: Path, programs: Path) -> None:
    paths = Paths(str(tmp_path / "root"), "n1")
    own = Path(paths.own)
    own.mkdir(parents=True)
    (own / "env.sh").write_text("export SPOTSUP_REGISTRY_USER=me SPOTSUP_REGISTRY_PASSWORD=hunter2\n")
    sif = tmp_path / "cache" / "image.sif"
    for name, age_s in (("image.sif.0ld0ne", 25 * 3600), ("image.sif.n3wone", 3600)):
        half_pulled = sif.parent / name
        half_pulled.mkdir(parents=True)
        os.utime(half_pulled, (time.time() - age_s,) * 2)
    for script in (
        pull_by_docker(IMAGE, paths, 30.0),
        pull_by_apptainer(IMAGE, paths, str(programs / "apptainer"), str(sif), 30.0),
    ):
        done = subprocess.run(
            ["sh", "-c", script], env=environ(programs, TMPDIR=str(tmp_path)), capture_output=True, text=True,
            timeout=30, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
    assert "hunter2" not in (tmp_path / "log").read_text()
    assert (tmp_path / "log.password").read_text() == "hunter2"
    assert sif.read_text() == "sif\n"
    # A recent folder may belong to another pull; an old one was left by a pull that died.
    assert sorted(path.name for path in sif.parent.iterdir()) == ["image.sif", "image.sif.lock", "image.sif.n3wone"]
    assert not list(tmp_path.glob("tmp.*")), "the login is gone"


def test_a_docker_that_hangs_is_given_up(tmp_path: Path, programs: Path) -> None:
    (programs / "docker").write_text("#!/bin/sh\nexec sleep 60\n")
    paths = Paths(str(tmp_path / "root"), "n1")
    Path(paths.own).mkdir(parents=True)
    (Path(paths.own) / "env.sh").write_text("")
    inside = Inside((str(tmp_path),), (), (), container_init.__file__, gpus=False)
    for script, error in (
        (pull_by_docker(IMAGE, paths, 0.3), f"pulling {NAMED} did not end within 0.3 s"),
        (interpreter(IMAGE, paths, inside, answer_s=0.3), "Docker has not answered for 0.3 s"),
    ):
        done = subprocess.run(
            ["sh", "-c", script], env=environ(programs, SPOTSUP_CONTAINER="spotsup-n1"), capture_output=True, text=True,
            timeout=30, check=False,
        )  # fmt: skip
        assert done.returncode != 0
        assert done.stderr.splitlines()[-1] == error


def test_facts_of_this_computer_are_gathered(tmp_path: Path, programs: Path) -> None:
    setup = setup_in(tmp_path)
    output = subprocess.run(
        ["sh", "-c", facts_script(setup)], env={**os.environ, **environ(programs), "HOME": str(tmp_path)},
        capture_output=True, text=True, timeout=60, check=False,
    ).stdout  # fmt: skip
    found = parse_facts(output).containers
    # The docker of this test runs what it is asked for as Python: `version` and `image` fail in it.
    assert found.docker == "silent"
    assert found.apptainer == str(programs / "apptainer")
    assert (found.sif, found.checked) == (False, frozenset())
    for script in (check_image(Paths("/r", "n1"), "/r/c", 5.0), fill("container/end_docker.sh", name="spotsup-n1")):
        assert subprocess.run(["sh", "-n"], input=script, text=True, check=False).returncode == 0


# -- the container's first process -------------------------------------------------------------------------------

LOOP = """
import os, signal, subprocess, sys, time
child = subprocess.Popen(["sleep", "600"])
def leave(*_):
    os.write(1, b"leaving\\n")  # print() is not reentrant, and the signal may come within the one below
    child.kill()
    sys.exit(5)
signal.signal(signal.SIGTERM, leave)
print(os.environ.get("SPOTSUP_AGENT_PID") == str(os.getppid()), child.pid, flush=True)
while True:
    time.sleep(0.05)
"""


def start(*options: str, stdin: int = subprocess.PIPE) -> subprocess.Popen[str]:
    command = [sys.executable, container_init.__file__, *options, sys.executable, "-c", LOOP]
    return subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, text=True)


def first_words(process: subprocess.Popen[str]) -> tuple[str, int]:
    assert process.stdout is not None
    named, pid = process.stdout.readline().split()
    return named, int(pid)


def is_gone(pid: int) -> bool:
    until = time.monotonic() + 60.0
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def test_a_line_on_stdin_makes_the_command_leave_and_its_status_is_returned() -> None:
    with start() as process:
        named, _ = first_words(process)
        assert named == "True", "the command is tied to the container_init, which is its parent"
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("leave\n")
        process.stdin.flush()
        assert process.stdout.read() == "leaving\n"
        assert process.wait(60) == 5


def test_a_signal_is_passed_on() -> None:
    with start() as process:
        first_words(process)
        process.terminate()
        assert process.wait(60) == 5


@pytest.mark.long
def test_a_signal_that_comes_as_the_command_starts_ends_it_too(tmp_path: Path) -> None:
    started = tmp_path / "started"
    # The command itself sends the signal: as its first deed, so that it may come before Popen has returned.
    line = f"kill -TERM $PPID; echo $$ >{started}; exec sleep 600"
    for _ in range(20):
        command = [sys.executable, container_init.__file__, "--group", "sh", "-c", line]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
            assert process.wait(20) == 128 + signal.SIGTERM
        assert not started.exists() or is_gone(int(started.read_text() or "0"))


def test_when_the_agent_ends_all_ends() -> None:
    with start() as process:
        _, pid = first_words(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 128 + signal.SIGKILL
        assert is_gone(pid)


def test_an_unattended_command_is_killed_by_a_signal_to_leave() -> None:
    with start("--unattended", stdin=subprocess.DEVNULL) as process:
        named, pid = first_words(process)
        assert named == "False"
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGKILL
        assert is_gone(pid)


def child_in(tmp_path: Path) -> Child:
    """A launcher that has begun, as bootstrap arranges it: `python` is a script that runs the container_init."""
    python = tmp_path / "python"
    program = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(5)); print(12345, flush=True)"
    command = [sys.executable, container_init.__file__, sys.executable, "-c", f"{program}; time.sleep(60)"]
    python.write_text(f"#!/bin/sh\nexec {shlex.join(command)}\n")
    python.chmod(0o755)
    config = wire.AgentConfig(
        "test", "job", "job-1", "n1", "127.0.0.1", (), wire.Metadata("none"), str(python), str(tmp_path),
        str(tmp_path), str(tmp_path), "", ("t.py",), 1, 1, 1, container_init=True,
    )  # fmt: skip
    log = tmp_path / "log"
    log.write_text("")
    child = Child(config, log)
    until = time.monotonic() + 60.0
    while "12345" not in log.read_text() and time.monotonic() < until:
        time.sleep(0.02)
    return child


def test_the_agents_child_leaves_on_a_line_on_its_stdin(tmp_path: Path) -> None:
    child = child_in(tmp_path)
    child.ask_to_leave()
    until = time.monotonic() + 60.0
    while (code := child.exit_code()) is None and time.monotonic() < until:
        time.sleep(0.02)
    assert code == 5
    child.ask_to_leave()  # late is not wrong
    child = child_in(tmp_path)
    child.kill()
    # The end of its stdin may have ended it before the signal did.
    assert child.exit_code() in {-signal.SIGKILL, 128 + signal.SIGKILL}


class Undying:
    """A process that hangs in the kernel: no signal ends it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.pid, self.stdin = process.pid, process.stdin
        self.limits_s: list[float | None] = []

    def poll(self) -> None:
        return None

    def wait(self, timeout: float | None = None) -> int:
        self.limits_s.append(timeout)
        raise subprocess.TimeoutExpired("a process that hangs", timeout or math.inf)


def test_a_launcher_that_hangs_in_the_kernel_holds_its_agent_up_for_seconds_only(tmp_path: Path) -> None:
    child = child_in(tmp_path)
    launcher = child._process
    hung = Undying(launcher)
    child._process = hung  # type: ignore[assignment]
    child.kill()
    assert child.exit_code() is None, "its end is not reported"
    child.ask_to_leave()
    child.kill()
    assert hung.limits_s == [_KILL_WAIT_S, _KILL_WAIT_S]
    assert launcher.wait(10) == -signal.SIGKILL
