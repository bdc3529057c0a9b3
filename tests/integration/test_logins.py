"""A real ssh and a real sshd: whom a certificate lets in, and whom it does not."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from supervisor.cli.operate import ssh_command
from supervisor.identity import Identity
from supervisor.logins import CLOCK_S, VALID_S, certificate, public_key
from tests.support.faulty_ssh import Machine, machine_with_sshd

IDENTITY = Identity(b"s" * 32)
OTHERS = Identity(b"t" * 32)
NODE = "chars-1"


@dataclass
class Desk:
    """Somebody's computer, with a key of their own, and a machine that was made for NODE."""

    folder: Path
    machine: Machine

    def ssh(
        self,
        *,
        identity: Identity = IDENTITY,
        node: str = NODE,
        at: float = 0.0,
        host_key: str = "",
        other_key: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Log in with a certificate that was signed so."""
        key = self.folder / "key"
        maker, program = shutil.which("ssh-keygen"), shutil.which("ssh")
        assert maker
        assert program
        for path in (key, self.folder / "other"):
            path.unlink(missing_ok=True)
            subprocess.run([maker, "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
        signed = (self.folder / ("other.pub" if other_key else "key.pub")).read_text()
        target = self.machine.target
        row = {
            "certificate": certificate(identity.login_ca(), public_key(signed), "ann", node, at or time.time(), 1),
            "known_hosts": f"[{target.host}]:{target.port} {host_key or target.host_key_public}\n",
            "port": target.port,
        }
        command = [
            *ssh_command(program, row, key),
            "-o",
            "BatchMode=yes",
            "--",
            f"{target.user}@{target.host}",
            "echo in",
        ]
        return subprocess.run(command, capture_output=True, text=True, timeout=60.0, check=False)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    if shutil.which("ssh") is None:
        pytest.skip("there is no ssh client here")
    with machine_with_sshd(tmp_path, IDENTITY.host_key(NODE), IDENTITY.client_key()) as machine:
        lines = "".join(f"{line}\n" for line in IDENTITY.authorized_keys(NODE))
        (tmp_path / "sshd" / "authorized_keys").write_text(lines)
        folder = tmp_path / "a desk"
        folder.mkdir(mode=0o700)
        yield Desk(folder, machine)


def test_who_shows_a_certificate_for_the_machine_is_let_in(desk: Desk) -> None:
    done = desk.ssh()
    assert (done.stdout, done.returncode) == ("in\n", 0), done.stderr


def refused(done: subprocess.CompletedProcess[str]) -> bool:
    return done.returncode == 255 and done.stdout == "" and "Permission denied" in done.stderr


def test_a_users_own_settings_do_not_hold_for_the_machine(desk: Desk) -> None:
    row = {"certificate": "", "known_hosts": "", "port": 22}
    command = ssh_command("ssh", row, desk.folder / "key", jump="ann@desk:2222,bob@100%25")
    assert command[:3] == ["ssh", "-F", "none"]
    assert command[-1] == "ProxyCommand=ssh -W '[%h]:%p' -J ann@desk:2222 -- ssh://bob@100%%25"
    assert "-J" not in command


def test_a_certificate_for_another_machine_is_refused(desk: Desk) -> None:
    assert refused(desk.ssh(node="chars-2"))


def test_a_certificate_of_another_installation_is_refused(desk: Desk) -> None:
    assert refused(desk.ssh(identity=OTHERS))


def test_a_certificate_that_has_expired_or_is_of_tomorrow_is_refused(desk: Desk) -> None:
    assert refused(desk.ssh(at=time.time() - VALID_S - 5))
    assert refused(desk.ssh(at=time.time() + CLOCK_S + 3600))


def test_a_certificate_for_somebody_elses_key_is_refused(desk: Desk) -> None:
    assert refused(desk.ssh(other_key=True))


def test_a_machine_with_another_host_key_is_not_spoken_to(desk: Desk) -> None:
    done = desk.ssh(host_key=OTHERS.host_key(NODE).public)
    assert done.returncode == 255
    assert "Host key verification failed" in done.stderr
