"""Tunnels on the real sshd of a local machine: what they carry, and what happens when they break."""

from __future__ import annotations

import getpass
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from bootstrap.connect import SshHost
from bootstrap.tunnel import LOCAL_CONNECT_S, MAX_CONNECTIONS, UNANSWERED_S, Forward, Tunnel
from provisioners.base import Instance
from tests.support.etcd_server import cable
from tests.support.machines import CLIENT_KEY, HOST_KEY, launch_running
from tests.support.programs import LocalCloud, free_ports

pytestmark = pytest.mark.long


@pytest.fixture
def target(local_cloud: LocalCloud) -> SshHost:
    machine: Instance = launch_running(local_cloud.provisioner, "n1")
    return SshHost(machine.ssh_host, machine.ssh_port, getpass.getuser(), HOST_KEY.public, CLIENT_KEY.private_openssh)


@contextmanager
def opened(target: SshHost, *forwards: Forward, unanswered_s: float = UNANSWERED_S) -> Iterator[Tunnel]:
    made = Tunnel(target, "n1", forwards, time.monotonic, lambda _: None, unanswered_s)
    made.start()
    try:
        yield made
    finally:
        made.close()


@contextmanager
def echo() -> Iterator[int]:
    """Sends everything back."""

    def answer(end: socket.socket) -> None:
        with suppress(OSError), end:
            while data := end.recv(1 << 16):
                end.sendall(data)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


@contextmanager
def silence() -> Iterator[int]:
    """A port at which connections hang: its queue is full, and the kernel drops what comes, as a host without power."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):
            full = stack.enter_context(socket.socket())
            full.setblocking(False)
            full.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


def eventually(what: str, holds: Callable[[], bool], timeout_s: float = 90.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def carries(port: int, data: bytes = b"hello") -> bool:
    """Whether the machine's port gives back what it gets. (A local machine shares this computer's loopback.)"""
    got = bytearray()
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=10.0) as end:
            sender = threading.Thread(target=lambda: end.sendall(data))
            sender.start()
            while len(got) < len(data) and (part := end.recv(1 << 16)):
                got += part
            sender.join()
    except OSError:
        return False
    return got == data


def listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5.0):
        return True
    return False


def test_connections_of_the_machine_end_here_many_at_a_time_and_with_much_data(target: SshHost) -> None:
    port, other = free_ports(2)
    with echo() as here, opened(target, Forward(port, "127.0.0.1", here), Forward(other, "127.0.0.1", here)) as tunnel:
        eventually("the tunnel", lambda: not tunnel.problem())
        assert carries(port)
        assert carries(other)
        results = list[bool]()
        threads = [
            threading.Thread(target=lambda: results.append(carries(port, bytes(range(256)) * 2000))) for _ in range(20)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [True] * 20
    eventually("the end of the tunnel there", lambda: not listens(port))


def test_an_end_that_nobody_answers_is_closed_and_the_tunnel_stays(target: SshHost) -> None:
    port, nobody = free_ports(2)
    with opened(target, Forward(port, "127.0.0.1", nobody)) as tunnel:
        eventually("the tunnel", lambda: not tunnel.problem())
        with socket.create_connection(("127.0.0.1", port), timeout=10.0) as end:
            assert end.recv(1) == b""
        with (
            socket.create_server(("127.0.0.1", nobody)) as late,
            socket.create_connection(("127.0.0.1", port), timeout=10.0) as end,
        ):
            late.settimeout(10.0)
            accepted, _ = late.accept()
            with accepted:
                accepted.sendall(b"x")
                assert end.recv(1) == b"x"
        assert not tunnel.problem()


def test_a_connection_that_breaks_is_made_again_on_the_same_port(target: SshHost) -> None:
    (port,) = free_ports(1)
    with echo() as here, cable(f"http://{target.host}:{target.port}") as wire:
        through = replace(target, host="127.0.0.1", port=int(wire.endpoint.rpartition(":")[2]))
        with opened(through, Forward(port, "127.0.0.1", here)) as tunnel:
            eventually("the tunnel", lambda: carries(port))
            wire.cut()
            eventually("the loss to be noticed", lambda: bool(tunnel.problem()))
            wire.repair()
            eventually("the tunnel again", lambda: carries(port))
            assert not tunnel.problem()


def test_a_connection_that_passes_nothing_on_is_made_again_although_its_other_end_acknowledges_all(
    target: SshHost,
) -> None:
    """TCP finds nothing wrong with it: a middlebox that hangs, or an sshd."""
    (port,) = free_ports(1)
    with echo() as here, cable(f"http://{target.host}:{target.port}") as wire:
        through = replace(target, host="127.0.0.1", port=int(wire.endpoint.rpartition(":")[2]))
        with opened(through, Forward(port, "127.0.0.1", here), unanswered_s=2.0) as tunnel:
            eventually("the tunnel", lambda: carries(port))
            wire.hang()
            eventually("that to be noticed", lambda: "answers nothing" in tunnel.problem())
            assert tunnel.problem(60.0)
            wire.repair()
            eventually("the tunnel again", lambda: not tunnel.problem() and carries(port))
            assert "again just now" in tunnel.problem(60.0)


def test_the_port_of_an_sshd_that_hangs_itself_is_taken_from_it(target: SshHost) -> None:
    (port,) = free_ports(1)
    with echo() as here, opened(target, Forward(port, "127.0.0.1", here), unanswered_s=2.0) as tunnel:
        eventually("the tunnel", lambda: carries(port))
        (session,) = listeners(port)
        os.kill(session, signal.SIGSTOP)  # it takes no SIGTERM either
        eventually("that to be noticed", lambda: bool(tunnel.problem()))
        eventually("the tunnel again", lambda: not tunnel.problem() and carries(port))
        assert session not in listeners(port)


def listeners(port: int) -> list[int]:
    """The processes that listen on a port of 127.0.0.1."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()]
    sockets = {f"socket:[{row[9]}]" for row in rows if row[1] == f"0100007F:{port:04X}" and row[3] == "0A"}
    found = []
    for folder in Path("/proc").glob("[0-9]*/fd"):
        with suppress(OSError):
            if any(str(each.readlink()) in sockets for each in folder.iterdir()):
                found.append(int(folder.parent.name))
    return found


