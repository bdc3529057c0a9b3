"""Bootstrap over real SSH: machines of the local cloud, whose folder has a space in its name."""

from __future__ import annotations

import getpass
import io
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

import paramiko
import pytest

from bootstrap import (
    Archive,
    BootstrapError,
    BootstrapTimeoutError,
    CommandError,
    HostKeyMismatchError,
    LoginRefusedError,
    Setup,
    SshHost,
    StepEvent,
    StepState,
    StopOutcome,
    UnfitError,
    UnreachableError,
    bootstrap,
    collect,
    dry_run,
    explain,
    stop_agent,
)
from bootstrap.connect import LOGIN_PATIENCE_S, connected
from bootstrap.facts import Facts
from bootstrap.model import Again, Reboot, Run, Skip
from bootstrap.run import MAX_PASSES, _wait_for_boot
from bootstrap.steps import STEPS, Decision
from provisioners.base import Instance
from tests.support.agents import CODE, packed, trainer_of
from tests.support.machines import CLIENT_KEY, HOST_KEY, launch_running, login, new_key, run, wait_for
from tests.support.programs import LocalCloud, free_ports

REPO = Path(__file__).resolve().parents[2]
DEADLINE_S = 60.0
clock = time.monotonic

# Stands for the agent, so that no etcd is needed: bootstrap only cares that it is started as a module, and stopped.
AGENT = b"""
import os, sys, time
print("agent of", os.environ["WHOSE"], *sys.argv[1:], flush=True)
time.sleep(600)
"""


TRAINER = trainer_of(AGENT)


def target_of(machine: Instance) -> SshHost:
    return SshHost(machine.ssh_host, machine.ssh_port, getpass.getuser(), HOST_KEY.public, CLIENT_KEY.private_openssh)


def setup_of(node: str, *, line: str | None = None, code: Archive = CODE, root: str = "~/.spotsup") -> Setup:
    return Setup(
        node=node,
        agent_config=b'{"job":"j","checkpoints":"~/ck"}',
        code=code,
        trainer=TRAINER,
        python=sys.executable,
        setup=line,
        root=root,
        env={"WHOSE": f'{node} it\'s "mine"'},
    )


def on_machine(machine: Instance, command: str) -> str:
    with login(machine) as connection:
        return run(connection, command)


@pytest.fixture
def machine(local_cloud: LocalCloud) -> Instance:
    return launch_running(local_cloud.provisioner, "n1")


@pytest.mark.main
def test_the_agent_runs_on_after_the_connection_and_a_second_run_has_nothing_to_do(machine: Instance) -> None:
    setup, heard = setup_of("n1", line="echo hello >made", root="~/spots up"), list[StepEvent]()
    first = bootstrap(target_of(machine), setup, clock=clock, deadline_s=DEADLINE_S, on_step=heard.append)
    assert [event.step for event in heard if event.state is StepState.DONE] == [
        "code",
        "trainer",
        "environment",
        "agent",
    ]
    assert [event.state for event in heard[::2]] == [StepState.BEGUN] * len(STEPS)
    skipped = {event.step: event.detail for event in heard if event.state is StepState.SKIPPED}
    assert skipped["hygiene"] == "this machine was not made for n1: its system is left as it is"
    assert first.changed
    second = bootstrap(target_of(machine), setup, clock=clock, deadline_s=DEADLINE_S)
    assert {event.state for event in second.steps} == {StepState.SKIPPED}
    assert not second.changed
    assert second.facts.agent is not None
    # A session of its own: no terminal, no hang-up, whatever became of the connection that started it.
    assert on_machine(machine, f"ps -o sid= -p {second.facts.agent.pid}").strip() == str(second.facts.agent.pid)
    assert on_machine(machine, "cat ~/'spots up'/code/*/made") == "hello\n"


