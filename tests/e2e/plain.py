"""A plain DDP script, as people write them: it drops its model as its main() returns, and may hang there.

Settings: destroy (0: it leaves its process group), hang_rank (that rank never ends). Others are ignored.
"""

import ctypes
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

SETTINGS = {"destroy": "1", "hang_rank": ""}
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
        hang_for_ever()


if __name__ == "__main__":
    main()