def test_another_daemon_takes_the_port_of_one_that_was_cut_off_without_a_word(target: SshHost) -> None:
    """The machine's sshd has not noticed, and would hold the port for hours."""
    (port,) = free_ports(1)
    with echo() as here, cable(f"http://{target.host}:{target.port}") as wire:
        through = replace(target, host="127.0.0.1", port=int(wire.endpoint.rpartition(":")[2]))
        with opened(through, Forward(port, "127.0.0.1", here)):
            eventually("the first tunnel", lambda: carries(port))
            wire.hang()
            assert listens(port)
            with opened(target, Forward(port, "127.0.0.1", here)) as second:
                eventually("the second tunnel", lambda: not second.problem())
                assert carries(port)
            wire.repair()


def test_a_port_that_another_program_has_is_named_and_waited_for(target: SshHost) -> None:
    with echo() as here, socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with opened(target, Forward(port, "127.0.0.1", here)) as tunnel:
            eventually("the reason", lambda: f"does not forward port {port} of its loopback" in tunnel.problem())
            assert listens(port)  # only an sshd is ended
            taken.close()
            eventually("the tunnel", lambda: carries(port))


def test_a_machine_that_does_not_answer_yet_is_tried_until_it_does(target: SshHost) -> None:
    port, ssh = free_ports(2)
    with echo() as here, opened(replace(target, port=ssh), Forward(port, "127.0.0.1", here)) as tunnel:
        assert tunnel.problem() == "not connected yet"
        began = time.monotonic()
        tunnel.close()
        assert time.monotonic() - began < 30


def test_one_machine_cannot_use_up_this_computers_connections(target: SshHost) -> None:
    (port,) = free_ports(1)
    with echo() as here, opened(target, Forward(port, "127.0.0.1", here)) as tunnel, ExitStack() as stack:
        eventually("the tunnel", lambda: carries(port))

        def answered() -> bool:
            end = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10.0))
            try:
                end.sendall(b"x")
                return end.recv(1) == b"x"
            except OSError:
                return False

        results = [answered() for _ in range(MAX_CONNECTIONS + 5)]
        assert results[: MAX_CONNECTIONS - 1] == [True] * (MAX_CONNECTIONS - 1)  # the first may not have ended yet
        assert results[-4:] == [False] * 4
        stack.close()
        eventually("room again", lambda: carries(port))
        assert not tunnel.problem()


def test_a_host_that_says_nothing_holds_up_no_other(target: SshHost) -> None:
    dead, alive = free_ports(2)
    with echo() as port, silence() as mute, ExitStack() as stack:
        stack.enter_context(opened(target, Forward(dead, "127.0.0.1", mute), Forward(alive, "127.0.0.1", port)))
        eventually("it carries", lambda: carries(alive))
        for _ in range(6):
            stack.enter_context(socket.create_connection(("127.0.0.1", dead), timeout=10.0))
        began = time.monotonic()
        assert carries(alive)
        assert time.monotonic() - began < LOCAL_CONNECT_S
