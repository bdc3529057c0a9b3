"""The server may be killed at any moment: machines go on, and what was begun is finished by its next life."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE

import pytest

from provisioners.base import EndCause, Instance, InstanceState, Launched, NoCapacity, Unknown, UnreachableError
from provisioners.localcloud import processes
from provisioners.localcloud.control import ServerError, destroy, start_server, take_over
from provisioners.localcloud.store import SOCKET_PATH_BYTES, Store, StoreError
from tests.support.machines import (
    OWNER,
    TIMEOUT_S,
    launch,
    launch_running,
    login,
    request_for,
    run,
    wait_for,
    wait_state,
)
from tests.support.programs import LocalCloud, program_env, running_local_cloud

pytestmark = pytest.mark.long

ENDED = InstanceState.TERMINATED


def inits(cloud: LocalCloud) -> dict[int, str]:
    """Pid and machine of every init that lives."""
    birth = Store(cloud.directory).birth()
    assert birth is not None
    found = processes.find([], lambda marker: marker.startswith(birth.machine_prefix))
    return {each.pid: processes.marker_of(each.pid) for each in found if _is_init(each.pid)}


def _is_init(pid: int) -> bool:
    try:
        return b"localcloud.machine.main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def answers(instance: Instance) -> bool:
    """Whether the machine's sshd greets."""
    with socket.create_connection((instance.ssh_host, instance.ssh_port), timeout=TIMEOUT_S) as connection:
        return connection.recv(4) == b"SSH-"


def test_machines_outlive_a_killed_server(local_cloud: LocalCloud) -> None:
    before = launch_running(local_cloud.provisioner, "n1")
    with login(before) as connection:
        local_cloud.kill_server()
        assert run(connection, "echo alive") == "alive\n"
        assert answers(before)
        local_cloud.restart_server()
        assert run(connection, "echo alive") == "alive\n"
    assert local_cloud.provisioner.find(OWNER, before.token, TIMEOUT_S) == before
    after = launch_running(local_cloud.provisioner, "n2")
    assert after.private_address != before.private_address
    local_cloud.provisioner.terminate(before.id, TIMEOUT_S)
    wait_state(local_cloud.provisioner, before.token, ENDED)
    assert list(inits(local_cloud).values()) == [after.id]


def test_machines_outlive_an_orderly_stop(local_cloud: LocalCloud) -> None:
    before = launch_running(local_cloud.provisioner, "n1")
    local_cloud.server.send_signal(signal.SIGTERM)
    assert local_cloud.server.wait(TIMEOUT_S) == 0
    assert Store(local_cloud.directory).endpoint() is None
    assert answers(before)
    local_cloud.restart_server()
    assert local_cloud.provisioner.find(OWNER, before.token, TIMEOUT_S) == before


def test_what_happened_while_the_server_was_dead_is_seen(local_cloud: LocalCloud) -> None:
    dies, notified = (launch_running(local_cloud.provisioner, name) for name in ("dies", "notified"))
    assert local_cloud.cli("preempt", "notified", "--notice", "0.5").returncode == 0
    local_cloud.kill_server()
    (init,) = [pid for pid, machine in inits(local_cloud).items() if machine == dies.id]
    identity = processes.identity_of(init)
    processes.send(identity, signal.SIGKILL)
    wait_for(lambda: not processes.is_alive(identity), "its init is gone")
    local_cloud.restart_server()
    assert wait_state(local_cloud.provisioner, dies.token, ENDED).end_cause is EndCause.FAILED
    assert wait_state(local_cloud.provisioner, notified.token, ENDED).end_cause is EndCause.PREEMPTED


def test_a_server_freezes_what_the_last_one_said_that_it_would(local_cloud: LocalCloud) -> None:
    machine = launch_running(local_cloud.provisioner, "n1")
    assert local_cloud.cli("freeze", "n1").returncode == 0
    local_cloud.kill_server()
    (init,) = inits(local_cloud)
    # As if it had been killed when the record was written, and no process stopped yet.
    processes.thaw(processes.Target(machine.id, processes.identity_of(init)))
    assert not is_stopped(init)
    local_cloud.restart_server()
    wait_for(lambda: is_stopped(init), "it is frozen again")
    assert local_cloud.cli("thaw", "n1").returncode == 0
    assert answers(machine)
    local_cloud.kill_server()
    local_cloud.restart_server()
    assert answers(machine)


