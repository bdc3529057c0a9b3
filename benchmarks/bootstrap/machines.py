"""Machines of a local cloud that are bootstrapped at the same time, and the same commands run without SSH."""

from __future__ import annotations

import base64
import contextlib
import getpass
import hashlib
import io
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import spotsup_trainer
from spotsup_trainer import wire

from benchmarks.recovery.watch import BenchError, Stop
from benchmarks.secured import secured_etcd
from bootstrap import Archive, Report, Setup, SshHost, bootstrap, pack_directory, plan, stop_agent
from bootstrap.agent.scripts import stop_agent as stop_script
from bootstrap.decision import paths_on
from bootstrap.environment.lock import lock_of
from bootstrap.facts import facts_script, parse_facts
from bootstrap.model import Run, Upload
from bootstrap.steps import STEPS
from provisioners.base import Instance, InstanceState, Launched, LaunchRequest, OfferQuery
from provisioners.local import LocalProvisioner
from provisioners.localcloud.client import call
from provisioners.localcloud.control import destroy
from provisioners.localcloud.embed import ensure_server
from provisioners.localcloud.models import SettingsPatch
from supervisor.identity import Identity
from supervisor.journal.etcd_server import EmbeddedEtcd
from supervisor.nodes.uv import pack_uv

CLUSTER = "bench"
CALL_S = 60.0
LIMIT_S = 600.0
TRAINER_LIMIT_BYTES = 8 * 1024 * 1024
# The worker only reports that it was started.
TRAIN = "import os, pathlib\npathlib.Path(os.environ['BENCH_MARK']).touch()\n"
UP_TO_THE_ENVIRONMENT = STEPS[: [name for name, _ in STEPS].index("environment") + 1]

# What the nodes of a job need for etcd; empty where that has neither TLS nor users.
Access: TypeAlias = Callable[[str], bytes]


