"""Hosts of one's own: what `spotsupd machine` says and writes, and what a host makes of a bad day. Real sshd."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from provisioners.base import InstanceState, Owner
from provisioners.localcloud.processes import Identity, is_alive, send
from provisioners.localcloud.programs import TOOLS_VARIABLE, tools_root
from provisioners.own import host
from provisioners.own.answers import Refused, machine_id
from provisioners.own.program import program
from provisioners.own.provisioner import OwnProvisioner
from supervisor import identity
from supervisor.cli.daemon import main
from tests.support.machines import wait_for
from tests.support.own_hosts import OwnHosts, own_hosts

OWNER = Owner("test", "0" * 16)
# Its machine is known by its id, which begins with the host's name: other tests of this computer have another name.
NAME = f"box{os.getpid()}"
CLAIM: dict[str, Any] = {
    "id": machine_id(NAME, OWNER, "t"),
    "cluster": OWNER.cluster,
    "key_mark": OWNER.key_mark,
    "token": "t",
    "node": "n",
    "host": NAME,
    "zone": "own",
    "host_key_public": "",
    "host_key_private": identity.Identity(bytes(32)).host_key("n").private_openssh,
    "authorized_keys": [],
    "gpus": None,
    "ports": None,
}


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[OwnHosts]:
    with own_hosts(tmp_path, ["box1", "box2"]) as found:
        yield found


def run(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(main, ["machine", *arguments])
    assert done.exit_code == code, done.output
    return done.output


def test_a_host_is_added_once_its_key_is_known_and_closed_and_opened(hosts: OwnHosts, tmp_path: Path) -> None:
    config, known = tmp_path / "spotsupd.toml", tmp_path / "known"
    config.write_text(f"[own]\nknown_hosts = {json.dumps(str(known))}\npython = {json.dumps(str(hosts.python))}\n")
    (first, second) = (f"{each.ssh_host}:{each.ssh_port}" for each in hosts.machines.values())
    option = ("--config", str(config))
    with config.open("a") as file:
        file.write("[own.hosts.other]\naddress = '127.0.0.1'\nport = 1\n")
    key = ("--key-file", str(hosts.key_file))
    refused = run("add", first, "--name", "box1", *key, *option, code=2)
    assert "SHA256:" in refused
    assert "give --yes" in refused
    assert "box1" not in config.read_text()
    assert not known.exists()
    added = run("add", first, "--name", "box1", *key, "--yes", *option)
    assert "box1: it lets us in, and has no GPU" in added
    assert tomllib.loads(config.read_text())["own"]["hosts"]["box1"]["key_file"] == str(hosts.key_file)
    assert "SHA256" not in run("add", first, "--name", "box1", *key, *option)  # again: it is tried
    assert "there is a host box1 with another" in run("add", second, "--name", "box1", *key, *option, code=2)
    assert "is closed until" in run("close", "box1", "--until", "8h", *option)
    assert "box1" in run("list", *option)
    assert "may not be used now" in run("list", *option)
    assert "another available" in run("add", first, "--name", "box1", "--available", "weekends", *key, *option, code=2)
    assert run("open", "box1", *option) == "box1 may be used\n"
    assert "may not be used now" not in run("list", *option)
    assert "no own host box9" in run("close", "box9", *option, code=2)


def test_a_host_whose_key_is_another_one_is_not_believed(hosts: OwnHosts, tmp_path: Path) -> None:
    lines = hosts.known_hosts.read_text().splitlines()
    (one, two) = (each.split(" ", 1) for each in lines)
    hosts.known_hosts.write_text(f"{one[0]} {two[1]}\n{two[0]} {two[1]}\n")
    found = {each.what: each for each in OwnProvisioner(hosts.settings()).check(20.0)}
    assert "its SSH key is another one" in found["box1"].message
    assert found["box2"].ok


# -- what a host makes of a bad day --------------------------------------------------------------------------


class Box:
    """A host in this process, without SSH: what runs there is real."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "box"
        self.zip = folder / "program.zip"
        self.zip.write_bytes(program())

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        return host.answer({"do": do, **request}, self.root, str(self.zip), 1000.0, "127.0.0.1")

    def claim(self) -> dict[str, Any]:
        answer = self.ask("claim", **CLAIM)
        assert "claim" in answer, answer
        made: dict[str, Any] = answer["claim"]
        return made

    def note(self, made: dict[str, Any]) -> Path:
        return self.root / "machines" / str(made["id"]) / "claim.json"


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    if tools := tools_root():
        monkeypatch.setenv(TOOLS_VARIABLE, str(tools))
    found = Box(tmp_path)
    yield found
    for made in found.ask("look")["claims"]:
        assert found.ask("release", id=made["id"]) == {"left": []}


