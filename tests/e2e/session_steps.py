"""A training program with a Session: one tiny step at a time, a line for each.

Settings come as KEY=VALUE arguments: events (a file for JSON lines), until (training ends when this file exists),
import_s (how long its imports take).
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from spotsup_trainer.session import Session

SETTINGS = {"import_s": "0"} | dict(argument.split("=", 1) for argument in sys.argv[1:])


def main() -> None:
    """Train."""
    time.sleep(float(SETTINGS["import_s"]))
    dist.init_process_group("gloo")
    session = Session({"count": {"steps": 0}}, every_steps=10**6)
    events = Path(SETTINGS["events"]).open("ab", buffering=0)  # noqa: SIM115 - until the process ends
    while True:
        over = torch.tensor([Path(SETTINGS["until"]).exists()])
        dist.all_reduce(over, op=dist.ReduceOp.MAX)
        if over.item():
            break
        time.sleep(0.02)
        line = {
            "kind": "step",
            "at": time.time(),
            "node": os.environ["SPOTSUP_NODE_ID"],
            "step": session.steps_done + 1,
        }
        line |= {"round": session.round, "rank": session.rank, "world": session.world}
        events.write(json.dumps(line).encode() + b"\n")
        session.step()
    session.finish()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