def is_stopped(pid: int) -> bool:
    """Whether the kernel says so."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"


def test_a_machine_launched_before_the_crash_comes_up_after_it(tmp_path: Path) -> None:
    with running_local_cloud(tmp_path, launch_delay_s=0.5) as cloud:
        request = request_for(cloud.provisioner, "n1")
        launched = cloud.provisioner.launch(request, TIMEOUT_S)
        cloud.kill_server()
        cloud.restart_server()
        assert isinstance(launched, Launched)
        assert answers(wait_state(cloud.provisioner, request.token, InstanceState.RUNNING))
        assert list(inits(cloud).values()) == [launched.instance.id]


@pytest.mark.parametrize("seed", range(4))
def test_a_server_killed_at_any_moment_leaves_no_machine_unlisted_or_doubled(
    local_cloud: LocalCloud, seed: int
) -> None:
    chance = random.Random(seed)
    provisioner = local_cloud.provisioner
    requests = [request_for(provisioner, f"n{number}") for number in range(6)]

    def call() -> None:
        for request in requests:
            outcome = provisioner.launch(request, TIMEOUT_S)
            if isinstance(outcome, Launched) and chance.random() < 0.3:
                provisioner.terminate(outcome.instance.id, TIMEOUT_S)

    for _ in range(3):
        caller = threading.Thread(target=_until_unreachable, args=(call,))
        caller.start()
        time.sleep(chance.uniform(0.0, 0.25))
        local_cloud.kill_server()
        caller.join()
        local_cloud.restart_server()
    outcomes = [provisioner.launch(request, TIMEOUT_S) for request in requests]
    ids = {each.instance.id for each in outcomes if isinstance(each, Launched)}
    assert len(ids) == len(requests)
    for request in requests:
        wait_state(provisioner, request.token, InstanceState.RUNNING, ENDED)
    listed = provisioner.instances(OWNER, TIMEOUT_S)
    assert {each.id for each in listed} == ids
    assert sorted(inits(local_cloud).values()) == sorted(each.id for each in listed if each.state is not ENDED)


def _until_unreachable(call: Callable[[], None]) -> None:
    with suppress(UnreachableError):
        call()


def test_capacity_and_faults_survive_a_restart(local_cloud: LocalCloud) -> None:
    local_cloud.set("--capacity", "local-a=0", "--fault", "drop-reply")
    local_cloud.kill_server()
    local_cloud.restart_server()
    full = request_for(local_cloud.provisioner, "n1", zone="local-a")
    room = request_for(local_cloud.provisioner, "n2", zone="local-b")
    assert isinstance(local_cloud.provisioner.launch(room, TIMEOUT_S), Unknown)
    assert isinstance(local_cloud.provisioner.launch(full, TIMEOUT_S), NoCapacity)


def test_one_directory_has_one_server(local_cloud: LocalCloud) -> None:
    with pytest.raises(ServerError, match=f"ended with 5.*served already, by process {local_cloud.server.pid}"):
        start_server(local_cloud.directory, environ=program_env())
    assert local_cloud.cli("list").returncode == 0


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    environ = {**program_env(), "PATH": "/nowhere", "SPOTSUP_TOOLS": str(tmp_path)}
    if any(Path(folder, "sshd").exists() for folder in ("/usr/sbin", "/usr/local/sbin", "/usr/bin", "/sbin", "/bin")):
        pytest.skip("sshd is installed: there is no way to hide it")
    with pytest.raises(ServerError, match="no program 'sshd'"):
        start_server(tmp_path / "cloud", environ=environ)


def test_destroy_works_without_a_server(local_cloud: LocalCloud) -> None:
    instance = launch_running(local_cloud.provisioner, "n1")
    local_cloud.kill_server()
    done = destroy(local_cloud.directory)
    assert done.machines == (instance.id,)
    assert done.processes_left == ()
    assert inits(local_cloud) == {}
    assert destroy(local_cloud.directory).machines == ()
    local_cloud.restart_server()
    found = local_cloud.provisioner.find(OWNER, instance.token, TIMEOUT_S)
    assert found is not None
    assert (found.state, found.end_cause) == (ENDED, EndCause.USER)


def test_destroy_ends_a_machine_that_has_not_reported_yet(local_cloud: LocalCloud) -> None:
    for number in range(4):
        launch(local_cloud.provisioner, f"n{number}")
    local_cloud.kill_server()
    assert destroy(local_cloud.directory).processes_left == ()
    assert inits(local_cloud) == {}


def test_who_stops_or_destroys_a_cloud_is_waited_for_and_not_ended(local_cloud: LocalCloud) -> None:
    """A daemon that ends finds its local cloud empty while `destroy` runs."""
    directory = local_cloud.directory
    hold = "import sys; from pathlib import Path; from provisioners.localcloud.control import take_over\n"
    hold += "from provisioners.localcloud.store import Store\n"
    hold += "take_over(Store(Path(sys.argv[1]))); print('holds', flush=True); sys.stdin.read()"
    arguments = [sys.executable, "-c", hold, str(directory)]
    with subprocess.Popen(arguments, stdin=PIPE, stdout=PIPE, env=program_env(), text=True) as destroyer:
        assert destroyer.stdin is not None
        assert destroyer.stdout is not None
        assert destroyer.stdout.readline() == "holds\n"
        with pytest.raises(ServerError, match="does not let go of it"):
            take_over(Store(directory), timeout_s=1.0)
        with pytest.raises(StoreError, match="is being stopped or destroyed"):
            Store(directory).lock(serves=True)
        destroyer.stdin.close()
        assert destroyer.wait(TIMEOUT_S) == 0
    assert destroy(directory).processes_left == ()


def test_only_a_clouds_directory_is_destroyed(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="not the directory of a local cloud"):
        destroy(tmp_path)


def test_a_socket_path_that_is_too_long_goes_elsewhere_and_is_tidied_up(tmp_path: Path) -> None:
    directory = tmp_path / ("long" * 40)
    with running_local_cloud(directory) as cloud:
        endpoint = Store(cloud.directory).endpoint()
        assert endpoint is not None
        assert len(str(endpoint)) <= SOCKET_PATH_BYTES
        assert endpoint.stat().st_mode & 0o777 == 0o600
        assert cloud.cli("list").returncode == 0
    assert not endpoint.parent.exists()


def test_nobody_else_may_use_the_directory_or_its_socket(local_cloud: LocalCloud) -> None:
    endpoint = Store(local_cloud.directory).endpoint()
    assert endpoint is not None
    assert endpoint.stat().st_mode & 0o777 == 0o600
    assert local_cloud.directory.stat().st_mode & 0o077 == 0
