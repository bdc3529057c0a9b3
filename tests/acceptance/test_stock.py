"""The README's job on two machines that have nothing of ours: stock Debian, by the same bootstrap as rented ones."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from spotsup_trainer.etcd import Etcd, EtcdError
from spotsup_trainer.wire import Keys, Progress, Result, Round, decode

from bootstrap import Report, Setup, StepEvent, StepState, Target, bootstrap, lock_of, pack_directory, stop_agent
from bootstrap.agent.unit import unit_name
from bootstrap.connect import connected
from bootstrap.model import Run
from provisioners.base import Market, Offer
from supervisor.config import parse_config
from supervisor.identity import load_identity
from supervisor.model import NodeRecord
from supervisor.new_job import new_job
from supervisor.nodes.prepare import pack_trainer, setup_of
from supervisor.nodes.uv import pack_uv
from supervisor.spec import parse_spec
from tests.acceptance.stock import (
    REQUIREMENTS,
    USER,
    Network,
    StockMachine,
    ensure_root,
    ensure_wheels,
    first_boot,
    metadata_served,
    wheels_served,
    why_not,
)
from tests.support.programs import find_program, free_ports, program_env
from tools.setup.errors import SetupError
from tools.stack import ROOT

pytestmark = [pytest.mark.long, pytest.mark.timeout(2400)]

STEPS = 60
BOOTSTRAP_S = 1200.0
TRAIN_S = 600.0
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
    url = f"http://{host}:{client}"
    command = [
        *(str(find_program("etcd")), "--data-dir", str(folder / "etcd"), "--log-level", "error"),
        *("--listen-client-urls", url, "--advertise-client-urls", url),
        *(
            "--listen-peer-urls",
            f"http://127.0.0.1:{peer}",
            "--initial-advertise-peer-urls",
            f"http://127.0.0.1:{peer}",
        ),
        *("--initial-cluster", f"default=http://127.0.0.1:{peer}"),
    ]
    server = subprocess.Popen(command, env=program_env(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield url
    finally:
        server.kill()
        server.wait()


class Installation:
    """Two stock machines, an etcd that they reach, a wheelhouse, and the daemon's side of bootstrap."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.network = Network(os.getpid() % 250)
        stack.callback(self.network.down)
        self.network.up()
        self.etcd_url = stack.enter_context(etcd_on(self.network.host, folder))
        wheels = stack.enter_context(wheels_served(ensure_wheels(ROOT, REQUIREMENTS), self.network.host))
        self.metadata_url = stack.enter_context(metadata_served(self.network.host))
        (folder / "state").mkdir()
        self.identity = load_identity(folder / "state" / "cluster.key")
        node = {"wheelhouse": wheels, "env": {"GLOO_SOCKET_IFNAME": "host0", "OMP_NUM_THREADS": "1"}}
        self.config = parse_config({"cluster": "stock", "node": {**node, "python": "python3"}}, "the test")
        code = folder / "code"
        shutil.copytree(ROOT / "trainer" / "examples", code, ignore=shutil.ignore_patterns("__pycache__"))
        (code / "requirements.txt").write_text("\n".join(REQUIREMENTS))
        self.code = pack_directory(code, limit_bytes=1 << 20)
        spec = {
            "name": "chars",
            "nodes": {"min": 1, "desired": 2, "max": 2},
            "environment": "requirements.txt",
            "run": f"char_transformer.py --steps {STEPS}",
            "checkpoints": "none",
        }
        self.job = new_job(parse_spec(spec), self.code.sha256, "stock", time.time())
        self.keys = Keys("stock")
        self.etcd = stack.enter_context(closing(Etcd((self.etcd_url,))))
        root = ensure_root(ROOT)
        self.machines = [StockMachine(root, self.network, folder / f"n{n}", f"n{n}", n) for n in (1, 2)]
        for machine in self.machines:
            stack.callback(machine.kill)
            machine.boot(first_boot(machine.node, self.identity))
        for machine in self.machines:
            machine.await_sshd()

    def target(self, machine: StockMachine) -> Target:
        return Target(
            machine.address,
            22,
            USER,
            self.identity.host_key(machine.node).public,
            self.identity.client_key().private_openssh,
        )

    def setup(self, machine: StockMachine) -> Setup:
        offer = Offer("local", "r", "z", "t", Market.SPOT, 0.0)
        record = NodeRecord(
            *(machine.node, self.job.name, "", offer, time.time()),
            ssh_host=machine.address,
            ssh_port=22,
            private_address=machine.address,
            metadata_url=self.metadata_url,
        )
        lock = lock_of(self.code, "requirements.txt")
        return setup_of(self.config, record, self.job, (self.etcd_url,), self.code, pack_trainer(), lock, pack_uv())

    def message(self, key: str, kind: type[Found]) -> Found | None:
        try:
            found = self.etcd.get(key)
        except EtcdError:
            return None
        return decode(kind, found.value) if found else None

    def run(self, machine: StockMachine, script: str) -> str:
        limit = time.monotonic() + 120.0
        with connected(self.target(machine), machine.node, time.monotonic, limit) as shell:
            return shell.run(Run("look", script, 60.0)).stdout.strip()

    def why(self) -> str:
        """What a machine says when a wait has failed."""
        log = "tail -n 30 ~/.spotsup/nodes/*/agent.log ~/.spotsup/nodes/*/log/*.log 2>&1"
        return "\n".join(self.run(machine, log) if machine.runs else machine.console for machine in self.machines)


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    if reason := why_not():
        pytest.skip(reason)
    with ExitStack() as stack:
        try:
            made = Installation(tmp_path, stack)
        except SetupError as error:
            pytest.skip(f"no such machine can be made here: {error}")
        yield made


