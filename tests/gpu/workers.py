"""Checks of workers that are forked from a process with torch imported: their ends, their memory, what they compile."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import shutil
import signal
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from spotsup_trainer.launcher import forkserver
from spotsup_trainer.launcher.compiled import cache_folders
from spotsup_trainer.launcher.forkserver import WorkerServer
from spotsup_trainer.launcher.prepare import start_prepared
from spotsup_trainer.launcher.program_imports import BY_OPTIMIZERS, Import
from spotsup_trainer.launcher.worker import WorkerRequest
from spotsup_trainer.nvml import Nvml
from spotsup_trainer.snapshot_files import available_bytes

from tests.e2e.launching import processes_with
from tests.gpu.place import Facts, NotSeenError, Place, ran, until
from tests.gpu.worker import ENDS

MIB = 1 << 20
SCRIPT = Path(__file__).with_name("worker.py")
LOADERS = 8
# What programs import at their top, as far as it is here.
IMPORTS = ("torch", "torch._dynamo", "torch._inductor", "torch.distributed.checkpoint", "torch.distributed.fsdp")
PACKAGES = ("numpy", "triton", "torchvision", "transformers", "accelerate", "lightning", "PIL")


@dataclass
class Server:
    """A fork server, and the results of its workers.

    Workers leave through the call that starts the server: it stands alone there, with nothing around it to clean up.
    """

    place: Place
    forked: WorkerServer
    begun: dict[int, float] = field(default_factory=dict)

    def spawn(self, name: str, mode: str, *arguments: object, **env: str) -> int:
        """Start a worker in a mode of worker.py."""
        argv = (str(SCRIPT), mode, self.place.device, str(self.place.folder / name), *map(str, arguments))
        output = str(self.place.folder / f"{name}.output")
        environ = {**os.environ, "OMP_NUM_THREADS": "1", **env}
        began = time.monotonic()
        pid = self.forked.spawn(WorkerRequest("script", argv, environ, 0, output, f"{output}.err"))
        self.begun[pid] = began
        return pid

    def result(self, name: str, pid: int) -> dict[str, Any]:
        """Wait for what a worker finds."""
        file = self.place.folder / name
        with contextlib.suppress(AssertionError):
            until(name, lambda: file.exists() or self.forked.exit_code(pid) is not None, self.place.left_s())
        assert file.exists(), f"{name}: no result, exit code {self.forked.exit_code(pid)}: {self.said(name)}"
        found: dict[str, Any] = json.loads(file.read_text())
        return found

    def said(self, name: str) -> str:
        """Return the end of what a worker has written to stderr."""
        file = self.place.folder / f"{name}.output.err"
        return file.read_text(errors="replace")[-1500:] if file.exists() else ""

    def exit_code(self, pid: int) -> int | None:
        """Wait for a worker's end."""
        self.forked.wait([pid], self.place.left_s())
        return self.forked.exit_code(pid)

    def kill(self, pid: int) -> float:
        """Kill a worker and its group, as a launcher does. Return the seconds until the server says that it ended."""
        began = time.monotonic()
        self.forked.kill(pid, signal.SIGKILL, group=True)
        assert self.exit_code(pid) == -signal.SIGKILL
        return time.monotonic() - began


def ends(place: Place) -> Facts:
    """Workers that have trained with NCCL end with exit code 0, however they leave their process group."""
    forked, _ = start_prepared([BY_OPTIMIZERS], (str(SCRIPT),), {}, lambda _: None, place.left_s(20.0))
    server = Server(place, forked)
    cases = {name: how for name, how in ENDS.items() if place.cuda or "device_id" not in how}
    if not place.cuda:
        place.note("left out", "NCCL (gloo instead), device_id=, pinned memory")
    files = {name: f"end-{number}" for number, name in enumerate(cases)}
    pids = {name: server.spawn(file, "end", name) for name, file in files.items()}
    wrong = []
    try:
        for name, pid in pids.items():
            code = server.exit_code(pid)
            late = "" if code is not None else " (it had not ended)"
            place.note(name, f"exit code {code}{late}")
            if code != 0 or not (place.folder / files[name]).exists():
                wrong.append(f"{name}: exit code {code}{late}: {server.said(files[name])}")
        seconds = time.monotonic() - min(server.begun.values())
    finally:
        server.forked.close()
    assert not wrong, "\n".join(wrong)
    return {"all of them at once, s": round(seconds, 1)}