def test_a_dry_run_shows_every_step_and_changes_nothing(machine: Instance) -> None:
    text = explain(dry_run(target_of(machine), setup_of("n1"), clock=clock, deadline_s=DEADLINE_S))
    assert "unpack the code (" in text
    assert "start the agent" in text
    assert on_machine(machine, "ls -A") == ""


def test_another_host_key_is_refused_before_anything_is_sent(machine: Instance) -> None:
    target = replace(target_of(machine), host_key_public=new_key().public)
    began = clock()
    with pytest.raises(
        HostKeyMismatchError, match=r"node n1: .* has the host key SHA256:.*, not SHA256:.* at its launch"
    ):
        bootstrap(target, setup_of("n1"), clock=clock, deadline_s=DEADLINE_S)
    assert clock() - began < DEADLINE_S / 2, "it is not tried again"
    assert on_machine(machine, "ls -A") == ""


def test_a_key_that_is_refused_until_the_end_is_named_in_the_error(machine: Instance) -> None:
    target = replace(target_of(machine), client_key_openssh=new_key().private_openssh)
    with pytest.raises(LoginRefusedError, match=rf"refuses our key .*, which gives {getpass.getuser()} this key"):
        bootstrap(target, setup_of("n1"), clock=clock, deadline_s=15.0)


def test_a_key_that_is_refused_for_long_is_given_up_before_the_end(machine: Instance) -> None:
    target = replace(target_of(machine), client_key_openssh=new_key().private_openssh)
    hurried = count(0.0, LOGIN_PATIENCE_S / 4)  # each look at this clock costs so much
    with pytest.raises(LoginRefusedError, match="refuses our key"):
        bootstrap(target, setup_of("n1"), clock=lambda: next(hurried), deadline_s=1e9)
    assert next(hurried) < 10 * LOGIN_PATIENCE_S


@contextmanager
def port_opened_later(machine: Instance, after_s: float) -> Iterator[int]:
    """A port that answers after a while, as a booting machine's does, and leads to the machine."""
    (port,) = free_ports(1)

    def serve() -> None:
        time.sleep(after_s)
        with socket.create_server(("127.0.0.1", port)) as listener:
            inner, _ = listener.accept()
        outer = socket.create_connection((machine.ssh_host, machine.ssh_port))
        with closing(inner), closing(outer):
            back = threading.Thread(target=pump, args=(outer, inner))
            back.start()
            pump(inner, outer)
            back.join()

    thread = threading.Thread(target=serve)
    thread.start()
    yield port
    thread.join()


def pump(source: socket.socket, sink: socket.socket) -> None:
    """Until one side closes; then the other is closed, too."""
    with suppress(OSError):
        while chunk := source.recv(1 << 16):
            sink.sendall(chunk)
    for each in (source, sink):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


@pytest.mark.main
def test_a_machine_that_still_boots_is_waited_for(machine: Instance) -> None:
    with port_opened_later(machine, after_s=1.5) as port:
        target = replace(target_of(machine), host="127.0.0.1", port=port)
        report = bootstrap(target, setup_of("n1"), clock=clock, deadline_s=DEADLINE_S)
    assert report.connected_s >= 0.4


def test_a_machine_that_never_answers_is_given_up_in_time() -> None:
    (port,) = free_ports(1)
    target = SshHost("127.0.0.1", port, "nobody", HOST_KEY.public, CLIENT_KEY.private_openssh)
    began = clock()
    with pytest.raises(UnreachableError, match=f"node n1: sshd at nobody@127.0.0.1:{port} did not answer in time"):
        bootstrap(target, setup_of("n1"), clock=clock, deadline_s=0.7)
    assert 0.7 <= clock() - began < 20


def test_a_port_that_accepts_connections_silently_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        target = SshHost("127.0.0.1", port, "nobody", HOST_KEY.public, CLIENT_KEY.private_openssh)
        began = clock()
        with pytest.raises(UnreachableError, match="did not answer in time"):
            bootstrap(target, setup_of("n1"), clock=clock, deadline_s=0.7)
        assert clock() - began < 20


