"""Launch machines, wait for them, log in to them: what tests with a cloud have in common."""

from __future__ import annotations

import getpass
import io
import os
import time
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import fabric
import paramiko
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from provisioners.base import (
    HostKey,
    Instance,
    InstanceState,
    Launched,
    LaunchRequest,
    Offer,
    OfferQuery,
    Owner,
    Provisioner,
)

# A real cloud takes longer, must not be asked as often, and knows another user: tests/contract/real.py sets these.
TIMEOUT_S = float(os.environ.get("SPOTSUP_TEST_CALL_S", "30"))
PATIENCE_S = float(os.environ.get("SPOTSUP_TEST_PATIENCE_S", "30"))
LOGIN_S = float(os.environ.get("SPOTSUP_TEST_LOGIN_S", "0"))
LOOK_S = float(os.environ.get("SPOTSUP_TEST_LOOK_S", "0.005"))
SSH_USER = os.environ.get("SPOTSUP_TEST_SSH_USER") or getpass.getuser()
OWNER = Owner("test-cluster", "0123456789abcdef")
OTHER = Owner("test-cluster", "fedcba9876543210")  # another installation in the account

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class KeyPair:
    """An SSH key in OpenSSH's formats."""

    public: str
    private_openssh: str = field(repr=False)


def new_key() -> KeyPair:
    """A fresh ed25519 key."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return KeyPair(public.decode(), private.decode())


HOST_KEY = new_key()
CLIENT_KEY = new_key()


def wait_for(look: Callable[[], Found | None], what: str, timeout_s: float = PATIENCE_S) -> Found:
    """What `look` finds, once it finds something true."""
    deadline = time.monotonic() + timeout_s
    while not (found := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(LOOK_S)
    return found


def request_for(provisioner: Provisioner, node: str, *, token: str = "", zone: str = "") -> LaunchRequest:
    """A request for the cheapest spot machine, in `zone` if given; for another one by node where there is but one."""
    offers = provisioner.offers(OfferQuery(zones=(zone,) if zone else ()), TIMEOUT_S)
    return request_at(one_of(offers, node), node, token=token)


def one_of(offers: Sequence[Offer], whose: str) -> Offer:
    """The cheapest; or, where there is one machine of each, one of them by who asks."""
    return offers[sum(map(ord, whose)) % len(offers) if offers[0].room == 1 else 0]


def request_at(offer: Offer, node: str, *, token: str = "") -> LaunchRequest:
    """A request for one offer."""
    host_key = HostKey(HOST_KEY.public, HOST_KEY.private_openssh)
    return LaunchRequest(token or f"token-{node}", OWNER, node, offer, host_key, (CLIENT_KEY.public,))


def launch(provisioner: Provisioner, node: str, *, zone: str = "") -> Instance:
    """A launched machine, not yet running."""
    return launched_by(provisioner, request_for(provisioner, node, zone=zone))


def launched_by(provisioner: Provisioner, request: LaunchRequest) -> Instance:
    """What came of a request that is granted."""
    outcome = provisioner.launch(request, TIMEOUT_S)
    assert isinstance(outcome, Launched), outcome
    return outcome.instance


def found_by(provisioner: Provisioner, node: str) -> Instance:
    """A node's machine, which the cloud knows."""
    instance = provisioner.find(OWNER, f"token-{node}", TIMEOUT_S)
    assert instance is not None
    return instance


def wait_state(provisioner: Provisioner, token: str, *states: InstanceState) -> Instance:
    """The machine of a token, once it is in one of these states."""

    def look() -> Instance | None:
        found = provisioner.find(OWNER, token, TIMEOUT_S)
        return found if found is not None and found.state in states else None

    return wait_for(look, f"machine of {token} is {' or '.join(states)}")


def launch_running(provisioner: Provisioner, node: str, *, zone: str = "") -> Instance:
    """A machine one can log in to."""
    launched = launch(provisioner, node, zone=zone)
    return wait_state(provisioner, launched.token, InstanceState.RUNNING)


@contextmanager
def login(instance: Instance, *, host_key: str = HOST_KEY.public) -> Iterator[fabric.Connection]:
    """A connection that accepts exactly `host_key`."""
    kind, encoded = host_key.split()[:2]
    private = paramiko.Ed25519Key.from_private_key(io.StringIO(CLIENT_KEY.private_openssh))
    connection = fabric.Connection(
        instance.ssh_host,
        user=SSH_USER,
        port=instance.ssh_port,
        config=fabric.Config(overrides={"load_ssh_configs": False}),
        connect_timeout=TIMEOUT_S,
        connect_kwargs={"pkey": private, "look_for_keys": False, "allow_agent": False},
    )
    known = connection.client.get_host_keys()
    known.add(f"[{instance.ssh_host}]:{instance.ssh_port}", kind, paramiko.Ed25519Key(data=b64decode(encoded)))
    connection.client.set_missing_host_key_policy(paramiko.RejectPolicy())
    with connection:
        _open(connection)
        yield connection


def _open(connection: fabric.Connection) -> None:
    """A machine that its cloud reports as running may not listen yet, for LOGIN_S."""
    deadline = time.monotonic() + LOGIN_S
    while True:
        try:
            connection.open()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(LOOK_S)
        else:
            return


def run(connection: fabric.Connection, command: str) -> str:
    """What a command prints; it must succeed."""
    return str(connection.run(command, hide=True, in_stream=False, timeout=30).stdout)
