"""Runs a training script in processes of its own, as torchrun would, and reads what it prints."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

import torch
from torch.distributed import TCPStore

from tests.support.documents import blocks

REPO = Path(__file__).resolve().parents[2]
EXAMPLES = REPO / "trainer" / "examples"
IMAGENET = EXAMPLES / "imagenet.py"
TRAINING = REPO / "docs" / "training"
# The page about training, and those in depth.
PAGES = (REPO / "docs" / "training.md", *sorted(TRAINING.glob("*.md")))
SMOKE = ("--model", "tiny", "--fake-data", "160", "--global-batch", "8", "--epochs", "2", "--warmup", "10")
OFTEN = ("--log-every", "1", "--workers", "1")
STEPS = 40  # of SMOKE
PROCESSES = multiprocessing.get_context("forkserver")
# torch costs seconds to import and milliseconds to fork
PROCESSES.set_forkserver_preload(["tests.e2e.training", "spotsup_trainer.session.checkpoint"])


_kept: dict[str, object] = {}


def run_script(path: Path, arguments: tuple[str, ...], environ: Mapping[str, str], output: Path) -> None:
    """Be an interpreter that was started on a script."""
    # As in such an interpreter. By "forkserver", which this process was started with, data loading workers would have a
    # fork server as their parent, and both would outlive this process when it is killed.
    multiprocessing.set_start_method("fork", force=True)
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ.update(environ)
    torch.set_num_threads(1)
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.parent))
    # Kept to the end, as an interpreter does: torch 2.13 may hang for ever when a DDP model is freed as the last that
    # knows its gloo process group, because it then waits, with the GIL held, for a thread that wants the GIL.
    _kept.update(runpy.run_path(str(path), run_name="__main__"))


class Ranks:
    """A script in `world` processes, as torchrun would start them."""

    def __init__(self, path: Path, folder: Path, world: int, *arguments: str, **environ: str) -> None:
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # torchrun's agent has it, too
        port = str(self._store.port)
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": "True"}
        shared |= {"WORLD_SIZE": str(world), "GLOO_SOCKET_IFNAME": "lo", "SPOTSUP_CHECKPOINT_DIR": str(folder)}
        shared |= {"TORCHELASTIC_RUN_ID": "test"}
        shared |= environ
        self._outputs = [folder / f"out.{port}.{rank}" for rank in range(world)]
        self._processes = []
        for rank, output in enumerate(self._outputs):
            own = {name: value.format(rank=rank) for name, value in shared.items()}
            own |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            self._processes.append(PROCESSES.Process(target=run_script, args=(path, arguments, own, output)))

    def __enter__(self) -> Self:
        for process in self._processes:
            process.start()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.join()

    def output(self, rank: int = 0) -> str:
        return self._outputs[rank].read_text() if self._outputs[rank].exists() else ""

    def wait(self, what: str, condition: Callable[[], bool], timeout_s: float = 90.0) -> None:
        def done() -> bool:
            failed = [rank for rank, process in enumerate(self._processes) if process.exitcode]
            assert not failed, f"before {what}: {self.output(failed[0])}"
            return condition()

        wait(what, done, timeout_s)

    def end(self, timeout_s: float = 90.0) -> str:
        """Wait for a good end. What rank 0 printed."""
        self.wait("the end", lambda: all(process.exitcode == 0 for process in self._processes), timeout_s)
        return self.output()


def alone(path: Path, folder: Path, **environ: str) -> str:
    """What a script prints that plain python runs, outside of any job."""
    output = folder / "out.alone"
    process = PROCESSES.Process(target=run_script, args=(path, (), environ, output))
    process.start()
    process.join(90)
    process.kill()
    process.join()
    assert process.exitcode == 0, output.read_text()
    return output.read_text()


def until_parked(
    path: Path, folder: Path, world: int, *arguments: str, timeout_s: float = 90.0, **environ: str
) -> list[str]:
    """Run a script whose last rank is asked to park after the first step or two; what each rank has printed then."""
    files = {f"SPOTSUP_{name}_FILE": f"{folder}/{name}.{{rank}}" for name in ("YIELD", "PARKED", "PROGRESS")}
    (folder / f"YIELD.{world - 1}").symlink_to(folder / "PROGRESS.0")  # which rank 0 writes with its first step
    with Ranks(path, folder, world, *arguments, **files, **environ) as ranks:
        parked = [folder / f"PARKED.{rank}" for rank in range(world)]
        ranks.wait("parking", lambda: all(file.exists() for file in parked), timeout_s)
        return [ranks.output(rank) for rank in range(world)]


def wait(what: str, condition: Callable[[], bool], timeout_s: float = 90.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"timed out waiting for {what}"
        time.sleep(0.01)


def steps(text: str) -> dict[int, str]:
    """What was printed about each step."""
    return {int(line.split()[1]): line for line in text.splitlines() if line.startswith("step ")}


def script(name: str, folder: Path) -> Path:
    """A script of docs/training.md, or of a page in docs/training."""
    path = folder / name
    (text,) = (block.text for page in PAGES for block in blocks(page) if block.file == name)
    path.write_text(text)
    return path
