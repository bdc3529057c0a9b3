"""An etcd of one member or more, each of which can be killed, frozen, and started again."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from spotsup_trainer.etcd import Etcd, EtcdError

from provisioners.localcloud.machine.spec import MARKER_VARIABLE
from tests.support.programs import find_program, free_ports, program_env

_START_TIMEOUT_S = 120.0  # a member that has to catch up, on a busy computer
_LOOK_S = 0.05


class EtcdFailedError(Exception):
    """A member does not answer; with the end of its log."""


def prefix_of(folder: Path) -> str:
    """The prefix of the markers of all processes that belong to a folder; equal for equal folders."""
    return f"local-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]}-"


class Members:
    """`count` members of one cluster below `folder`; each keeps its ports.

    `options`: more of etcd's options. `homes`: a member's data folder, if not below `folder`. `networks`: each member's
    network namespace and address.
    """

    def __init__(
        self,
        folder: Path,
        count: int = 1,
        options: Sequence[str] = (),
        homes: Mapping[int, Path] | None = None,
        networks: Sequence[tuple[str, str]] = (),
    ) -> None:
        self._folder = folder
        self._networks = tuple(networks)
        self._options, self._homes = tuple(options), dict(homes or {})
        self._prefix = prefix_of(folder)
        ports = free_ports(2 * count)
        hosts = [address for _, address in networks] or ["127.0.0.1"] * count
        self._clients = [f"http://{host}:{port}" for host, port in zip(hosts, ports[:count], strict=True)]
        self._peers = [f"http://{host}:{port}" for host, port in zip(hosts, ports[count:], strict=True)]
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The client URLs."""
        return tuple(self._clients)

    def start(self, *numbers: int) -> None:
        """Start members and wait until each answers. Raises EtcdFailedError."""
        for number in numbers:
            self._launch(number)
        for number in numbers:
            self._wait(number, self._clients[number])

    def start_all(self) -> None:
        """Start the cluster. Raises EtcdFailedError."""
        self.start(*range(len(self._clients)))

    def kill(self, number: int = 0) -> None:
        """kill -9."""
        process = self._running.pop(number)
        process.kill()
        process.wait()

    def freeze(self, number: int = 0) -> None:
        """SIGSTOP: its connections stay open."""
        self._running[number].send_signal(signal.SIGSTOP)

    def thaw(self, number: int = 0) -> None:
        """SIGCONT."""
        self._running[number].send_signal(signal.SIGCONT)

    def pid(self, number: int = 0) -> int:
        """The pid of a member; 0 if it has ended."""
        process = self._running.get(number)
        return process.pid if process is not None and process.poll() is None else 0

    def close(self) -> None:
        """Kill all members."""
        for number in list(self._running):
            self.kill(number)

    def _launch(self, number: int) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        client, peer = self._clients[number], self._peers[number]
        cluster = ",".join(f"m{index}={each}" for index, each in enumerate(self._peers))
        command = [
            *((str(find_program("ip")), "netns", "exec", self._networks[number][0]) if self._networks else ()),
            str(find_program("etcd")),
            *("--name", f"m{number}", "--data-dir", str(self._data(number))),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", cluster, "--log-level", "warn"),
            *self._options,
        ]
        environ = program_env() | {MARKER_VARIABLE: f"{self._prefix}{number:04d}"}
        with self._log(number).open("ab") as log:
            self._running[number] = subprocess.Popen(
                command, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def _wait(self, number: int, endpoint: str) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        with contextlib.closing(Etcd([endpoint], timeout_s=2.0)) as etcd:
            while True:
                try:
                    etcd.get("/")  # a linearizable read: there is a leader
                except EtcdError as error:
                    if self._running[number].poll() is not None or time.monotonic() > deadline:
                        log = self._log(number).read_text(errors="replace")[-1000:]
                        raise EtcdFailedError(f"no etcd answers at {endpoint}: {error}; its log: {log}") from error
                    time.sleep(_LOOK_S)
                else:
                    return

    def _data(self, number: int) -> Path:
        return self._homes.get(number, self._folder) / f"data-{number}"

    def _log(self, number: int) -> Path:
        return self._folder / f"etcd-{number}.log"