def test_a_claim_that_was_cut_off_is_completed_or_gone(box: Box) -> None:
    made = box.claim()
    box.note(made).write_text(json.dumps({**made, "state": "pending", "pid": 0, "started": 0, "ssh_port": 0}))
    assert box.ask("look")["claims"] == [made]  # it had begun
    init = Identity(made["pid"], made["started"])
    send(init, signal.SIGKILL)
    wait_for(lambda: not is_alive(init), "it has ended")
    box.note(made).write_text(json.dumps({**made, "state": "pending"}))
    assert [each["state"] for each in box.ask("look")["claims"]] == ["terminated"]


def test_what_a_power_failure_leaves_of_a_note_ends_what_runs_and_bricks_nothing(box: Box) -> None:
    made = box.claim()
    box.note(made).write_text("")
    (box.root / "closed.json").write_text("{")
    (box.root / "ended" / "own-0-1.json").write_text("")
    assert box.ask("look")["claims"] == []
    assert not is_alive(Identity(made["pid"], made["started"]))
    assert not box.note(made).parent.exists()


def test_a_restart_of_the_host_ends_its_claims(box: Box) -> None:
    made = box.claim()
    box.note(made).write_text(json.dumps({**made, "boot": "another"}))
    (ended,) = box.ask("look")["claims"]
    assert (ended["state"], ended["why"]) == ("terminated", "the host was restarted")
    send(Identity(made["pid"], made["started"]), signal.SIGKILL)  # which no restart leaves


def test_an_end_that_was_cut_off_is_ended_once(box: Box) -> None:
    made = box.claim()
    note = box.note(made).read_text()
    assert box.ask("release", id=made["id"]) == {"left": []}
    assert not Path(made["tmp"]).exists()
    box.note(made).parent.mkdir()
    box.note(made).write_text(note)
    assert [each["state"] for each in box.ask("look")["claims"]] == ["terminated"]
    assert not box.note(made).parent.exists()


def test_a_host_that_is_closed_is_claimed_by_nobody(box: Box) -> None:
    box.ask("close", since=1000.0, until=2000.0)
    assert box.ask("claim", **CLAIM) == {"busy": "somebody has it for themselves"}
    assert box.ask("look")["closed"] == {"since": 1000.0, "until": 2000.0}
    box.ask("close", since=1000.0, until=0.0)
    assert InstanceState(box.claim()["state"]) is InstanceState.RUNNING


def test_a_port_that_another_program_has_is_not_taken(box: Box) -> None:
    with socket.socket() as first:
        first.bind(("127.0.0.1", 0))
        first.listen()
        taken = first.getsockname()[1]
        assert box.ask("claim", **CLAIM | {"ports": [taken, taken]}) == {"busy": "all of own.ports are in use"}


def test_a_copy_of_this_computer_with_the_same_home_leaves_our_claims_alone(box: Box) -> None:
    made = box.claim()
    box.note(made).write_text(json.dumps({**made, "boot": "of the copy", "computer": "copy"}))
    assert box.ask("look")["claims"] == []
    assert is_alive(Identity(made["pid"], made["started"]))
    box.note(made).write_text(json.dumps(made))


def test_files_that_are_read_only_are_removed_too(box: Box) -> None:
    made = box.claim()
    home = box.note(made).parent / "home"
    (home / "cache" / "module").mkdir(parents=True)
    (home / "cache" / "module" / "file").write_text("x")
    (home / "cache" / "module").chmod(0o500)
    assert box.ask("release", id=made["id"]) == {"left": []}
    assert not home.exists()


def test_who_sits_at_a_host_sees_what_it_works_for_and_ends_it(box: Box) -> None:
    box.root = host.of_this_computer(box.zip.parent)
    command = [sys.executable, "-I", str(box.zip)]
    assert subprocess.check_output(command, text=True) == "nothing of spotsup is here\n"
    made = box.claim()
    assert f"{made['id']}: n of the cluster test runs here" in subprocess.check_output(command, text=True)
    assert is_alive(Identity(made["pid"], made["started"]))
    assert f"{made['id']}: n of the cluster test has ended" in subprocess.check_output([*command, "end"], text=True)
    assert not is_alive(Identity(made["pid"], made["started"]))
    assert subprocess.check_output(command, text=True) == ""


def test_why_no_machine_begins_is_said_within_what_the_daemon_reads(box: Box) -> None:
    refused = Refused.model_validate(box.ask("claim", **CLAIM | {"host_key_private": "no key" * 100}))
    assert "no machine begins there" in refused.busy
    assert not any((box.root / "machines").iterdir())
