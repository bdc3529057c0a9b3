"""A script whose ranks end at different times, as where one of them evaluates, merges or uploads after the last step.

All train one step together; each then works on its own until the file `until`-NODE exists.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

SETTINGS = dict(argument.split("=", 1) for argument in sys.argv[1:])
NODE = os.environ["SPOTSUP_NODE_ID"]


def emit(kind: str) -> None:
    """Write an event."""
    event = {"kind": kind, "node": NODE, "round": int(os.environ["SPOTSUP_ROUND"]), "world": dist.get_world_size()}
    with Path(SETTINGS["events"]).open("a") as file:
        file.write(f"{json.dumps(event)}\n")


dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
emit("step")
dist.barrier()
while not Path(f"{SETTINGS['until']}-{NODE}").exists():
    time.sleep(0.05)
