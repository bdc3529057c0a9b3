"""Machines of the local cloud, real ones: logins, their own home, metadata, and that nothing of them survives."""

from __future__ import annotations

import http.client
import io
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fabric
import paramiko
import pytest

from provisioners.base import EndCause, Instance, InstanceState
from provisioners.localcloud import processes
from provisioners.localcloud.machine.metadata import BadRequestError, parse_wait
from provisioners.localcloud.machine.spec import Folder
from tests.support.machines import OWNER, TIMEOUT_S, launch, launch_running, login, new_key, run, wait_for, wait_state
from tests.support.programs import LocalCloud, running_local_cloud

pytestmark = pytest.mark.long

# Two daemons, as a careless program starts them: forked twice, in a session of their own, deaf to signals, one of
# them without our marker. They say who they are.
DAEMONS = """
for clean in '' 'env -i'; do
  setsid $clean sh -c 'trap "" HUP TERM INT; (while :; do sleep 1; done) > /dev/null 2>&1 & echo $!' &
done; wait
"""


@pytest.fixture
def machine(local_cloud: LocalCloud) -> Instance:
    """A machine that runs."""
    return launch_running(local_cloud.provisioner, "n1")


def folder(cloud: LocalCloud, instance: Instance) -> Folder:
    """A machine's folder."""
    return Folder(cloud.directory / "machines" / instance.id)


def init_pid(cloud: LocalCloud, instance: Instance) -> int:
    """A machine's init."""
    report = folder(cloud, instance).read_report()
    assert report is not None
    return report.pid


def metadata(instance: Instance, path: str, timeout_s: float = 30.0) -> tuple[int, dict[str, Any]]:
    """Status and body of one metadata request."""
    url = urlsplit(instance.metadata_url)
    connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_commands_run_in_the_machines_own_home(local_cloud: LocalCloud, machine: Instance) -> None:
    home = local_cloud.directory / "machines" / machine.id / "home"
    with login(machine) as connection:
        assert run(connection, "pwd && cd && pwd && echo $HOME").split("\n")[:3] == [str(home)] * 3
        assert run(connection, "echo $SPOTSUP_MACHINE") == f"{machine.id}\n"
        assert run(connection, "echo 'a  b' \"$(echo c)\" | tr c d; exit 0") == "a  b d\n"
        assert connection.run("exit 7", warn=True, hide=True, in_stream=False).exited == 7
        assert run(connection, "env | grep SSH_ORIGINAL_COMMAND || true") == ""
    assert " " in str(home)


def test_files_are_copied_to_the_machines_own_home(local_cloud: LocalCloud, machine: Instance) -> None:
    with login(machine) as connection:
        connection.put(io.BytesIO(b"payload"), "a file")
        assert run(connection, "cat 'a file'") == "payload"
    assert (local_cloud.directory / "machines" / machine.id / "home" / "a file").read_bytes() == b"payload"


