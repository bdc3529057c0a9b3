"""Measure all_reduce between the nodes of a job: is EFA used at all, and is this type in this zone fast enough?

    torchrun --standalone --nproc-per-node 2 all_reduce.py --to 1M

Like nccl-tests' all_reduce_perf: sizes double, a few calls to warm up, then the mean time of a call over all ranks.
algbw is size / time; busbw is algbw * 2(n-1)/n, the load of each link in a ring, comparable for any n.
"""

from __future__ import annotations

import argparse
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

ELEMENT_BYTES = 4  # float32
WARM_UP, CALLS = 5, 20
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
HEAD = f"{'size (B)':>12} {'count':>12} {'time (us)':>12} {'algbw (GB/s)':>13} {'busbw (GB/s)':>13} {'wrong':>6}"


@dataclass(frozen=True)
class Row:
    """The measurement of one size. Bandwidths in GB/s, of 10^9 bytes."""

    bytes: int
    time_us: float
    algbw_gb_s: float
    busbw_gb_s: float
    # How many elements of the result were not the sum.
    wrong: int

    def __str__(self) -> str:
        numbers = f"{self.time_us:>12.1f} {self.algbw_gb_s:>13.3f} {self.busbw_gb_s:>13.3f}"
        return f"{self.bytes:>12} {self.bytes // ELEMENT_BYTES:>12} {numbers} {self.wrong:>6}"


def size_of(text: str) -> int:
    """Return the bytes of "512", "8K", "64M" or "1G". Raises ArgumentTypeError."""
    found = re.fullmatch(r"([1-9]\d{0,14})([KMG]?)", text.strip().upper())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form 512, 8K, 64M or 1G")
    return int(found[1]) * UNITS[found[2]]


def sizes(smallest: int, largest: int) -> Iterator[int]:
    """Yield bytes from `smallest` to `largest`, each twice the one before, in whole elements."""
    size = smallest
    while size <= largest:
        yield max(ELEMENT_BYTES, size // ELEMENT_BYTES * ELEMENT_BYTES)
        size *= 2


def row_of(size: int, time_s: float, ranks: int, wrong: int = 0) -> Row:
    """Return the bandwidths of one all_reduce of `size` bytes among `ranks` that takes `time_s`."""
    algbw = size / time_s / 1e9
    return Row(size, time_s * 1e6, algbw, algbw * 2 * (ranks - 1) / ranks, wrong)


def measured(size: int, device: torch.device) -> Row:
    """Measure one size, together with all ranks."""
    ranks = dist.get_world_size()
    data = torch.ones(size // ELEMENT_BYTES, device=device)
    dist.all_reduce(data)
    wrong = int((data != ranks).sum())
    data.zero_()  # sums of sums would soon be infinite, and may take another time to add
    for _ in range(WARM_UP):
        dist.all_reduce(data)
    wait(device)
    dist.barrier()
    began = time.perf_counter()
    for _ in range(CALLS):
        dist.all_reduce(data)
    wait(device)
    took_s = (time.perf_counter() - began) / CALLS
    sums = torch.tensor([took_s, wrong], dtype=torch.float64, device=device)
    dist.all_reduce(sums)
    return row_of(size, float(sums[0]) / ranks, ranks, int(sums[1]))


def wait(device: torch.device) -> None:
    """Return once the GPU has done all that it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table from rank 0. Raises RuntimeError where a result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="smallest", type=size_of, default="1K", help="bytes, or with K, M, G")
    parser.add_argument("--to", dest="largest", type=size_of, default="64M")
    options = parser.parse_args(argv)
    if options.smallest > options.largest:
        parser.error("--from is larger than --to")
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    is_rank_0, ranks, rows = dist.get_rank() == 0, dist.get_world_size(), []
    if is_rank_0:
        print(HEAD, flush=True)
    for size in sizes(options.smallest, options.largest):
        rows.append(measured(size, device))
        if is_rank_0:
            print(rows[-1], flush=True)
    if is_rank_0:
        nodes = max(1, ranks // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        print(
            f"all_reduce of float32 over {ranks} ranks on {nodes} nodes ({name}), {dist.get_backend()}, torch "
            f"{torch.__version__}; best bus bandwidth {max(row.busbw_gb_s for row in rows):.3f} GB/s",
            flush=True,
        )
    dist.destroy_process_group()
    if wrong := sum(row.wrong for row in rows):
        raise RuntimeError(f"{wrong} elements were not the sum over all ranks: this network or a GPU corrupts data")


if __name__ == "__main__":
    main()
