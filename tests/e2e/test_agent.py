"""The node agent with a real launcher, real workers, real etcd, and a metadata service as the local cloud's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

import pytest
from spotsup_trainer.agent.dead_man_switch import HEARD_FILE
from spotsup_trainer.etcd import Etcd
from spotsup_trainer.wire import (
    AgentConfig,
    AgentStatus,
    Ended,
    Health,
    Keys,
    Member,
    Metadata,
    Notice,
    Progress,
    Round,
    Tombstone,
    decode,
    encode,
)

from tests.e2e.launching import STEPS, eventually, kill_all, processes_with
from tests.support.etcd_server import etcd_server

KEYS = Keys("test")
JOB = "job"
TTL_S = 2.0
Message = TypeVar("Message")


class MetadataService:
    """GET /v1/preemption?wait_s=&last=false, on a thread."""

    def __init__(self) -> None:
        self.deadline: float | None = None
        self._noticed = threading.Event()
        self._closing = threading.Event()
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                assert self.path.startswith("/v1/preemption?wait_s=")
                while not service._noticed.wait(0.02) and not service._closing.is_set():
                    pass
                answer = {"preempted": True, "deadline": service.deadline} if service.deadline else {"preempted": False}
                body = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def announce(self, deadline: float) -> None:
        self.deadline = deadline
        self._noticed.set()

    def close(self) -> None:
        self._closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Agents:
    """Agents of one job below `folder`, on a loopback address each."""

    def __init__(self, endpoint: str, folder: Path) -> None:
        self.etcd = Etcd([endpoint])
        self.folder = folder
        self.started: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, node: str, metadata: Metadata = Metadata("none"), **changes: Any) -> None:  # noqa: B008 - frozen
        own = self.folder / node
        own.mkdir(exist_ok=True)
        config: dict[str, Any] = {
            "cluster": "test",
            "job": JOB,
            "task_id": "job-1",
            "node": node,
            "addr": f"127.0.0.{60 + len(self.started)}",
            "etcd_endpoints": self.etcd.endpoints,
            "metadata": metadata,
            "python": sys.executable,
            "code_dir": str(self.folder),
            "run_dir": str(own / "run"),
            "log_dir": str(own / "log"),
            "checkpoints": str(self.folder),
            "command": (str(STEPS), f"events={self.folder / 'events'}", f"until={self.folder / 'enough'}"),
            "min_nodes": 1,
            "max_nodes": 4,
            "nproc_per_node": 1,
            "env": {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
            "lease_ttl_s": TTL_S,
        }
        (own / "agent.json").write_bytes(encode(AgentConfig(**config | changes)))
        with (own / "agent.log").open("ab") as log:
            self.started[node] = subprocess.Popen(
                [sys.executable, "-m", "spotsup_trainer.agent", "--config", str(own / "agent.json")],
                env=dict(os.environ) | {"SPOTSUP_TEST_NODE": str(own), "HOME": str(own)},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def processes(self, node: str) -> list[int]:
        return processes_with("SPOTSUP_TEST_NODE", str(self.folder / node))

    def launcher(self, node: str) -> int:
        """The agent's child."""
        agent = self.started[node].pid
        children = Path(f"/proc/{agent}/task/{agent}/children")
        return int(eventually("a launcher", lambda: children.read_text().split())[0])

    def message(self, key: str, kind: type[Message], want: Callable[[Message], object] = lambda _: True) -> Message:
        """Wait until a key has a message that satisfies `want`."""

        def look() -> Message | None:
            found = self.etcd.get(key)
            message = decode(kind, found.value) if found else None
            return message if message is not None and want(message) else None

        return eventually(key, look)

    def log(self, node: str) -> str:
        """What etcd holds of a node's log."""
        found = self.etcd.range(KEYS.logs(JOB, node)).kvs
        return b"".join(kv.value for kv in found).decode()

    def exit_code(self, node: str) -> int:
        try:
            return self.started[node].wait(60)
        except subprocess.TimeoutExpired:
            raise AssertionError((self.folder / node / "agent.log").read_text()) from None

    def close(self) -> None:
        for node, agent in self.started.items():
            kill_all(self.processes(node))
            agent.wait()
        self.etcd.close()


@pytest.fixture
def agents(etcd_endpoint: str, tmp_path: Path) -> Iterator[Agents]:
    with closing(Agents(etcd_endpoint, tmp_path)) as made:
        yield made


@contextmanager
def metadata_service() -> Iterator[MetadataService]:
    with closing(MetadataService()) as service:
        yield service


