"""An account on EC2's test cloud whose instances are stock machines, with the metadata service where EC2 has it.

The daemon is another machine: it reaches the API at the host's address on the bridge, as it would reach Amazon's.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from provisioners.base import InstanceState
from provisioners.localcloud.machine.aws import AwsMetadata
from tests.acceptance.stock import Network, StockMachine
from tests.clouds import aws
from tests.clouds.machines import Look, read_user_data

ZONE, TYPE = "us-east-1a", "m5.large"


class _Instance:
    """A machine, and what its metadata service says."""

    def __init__(self, machine: StockMachine) -> None:
        self.machine = machine
        self.metadata = AwsMetadata({"id": machine.node, "zone": ZONE, "instance_type": TYPE})
        self.ends_at: float | None = None
        self.lock = threading.Lock()


class RentedMachines:
    """Stock machines by the ids of a test cloud, as its `Machines` protocol says."""

    ssh_port = 22

    def __init__(self, root: Path, network: Network, folder: Path) -> None:
        self._root, self._network, self._folder = root, network, folder
        self._lock = threading.Lock()
        self._instances: dict[str, _Instance] = {}
        self._timers: list[threading.Timer] = []
        self.metadata_port = 0

    def boot(self, machine: str, user_data: str) -> None:
        """As the protocol says."""
        read_user_data(user_data)
        with self._lock:
            number = len(self._instances) + 1
            made = StockMachine(self._root, self._network, self._folder / machine, machine, number)
            self._instances[machine] = _Instance(made)
            made.boot(user_data, metadata_port=self.metadata_port)

    def look(self, machine: str) -> Look:
        """As the protocol says. EC2 calls an instance running while it boots."""
        instance = self._instances[machine]
        state = InstanceState.RUNNING if instance.machine.runs else InstanceState.TERMINATED
        return Look(state, instance.machine.address, self.ssh_port)

    def preempt(self, machine: str, notice_s: float) -> None:
        """As the protocol says."""
        instance = self._instances[machine]
        instance.ends_at = time.time() + notice_s
        timer = threading.Timer(notice_s, self.end, (machine,))
        timer.daemon = True
        timer.start()
        self._timers.append(timer)

    def end(self, machine: str) -> None:
        """As the protocol says."""
        instance = self._instances[machine]
        with instance.lock:
            instance.machine.kill()

    def console(self, machine: str) -> str:
        """As the protocol says."""
        return self._instances[machine].machine.console

    def running(self) -> list[StockMachine]:
        """The machines that run."""
        with self._lock:
            return [each.machine for each in self._instances.values() if each.machine.runs]

    def at(self, address: str) -> _Instance | None:
        """The instance with an address."""
        with self._lock:
            return next((each for each in self._instances.values() if each.machine.address == address), None)

    def close(self) -> None:
        """End all."""
        for timer in self._timers:
            timer.cancel()
            timer.join()
        for machine in list(self._instances):
            self.end(machine)

    @contextmanager
    def metadata_served(self) -> Iterator[None]:
        """Answer every machine's questions about itself."""
        machines = self

        class Handler(BaseHTTPRequestHandler):
            """A machine is known by its address."""

            def answer(self) -> None:
                """As EC2's metadata service, version 2."""
                instance = machines.at(self.client_address[0])
                headers = {name.lower(): value for name, value in self.headers.items()}
                status, body = 404, ""
                if instance is not None:
                    with instance.lock:
                        text = instance.metadata.answer(
                            self.command, self.path, headers, instance.ends_at, time.monotonic()
                        )
                    status, body = (text.status, text.body) if text else (404, "")
                with contextlib.suppress(ConnectionError):  # the machine has just been ended
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(body.encode())))
                    self.end_headers()
                    self.wfile.write(body.encode())

            def do_GET(self) -> None:
                """What is known of the machine that asks."""
                self.answer()

            def do_PUT(self) -> None:
                """A session token."""
                self.answer()

            def log_message(self, *_: object) -> None:
                """Nothing on the terminal."""

        with ThreadingHTTPServer((self._network.host, 0), Handler) as server:
            server.daemon_threads = True
            self.metadata_port = server.server_address[1]
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
            thread.start()
            try:
                yield
            finally:
                server.shutdown()
                thread.join()


class Account:
    """The test cloud, its server, and the machines behind it."""

    def __init__(self, machines: RentedMachines, server: aws.Server) -> None:
        self.machines, self.server, self.cloud = machines, server, server.cloud

    def security_group(self, *daemons: str) -> str:
        """Made as docs/install.md says: the daemons get in by SSH, and the nodes reach each other. Its id."""
        with self.cloud.fleet.lock:
            ec2: Any = self.cloud.fleet.backend("us-east-1")
            vpc = ec2.get_default_vpc().id
            group = ec2.create_security_group("spotsup", "spotsup's nodes", vpc).id
            sources = [{"CidrIp": f"{daemon}/32"} for daemon in daemons]
            ec2.authorize_security_group_ingress(group, "tcp", "22", "22", sources)
            ec2.authorize_security_group_ingress(group, "-1", "", "", [], source_groups=[{"GroupId": group}])
        return str(group)

    def preempt(self, node: str, notice_s: float) -> None:
        """Announce it in the API and on the machine; when the notice is over the machine ends."""
        with self.cloud.fleet.lock:
            record = next(each for each in self.cloud.fleet.alive() if each.tags.get("spotsup-node") == node)
            self.cloud.fleet.preempt(record.machine, notice_s)

    def left(self) -> list[str]:
        """What the cloud still bills."""
        with self.cloud.fleet.lock:
            return list(self.cloud.fleet.left())


@contextmanager
def account(root: Path, network: Network, folder: Path) -> Iterator[Account]:
    """An account whose instances boot from `root`, until the end of this; then all have ended."""
    before = os.environ.get("MOTO_EC2_LOAD_DEFAULT_AMIS")
    os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"  # read when moto makes its first backend
    with ExitStack() as stack:
        machines = RentedMachines(root, network, folder / "instances")
        stack.callback(machines.close)
        stack.enter_context(machines.metadata_served())
        server = aws.Server(aws.Cloud(machines), folder, host=network.host)
        stack.callback(server.stop)
        try:
            yield Account(machines, server)
        finally:
            if before is None:
                del os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"]
            else:
                os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = before
