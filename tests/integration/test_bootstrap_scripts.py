"""Facts and steps on this computer: their scripts run in sh, with a home of their own. No SSH here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spotsup.archive import Archive

from bootstrap.agent import scripts as agent_scripts
from bootstrap.code.step import unpack
from bootstrap.facts import Environments, Facts, FactsError, Mounts, facts_script, parse_facts
from bootstrap.model import Command, Paths, Run, Setup, Skip, Upload
from bootstrap.steps import agent_key, plan
from tests.support.agents import CODE, TIMEOUT_S, a_setup, alive, children, trainer_of, wait_for

pytestmark = pytest.mark.long

ODD = 'a b\'s "$HOME" `x` \\ é'


@dataclass
class Computer:
    """This computer, with a home of its own."""

    home: Path

    def sh(self, script: str, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
        environ = {"HOME": str(self.home), "PATH": os.environ["PATH"]}
        arguments = ["/bin/sh", "-c", script]
        done = subprocess.run(
            arguments, input=stdin, env=environ, capture_output=True, check=False, timeout=TIMEOUT_S, cwd=self.home
        )
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    def facts(self, setup: Setup) -> Facts:
        done = self.sh(facts_script(setup))
        assert done.stderr == ""
        return parse_facts(done.stdout)

    def apply(self, command: Command) -> None:
        if isinstance(command, Upload):
            path = Path(command.path)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(command.data)
            path.chmod(command.mode)
            return
        assert isinstance(command, Run)
        done = self.sh(command.script, command.stdin)
        assert done.returncode == 0, done.stderr

    def bootstrap(self, setup: Setup, *only: str) -> tuple[Command, ...]:
        done: list[Command] = []
        for step in plan(self.facts(setup), setup):
            if not only or step.name in only:
                assert isinstance(step.decision, Skip | tuple), step
                done.extend(step.decision if isinstance(step.decision, tuple) else ())
        for command in done:
            self.apply(command)
        return tuple(done)


@contextmanager
def computer_at(home: Path) -> Iterator[Computer]:
    home.mkdir(parents=True, exist_ok=True)
    computer = Computer(home)
    try:
        yield computer
    finally:
        for folder in home.glob("*/nodes/*"):
            computer.sh(agent_scripts.stop_agent(Paths(str(folder.parent.parent), folder.name), 0.0))


@pytest.fixture
def computer(tmp_path: Path) -> Iterator[Computer]:
    with computer_at(tmp_path / ODD) as computer:
        yield computer


def test_a_bare_computer(computer: Computer) -> None:
    facts = computer.facts(a_setup())
    assert facts == replace(
        facts,
        home=str(computer.home),
        boot_id=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        python=sys.executable,
        python_version=sys.version_info[:3],
        codes=frozenset(),
        trainers=frozenset(),
        prepared=frozenset(),
        agent=None,
        mounts=Mounts(),
        environments=Environments(),
    )
    assert facts.system.born == ""
    assert facts.system.kernel == os.uname().release
    assert facts.free_mb > 0
    assert list(computer.home.iterdir()) == [], "facts change nothing"


def test_an_interpreter_that_is_missing_or_does_not_run(computer: Computer) -> None:
    broken = computer.home / "broken"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    for python in ("python-that-does-not-exist", "~/broken", "~/none"):
        facts = computer.facts(a_setup(python=python))
        assert (facts.python, facts.python_version, facts.torch) == ("", (), False)


def test_an_interpreter_below_home_is_found_by_its_absolute_path(computer: Computer) -> None:
    (computer.home / "my python").symlink_to(sys.executable)
    assert computer.facts(a_setup(python="~/my python")).python == f"{computer.home}/my python"


def test_output_of_a_login_shell_does_not_confuse_the_facts(computer: Computer) -> None:
    output = computer.sh(facts_script(a_setup())).stdout
    assert parse_facts(f"Welcome!\nspotsup\n{output}") == parse_facts(output)


@pytest.mark.parametrize("answer", ["", "Welcome!", "spotsup-facts {", 'spotsup-facts {"user":"u","agent":null}'])
def test_an_answer_without_facts_is_refused(answer: str) -> None:
    with pytest.raises(FactsError, match="facts"):
        parse_facts(answer)


def test_a_pid_that_belongs_to_another_process_is_no_agent(computer: Computer) -> None:
    own = computer.home / ".spotsup/nodes/n1"
    own.mkdir(parents=True)
    for pid in (str(os.getpid()), "99999999", "nonsense", "", "-1"):
        (own / "agent.pid").write_text(f"{pid}\n")
        assert computer.facts(a_setup()).agent is None


# Running the scripts costs half a second each time: few examples, and shrinking would take minutes.
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    home=st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/:"), min_size=1, max_size=9),
    root=st.sampled_from(["~/.spotsup", "~/a b", "~/$x'\""]),
    before=st.sets(st.sampled_from(["code", "trainer"])),
    line=st.none() | st.just("printf '%s' \"$LR\" >made"),
    value=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=9),
)
@pytest.mark.long
def test_a_second_run_has_nothing_to_do_whatever_existed_before(
    home: str, root: str, before: set[str], line: str | None, value: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    setup = a_setup(root=root, setup=line, env={"LR": value})
    with computer_at(tmp_path_factory.mktemp("computer") / f"h{home}") as computer:
        if before:
            computer.bootstrap(setup, *before)
        computer.bootstrap(setup)
        assert computer.bootstrap(setup) == ()
        facts = computer.facts(setup)
        assert facts.agent is not None
        assert facts.agent.key == agent_key(facts, setup)
        if line:
            made = Path(Paths(root.replace("~", str(computer.home)), "n1").code(CODE), "made")
            assert made.read_text() == value


def test_the_agent_finds_its_configuration_and_environment(computer: Computer) -> None:
    computer.bootstrap(a_setup(env={"LR": "0.1 'x' \"y\" $z"}))
    own = computer.home / ".spotsup/nodes/n1"
    wait_for(lambda: "started" in (own / "agent.log").read_text())
    assert (own / "agent.log").read_text() == f"started --config {own}/agent.json 0.1 'x' \"y\" $z\n"
    assert (own / "agent.json").stat().st_mode & 0o777 == 0o600


def test_another_configuration_replaces_the_agent(computer: Computer) -> None:
    computer.bootstrap(a_setup())
    first = computer.facts(a_setup()).agent
    other = a_setup(agent_config=b'{"job":"other"}', stop_grace_s=10.0)
    computer.bootstrap(other)
    second = computer.facts(other).agent
    assert first
    assert second
    assert first.pid != second.pid
    assert not alive(first.pid)


def test_an_agent_that_ends_at_once_is_a_failure_with_its_last_output(computer: Computer) -> None:
    setup = a_setup(trainer=trainer_of(b"import sys; sys.exit('no etcd here')"))
    *before, start = next(step for step in plan(computer.facts(setup), setup) if step.name == "agent").decision  # type: ignore[misc] # a tuple: it was never started
    computer.bootstrap(setup, "code", "trainer")
    for command in before:
        computer.apply(command)
    assert isinstance(start, Run)
    done = computer.sh(start.script)
    assert done.returncode == 1
    assert done.stderr == "no etcd here\nthe agent ended at once, with status 1\n"
    assert computer.facts(setup).agent is None


def test_two_starts_at_the_same_time_start_one_agent(computer: Computer) -> None:
    setup = a_setup()
    computer.bootstrap(setup, "code", "trainer", "environment")
    decision = next(step for step in plan(computer.facts(setup), setup) if step.name == "agent").decision
    assert isinstance(decision, tuple)
    *uploads, start = decision
    for command in uploads:
        computer.apply(command)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(computer.apply, [start] * 3))
    wait_for(lambda: "started" in (computer.home / ".spotsup/nodes/n1/agent.log").read_text())
    assert (computer.home / ".spotsup/nodes/n1/agent.log").read_text().count("started") == 1


def outcome(computer: Computer, grace_s: float) -> str:
    done = computer.sh(agent_scripts.stop_agent(Paths("~/.spotsup", "n1"), grace_s))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(("stubborn", "grace_s", "expected"), [("", 20.0, "stopped"), ("1", 0.3, "killed")])
def test_stopping_leaves_nothing_behind(computer: Computer, stubborn: str, grace_s: float, expected: str) -> None:
    setup = a_setup(env={"STUBBORN": stubborn})
    computer.bootstrap(setup)
    agent = computer.facts(setup).agent
    assert agent
    wait_for(lambda: children(agent.pid) != [])
    pids = [agent.pid, *children(agent.pid)]
    wait_for(lambda: "started" in (computer.home / ".spotsup/nodes/n1/agent.log").read_text())
    assert outcome(computer, grace_s) == f"spotsup-agent {expected}"
    assert [pid for pid in pids if alive(pid)] == []
    assert computer.facts(setup).agent is None
    assert outcome(computer, grace_s) == "spotsup-agent absent"


def test_what_a_killed_agent_left_is_gone_before_another_starts(computer: Computer) -> None:
    setup = a_setup()
    computer.bootstrap(setup)
    first = computer.facts(setup).agent
    assert first
    wait_for(lambda: children(first.pid) != [])
    (orphan,) = children(first.pid)
    os.kill(first.pid, signal.SIGKILL)
    wait_for(lambda: computer.facts(setup).agent is None)
    assert alive(orphan)
    computer.bootstrap(setup)
    assert not alive(orphan)
    assert computer.facts(setup).agent


def test_agents_of_other_nodes_are_left_alone(computer: Computer) -> None:
    first, second = a_setup(), a_setup(node="n10")
    computer.bootstrap(first)
    computer.bootstrap(second)
    assert outcome(computer, 20.0) == "spotsup-agent stopped"
    assert computer.facts(first).agent is None
    assert computer.facts(second).agent


def test_an_agents_container_ends_with_it(computer: Computer) -> None:
    own = computer.home / ".spotsup/nodes/n1"
    own.mkdir(parents=True)
    (own / "end-container").write_text('#!/bin/sh\n: >"${0%/*}/ended"\n')
    (own / "end-container").chmod(0o755)
    assert outcome(computer, 0.0) == "spotsup-agent absent"
    assert (own / "ended").exists()


def test_collecting_a_missing_log_gives_nothing(computer: Computer) -> None:
    done = computer.sh(agent_scripts.collect(Paths("~/.spotsup", "n1"), 3))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_collecting_gives_the_last_lines(computer: Computer) -> None:
    own = computer.home / ".spotsup/nodes/n1"
    own.mkdir(parents=True)
    (own / "agent.log").write_text("".join(f"{number}\n" for number in range(100)))
    assert computer.sh(agent_scripts.collect(Paths("~/.spotsup", "n1"), 3)).stdout == "97\n98\n99\n"


def setup_command(computer: Computer, setup: Setup) -> Run:
    computer.bootstrap(replace(setup, setup=None), "code", "trainer")
    decision = next(step for step in plan(computer.facts(setup), setup) if step.name == "environment").decision
    assert isinstance(decision, tuple)
    upload, run, _ = decision
    computer.apply(upload)
    assert isinstance(run, Run)
    return run


def test_a_setup_that_fails_ends_with_its_status_and_its_last_lines(computer: Computer) -> None:
    run = setup_command(computer, a_setup(setup="seq 300; echo 'no such package' >&2; exit 7"))
    done = computer.sh(run.script)
    assert done.returncode == 7
    assert done.stderr.splitlines()[-2:] == ["300", "no such package"]
    assert len(done.stderr.splitlines()) == 200
    assert done.stdout == ""


def test_a_setup_stops_at_its_first_failing_command(computer: Computer) -> None:
    run = setup_command(computer, a_setup(setup="false | cat; touch ~/went-on"))
    assert computer.sh(run.script).returncode == 1
    assert not (computer.home / "went-on").exists()


def test_a_setup_that_does_not_end_is_ended(computer: Computer) -> None:
    run = setup_command(computer, a_setup(setup="echo waiting; sleep 600", setup_timeout_s=0.5))
    done = computer.sh(run.script)
    assert (done.returncode, done.stderr) == (124, "waiting\nsetup did not end within 0.5 s\n")


def test_a_setup_runs_in_the_code_with_the_interpreters_folder_first_on_the_path(computer: Computer) -> None:
    run = setup_command(computer, a_setup(setup="pwd; command -v python; ls"))
    assert computer.sh(run.script).returncode == 0
    code = computer.home / ".spotsup/code" / CODE.name
    log = (computer.home / ".spotsup/nodes/n1/setup.log").read_text()
    assert log == f"{code}\n{Path(sys.executable).parent}/python\ntrain.py\n"


def test_a_setup_runs_once_although_several_connections_start_it(computer: Computer) -> None:
    run = setup_command(computer, a_setup(setup="echo once >>~/count; sleep 0.2"))
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(computer.sh, [run.script] * 3))
    assert [done.returncode for done in results] == [0, 0, 0]
    assert (computer.home / "count").read_text() == "once\n"


def test_unpacking_three_times_at_the_same_time_leaves_one_complete_folder(computer: Computer) -> None:
    ask = unpack(CODE, str(computer.home / "kind/x"))
    with ThreadPoolExecutor(3) as pool:
        assert [done.returncode for done in pool.map(computer.sh, [ask] * 3, [CODE.data] * 3)] == [0, 0, 0]
    assert [path.name for path in (computer.home / "kind").iterdir()] == ["x"]
    assert (computer.home / "kind/x/train.py").read_bytes() == b"print('hello')"


def test_a_damaged_archive_leaves_nothing(computer: Computer) -> None:
    none = Archive.of(b"not packed")
    done = computer.sh(unpack(none, str(computer.home / "kind/x")), none.data)
    assert done.returncode != 0
    assert "gzip" in done.stderr
    cut = computer.sh(unpack(CODE, str(computer.home / "kind/x")), CODE.data[:-1])
    assert cut.returncode == 1
    assert "its sha256 is " in cut.stderr
    assert list((computer.home / "kind").iterdir()) == []
