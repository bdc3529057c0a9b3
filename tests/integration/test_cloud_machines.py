"""The machines behind the fake clouds: made from user data alone, and real."""

from __future__ import annotations

import getpass
from pathlib import Path

import paramiko
import pytest

from provisioners.base import HostKey, Instance, InstanceState
from provisioners.userdata import user_data
from tests.clouds.machines import PaperMachines, RealMachines, read_user_data, real_machines
from tests.support.machines import CLIENT_KEY, HOST_KEY, OWNER, login, new_key, run, wait_for


def data_of(host_key: HostKey) -> str:
    return user_data("n1", getpass.getuser(), (CLIENT_KEY.public,), host_key)


def own_key() -> HostKey:
    key = new_key()
    return HostKey(key.public, key.private_openssh)


def instance(machines: RealMachines, name: str) -> Instance:
    look = machines.look(name)
    return Instance(name, OWNER, name, name, "r", "z", "t", look.state, 0.0, look.address, look.ssh_port)


def wait_look(machines: RealMachines, name: str, state: InstanceState) -> None:
    wait_for(lambda: machines.look(name).state is state, f"{name} is {state}")


def test_machines_are_what_their_user_data_says(tmp_path: Path) -> None:
    keys = {"i-1": own_key(), "i-2": own_key()}
    with real_machines(tmp_path / "a cloud") as machines:
        for name, key in keys.items():
            machines.boot(name, data_of(key))
        for name in keys:
            wait_look(machines, name, InstanceState.RUNNING)
        first, second = instance(machines, "i-1"), instance(machines, "i-2")
        assert first.ssh_host != second.ssh_host
        assert first.ssh_port == second.ssh_port == machines.ssh_port
        with login(second, host_key=keys["i-2"].public) as connection:
            where = run(connection, "echo $AWS_EC2_METADATA_SERVICE_ENDPOINT $GCE_METADATA_HOST").split()
        assert where == [machines.look("i-2").metadata_url, machines.look("i-2").metadata_url.removeprefix("http://")]
        with pytest.raises(paramiko.BadHostKeyException), login(first, host_key=keys["i-2"].public):
            pass


def test_an_address_comes_back_with_another_key(tmp_path: Path) -> None:
    old, new = own_key(), own_key()
    with real_machines(tmp_path) as machines:
        machines.reuse_addresses()
        machines.boot("i-old", data_of(old))
        wait_look(machines, "i-old", InstanceState.RUNNING)
        address = machines.look("i-old").address
        machines.end("i-old")
        wait_look(machines, "i-old", InstanceState.TERMINATED)
        machines.boot("i-new", data_of(new))
        wait_look(machines, "i-new", InstanceState.RUNNING)
        assert machines.look("i-new").address == address
        with login(instance(machines, "i-new"), host_key=new.public) as connection:
            assert run(connection, "echo here") == "here\n"


def test_a_preempted_machine_ends_by_itself(tmp_path: Path) -> None:
    with real_machines(tmp_path) as machines:
        machines.boot("i-1", data_of(HostKey(HOST_KEY.public, HOST_KEY.private_openssh)))
        wait_look(machines, "i-1", InstanceState.RUNNING)
        machines.preempt("i-1", 0.2)
        wait_look(machines, "i-1", InstanceState.TERMINATED)
        machines.end("i-1")


def test_paper_machines_keep_the_same_promises() -> None:
    machines = PaperMachines()
    for number in range(600):
        machines.boot(f"i-{number}", data_of(HostKey(HOST_KEY.public, HOST_KEY.private_openssh)))
    looks = [machines.look(f"i-{number}") for number in range(600)]
    assert len({look.address for look in looks}) == 600
    machines.end("i-7")
    machines.end("i-7")
    assert machines.look("i-7").state is InstanceState.TERMINATED
    assert machines.look("i-8").state is InstanceState.RUNNING
    with pytest.raises(KeyError):
        machines.look("i-unknown")


@pytest.mark.parametrize("text", ["", "#!/bin/sh\n", "#cloud-config\n{}", "#cloud-config\nusers: []"])
def test_user_data_that_lets_nobody_in_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="user data"):
        read_user_data(text)