@dataclass(frozen=True, slots=True)
class Fleet:
    """Machines that accept SSH, and the set-up of each."""

    targets: Sequence[SshHost]
    setups: Sequence[Setup]
    marks: Sequence[Path]


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds from the first connection: of each node until its agent runs, of all agents, of all workers."""

    each_s: Sequence[float]
    agents_s: float
    workers_s: float


@contextmanager
def fleet(folder: Path, count: int, stop: Stop, *, secure: bool = False) -> Iterator[Fleet]:
    """`count` machines with an sshd that answers, and an etcd; if `secure`, with TLS and a user for each job. Leaves
    nothing."""
    shutil.rmtree(folder, ignore_errors=True)
    with _secured(folder / "etcd") if secure else _open(folder / "etcd") as (endpoint, access):
        yield from _machines(folder, count, stop, endpoint, access)


@contextmanager
def _open(folder: Path) -> Iterator[tuple[str, Access]]:
    etcd = EmbeddedEtcd(folder)
    etcd.start()
    try:
        yield etcd.endpoint, lambda _: b""
    finally:
        etcd.stop()


@contextmanager
def _secured(folder: Path) -> Iterator[tuple[str, Access]]:
    with secured_etcd(folder, CLUSTER) as found:
        yield found.endpoint, found.access


def _machines(folder: Path, count: int, stop: Stop, endpoint: str, access: Access) -> Iterator[Fleet]:
    marks = folder / "marks"
    marks.mkdir(parents=True)
    cloud = folder / "cloud"
    try:
        ensure_server(cloud)
        _make_room(cloud, count)
        identity = Identity(b"bench" + bytes(27))
        names = [f"n{number}" for number in range(count)]
        machines = _launch(LocalProvisioner(cloud), names, identity, stop)
        targets = [_target(machine, identity) for machine in machines]
        files = [marks / name for name in names]
        setups = [
            replace(_setup(machine, endpoint, folder, mark), etcd_access=access(machine.node))
            for machine, mark in zip(machines, files, strict=True)
        ]
        yield Fleet(targets, setups, files)
    finally:
        destroy(cloud)
        shutil.rmtree(folder, ignore_errors=True)


def measure(ready: Fleet, stop: Stop) -> Timing:
    """Bootstrap all at once, as the daemon does: one thread each."""
    began, began_unix = time.monotonic(), time.time()
    with ThreadPoolExecutor(len(ready.targets)) as pool:
        reports = list(pool.map(_bootstrap, ready.targets, ready.setups))
    agents_s = time.monotonic() - began
    stop.until(
        lambda: all(mark.exists() for mark in ready.marks),
        LIMIT_S,
        lambda: f"not all of {len(ready.marks)} workers were started within {LIMIT_S:g} s",
        0.05,
    )
    last = max(mark.stat().st_mtime for mark in ready.marks)
    return Timing([report.took_s for report in reports], agents_s, last - began_unix)


def own_s(setup: Setup, folder: Path) -> float:
    """Seconds that the scripts themselves take on this computer, by sh without SSH."""
    home = folder / "home"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    environ = {**os.environ, "HOME": str(home)}
    began = time.monotonic()
    facts = parse_facts(_sh(facts_script(setup), environ))
    for step in plan(facts, setup):
        for command in step.decision if isinstance(step.decision, tuple) else ():
            if isinstance(command, Upload):
                path = Path(command.path)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(command.data)
                path.chmod(command.mode)
            elif isinstance(command, Run):
                _sh(command.script, environ, command.stdin)
    took_s = time.monotonic() - began
    _sh(stop_script(paths_on(facts, setup), 0.0), environ)
    shutil.rmtree(home, ignore_errors=True)
    return took_s


def environment_s(ready: Fleet, cache: Path) -> tuple[float, float]:
    """Seconds for code, trainer and an environment of one tiny package: on a machine that finds no cache, and on one
    that finds what the first has built.
    """
    code = _code({"requirements.txt": b"--no-index\n--find-links wheels\ntorch\n", "wheels/" + WHEEL_NAME: _wheel()})
    took = []
    for target, setup in zip(ready.targets[:2], ready.setups[:2], strict=True):
        asked = replace(setup, code=code, lock=lock_of(code, "requirements.txt"), cache=str(cache), uv=pack_uv())
        report = bootstrap(target, asked, clock=time.monotonic, deadline_s=LIMIT_S, steps=UP_TO_THE_ENVIRONMENT)
        took.append(report.took_s)
    return took[0], took[1]


def end(ready: Fleet) -> None:
    """Stop the agents, at once."""
    for target, setup in zip(ready.targets, ready.setups, strict=True):
        stop_agent(target, setup.node, root=setup.root, grace_s=0.0, clock=time.monotonic, deadline_s=CALL_S)


# -- inside ------------------------------------------------------------------------------------------------


def _make_room(cloud: Path, count: int) -> None:
    offer = LocalProvisioner(cloud).offers(OfferQuery(), CALL_S)[0]
    patch = SettingsPatch(capacity={offer.zone: count}, launch_delay_s=0.0)
    answer = call(
        cloud, "PATCH", "/v1/admin/settings", timeout_s=CALL_S, body=patch.model_dump_json(exclude_unset=True)
    )
    if answer.status != 200:
        raise BenchError(f"the local cloud takes no setting: {answer.text[:200]}")


def _launch(cloud: LocalProvisioner, names: Sequence[str], identity: Identity, stop: Stop) -> list[Instance]:
    offer = cloud.offers(OfferQuery(), CALL_S)[0]
    public, owner = (identity.client_key().public,), identity.owner(CLUSTER)
    for name in names:
        stop.check()
        outcome = cloud.launch(LaunchRequest(name, owner, name, offer, identity.host_key(name), public), CALL_S)
        if not isinstance(outcome, Launched):
            raise BenchError(f"the local cloud did not launch {name}: {outcome}")

    def answering() -> list[Instance]:
        found = {each.node: each for each in cloud.instances(owner, CALL_S)}
        machines = [found[name] for name in names]
        return machines if all(each.state is InstanceState.RUNNING and _answers(each) for each in machines) else []

    return stop.until(answering, LIMIT_S, lambda: f"not all of {len(names)} machines answered within {LIMIT_S:g} s")


def _answers(machine: Instance) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((machine.ssh_host, machine.ssh_port), 1.0):
        return True
    return False


def _target(machine: Instance, identity: Identity) -> SshHost:
    return SshHost(
        machine.ssh_host,
        machine.ssh_port,
        getpass.getuser(),
        identity.host_key(machine.node).public,
        identity.client_key().private_openssh,
    )


def _setup(machine: Instance, endpoint: str, folder: Path, mark: Path) -> Setup:
    """Each node is a job of its own, so none waits for another."""
    config = wire.AgentConfig(
        cluster=CLUSTER,
        job=machine.node,
        task_id=machine.node,
        node=machine.node,
        addr=machine.private_address or machine.ssh_host,
        etcd_endpoints=(endpoint,),
        metadata=wire.Metadata("none"),
        python="",
        code_dir="",
        run_dir="",
        log_dir="",
        checkpoints=str(folder / "checkpoints" / machine.node),
        command=("train.py",),
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=1,
    )
    package = Path(spotsup_trainer.__file__).parent
    return Setup(
        node=machine.node,
        agent_config=wire.encode(config),
        code=_code({"train.py": TRAIN.encode()}),
        trainer=pack_directory(package, limit_bytes=TRAINER_LIMIT_BYTES, prefix=package.name),
        python=sys.executable,
        env={"BENCH_MARK": str(mark), "GLOO_SOCKET_IFNAME": "lo"},
    )


def _bootstrap(target: SshHost, setup: Setup) -> Report:
    return bootstrap(target, setup, clock=time.monotonic, deadline_s=LIMIT_S)


def _sh(script: str, environ: dict[str, str], stdin: bytes = b"") -> str:
    done = subprocess.run(["/bin/sh", "-c", script], env=environ, input=stdin, capture_output=True, check=False)
    if done.returncode:
        raise BenchError(f"a command of bootstrap fails on this computer: {done.stderr.decode()[-500:]}")
    return done.stdout.decode()


def _code(files: dict[str, bytes]) -> Archive:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return Archive.of(buffer.getvalue())


WHEEL_NAME = "torch-2.6.0-py3-none-any.whl"


def _wheel() -> bytes:
    """An empty package of that name: the cost of an environment without its packages is measured."""
    files = {
        "torch/__init__.py": b"",
        "torch-2.6.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: torch\nVersion: 2.6.0\n",
        "torch-2.6.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in files.items())
    buffer = io.BytesIO()
    with closing(zipfile.ZipFile(buffer, "w")) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
        archive.writestr("torch-2.6.0.dist-info/RECORD", f"{record}torch-2.6.0.dist-info/RECORD,,\n")
    return buffer.getvalue()


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