def memory(place: Place) -> Facts:
    """A worker is killed that holds most of the GPU and has loaders beside it: its memory is free when the fork server
    says that it ended, and the next worker, started at once, gets nine tenths of it."""
    server = Server(place, forkserver.start())
    nvml = Nvml() if place.cuda else None

    def free() -> int:
        return (nvml.read()[0].memory_free_bytes or 0) if nvml else 0

    def is_free(most: float) -> bool:
        return free() >= most

    total = free()
    if place.cuda and not total:
        raise NotSeenError("needs a driver whose NVML reports the memory of GPU 0")
    size, pinned = (int(0.75 * total), min(8 << 30, available_bytes() // 4)) if place.cuda else (128 * MIB, 16 * MIB)
    place.note("held, MiB", f"{size // MIB}, and {pinned // MIB} pinned, with {LOADERS} loaders")
    if not place.cuda:
        place.note("left out", "a GPU's memory: a lock that goes with the last open descriptor stands for it")
    try:
        for number in (1, 2):  # the second time the next worker does not wait
            name = f"hold-{number}"
            pid = server.spawn(name, "hold", size, pinned, LOADERS)
            server.result(name, pid)
            place.note(f"{number}: filled after s", round(time.monotonic() - server.begun[pid], 2))
            most = (total + free()) / 2
            place.note(f"{number}: from SIGKILL to 'ended', s", round(server.kill(pid), 3))
            if number == 1:
                is_closed = partial(_is_unlocked, place.folder / f"{name}.lock")
                closed_s = until("no descriptor is open", is_closed, place.left_s(20.0), 0.001)
                place.note("1: from 'ended' until the last descriptor was closed, s", round(closed_s, 3))
            if number == 1 and place.cuda:
                more_s = until("the memory is free", partial(is_free, most), place.left_s(20.0), 0.001)
                place.note("1: from 'ended' until most memory was free, s", round(closed_s + more_s, 3))
        pid = server.spawn("take", "take", int(0.9 * total) if place.cuda else 64 * MIB)
        found = server.result("take", pid)
    finally:
        server.forked.close()
    place.note("2: tries of the next worker until it had 90 %", found["tries"])
    place.note("2: that took it s", round(found["seconds"], 2))
    assert found["tries"] == 1, "the next worker ran out of memory: the one before had 'ended', and still held it"
    return {}


def _is_unlocked(path: Path) -> bool:
    with path.open("r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def fork_server(place: Place) -> Facts:
    """Workers forked from a process that has torch imported use the GPU; one that is killed at work leaves it free."""
    assert not torch.cuda.is_initialized(), "the process that workers are forked from must not have touched a GPU"
    server = Server(place, forkserver.start())
    try:
        pid = server.spawn("first", "product", "once")
        one = server.result("first", pid)
        warm_s = time.monotonic() - server.begun[pid]
        assert server.exit_code(pid) == 0
        pid = server.spawn("second", "product", "forever")
        server.result("second", pid)
        server.kill(pid)
        pid = server.spawn("third", "product", "once")
        two = server.result("third", pid)
        assert server.exit_code(pid) == 0
    finally:
        server.forked.close()
    assert one["total"] == two["total"] == 1024.0**3
    lost = (one["free"] - two["free"]) / MIB
    assert lost < 64, f"{lost:.0f} MiB of the GPU's memory are missing after a worker was killed"
    if not place.cuda:
        place.note("left out", "a GPU's memory, free again after a kill")
    began = time.monotonic()
    ran([sys.executable, str(SCRIPT), "product", place.device, str(place.folder / "cold"), "once"], place.left_s())
    return {
        "forked worker to its first result, s": round(warm_s, 2),
        "of that, its first product on the device, s": round(one["first_s"], 2),
        "new interpreter to its first result, s": round(time.monotonic() - began, 2),
    }


def imports(place: Place) -> Facts:
    """What programs import at their top is imported once, before workers are forked, and these use the GPU then; what
    must be left to them is named, and why."""
    wanted = [*IMPORTS, *(name for name in PACKAGES if importlib.util.find_spec(name))]
    begun: list[tuple[str, float]] = []
    forked, left_out = start_prepared(
        [Import(name) for name in wanted],
        (str(SCRIPT),),
        {},
        lambda name: begun.append((name, time.monotonic())),
        place.left_s(20.0),
    )
    ready = time.monotonic()
    server = Server(place, forked)
    took = {name: later - at for (name, at), (_, later) in zip(begun, [*begun[1:], ("", ready)], strict=True)}
    for name in wanted:
        known = f"imported in {took[name]:.2f} s" if name in took else "not reached in time"
        place.note(name, f"left out: {left_out[name]}" if name in left_out else known)
    try:
        pid = server.spawn("worker", "product", "once")
        assert server.result("worker", pid)["total"] == 1024.0**3
        assert server.exit_code(pid) == 0
        first_s = time.monotonic() - server.begun[pid]
    finally:
        server.forked.close()
    if not place.cuda:
        place.note("left out", "a CUDA build of torch, whose imports may touch more")
        assert not {*IMPORTS, "numpy"} & set(left_out), f"torch's own modules are left out: {left_out}"
    return {"from the fork to a worker's end, s": round(first_s, 2)}


def compiled(place: Place) -> Facts:
    """A compiled model computes what the model computes; a round later the cache has it, and of the first round's
    compiling processes none is left."""
    if not any(map(shutil.which, ("cc", "gcc", "clang", "g++"))) and "CC" not in os.environ:
        raise NotSeenError("needs a C compiler, as torch.compile does")
    environ = cache_folders({"SPOTSUP_RUN_DIR": str(place.folder / "run")})
    server = Server(place, forkserver.start())
    try:
        for number in (1, 2):
            name = f"round-{number}"
            mark = str(place.folder / name)
            beside = partial(processes_with, "SPOTSUP_TEST_NODE", mark)  # what the worker executes; itself is forked
            pid = server.spawn(name, "compiled", SPOTSUP_TEST_NODE=mark, **environ)
            found = server.result(name, pid)
            assert found["furthest"] < 1e-4, f"it differs by {found['furthest']:g}"
            pool = len(beside())
            server.kill(pid)
            took = f"first step after {found['first_s']:.1f} s, largest difference {found['furthest']:.1e}"
            place.note(name, f"{took}; {pool} processes beside the worker, {len(beside())} left at its end")
            until("they are gone", lambda: not beside(), place.left_s(5.0))  # noqa: B023 - called at once
    finally:
        server.forked.close()
    return {} if place.cuda else {"left out": "Triton and its pool of processes: a CPU's code is compiled by threads"}