class NoAnswer(paramiko.ServerInterface):  # type: ignore[misc] # paramiko has no types
    """Lets us in, and never says whether a command was started: as a machine whose disk hangs."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return int(paramiko.common.AUTH_SUCCESSFUL)

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return int(paramiko.common.OPEN_SUCCEEDED)

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self.over.wait()
        return False


def test_a_machine_that_lets_us_in_and_never_answers_is_given_up_in_time() -> None:
    server = NoAnswer()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with paramiko.Transport(listener.accept()[0]) as transport:
                key = paramiko.Ed25519Key.from_private_key(io.StringIO(HOST_KEY.private_openssh))
                transport.add_server_key(key)
                transport.start_server(server=server)
                server.over.wait()

        thread = threading.Thread(target=serve)
        thread.start()
        port = listener.getsockname()[1]
        target = SshHost("127.0.0.1", port, "nobody", HOST_KEY.public, CLIENT_KEY.private_openssh)
        began = clock()
        try:
            with pytest.raises(UnreachableError, match="step login: the connection broke at `try the login shell`"):
                bootstrap(target, setup_of("n1"), clock=clock, deadline_s=10.0)
            assert clock() - began < 60
        finally:
            server.over.set()
            thread.join()


@pytest.mark.main
def test_the_error_of_a_failed_setup_has_node_step_command_and_its_last_output(machine: Instance) -> None:
    line = "echo looking; echo 'no such package: nope' >&2; exit 7"
    with pytest.raises(CommandError) as caught:
        bootstrap(target_of(machine), setup_of("n1", line=line), clock=clock, deadline_s=DEADLINE_S)
    error = caught.value
    assert (error.node, error.step, error.command, error.exit_status) == ("n1", "environment", line, 7)
    assert error.stderr == "looking\nno such package: nope"
    assert (
        str(error).splitlines()[0] == f"node n1, step environment: `{line}` ended with status 7: no such package: nope"
    )
    assert collect(target_of(machine), "n1", clock=clock, deadline_s=DEADLINE_S) == "", "no agent was started"


def test_a_setup_that_failed_runs_again_the_next_time(machine: Instance) -> None:
    setup = setup_of("n1", line="test -e ~/mended")
    with pytest.raises(CommandError):
        bootstrap(target_of(machine), setup, clock=clock, deadline_s=DEADLINE_S)
    on_machine(machine, "touch mended")
    report = bootstrap(target_of(machine), setup, clock=clock, deadline_s=DEADLINE_S)
    assert [event.step for event in report.steps if event.state is StepState.DONE] == ["environment", "agent"]


def test_the_whole_has_a_time_limit(machine: Instance) -> None:
    with pytest.raises(BootstrapTimeoutError, match="step environment: `sleep 600` was still running when the time"):
        bootstrap(target_of(machine), setup_of("n1", line="sleep 600"), clock=clock, deadline_s=20.0)


def test_an_unfit_machine_is_left_as_it_was(machine: Instance) -> None:
    setup = replace(setup_of("n1"), python="python-that-does-not-exist")
    with pytest.raises(UnfitError, match="node n1, step interpreter: 'python-that-does-not-exist' is no interpreter"):
        bootstrap(target_of(machine), setup, clock=clock, deadline_s=DEADLINE_S)
    assert on_machine(machine, "ls -A") == ""


@pytest.mark.main
def test_a_machine_that_vanishes_during_a_command_is_unreachable(local_cloud: LocalCloud, machine: Instance) -> None:
    def take_away(event: StepEvent) -> None:
        if event.step == "environment":
            threading.Timer(0.3, lambda: local_cloud.cli("kill", machine.id)).start()

    with pytest.raises(UnreachableError) as caught:
        bootstrap(
            target_of(machine),
            setup_of("n1", line="sleep 600"),
            clock=clock,
            deadline_s=DEADLINE_S,
            on_step=take_away,
        )
    assert (caught.value.node, caught.value.step, caught.value.command) == ("n1", "environment", "sleep 600")


def test_steps_are_planned_from_new_facts_when_one_needs_them(machine: Instance) -> None:
    def first(facts: Facts, setup: Setup) -> Decision:
        if facts.codes:
            return Skip("it is there")
        return Run("make it", f"mkdir -p ~/.spotsup/code/{'0' * 16}", 10.0), Again("what was made is seen")

    def second(facts: Facts, setup: Setup) -> Decision:
        return (Run("use it", f"rmdir ~/.spotsup/code/{'0' * 16}", 10.0),) if facts.codes else Skip("too early")

    steps = [("first", first), ("second", second)]
    report = bootstrap(target_of(machine), setup_of("n1"), clock=clock, deadline_s=DEADLINE_S, steps=steps)
    assert [(event.step, event.state) for event in report.steps] == [
        ("first", StepState.DONE),
        ("first", StepState.SKIPPED),
        ("second", StepState.DONE),
    ]


def test_a_step_that_is_never_done_is_given_up(machine: Instance) -> None:
    def never(facts: Facts, setup: Setup) -> Decision:
        return Run("try", "echo once more >>~/tries", 10.0), Again("perhaps it is done")

    with pytest.raises(
        BootstrapError, match=r"step never: not ready after 7 passes; it still has to gather facts again: perhaps"
    ):
        bootstrap(target_of(machine), setup_of("n1"), clock=clock, deadline_s=DEADLINE_S, steps=[("never", never)])
    assert on_machine(machine, "cat tries") == "once more\n" * (MAX_PASSES - 1)


def test_a_machine_that_was_not_made_for_the_node_is_not_touched_whatever_was_planned(machine: Instance) -> None:
    with (
        connected(target_of(machine), "n1", clock, clock() + DEADLINE_S) as shell,
        pytest.raises(CommandError, match="was not made for it, and is left as it is"),
    ):
        shell.run(Run("change it", "touch ~/changed", 10.0, as_root=True))
    assert on_machine(machine, "ls -A") == ""


def test_a_reboot_is_over_once_the_boot_id_has_changed(machine: Instance) -> None:
    reboot = Reboot("for the test", 1.5)
    patient = replace(reboot, timeout_s=DEADLINE_S)
    _wait_for_boot(target_of(machine), "n1", patient, "another boot", clock, clock() + DEADLINE_S)
    (boot,) = on_machine(machine, "cat /proc/sys/kernel/random/boot_id").split()
    with pytest.raises(BootstrapTimeoutError, match=r"step reboot: the machine did not come back within 1\.5 s"):
        _wait_for_boot(target_of(machine), "n1", reboot, boot, clock, clock() + DEADLINE_S)


def test_three_nodes_at_the_same_time(local_cloud: LocalCloud) -> None:
    machines = [launch_running(local_cloud.provisioner, f"n{number}") for number in range(3)]

    def prepare(machine: Instance) -> str:
        setup = setup_of(machine.node, line="sleep 0.5")
        bootstrap(target_of(machine), setup, clock=clock, deadline_s=DEADLINE_S)
        log = wait_for(
            lambda: collect(target_of(machine), machine.node, clock=clock, deadline_s=DEADLINE_S), "the agent's log"
        )
        return log.split(" --config ")[0]

    with ThreadPoolExecutor(3) as pool:
        logs = list(pool.map(prepare, machines))
    assert logs == [f'agent of n{number} it\'s "mine"' for number in range(3)]


def test_two_daemons_may_prepare_the_same_node_at_the_same_time(machine: Instance) -> None:
    setup = setup_of("n1", line="echo once >>~/count")

    def prepare(_: int) -> str:
        try:
            bootstrap(target_of(machine), setup, clock=clock, deadline_s=DEADLINE_S)
        except BootstrapError as error:
            return str(error)
        return "ok"

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(prepare, range(2)))
    assert "ok" in results, results
    report = bootstrap(target_of(machine), setup, clock=clock, deadline_s=DEADLINE_S)
    assert not report.changed
    assert on_machine(machine, "cat count") == "once\n"


@pytest.mark.main
def test_an_agent_is_stopped_over_ssh(machine: Instance) -> None:
    target = target_of(machine)
    assert stop_agent(target, "n1", grace_s=5.0, clock=clock, deadline_s=DEADLINE_S) is StopOutcome.ABSENT
    bootstrap(target, setup_of("n1"), clock=clock, deadline_s=DEADLINE_S)
    assert stop_agent(target, "n1", grace_s=5.0, clock=clock, deadline_s=DEADLINE_S) is StopOutcome.STOPPED


@pytest.mark.main
def test_large_code_arrives_unchanged(machine: Instance) -> None:
    content = random.Random(1).randbytes(8_000_000)
    code = packed({"weights.bin": content})
    bootstrap(target_of(machine), setup_of("n1", code=code), clock=clock, deadline_s=DEADLINE_S)
    (found,) = on_machine(machine, f"find .spotsup -path '*{code.name}*' -type f -printf '%p %s'").splitlines()
    assert found == f".spotsup/code/{code.name}/weights.bin {len(content)}"
    assert on_machine(machine, "find .spotsup -name '*.part' -o -name '*.tar.gz'") == ""


def test_a_machine_that_never_stops_talking_fills_no_memory(machine: Instance) -> None:
    command = Run("talk", "yes 'a line of talk' | head -c 4500000 | tee /dev/stderr; exit 3", 30.0)
    with (
        connected(target_of(machine), "n1", clock, clock() + DEADLINE_S) as shell,
        pytest.raises(CommandError) as caught,
    ):
        shell.run(command)
    assert caught.value.stderr.splitlines() == ["a line of talk"] * 200


def test_an_exception_of_on_step_ends_the_bootstrap_before_the_next_step(machine: Instance) -> None:
    class Cancelled(Exception):
        pass

    def cancel(event: StepEvent) -> None:
        if event.step == "trainer":
            raise Cancelled

    with pytest.raises(Cancelled):
        bootstrap(target_of(machine), setup_of("n1"), clock=clock, deadline_s=DEADLINE_S, on_step=cancel)
    assert on_machine(machine, "ls .spotsup") == "code\n"


_AUDITED = """
import os, sys, time
opened = []
sys.addaudithook(lambda name, arguments: opened.append(str(arguments[0])) if name == "open" else None)
from bootstrap import SshHost, collect
target = SshHost(sys.argv[1], int(sys.argv[2]), sys.argv[3], os.environ["HOST_KEY"], os.environ["CLIENT_KEY"])
collect(target, "n1", clock=time.monotonic, deadline_s=20)
here = (os.environ["HOME"], "/etc/ssh", "/etc/fabric", "/etc/invoke")
print(sorted({path for path in opened if path.startswith(here)}))
"""


def test_none_of_the_users_ssh_settings_are_read(machine: Instance, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "config").write_text(f"Host *\n  ProxyCommand touch '{home}/proxied'\n  User nobody\n")
    (home / ".ssh" / "id_ed25519").write_text(new_key().private_openssh)
    (home / ".ssh" / "known_hosts").write_text(f"[{machine.ssh_host}]:{machine.ssh_port} {new_key().public}\n")
    (home / ".fabric.yaml").write_text("user: nobody\nport: 1\n")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _AUDITED, machine.ssh_host, str(machine.ssh_port), getpass.getuser()],
        env={
            **os.environ,
            "HOME": str(home),
            "HOST_KEY": HOST_KEY.public,
            "CLIENT_KEY": CLIENT_KEY.private_openssh,
            "FABRIC_USER": "nobody",
            "INVOKE_RUN_ECHO": "1",
        },
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")
    assert not (home / "proxied").exists()
