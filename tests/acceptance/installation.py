"""The daemon's side of bootstrap, and stock machines that it prepares: no daemon, and no cloud."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from spotsup_trainer.etcd import Etcd, EtcdError
from spotsup_trainer.wire import Keys, decode

from bootstrap import Report, Setup, SshHost, StepEvent, StepState, bootstrap, lock_of, pack_directory
from bootstrap.connect import connected
from bootstrap.model import Run
from provisioners.base import Market, Offer
from provisioners.userdata import user_data
from supervisor.config import parse_config
from supervisor.identity import load_identity
from supervisor.model import JobRecord, NodeRecord
from supervisor.new_job import new_job
from supervisor.nodes.prepare import pack_trainer, setup_of
from supervisor.nodes.uv import pack_uv
from supervisor.spec import parse_spec
from tests.acceptance import updates
from tests.acceptance.stock import USER, Network, StockMachine, ensure_root, metadata_served, wheels_served
from tests.acceptance.updates import make_updates
from tests.support.programs import find_program, free_ports, program_env
from tools.stack import ROOT

BOOTSTRAP_S = 1200.0
Found = TypeVar("Found")


def eventually(what: str, look: Callable[[], Found | None], timeout_s: float, why: Callable[[], str]) -> Found:
    """What `look` finds, once it finds something."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(0.2)
    raise AssertionError(f"not within {timeout_s:.0f} s: {what}\n{why()}")


@contextmanager
def etcd_on(host: str, folder: Path) -> Iterator[str]:
    """An etcd that machines reach at `host`."""
    client, peer = free_ports(2)
    url, peers = f"http://{host}:{client}", f"http://127.0.0.1:{peer}"
    command = [
        *(str(find_program("etcd")), "--data-dir", str(folder / "etcd"), "--log-level", "error"),
        *("--listen-client-urls", url, "--advertise-client-urls", url),
        *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers),
        *("--initial-cluster", f"default={peers}"),
    ]
    server = subprocess.Popen(command, env=program_env(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield url
    finally:
        server.kill()
        server.wait()


class Installation:
    """A network, an etcd that machines reach, a wheelhouse, a job, and the daemon's side of bootstrap."""

    def __init__(
        self,
        folder: Path,
        stack: ExitStack,
        wheels: Path,
        code: Path,
        env: Mapping[str, str],
    ) -> None:
        """`wheels`: what the machines find of packages. `env`: more for `[node.env]`."""
        self._folder, self._stack = folder, stack
        self.network = Network(os.getpid() % 250)
        stack.callback(self.network.down)
        self.network.up()
        self.etcd_url = stack.enter_context(etcd_on(self.network.host, folder))
        wheelhouse = stack.enter_context(wheels_served(wheels, self.network.host))
        self.metadata_url = stack.enter_context(metadata_served(self.network.host))
        (folder / "state").mkdir()
        self.identity = load_identity(folder / "state" / "cluster.key")
        self._wheelhouse = wheelhouse
        self.set_env(env)
        self.code = pack_directory(code, limit_bytes=1 << 20)
        self.keys = Keys("stock")
        self.etcd = stack.enter_context(closing(Etcd((self.etcd_url,))))
        self._root = ensure_root(ROOT)
        self.machines: list[StockMachine] = []
        self._users: dict[str, str] = {}
        self._updates = make_updates(folder)

    def set_env(self, env: Mapping[str, str]) -> None:
        """What `[node.env]` is for machines that are prepared from now on."""
        node = {"wheelhouse": self._wheelhouse, "python": "python3", "env": dict(env)}
        self.config = parse_config({"cluster": "stock", "node": node}, "the test")

    def submit(self, spec: dict[str, Any]) -> JobRecord:
        """The job that machines are prepared for from now on."""
        self.job = new_job(parse_spec(spec), self.code.sha256, "stock", time.time())
        return self.job

    def boot(self, user: str = USER, binds: Mapping[Path, str] | None = None, after: str = "") -> StockMachine:
        """A machine's first boot has begun, at which unattended-upgrades is at work. `after`: what its user data runs
        besides, as root, at last.
        """
        number = len(self.machines) + 1
        machine = StockMachine(self._root, self.network, self._folder / f"n{number}", f"n{number}", number)
        self._stack.callback(machine.kill)
        self._users[machine.node] = user
        self.machines.append(machine)
        machine.boot(
            user_data(
                machine.node,
                user,
                self.identity.authorized_keys(machine.node),
                self.identity.host_key(machine.node),
                after=f"{updates.AT_FIRST_BOOT}\n{after}",
            ),
            binds={**(binds or {}), self._updates: updates.PLACE},
        )
        return machine

    def target(self, machine: StockMachine) -> SshHost:
        """How the daemon logs in."""
        return SshHost(
            machine.address,
            22,
            self._users[machine.node],
            self.identity.host_key(machine.node).public,
            self.identity.client_key().private_openssh,
        )

    def setup(self, machine: StockMachine) -> Setup:
        """What the daemon would have a machine become."""
        offer = Offer("local", "r", "z", "t", Market.SPOT, 0.0)
        record = NodeRecord(
            *(machine.node, self.job.name, "", offer, time.time()),
            ssh_host=machine.address,
            ssh_port=22,
            private_address=machine.address,
            metadata_url=self.metadata_url,
        )
        spec = self.job.spec
        lock = lock_of(self.code, spec.environment, torch=spec.kind != "data")
        return setup_of(self.config, record, self.job, (self.etcd_url,), self.code, pack_trainer(), lock, pack_uv())

    def prepare(self, machine: StockMachine) -> Report:
        """Bootstrap it. Raises BootstrapError."""

        def on_step(event: StepEvent) -> None:
            if event.state is StepState.DONE:
                print(f"{event.node} {event.step} {event.took_s:.1f} s: {event.detail[:200]}", flush=True)

        return bootstrap(
            self.target(machine),
            self.setup(machine),
            clock=time.monotonic,
            deadline_s=BOOTSTRAP_S,
            on_step=on_step,
        )

    def message(self, key: str, kind: type[Found]) -> Found | None:
        """What etcd has at a key."""
        try:
            found = self.etcd.get(key)
        except EtcdError:
            return None
        return decode(kind, found.value) if found else None

    def run(self, machine: StockMachine, script: str) -> str:
        """What a script prints on a machine."""
        limit = time.monotonic() + 120.0
        with connected(self.target(machine), machine.node, time.monotonic, limit) as shell:
            return shell.run(Run("look", script, 60.0)).stdout.strip()

    def why(self) -> str:
        """What the machines say when a wait has failed."""
        log = "tail -n 30 ~/.spotsup/nodes/*/agent.log ~/.spotsup/nodes/*/log/*.log 2>&1"
        return "\n".join(self.run(machine, log) if machine.runs else machine.console for machine in self.machines)


def done_by(report: Report) -> dict[str, str]:
    """What each step that had something to do has done, by its name; in every pass."""
    found: dict[str, str] = {}
    for event in report.steps:
        if event.state is StepState.DONE:
            found[event.step] = "; ".join(filter(None, (found.get(event.step), event.detail)))
    return found


def seconds_of(report: Report) -> dict[str, float]:
    """How long each step took that took any time."""
    return {event.step: round(event.took_s, 1) for event in report.steps if event.took_s >= 0.1}
