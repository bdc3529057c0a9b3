"""The training program of the launcher's tests: one all_reduce per step, and the file contract in few lines.

Settings come as KEY=VALUE arguments: until (training ends when this file exists), step_s (how long a step takes),
fail_on (node that raises), fail_at (its step), fail_times (how often, over all rounds), slow_on (node that takes its
time after the last step), hang_at (step after which all ranks hang, in the first round), hangs_after_s (a silence of so
long is a hang), deaf (1: neither SIGTERM nor a lost peer ends it), helper (1: it has a process of its own, as data
loaders have them), session (0: none), timeout_s (of a collective), events (a file for JSON lines).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

SETTINGS = {
    "until": "",
    "step_s": "0.03",
    "fail_on": "",
    "fail_at": "3",
    "fail_times": "1",
    "slow_on": "",
    "hang_at": "",
    "hangs_after_s": "",
    "deaf": "0",
    "helper": "0",
    "session": "1",
    "timeout_s": "30",
    "late_s": "0",
}
SETTINGS |= dict(argument.split("=", 1) for argument in sys.argv[1:])
NODE = os.environ.get("SPOTSUP_NODE_ID", "")
GO_ON, YIELD, FINISH = range(3)
CHECKPOINT = Path(os.environ.get("SPOTSUP_CHECKPOINT_DIR", ".")) / "step"
FAILURES = CHECKPOINT.with_name("failures")


def emit(kind: str, **more: object) -> None:
    """One line, in one write: lines of several processes do not mix."""
    number = int(os.environ.get("SPOTSUP_ROUND", "0"))
    line: dict[str, object] = {"kind": kind, "at": time.time(), "node": NODE, "round": number}
    line |= {"rank": int(os.environ["RANK"]), "world": int(os.environ["WORLD_SIZE"]), "pid": os.getpid()} | more
    with Path(SETTINGS["events"]).open("ab", buffering=0) as file:
        file.write(json.dumps(line).encode() + b"\n")


def file_named(variable: str) -> Path | None:
    """A file of the contract, where there is one and the program is to keep to it."""
    path = os.environ.get(variable)
    return Path(path) if path and SETTINGS["session"] == "1" else None


def maybe_fail(step: int) -> None:
    """Raise when the settings ask for it."""
    if SETTINGS["fail_on"] != NODE or step < int(SETTINGS["fail_at"]):
        return
    so_far = FAILURES.stat().st_size if FAILURES.exists() else 0
    if so_far < int(SETTINGS["fail_times"]):
        with FAILURES.open("ab") as file:
            file.write(b"x")
        raise ValueError(f"failing on purpose, time {so_far + 1}")


def hang_or_not(step: int) -> None:
    """Hang when the settings ask for it."""
    while SETTINGS["hang_at"] == str(step) and os.environ["SPOTSUP_ROUND"] == "1":
        time.sleep(1)


def main() -> None:
    """Train."""
    if SETTINGS["helper"] == "1":
        subprocess.Popen(["sleep", "600"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=float(SETTINGS["timeout_s"])))
    step = int(CHECKPOINT.read_text()) if CHECKPOINT.exists() else 0
    emit("start", step=step, argv=sys.argv[1:2], main=sys.modules["__main__"].__file__)
    yield_file, session, parked = (file_named(f"SPOTSUP_{name}_FILE") for name in ("YIELD", "SESSION", "PARKED"))
    progress = file_named("SPOTSUP_PROGRESS_FILE")
    if session:
        session.touch()
    while True:
        wanted = FINISH if Path(SETTINGS["until"]).is_file() else YIELD if yield_file and yield_file.exists() else GO_ON
        flag = torch.tensor([wanted])
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        if flag.item() == FINISH:
            break
        if flag.item() == YIELD:
            if dist.get_rank() == 0:
                CHECKPOINT.write_text(str(step))
            dist.barrier()
            time.sleep(float(SETTINGS["late_s"]) if dist.get_rank() > 0 else 0.0)
            emit("parked", step=step)
            if parked:
                parked.touch()
            time.sleep(60)
        maybe_fail(step)
        if session and SETTINGS["hangs_after_s"]:
            session.write_text(SETTINGS["hangs_after_s"])
        hang_or_not(step)
        time.sleep(float(SETTINGS["step_s"]))
        step += 1
        emit("step", step=step)
        if progress and dist.get_rank() == 0:
            temporary = progress.with_name("progress.tmp")
            progress_fields = {
                "round": int(os.environ["SPOTSUP_ROUND"]),
                "step": step,
                "at": time.time(),
                "first_step_at": 0.0,
            }
            temporary.write_text(json.dumps(progress_fields))
            temporary.replace(progress)
    if dist.get_rank() == 0:
        CHECKPOINT.write_text(str(step))
    print(f"{NODE} has trained {step} steps")
    if SETTINGS["slow_on"] == NODE:
        emit("slow", step=step)
        time.sleep(60)
    dist.destroy_process_group()


def main_of_the_deaf() -> None:
    """Train, and hang where others would end."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        main()
    except RuntimeError:
        time.sleep(60)


if __name__ == "__main__":
    (main_of_the_deaf if SETTINGS["deaf"] == "1" else main)()
