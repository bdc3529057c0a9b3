"""A job of two nodes in a container image, by a real Docker where one answers: make nightly."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.registry import MARK, Registry, image_with_torch, registry
from tools.stack import Stack

JOB = """\
name: boxed
nodes: {min: 1, desired: 2, max: 2}
environment: docker://{image}
run: train.py --out {out}
checkpoints: {checkpoints}
env: {GREETING: "hello there"}
"""

PROGRAM = """
import os, sys, time
from pathlib import Path
import torch.distributed as dist
dist.init_process_group("gloo")
out, world = Path(os.environ["SPOTSUP_CHECKPOINT_DIR"]).parent, dist.get_world_size()
mine = out / os.environ["SPOTSUP_NODE_ID"]
values = [str(world), str(os.path.exists("{mark}")), os.environ["GREETING"], str(os.getuid()), os.environ["HOME"]]
mine.with_suffix(".new").write_text("|".join(values))
mine.with_suffix(".new").replace(mine)
while not (out / "stop").exists():
    time.sleep(0.1)
print("the program has seen the end", flush=True)
"""


def docker(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout if done.returncode == 0 else ""


pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not (shutil.which("docker") and docker("version", "--format", "{{.Server.Version}}")),
        reason="no Docker answers here: containers are held by golden files only",
    ),
]


def running() -> set[str]:
    return {
        name for name in docker("ps", "--all", "--format", "{{.Names}}").split() if name.startswith("spotsup-boxed-")
    }


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Registry, str]]:
    """A registry, and the digest of an image that was never pulled before."""
    with registry() as server:
        digest = server.add("latest", *image_with_torch(tmp_path_factory.mktemp("image")))
        yield server, digest
        docker("image", "rm", "-f", f"{server.host}/box@{digest}")


@pytest.fixture(autouse=True)
def no_container_is_left() -> Iterator[None]:
    """This begins before the stack, and ends after it."""
    yield
    assert running() == set()


def test_two_nodes_train_in_the_same_image_and_nothing_outlives_an_agent(
    stack: Stack, images: tuple[Registry, str], tmp_path: Path
) -> None:
    server, digest = images
    code, out = tmp_path / "code", tmp_path / "checkpoints"
    code.mkdir()
    out.mkdir()
    (code / "train.py").write_text(PROGRAM.replace("{mark}", MARK))
    job = JOB.replace("{image}", f"{server.host}/box:latest").replace("{out}", str(out))
    (code / "job.yaml").write_text(job.replace("{checkpoints}", str(out)))

    explained = stack.ctl("submit", str(code / "job.yaml"), "--explain")
    assert f"pull {server.host}/box@{digest}" in explained.stdout
    submitted = stack.ctl("submit", str(code / "job.yaml"))
    assert submitted.returncode == 0, submitted.stderr

    def both_train() -> bool:
        job = stack.ask("status", "boxed")
        assert job["state"] != "failed", job["reason"]
        return sum(path.read_text().startswith("2|") for path in out.glob("boxed-*[0-9]")) == 2

    stack.wait_for(both_train, 300.0, "both nodes to train")
    nodes = sorted(path.name for path in out.glob("boxed-*[0-9]"))
    for node in nodes:
        world, marked, greeting, uid, home = (out / node).read_text().split("|")
        assert (world, marked, greeting, uid) == ("2", "True", "hello there", str(os.getuid()))
        assert home.endswith(f"/nodes/{node}/home")
    assert running() == {f"spotsup-{node}" for node in nodes}

    # In order: the agent's message goes through the container's stdin, and the launcher's last message comes out.
    os.kill(int(agent_pid(nodes[1])), signal.SIGTERM)
    stack.wait_for(lambda: f"spotsup-{nodes[1]}" not in running(), 40.0, "its container to end in order")

    def losses() -> list[str]:
        return [event["text"] for event in stack.ask("events", "boxed") if event["kind"] == "node-lost"]

    stack.wait_for(lambda: bool(losses()), 60.0, "the loss to be recorded")
    assert losses() == [f"lost {nodes[1]}: its agent was stopped outside spotsup"]

    os.kill(int(agent_pid(nodes[0])), signal.SIGKILL)
    stack.wait_for(lambda: f"spotsup-{nodes[0]}" not in running(), 20.0, "its container to end with the agent")

    (out / "stop").touch()
    stack.wait_for(lambda: stack.ask("status", "boxed")["state"] == "succeeded", 180.0, "the job to end")
    stack.wait_for(lambda: running() == set(), 60.0, "all containers to be gone")
    assert "the program has seen the end" in stack.ctl("logs", "boxed").stdout


def agent_pid(node: str) -> str:
    """The agent carries its folder in its environment, and is no child of a container."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environ = (folder / "environ").read_bytes().split(b"\0")
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if b"spotsup_trainer.agent" in command and any(
            each.startswith(b"SPOTSUP_AGENT_FOLDER=") and each.endswith(f"/{node}".encode()) for each in environ
        ):
            return folder.name
    raise AssertionError(f"no agent of {node} runs")
