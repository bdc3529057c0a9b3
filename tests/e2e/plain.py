"""A plain DDP script, as people write them: it drops its model as its main() returns, and may hang there.

Settings: destroy (0: it leaves its process group), hang_rank (that rank never ends), hang_at (exit: after its last
line), slow_file (rank 0 writes it at the end, at 20 kB/s for 12 s). Others are ignored.
"""

import atexit
import ctypes
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

SETTINGS = {"destroy": "1", "hang_rank": "", "hang_at": "", "slow_file": ""}
SETTINGS |= dict(argument.split("=", 1) for argument in sys.argv[1:])


def hang_for_ever() -> None:
    """As a destructor that waits for a thread which waits for the interpreter's lock."""
    while True:
        ctypes.PyDLL(None).pause()


def main() -> None:
    """Train."""
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(2000, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.ones(2, 2000)).sum().backward()
        optimizer.step()
    if SETTINGS["destroy"] == "1":
        dist.destroy_process_group()
    if os.environ["RANK"] == SETTINGS["hang_rank"]:
        if SETTINGS["hang_at"] == "exit":
            atexit.register(hang_for_ever)
        else:
            hang_for_ever()
    if os.environ["RANK"] == "0" and SETTINGS["slow_file"]:
        write_slowly(Path(SETTINGS["slow_file"]))


def write_slowly(path: Path) -> None:
    """As to a file server that throttles."""
    with path.open("wb", buffering=0) as file:
        for _ in range(120):
            file.write(bytes(2000))
            time.sleep(0.1)


if __name__ == "__main__":
    main()