@pytest.mark.main
def test_a_node_from_its_start_to_its_success(agents: Agents, tmp_path: Path) -> None:
    agents.start("a")
    status = agents.message(KEYS.agent(JOB, "a"), AgentStatus)
    assert status.pid == agents.started["a"].pid
    assert status.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    first = agents.message(KEYS.progress(JOB), Progress, lambda p: p.step > 0)
    assert agents.message(KEYS.progress(JOB), Progress, lambda p: p.step > first.step).round == 1
    # small, and without torch
    proc_status = Path(f"/proc/{status.pid}/status").read_text()
    assert int(proc_status.split("VmRSS:")[1].split()[0]) < 30_000
    assert "torch" not in Path(f"/proc/{status.pid}/maps").read_text()

    (tmp_path / "enough").touch()
    ended = agents.message(KEYS.ended(JOB, "a"), Ended)
    assert (ended.outcome, ended.exit_code) == ("success", 0)
    assert agents.exit_code("a") == 0
    assert agents.processes("a") == []
    eventually("its key is gone", lambda: agents.etcd.get(KEYS.agent(JOB, "a")) is None)
    assert "a has trained" in agents.log("a")
    assert "a has trained" in (tmp_path / "a" / "log" / "a.log").read_text()


def test_a_notice_is_passed_on_and_the_node_leaves_in_time_by_itself(agents: Agents) -> None:
    with metadata_service() as service:
        agents.start("a", Metadata("local", service.url), leave_margin_s=20.0)
        agents.start("b")
        agents.message(KEYS.round(JOB), Round, lambda formed: len(formed.members) == 2)
        agents.message(KEYS.member(JOB, "a"), Member, lambda m: m.state == "running")
        deadline = time.time() + 30.0
        service.announce(deadline)
        notice = agents.message(KEYS.notice(JOB, "a"), Notice)
        assert (notice.deadline, notice.source) == (deadline, "local")
        assert notice.seen_at < deadline - 20.0
        # without the daemon: at the deadline less the margin it leaves, and the other goes on
        ended = agents.message(KEYS.ended(JOB, "a"), Ended)
        assert ended.outcome == "left"
        assert deadline - 20.0 <= ended.at < deadline
        formed = agents.message(KEYS.round(JOB), Round, lambda formed: formed.nodes() == ("b",))
        assert formed.app_failures == 0
        assert agents.exit_code("a") == 0
        assert agents.processes("a") == []
        agents.message(KEYS.progress(JOB), Progress, lambda p: p.round == formed.number)
        # a daemon that stops a node
        agents.started["b"].terminate()
        assert agents.message(KEYS.ended(JOB, "b"), Ended).outcome == "left"
        assert agents.exit_code("b") == 0


def test_a_launcher_that_dies_is_started_again_and_a_killed_agent_leaves_nothing(agents: Agents) -> None:
    agents.start("a")
    first = agents.message(KEYS.member(JOB, "a"), Member, lambda m: m.state == "running")
    os.kill(agents.launcher("a"), signal.SIGKILL)
    again = agents.message(KEYS.member(JOB, "a"), Member, lambda m: m.incarnation != first.incarnation)
    assert again.node == "a"
    agents.message(KEYS.progress(JOB), Progress, lambda p: p.round == 2)
    assert agents.message(KEYS.round(JOB), Round).app_failures == 0
    agents.started["a"].kill()
    agents.started["a"].wait()
    eventually("nothing is left", lambda: not agents.processes("a"))


def test_agent_and_launcher_killed_at_once_leave_nothing(agents: Agents) -> None:
    """Nor does what the workers have started."""
    agents.start("a", command=(str(STEPS), f"events={agents.folder / 'events'}", "helper=1"))
    agents.message(KEYS.progress(JOB), Progress, lambda p: p.step > 0)
    launcher, agent = agents.launcher("a"), agents.started["a"].pid
    eventually("there are agent, launcher, fork server, worker, its helper", lambda: len(agents.processes("a")) == 5)
    for pid in (launcher, agent):
        os.kill(pid, signal.SIGKILL)
    agents.started["a"].wait()
    eventually("nothing is left", lambda: not agents.processes("a"))