def test_a_stranger_is_not_let_in(machine: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.machines.CLIENT_KEY", new_key())
    with pytest.raises(paramiko.AuthenticationException), login(machine):
        pass


def test_a_machine_with_another_host_key_is_not_talked_to(machine: Instance) -> None:
    with pytest.raises(paramiko.BadHostKeyException), login(machine, host_key=new_key().public):
        pass


@pytest.mark.parametrize("name", ['a "b" %d\\c', "x" * 120])
def test_directories_with_odd_or_long_names_work(tmp_path: Path, name: str) -> None:
    with running_local_cloud(tmp_path / name) as cloud:
        instance = launch_running(cloud.provisioner, "n1")
        with login(instance) as connection:
            assert run(connection, "pwd") == f"{cloud.directory}/machines/{instance.id}/home\n"


def daemons(connection: fabric.Connection) -> list[processes.Identity]:
    """Start them on a machine."""
    pids = [int(word) for word in run(connection, DAEMONS).split()]
    assert len(pids) == 2
    found = [processes.look(pid) for pid in pids]
    return [each.identity for each in found if each is not None]


@pytest.mark.parametrize("verb", ["kill", "terminate", "preempt", "destroy"])
def test_no_process_survives_its_machine(local_cloud: LocalCloud, machine: Instance, verb: str) -> None:
    other = launch_running(local_cloud.provisioner, "n2")
    with login(machine) as connection, login(other) as neighbour:
        doomed, spared = daemons(connection), daemons(neighbour)
        assert len(doomed) == len(spared) == 2
        if verb == "destroy":
            done = local_cloud.cli("destroy", "-o", "json")
            assert json.loads(done.stdout) == {"machines": [machine.id, other.id], "processes_left": []}
            doomed += spared
        else:
            notice = ["--notice", "0"] if verb == "preempt" else []
            assert local_cloud.cli(verb, "n1", *notice).returncode == 0
            wait_state(local_cloud.provisioner, machine.token, InstanceState.TERMINATED)
            assert all(processes.is_alive(each) for each in spared)
            assert run(neighbour, "echo alive") == "alive\n"
    assert not [each for each in doomed if processes.is_alive(each)]
    assert processes.find([], lambda marker: marker == machine.id) == set()


def greets(instance: Instance) -> bool:
    """Whether a machine's sshd has something to say, or nothing within a second."""
    with socket.create_connection((instance.ssh_host, instance.ssh_port), timeout=1.0) as connection:
        try:
            return connection.recv(4) == b"SSH-"
        except TimeoutError:
            return False


def states(identities: list[processes.Identity]) -> set[str]:
    """What the kernel says of these processes: T is stopped."""
    return {Path(f"/proc/{each.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] for each in identities}


def test_a_frozen_machine_runs_by_its_clouds_word_and_answers_nobody(
    local_cloud: LocalCloud, machine: Instance
) -> None:
    other = launch_running(local_cloud.provisioner, "n2")
    with login(machine) as connection, login(other) as neighbour:
        held = [*daemons(connection), processes.identity_of(init_pid(local_cloud, machine))]
        assert local_cloud.cli("freeze", "n1").returncode == 0
        assert states(held) == {"T"}
        assert not greets(machine)
        with pytest.raises(TimeoutError):
            metadata(machine, "/v1/preemption", timeout_s=0.5)
        found = local_cloud.provisioner.find(OWNER, machine.token, TIMEOUT_S)
        assert found == machine
        assert run(neighbour, "echo alive") == "alive\n"
        assert local_cloud.cli("thaw", "n1").returncode == 0
        assert "T" not in states(held)
        assert greets(machine)
        assert run(connection, "echo alive") == "alive\n"


def test_only_a_machine_that_runs_is_frozen(slow_cloud: LocalCloud) -> None:
    pending = launch(slow_cloud.provisioner, "n1")
    done = slow_cloud.cli("freeze", pending.id)
    assert (done.returncode, "does not run yet" in done.stderr) == (5, True)


def test_a_machine_whose_init_is_killed_has_failed_and_leaves_nothing(
    local_cloud: LocalCloud, machine: Instance
) -> None:
    with login(machine) as connection:
        left = daemons(connection)
        os.kill(init_pid(local_cloud, machine), signal.SIGKILL)
        ended = wait_state(local_cloud.provisioner, machine.token, InstanceState.TERMINATED)
    assert ended.end_cause is EndCause.FAILED
    assert not [each for each in left if processes.is_alive(each)]


def test_a_machine_whose_sshd_is_killed_runs_and_cannot_be_reached(local_cloud: LocalCloud, machine: Instance) -> None:
    init = init_pid(local_cloud, machine)
    (sshd,) = processes.below(processes.snapshot(), [init])
    os.kill(sshd, signal.SIGKILL)
    log = folder(local_cloud, machine).log
    wait_for(lambda: "sshd ended with -9" in log.read_text(), "init has noticed")
    assert metadata(machine, "/v1/preemption") == (200, {"preempted": False})
    with pytest.raises(OSError, match=r"Unable to connect|refused"), login(machine):
        pass
    found = local_cloud.provisioner.find(OWNER, machine.token, 5.0)
    assert found is not None
    assert found.state is InstanceState.RUNNING


def test_init_reaps_what_daemons_leave(local_cloud: LocalCloud, machine: Instance) -> None:
    with login(machine) as connection:
        pid = int(run(connection, "sh -c 'sleep 0.05 & echo $!'"))
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), "no zombie is left")
    assert processes.below(processes.snapshot(), [init_pid(local_cloud, machine)])


def test_the_metadata_service_says_who_it_serves(machine: Instance) -> None:
    facts = {"id": machine.id, "zone": machine.zone, "instance_type": machine.instance_type}
    assert metadata(machine, "/v1/instance") == (200, facts)
    status, body = metadata(machine, "/v2/instance")
    assert (status, "/v1/preemption" in body["error"]) == (404, True)
    assert metadata(machine, "/v1/preemption?wait_s=soon")[0] == 400


def test_who_waits_hears_of_a_preemption_at_once(local_cloud: LocalCloud, machine: Instance) -> None:
    began = time.monotonic()
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(metadata, machine, "/v1/preemption?wait_s=60&last=false") for _ in range(3)]
        # Answered at once, so the three are asked by then or come to an answer that is there already: the same.
        assert metadata(machine, "/v1/preemption?wait_s=0.1") == (200, {"preempted": False})
        assert local_cloud.cli("preempt", "n1", "--notice", "600").returncode == 0
        found = local_cloud.provisioner.find(OWNER, machine.token, 5.0)
        assert found is not None
        for each in waiting:
            assert each.result() == (200, {"preempted": True, "deadline": found.preempt_at})
    assert time.monotonic() - began < 30
    assert metadata(machine, "/v1/preemption?wait_s=60&last=false")[1]["preempted"] is True
    assert local_cloud.cli("withdraw", "n1").returncode == 0
    status, reply = metadata(machine, "/v1/preemption?wait_s=60&last=true")
    assert (status, reply["preempted"]) == (200, False)


