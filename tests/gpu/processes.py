"""Checks with several processes: the fork server, NCCL, kill and re-form."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from spotsup_trainer.launcher import forkserver
from spotsup_trainer.launcher.worker import WorkerRequest

from tests.e2e.launching import nodes
from tests.gpu.place import ROOT, Facts, Place, etcd, etcd_program, ran, until

MIB = 1 << 20
REPEATS = 5
REFORM_STEPS = 300
KILL_AFTER = 40
TRAIN = Path(__file__).with_name("train.py")

WORKER = """
import json, sys, time
import torch
device, file, mode = sys.argv[1:]
began = time.monotonic()
x = torch.ones(1024, 1024, device=device)
total = float((x @ x).sum())
free = torch.cuda.mem_get_info()[0] if device == "cuda" else 0
with open(file, "w") as out:
    json.dump({"total": total, "first_s": time.monotonic() - began, "free": free}, out)
while mode == "forever":
    x = (x @ x).clamp_(-1, 1)
"""


def fork_server(place: Place) -> Facts:
    """Workers forked from a process that has torch imported use the GPU; one that is killed at work leaves it free."""
    script = place.folder / "worker.py"
    script.write_text(WORKER)
    assert not torch.cuda.is_initialized(), "the process that workers are forked from must not have touched a GPU"
    server = forkserver.start()

    def spawn(name: str, mode: str) -> tuple[int, float, Path]:
        file = place.folder / name
        argv = (str(script), place.device, str(file), mode)
        began = time.monotonic()
        pid = server.spawn(WorkerRequest("script", argv, dict(os.environ), 0))
        return pid, began, file

    def result(began: float, file: Path) -> tuple[dict[str, float], float]:
        until(f"{file.name} has its result", lambda: file.exists() and bool(file.read_text().strip()), 120.0)
        return json.loads(file.read_text()), time.monotonic() - began

    try:
        pid, begun_first, file_first = spawn("first", "once")
        one, warm_s = result(begun_first, file_first)
        assert server.wait([pid], 60.0)
        assert server.exit_code(pid) == 0
        pid, begun_second, file_second = spawn("second", "forever")
        result(begun_second, file_second)
        server.kill(pid, signal.SIGKILL, group=True)
        assert server.wait([pid], 60.0)
        assert server.exit_code(pid) == -signal.SIGKILL
        pid, begun_third, file_third = spawn("third", "once")
        two, _ = result(begun_third, file_third)
        assert server.wait([pid], 60.0)
        assert server.exit_code(pid) == 0
    finally:
        server.close()
    assert one["total"] == two["total"] == 1024.0**3
    lost = (one["free"] - two["free"]) / MIB
    assert lost < 64, f"{lost:.0f} MiB of the GPU's memory are missing after a worker was killed"
    began = time.monotonic()
    ran([sys.executable, str(script), place.device, str(place.folder / "cold"), "once"], 120.0)
    return {
        "forked worker to its first result, s": round(warm_s, 2),
        "of that, its first product on the device, s": round(one["first_s"], 2),
        "new interpreter to its first result, s": round(time.monotonic() - began, 2),
    }


def _all_reduce(rank: int, world: int, device: str, folder: str) -> None:
    store = f"file://{folder}/store"
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if device == "cuda" else "gloo", init_method=store, rank=rank, world_size=world)
    data = torch.full((16 * MIB,), float(rank + 1), device=device)
    dist.all_reduce(data)
    assert float(data[0]) == float(data[-1]) == world * (world + 1) / 2
    times = []
    for _ in range(REPEATS):
        data.fill_(1.0)
        if device == "cuda":
            torch.cuda.synchronize()
        dist.barrier()
        began = time.monotonic()
        dist.all_reduce(data)
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.monotonic() - began)
    if rank == 0:
        (Path(folder) / "times").write_text(json.dumps(sorted(times)))
    dist.destroy_process_group()


def nccl(place: Place) -> Facts:
    """An all_reduce over all GPUs, one process each, gives the right sum. Without a GPU the same over gloo."""
    world = place.gpus if place.cuda else 2
    torch.multiprocessing.spawn(_all_reduce, (world, place.device, str(place.folder)), nprocs=world)
    median_s = json.loads((place.folder / "times").read_text())[REPEATS // 2]
    size = 16 * MIB * 4
    found: Facts = {"backend": "nccl" if place.cuda else "gloo", "processes": world, "MiB": size // MIB}
    if world > 1:
        found["bus bandwidth, GB/s"] = round(2 * (world - 1) / world * size / median_s / 1e9, 2)
    else:
        found["not seen"] = "traffic between GPUs: there is one"
    return found


def reform(place: Place) -> Facts:
    """Two launchers train; one is killed with all its processes; the other goes on from the checkpoint; a third joins.
    The final weights are those of a run without interruption."""
    etcd_program()
    apart = place.gpus >= 2
    backend = "nccl" if apart else "gloo"
    program = {"steps": str(REFORM_STEPS), "step_s": "0.05", "backend": backend, "device": place.device}
    weights = place.folder / "weights.pt"
    environ = {"PYTHONPATH": f"{ROOT}:{ROOT / 'trainer'}", "NCCL_SOCKET_IFNAME": "lo"}
    with (
        etcd(place.folder) as endpoint,
        nodes(endpoint, place.folder, script=TRAIN, program={**program, "weights": str(weights)}, env=environ) as job,
    ):
        job.hint("a", "b", minimum=2)
        for number, node in enumerate(("a", "b")):
            job.env = _gpus_of(place, number) | environ
            job.start(node)
        job.stepping(2, timeout_s=180.0)
        until("40 steps", lambda: _last(job.events("step")) >= KILL_AFTER, 120.0)
        job.hint("a", minimum=1)
        killed_at = time.time()
        job.kill("b")
        one = job.stepping(1, after_round=1, timeout_s=120.0)
        job.hint("a", "c", minimum=2)
        job.start("c")
        two = job.stepping(2, after_round=int(one["round"]), timeout_s=180.0)
        job.hint("a", "c")
        assert [job.exit_code(node, 180.0) for node in ("a", "c")] == [0, 0], job.log("a").read_text()[-2000:]
        joined_s = job_pause(job.events("step"), int(two["round"]))
    alone = place.folder / "alone.pt"
    events = place.folder / "events.alone"
    arguments = [
        f"{key}={value}" for key, value in {**program, "step_s": "0", "events": events, "weights": alone}.items()
    ]
    ran([sys.executable, str(TRAIN), *arguments], 180.0, {**environ, **_gpus_of(place, 0)})
    furthest = max(
        float((one - two).abs().max()) for one, two in zip(torch.load(weights), torch.load(alone), strict=True)
    )
    assert furthest < 1e-6, f"weights differ by {furthest:g} from those of a run without interruption"
    found: Facts = {
        "backend": backend,
        "from SIGKILL to the next step, s (lease of 2 s)": round(float(one["at"]) - killed_at, 2),
        "pause when a node joined, s": round(joined_s, 2),
        "largest difference of a weight": f"{furthest:.1e}",
    }
    if place.cuda and not apart:
        found["not seen"] = "the same over NCCL, which takes no two processes on one GPU: it needs two"
    return found


def job_pause(events: list[dict[str, object]], number: int) -> float:
    """From the last step before a round to the first step of it."""
    before = [float(str(each["at"])) for each in events if int(str(each["round"])) < number]
    after = [float(str(each["at"])) for each in events if int(str(each["round"])) == number]
    return min(after) - max(before)


def _last(events: list[dict[str, object]]) -> int:
    return max((int(str(each["step"])) for each in events), default=0)


def _gpus_of(place: Place, number: int) -> dict[str, str]:
    """The environment of a node: where there are two GPUs, each node has one of its own."""
    return {"CUDA_VISIBLE_DEVICES": str(number)} if place.gpus >= 2 else {}
