"""The training program of the launcher's tests: one all_reduce per step, and the file contract in as few lines as can be.

Settings come as KEY=VALUE arguments: steps (how many in all), step_s (how long one takes), fail_on (node that raises),
fail_at (its step), fail_times (how often, over all rounds), session (0: none), events (a file for JSON lines).
"""

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

SETTINGS = {"steps": "1000000", "step_s": "0.01", "fail_on": "", "fail_at": "3", "fail_times": "1", "session": "1"}
SETTINGS |= dict(argument.split("=", 1) for argument in sys.argv[1:])
NODE = os.environ.get("SPOTSUP_NODE_ID", "")
CHECKPOINT = Path(os.environ.get("SPOTSUP_CHECKPOINT_DIR", ".")) / "step"
FAILURES = CHECKPOINT.with_name("failures")


def tell(kind: str, **more: object) -> None:
    """One line, in one write: lines of several processes do not mix."""
    line = {"kind": kind, "at": time.time(), "node": NODE, "round": int(os.environ.get("SPOTSUP_ROUND", "0"))}
    line |= {"rank": int(os.environ["RANK"]), "world": int(os.environ["WORLD_SIZE"]), "pid": os.getpid()} | more
    with Path(SETTINGS["events"]).open("ab", buffering=0) as file:
        file.write(json.dumps(line).encode() + b"\n")


def file_named(variable: str) -> Path | None:
    """A file of the contract, where there is one and the program is to keep to it."""
    path = os.environ.get(variable)
    return Path(path) if path and SETTINGS["session"] == "1" else None


def maybe_fail(step: int) -> None:
    """Raise when told to."""
    if SETTINGS["fail_on"] != NODE or step < int(SETTINGS["fail_at"]):
        return
    so_far = FAILURES.stat().st_size if FAILURES.exists() else 0
    if so_far < int(SETTINGS["fail_times"]):
        with FAILURES.open("ab") as file:
            file.write(b"x")
        raise ValueError(f"failing as told, for the {so_far + 1}. time")


def main() -> None:
    """Train."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    step = int(CHECKPOINT.read_text()) if CHECKPOINT.exists() else 0
    tell("start", step=step, argv=sys.argv[1:2], main=sys.modules["__main__"].__file__)
    yield_file, session, parked = (file_named(f"SPOTSUP_{name}_FILE") for name in ("YIELD", "SESSION", "PARKED"))
    progress = file_named("SPOTSUP_PROGRESS_FILE")
    if session:
        session.touch()
    while step < int(SETTINGS["steps"]):
        flag = torch.tensor([1 if yield_file and yield_file.exists() else 0])
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        if flag.item():
            if dist.get_rank() == 0:
                CHECKPOINT.write_text(str(step))
            dist.barrier()
            tell("parked", step=step)
            if parked:
                parked.touch()
            time.sleep(60)
        maybe_fail(step)
        time.sleep(float(SETTINGS["step_s"]))
        step += 1
        tell("step", step=step)
        if progress and dist.get_rank() == 0:
            temporary = progress.with_name("progress.tmp")
            word = {"round": int(os.environ["SPOTSUP_ROUND"]), "step": step, "at": time.time(), "first_step_at": 0.0}
            temporary.write_text(json.dumps(word))
            temporary.replace(progress)
    print(f"{NODE} has trained {step} steps")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
