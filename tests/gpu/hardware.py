"""Checks of the machine, and of what reads a GPU's driver: NVML, the kernel's log, nvidia-smi."""

from __future__ import annotations

import importlib.util
import os
import platform
import resource
import shutil
import subprocess
import time
from pathlib import Path

from spotsup_trainer.agent.gpu_verdict import HEALTHY, Verdict, judge_xids
from spotsup_trainer.agent.gpu_watch import Abandoning, GpuWatch, KernelLog
from spotsup_trainer.launcher.gpu_check import ask_agent
from spotsup_trainer.launcher.run_dir import RunDir
from spotsup_trainer.nvml import Nvml

from tests.gpu.place import Facts, NotSeenError, Place, etcd_program

MIB = 1 << 20
# As NVIDIA's driver writes it to the kernel's log.
XID_79 = "4,1234,5678,-;NVRM: Xid (PCI:0000:00:1e): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
_SMI = ("nvidia-smi", "--query-gpu=driver_version,persistence_mode,mig.mode.current", "--format=csv,noheader")


def machine(place: Place) -> Facts:
    """What this machine is, and what it lets a job do."""
    import torch

    place.note("python", platform.python_version())
    place.note("torch", torch.__version__)
    place.note("system", platform.platform())
    place.note("processors", len(os.sched_getaffinity(0)))
    wanted = ("numpy", "triton", "torchvision")
    have = [name for name in wanted if importlib.util.find_spec(name)]
    place.note("beside torch", ", ".join(have) or f"none of {', '.join(wanted)}")
    compilers = [name for name in ("cc", "gcc", "clang", "g++") if shutil.which(name)]
    place.note("C compilers, for torch.compile", ", ".join(compilers) or "none")
    try:
        place.note("etcd, for kill-and-re-form", etcd_program())
    except NotSeenError as error:
        place.note("etcd, for kill-and-re-form", f"none: it {error}")
    place.note("/dev/shm, MiB free", shutil.disk_usage("/dev/shm").free // MIB)
    place.note("open files", resource.getrlimit(resource.RLIMIT_NOFILE))
    place.note("locked memory", resource.getrlimit(resource.RLIMIT_MEMLOCK))
    place.note("logind lingers for this user", _printed("loginctl", "show-user", str(os.getuid()), "-p", "Linger"))
    place.note("RemoveIPC", _remove_ipc())
    began = time.monotonic()
    place.note("driver, persistence mode, MIG", _printed(*_SMI))
    place.note("nvidia-smi took s", round(time.monotonic() - began, 2))
    if not place.cuda:
        return {"left out": "CUDA, NCCL and the GPUs"}
    found: Facts = {"CUDA": str(torch.version.cuda), "NCCL": ".".join(map(str, torch.cuda.nccl.version()))}
    for index in range(place.gpus):
        known = torch.cuda.get_device_properties(index)
        found[f"GPU {index}"] = f"{known.name}, {known.total_memory // MIB} MiB, {known.major}.{known.minor}"
    return found


def _printed(*command: str) -> str:
    """Return what a program says, or why it does not."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=8.0, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = (done.stdout.strip() or done.stderr.strip()).splitlines()
    return "; ".join(lines[:8]) or f"ended with {done.returncode}"


def _remove_ipc() -> str:
    """Return what logind is told of it: whether a login user's shared memory goes with the last session."""
    folder = Path("/etc/systemd")
    files = [folder / "logind.conf", *sorted(folder.glob("logind.conf.d/*.conf"))]
    texts = [file.read_text(errors="replace") for file in files if file.is_file()]
    told = [line for text in texts for line in text.splitlines() if line.startswith("RemoveIPC")]
    return told[-1] if told else "not set, which means yes" if texts else "no logind.conf"


def nvml(place: Place) -> Facts:
    """Our reader of NVML finds each GPU, and sees memory and work come."""
    if not place.cuda:
        raise NotSeenError("needs NVIDIA's driver")
    import torch

    reader = Nvml()
    before = reader.read()
    assert len(before) >= place.gpus, f"NVML has {len(before)} GPUs, torch {place.gpus}"
    assert all(each.name and each.uuid.startswith("GPU-") for each in before), before
    held = torch.zeros(512 * MIB, dtype=torch.uint8, device="cuda")
    x = torch.randn(4096, 4096, device="cuda")
    until = time.monotonic() + 2.0
    busiest = 0
    while time.monotonic() < until:
        for _ in range(20):
            x = (x @ x).clamp_(-1, 1)
        torch.cuda.synchronize()
        busiest = max(busiest, *(each.utilisation_percent or 0 for each in reader.read()))
    after = reader.read()
    grown = max(
        (two.memory_used_bytes or 0) - (one.memory_used_bytes or 0) for one, two in zip(before, after, strict=True)
    )
    assert grown >= held.numel(), f"512 MiB were allocated, and NVML shows {grown // MIB} MiB more"
    assert busiest > 0, "matrix products ran for 2 s, and NVML shows no use"
    first = after[0]
    return {
        "GPUs": len(after),
        "memory seen to grow by MiB": grown // MIB,
        "utilisation %": busiest,
        "temperature °C": first.temperature_c if first.temperature_c is not None else "not reported",
        "power W": round(first.power_mw / 1000, 1) if first.power_mw is not None else "not reported",
        "uncorrected ECC errors": first.ecc_uncorrected if first.ecc_uncorrected is not None else "not reported",
        "Xid events": sum(each.xids for each in after),
    }


def xid(place: Place) -> Facts:
    """A GPU's error in the kernel's log is found and judged; this machine's own log has none."""
    imitated = place.folder / "kmsg"
    imitated.write_text("")
    log = KernelLog(Abandoning(), str(imitated))
    with imitated.open("a") as file:
        file.write(XID_79)
    verdict = judge_xids(log.read())
    log.close()
    assert (verdict.healthy, verdict.xid, verdict.fatal) == (False, 79, True), verdict
    found: Facts = {"an imitated Xid 79": verdict.reason}
    if place.cuda:
        own = KernelLog(Abandoning())
        errors = own.read()
        assert judge_xids(errors).healthy, errors
        found["this machine's kernel log"] = "can be read" if own.readable else "cannot be read by this user"
        own.close()
    else:
        found["left out"] = "this machine's own kernel log"
    return found


def gpu_check(place: Place) -> Facts:
    """The agent's check finds the GPUs healthy, and answers a launcher that asks."""
    if not place.cuda:  # an nvidia-smi that answers as one on a machine with a GPU does
        place.note("left out", "the real nvidia-smi: a program that answers like it is asked")
        program = place.folder / "nvidia-smi"
        program.write_text("#!/bin/sh\necho '0, 00000000:00:1E.0, 0'\n")
        program.chmod(0o755)
        os.environ["PATH"] = f"{place.folder}:{os.environ['PATH']}"
    published: list[Verdict] = []
    run_dir = RunDir(Path(place.folder) / "run")
    watch = GpuWatch(max(1, place.gpus), run_dir, published.append)
    began = time.monotonic()
    verdict = watch.check()
    took_s = time.monotonic() - began
    assert verdict == HEALTHY, verdict
    os.environ["SPOTSUP_GPU_CHECK"] = "1"
    watch.start()
    began = time.monotonic()
    answer = ask_agent(run_dir, 1, lambda: False)
    asked_s = time.monotonic() - began
    watch.stop()
    assert run_dir.gpu_verdict(1) == "", "the agent has not answered in time"
    assert answer == ""
    assert published == [], "healthy GPUs are no news"
    return {"one check took s": round(took_s, 3), "a launcher's question was answered after s": round(asked_s, 3)}