def prepare(installation: Installation, machine: StockMachine, reports: dict[str, Report | Exception]) -> None:
    def on_step(event: StepEvent) -> None:
        if event.state is StepState.DONE:
            print(f"{event.node} {event.step} {event.took_s:.1f} s: {event.detail[:200]}", flush=True)

    try:
        reports[machine.node] = bootstrap(
            installation.target(machine),
            installation.setup(machine),
            clock=time.monotonic,
            deadline_s=BOOTSTRAP_S,
            on_step=on_step,
        )
    except Exception as error:  # noqa: BLE001 - raised again by the test's own thread
        reports[machine.node] = error


def test_the_readmes_job_trains_on_machines_that_have_nothing_of_ours(installation: Installation) -> None:
    began = time.monotonic()
    first, second = installation.machines
    reports: dict[str, Report | Exception] = {}
    threads = [threading.Thread(target=prepare, args=(installation, machine, reports)) for machine in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for machine in (first, second):
        report = reports[machine.node]
        assert isinstance(report, Report), f"{report}\n{machine.console}"
        done = {event.step: event for event in report.steps if event.state is StepState.DONE}
        assert "unpack uv" in done["environment"].detail
        assert done["agent"].detail.endswith("start the agent")
    ready_s = time.monotonic() - began

    nothing = "command -v pip pip3 uv; python3 -c 'import ensurepip' 2>&1 | tail -n 1; id -un"
    assert installation.run(first, nothing).splitlines() == ["ModuleNotFoundError: No module named 'ensurepip'", USER]
    unit = installation.run(
        first, f"systemctl is-active {unit_name(first.node)} || tail -n 30 ~/.spotsup/nodes/*/agent.log"
    )
    assert unit == "active"

    keys, job = installation.keys, installation.job.name

    def both() -> Progress | None:
        formed = installation.message(keys.round(job), Round)
        progress = installation.message(keys.progress(job), Progress)
        if formed is None or progress is None or len(formed.members) < 2 or progress.round != formed.number:
            return None
        return progress

    eventually("both train", both, TRAIN_S, installation.why)
    first_step_s = time.monotonic() - began
    second.kill()
    assert not second.runs

    def result() -> Result | None:
        return installation.message(keys.result(job), Result)

    assert eventually("the job ends", result, TRAIN_S, installation.why).outcome == "success"
    formed = installation.message(keys.round(job), Round)
    assert formed is not None
    assert [member.node for member in formed.members] == [first.node]

    stop_agent(installation.target(first), first.node, grace_s=30.0, clock=time.monotonic, deadline_s=120.0)
    left = installation.run(first, "grep -lzs '^SPOTSUP_AGENT_FOLDER=' /proc/[0-9]*/environ | wc -l")
    assert left == "0"
    steps = {
        node: {event.step: round(event.took_s, 1) for event in report.steps if event.took_s >= 0.1}
        for node, report in reports.items()
        if isinstance(report, Report)
    }
    connected_s = {node: round(report.connected_s, 1) for node, report in reports.items() if isinstance(report, Report)}
    seconds = {"ready": round(ready_s, 1), "first_step": round(first_step_s, 1), "login": connected_s, "steps": steps}
    (ROOT / "build").mkdir(exist_ok=True)
    (ROOT / "build" / "stock.json").write_text(json.dumps(seconds, indent=1) + "\n")
    print(json.dumps(seconds, indent=1))
