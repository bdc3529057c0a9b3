"""Short-lived SSH certificates: what they say, which keys they are for, and what ssh gets of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    SSHCertificate,
    load_ssh_public_identity,
)

from provisioners.base import EndCause
from supervisor.api.nodes.logins import login_row
from supervisor.cli.operate import ssh_command
from supervisor.config import Config
from supervisor.errors import CommandRefusedError, UsageError
from supervisor.identity import Identity
from supervisor.logins import CLOCK_S, MAX_KEY_CHARACTERS, VALID_S, Login, certificate, public_key
from tests.sim.harness import machine_of, training_world
from tests.sim.promises import jobs_of

IDENTITY = Identity(b"s" * 32)
KEY = IDENTITY.client_key()  # the same in each process
NOW = 1_800_000_000.0


def text_of(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> str:
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


CERTIFICATE = certificate(IDENTITY.login_ca(), public_key(KEY.public), "ann 12ab", "chars-1", NOW, 7)


def test_a_certificate_is_for_one_key_one_machine_and_five_minutes() -> None:
    read = load_ssh_public_identity(CERTIFICATE.encode())
    assert isinstance(read, SSHCertificate)
    read.verify_cert_signature()
    assert read.signature_key() == public_key(IDENTITY.login_ca().public)
    assert read.public_key() == public_key(KEY.public)
    assert (read.key_id, read.serial, read.valid_principals) == (b"ann 12ab", 7, [b"chars-1"])
    assert (read.valid_after, read.valid_before) == (NOW - CLOCK_S, NOW + VALID_S)
    assert (set(read.extensions), read.critical_options) == ({b"permit-port-forwarding", b"permit-pty"}, {})


def test_the_key_that_signs_is_not_the_one_that_logs_in() -> None:
    keys = IDENTITY.authorized_keys("chars-1")
    assert keys[0] == IDENTITY.client_key().public
    assert keys[1] == f'cert-authority,principals="chars-1" {IDENTITY.login_ca().public}'
    assert IDENTITY.login_ca() != IDENTITY.client_key()
    assert IDENTITY.login_ca() == Identity(b"s" * 32).login_ca(), "a standby signs with the same"


@pytest.mark.parametrize(
    "make", [lambda: rsa.generate_private_key(65537, 2048), lambda: ec.generate_private_key(ec.SECP384R1())]
)
def test_keys_of_other_types_are_signed_too(make: Callable[[], rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey]) -> None:
    key = text_of(make())
    line = certificate(IDENTITY.login_ca(), public_key(f"{key} ann@desk\n"), "ann", "n", NOW, 1)
    read = load_ssh_public_identity(line.encode())
    assert isinstance(read, SSHCertificate)
    assert read.public_key() == public_key(key)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "this is no SSH public key"),
        ("ssh-ed25519 AAAA", "this is no SSH public key"),
        (f"{KEY.public}\n{KEY.public}", "this is no SSH public key"),
        (f'command="id" {KEY.public}', "this is no SSH public key"),
        (KEY.public + " c" * MAX_KEY_CHARACTERS, "this is no SSH public key"),
        (KEY.private_openssh, "this is no SSH public key"),
        (KEY.public.replace("ssh-ed25519", "ssh-rsa", 1), "this is no SSH public key"),
        ("ssh-dss AAAAB3NzaC1kc3M=", "this is no SSH public key"),
        (CERTIFICATE, "of a type that is accepted"),
    ],
)
def test_what_is_no_good_key_is_refused_in_one_sentence(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        public_key(text)


def test_a_short_rsa_key_is_refused() -> None:
    with pytest.raises(UsageError, match="has 1024 bits, and 2048 are needed"):
        public_key(text_of(rsa.generate_private_key(65537, 1024)))  # noqa: S505 - as it says


def test_ssh_gets_a_certificate_and_trusts_only_the_nodes_own_host_key(tmp_path: Path) -> None:
    world = training_world()
    node = jobs_of(world)["job"].nodes[machine_of(world, 0).instance.node]
    login = Login(KEY.public, "ann", world.clock.now(), 1)
    row = login_row(Config(), IDENTITY, node, login)
    assert row["known_hosts"] == f"{node.ssh_host} {IDENTITY.host_key(node.id).public}\n"
    assert row["expires_at"] == login.at + VALID_S
    command = ssh_command("/usr/bin/ssh", row, tmp_path / "key", "ann@gate")
    assert command[-2:] == ["-o", "ProxyCommand=ssh -W '[%h]:%p' -- ssh://ann@gate"]
    assert {"StrictHostKeyChecking=yes", f'UserKnownHostsFile="{tmp_path}/known_hosts"'} < set(command)
    assert (tmp_path / "key-cert.pub").read_text() == row["certificate"] + "\n"
    world.cloud.end(machine_of(world, 0), EndCause.PREEMPTED)
    assert world.run_until(lambda w: jobs_of(w)["job"].nodes[node.id].state == "gone", 60.0)
    with pytest.raises(CommandRefusedError, match=f"node {node.id} is gone and has no address to connect to"):
        login_row(Config(), IDENTITY, jobs_of(world)["job"].nodes[node.id], login)