def test_a_client_that_goes_away_while_it_waits_does_no_harm(machine: Instance) -> None:
    url = urlsplit(machine.metadata_url)
    for _ in range(200):  # more than are served at a time: each must have been let go
        connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=10)
        connection.request("GET", "/v1/preemption?wait_s=60")
        connection.close()
    wait_for(lambda: _served(machine), "it serves again")


def _served(machine: Instance) -> bool:
    try:
        return metadata(machine, "/v1/preemption") == (200, {"preempted": False})
    except OSError:
        return False


def test_a_preemption_announced_before_the_machine_runs_is_told_when_it_does(tmp_path: Path) -> None:
    with running_local_cloud(tmp_path, launch_delay_s=0.3) as cloud:
        pending = launch(cloud.provisioner, "n1")
        assert cloud.cli("preempt", pending.id, "--notice", "600").returncode == 0
        instance = wait_state(cloud.provisioner, pending.token, InstanceState.RUNNING)
        assert metadata(instance, "/v1/preemption")[1]["preempted"] is True


@pytest.mark.parametrize("query", ["wait_s=-1", "wait_s=301", "wait_s=nan", "last=no", "wait=1"])
def test_wrong_parameters_are_refused(query: str) -> None:
    with pytest.raises(BadRequestError):
        parse_wait(query)


def test_parameters_have_defaults() -> None:
    assert parse_wait("") == (0.0, False)
    assert parse_wait("wait_s=300&last=true") == (300.0, True)


@pytest.fixture
def slow_cloud(tmp_path: Path) -> Iterator[LocalCloud]:
    """A cloud whose machines take an hour to come up."""
    with running_local_cloud(tmp_path / "slow", launch_delay_s=3600.0) as cloud:
        yield cloud


def test_a_pending_machine_has_no_process_and_ends_at_once(slow_cloud: LocalCloud) -> None:
    pending = launch(slow_cloud.provisioner, "n1")
    assert pending.state is InstanceState.PENDING
    assert processes.find([], lambda marker: marker == pending.id) == set()
    slow_cloud.provisioner.terminate(pending.id, 5.0)
    wait_state(slow_cloud.provisioner, pending.token, InstanceState.TERMINATED)


def test_an_ended_machine_keeps_no_private_key(local_cloud: LocalCloud, machine: Instance) -> None:
    assert folder(local_cloud, machine).host_key.exists()
    with login(machine) as connection:
        run(
            connection, "mkdir -p .spotsup/nodes/n && cd .spotsup/nodes/n && touch env.sh agent.log && chmod 600 env.sh"
        )
    own = folder(local_cloud, machine).home / ".spotsup" / "nodes" / "n"
    assert {path.name for path in own.iterdir()} == {"env.sh", "agent.log"}
    local_cloud.provisioner.terminate(machine.id, 5.0)
    wait_state(local_cloud.provisioner, machine.token, InstanceState.TERMINATED)
    assert not folder(local_cloud, machine).host_key.exists()
    assert {path.name for path in own.iterdir()} == {"agent.log"}, "private files are gone, too"