def test_an_outage_of_etcd_blocks_nothing_and_the_outcome_gets_through(tmp_path: Path) -> None:
    with etcd_server(tmp_path / "etcd") as server, closing(Agents(server.endpoint, tmp_path)) as agents:
        agents.start("a")
        agents.message(KEYS.progress(JOB), Progress, lambda p: p.step > 0)
        server.kill()
        events = tmp_path / "events"
        before = len(events.read_bytes())
        eventually("steps without etcd", lambda: len(events.read_bytes()) > before + 10_000)
        agents.started["a"].terminate()
        eventually("the launcher has left", lambda: len(agents.processes("a")) == 1)
        assert server.start()
        assert agents.message(KEYS.ended(JOB, "a"), Ended).outcome == "left"
        assert agents.exit_code("a") == 0


def test_a_failing_program_and_a_flood_of_output(agents: Agents, tmp_path: Path) -> None:
    program = tmp_path / "loud.py"
    program.write_text("for n in range(20_000):\n    print(n, 'x' * 50)\nraise ValueError('enough')\n")
    agents.start("a", command=(str(program),))
    ended = agents.message(KEYS.ended(JOB, "a"), Ended)
    assert (ended.outcome, ended.exit_code) == ("failure", 1)
    assert "ValueError: enough" in ended.message
    assert agents.exit_code("a") == 1
    chunks = agents.etcd.range(KEYS.logs(JOB, "a")).kvs
    assert sum(len(chunk.value) for chunk in chunks) < 1_100_000
    log = tmp_path / "a" / "log" / "a.log"
    assert log.stat().st_size > 1_000_000
    assert f"bytes skipped; the full log is {log} on a" in agents.log("a")
    assert "ValueError: enough" in agents.log("a")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        ("{}", "not a AgentConfig: cluster is missing"),
    ],
)
def test_a_config_that_cannot_be_right(tmp_path: Path, content: str | None, message: str) -> None:
    file = tmp_path / "agent.json"
    if content is not None:
        file.write_text(content)
    command = [sys.executable, "-m", "spotsup_trainer.agent", "--config", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_an_agent_with_an_answer_of_etcd_touches_the_dead_man_switchs_file(agents: Agents) -> None:
    file = agents.folder / "n1" / HEARD_FILE
    file.parent.mkdir()
    file.touch()
    os.utime(file, (0, 0))
    agents.start("n1")
    eventually("the file is touched", lambda: file.stat().st_mtime > 1.0)


NVIDIA_SMI = """#!/bin/sh
if [ -e "$SPOTSUP_TEST_NODE/broken" ]; then
    echo "Unable to determine the device handle for GPU 0000:00:1E.0: GPU is lost."
    exit 15
fi
echo "0, 00000000:00:1E.0, 0"
"""
ON_A_GPU = """
import os, sys, time
while not os.path.exists(sys.argv[1]):
    if os.path.exists(os.environ["SPOTSUP_TEST_NODE"] + "/broken"):
        sys.exit("CUDA error: uncorrectable ECC error encountered")
    time.sleep(0.05)
"""


def test_a_worker_whose_gpu_died_is_not_the_programs_failure(
    agents: Agents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvidia-smi").write_text(NVIDIA_SMI)
    (tmp_path / "bin" / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    (tmp_path / "train.py").write_text(ON_A_GPU)
    enough = tmp_path / "enough"
    for node in "ab":
        program = (str(tmp_path / "train.py"), str(enough))
        agents.start(node, command=program, gpus=1, env={"SPOTSUP_APP_FAILURES": "0"})
    agents.message(KEYS.round(JOB), Round, lambda formed: len(formed.members) == 2)
    for node in "ab":
        agents.message(KEYS.member(JOB, node), Member, lambda m: m.state == "running")
    (tmp_path / "a" / "broken").touch()
    health = agents.message(KEYS.health(JOB, "a"), Health)
    assert (health.healthy, health.fatal) == (False, True)
    assert "GPU is lost" in agents.message(KEYS.member(JOB, "a"), Member, lambda m: m.unhealthy != "").unhealthy
    formed = agents.message(KEYS.round(JOB), Round, lambda formed: formed.nodes() == ("b",))
    assert (formed.app_failures, formed.last_failure) == (0, None)
    # the daemon gives it up
    agents.etcd.put(KEYS.tombstone(JOB, "a"), encode(Tombstone("a", "its GPUs are unhealthy", time.time())))
    assert agents.message(KEYS.ended(JOB, "a"), Ended).outcome == "left"
    agents.message(KEYS.member(JOB, "b"), Member, lambda m: m.state == "running" and m.round == formed.number)
    enough.touch()
    assert agents.message(KEYS.ended(JOB, "b"), Ended).outcome == "success"
