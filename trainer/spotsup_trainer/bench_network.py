"""`python -m spotsup_trainer.bench_network` in every rank of a round measures all_reduce between its nodes.

Like nccl-tests' all_reduce_perf: sizes in geometric steps, a few calls to warm up, then the mean time of a call over
all ranks. algbw is size / time; busbw is algbw * 2(n-1)/n, the load of each link in a ring, comparable for any n.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

PREFIX = "spotsup-bench-network "
"""Begins rank 0's last line, a `Measurement` as JSON. All in one line: of a long log, only the end is kept."""

ELEMENT_BYTES = 4  # float32


@dataclass(frozen=True)
class Row:
    """The measurement of one size. Bandwidths in GB/s, of 10^9 bytes."""

    bytes: int
    time_us: float
    algbw_gb_s: float
    busbw_gb_s: float
    # How many elements of the result were not the sum.
    wrong: int


@dataclass(frozen=True)
class Measurement:
    """All sizes, and what they were measured on."""

    nodes: int
    ranks: int
    backend: str
    # The GPU's name, or cpu.
    device: str
    torch: str
    rows: tuple[Row, ...]


def sizes(least: int, most: int, factor: int) -> Iterator[int]:
    """Bytes from `least` to `most`, each `factor` times the one before, in whole elements."""
    size = least
    while size <= most:
        yield max(ELEMENT_BYTES, size // ELEMENT_BYTES * ELEMENT_BYTES)
        size *= factor


def row_of(size: int, time_s: float, ranks: int, wrong: int = 0) -> Row:
    """The bandwidths of one all_reduce of `size` bytes among `ranks` that takes `time_s`."""
    algbw = size / time_s / 1e9
    return Row(size, time_s * 1e6, algbw, algbw * 2 * (ranks - 1) / ranks, wrong)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, in a round that the environment describes. Raises RuntimeError where a result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from-bytes", type=int, default=1 << 10)
    parser.add_argument("--to-bytes", type=int, default=1 << 26)
    parser.add_argument("--factor", type=int, default=2)
    parser.add_argument("--warm-up", type=int, default=5)
    parser.add_argument("--calls", type=int, default=20)
    options = parser.parse_args(argv)
    if not (0 < options.from_bytes <= options.to_bytes and options.factor > 1 and options.calls > 0):
        parser.error("needed: 0 < --from-bytes ≤ --to-bytes, --factor 2 or more, --calls 1 or more")
    _measure(options)


def _measure(options: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist

    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    ranks, is_rank_0 = dist.get_world_size(), dist.get_rank() == 0
    rows = []
    for size in sizes(options.from_bytes, options.to_bytes, options.factor):
        row = _measure_size(size, ranks, device, options)
        rows.append(row)
        if is_rank_0:
            print(f"{row.bytes:>12} B {row.time_us:>12.1f} us {row.busbw_gb_s:>9.3f} GB/s busbw", flush=True)
    measurement = Measurement(
        nodes=max(1, ranks // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))),
        ranks=ranks,
        backend=dist.get_backend(),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        torch=torch.__version__,
        rows=tuple(rows),
    )
    if is_rank_0:
        print(PREFIX + json.dumps(asdict(measurement)), flush=True)
    dist.destroy_process_group()
    if wrong := sum(row.wrong for row in rows):
        raise RuntimeError(f"{wrong} elements were not the sum over all ranks: this network or a GPU corrupts data")


def _measure_size(size: int, ranks: int, device: Any, options: argparse.Namespace) -> Row:
    import torch
    import torch.distributed as dist

    data = torch.ones(size // ELEMENT_BYTES, device=device)
    dist.all_reduce(data)
    wrong = int((data != ranks).sum())
    data.zero_()  # sums of sums would soon be infinite, and may take another time to add
    for _ in range(options.warm_up):
        dist.all_reduce(data)
    _wait(device)
    dist.barrier()
    began = time.perf_counter()
    for _ in range(options.calls):
        dist.all_reduce(data)
    _wait(device)
    took_s = (time.perf_counter() - began) / options.calls
    sums = torch.tensor([took_s, wrong], dtype=torch.float64, device=device)
    dist.all_reduce(sums)
    return row_of(size, float(sums[0]) / ranks, ranks, int(sums[1]))


def _wait(device: Any) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
