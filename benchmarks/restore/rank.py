"""One rank of `make bench-restore`: makes a checkpoint and a snapshot, or restores one way; prints a line of JSON."""

from __future__ import annotations

import argparse
import fcntl
import io
import json
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from spotsup_trainer.session.checkpoint import Checkpointer
from spotsup_trainer.session.checkpoint_dir import Position, checkpoints_in
from spotsup_trainer.session.memory import Keeper
from spotsup_trainer.session.peers import Peers
from torch import nn
from torch.distributed.checkpoint import FileSystemReader, filesystem, load
from torch.distributed.checkpoint.state_dict import get_model_state_dict

SAVED = 0.5
TENSOR_BYTES = 64 * 2**20


class Meter:
    """Counts what is read from storage, and lets all processes together read no more than `bytes_per_s` (0: any)."""

    def __init__(self, file: Path, bytes_per_s: float) -> None:
        self._file = file.open("r+b")
        self._bytes_per_s = bytes_per_s
        self.bytes = 0

    def read(self, size: int) -> None:
        """So much was read: wait until the storage could have sent it, after what others read before."""
        self.bytes += size
        if not self._bytes_per_s:
            return
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            (free_at,) = struct.unpack("d", os.pread(self._file.fileno(), 8, 0))
            sent_at = max(time.time(), free_at) + size / self._bytes_per_s
            os.pwrite(self._file.fileno(), struct.pack("d", sent_at), 0)
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)
        time.sleep(max(0.0, sent_at - time.time()))


class Metered(io.RawIOBase):
    """A file that is read through a meter."""

    def __init__(self, stream: Any, meter: Meter) -> None:
        super().__init__()
        self._stream = stream
        self._meter = meter

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """As for any file."""
        return int(self._stream.tell())

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """As for any file."""
        return int(self._stream.seek(offset, whence))

    def readinto(self, buffer: Any, /) -> int:
        """As for any file, at the meter's pace."""
        size = int(self._stream.readinto(buffer))
        self._meter.read(size)
        return size


def meter_storage(meter: Meter) -> None:
    """Let every reader of torch.distributed.checkpoint read through `meter`: spotsup's, and torch's own."""

    class MeteredFiles(filesystem.FileSystem):  # type: ignore[misc]  # torch is untyped here
        @contextmanager
        def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
            with super().create_stream(path, mode) as stream:
                yield Metered(stream, meter) if mode == "rb" else stream

    filesystem.FileSystem = MeteredFiles


class Model(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Tensors of 64 MiB: as of a model and its optimizer, replicated as with DDP. Each has a value of its own, unless
    they are `alike`.

    `aliased`: all of them are one buffer. Then as many bytes are restored in the memory of one tensor.
    """

    def __init__(self, gib: float, value: float, *, alike: bool = False, aliased: bool = False) -> None:
        super().__init__()
        count = max(1, round(gib * 2**30 / TENSOR_BYTES))
        self._values = [value + (0 if alike else at) for at in range(count)]
        buffer = torch.full((TENSOR_BYTES // 4096, 1024), value)
        tensors = [buffer.view_as(buffer) if aliased else torch.full_like(buffer, each) for each in self._values]
        self.tensors = nn.ParameterList(nn.Parameter(tensor) for tensor in tensors)

    def check(self, saved: float) -> None:
        """Raises AssertionError if it is not what was saved, with that as the first value."""
        for at, (tensor, value) in enumerate(zip(self.tensors, self._values, strict=True)):
            found, expected = tensor.detach().view(-1), saved + value - self._values[0]
            for place in (0, len(found) // 3, -1):
                assert float(found[place]) == expected, f"tensor {at}: {found[place]}"


def restore(options: argparse.Namespace, peers: Peers) -> dict[str, float]:
    """Seconds, when they began and ended, and GiB from storage."""
    model = Model(options.gib, -1.0, alike=options.lean, aliased=options.aliased)
    meter = Meter(options.folder / "meter", options.storage_bytes_per_s)
    meter_storage(meter)
    checkpoints = _checkpoints(options, peers, model)
    peers.highest([0])
    began = time.time()
    if options.way == "every":
        state = {"model": get_model_state_dict(model)}
        (newest,) = checkpoints_in(options.folder / "checkpoints")
        load(state, storage_reader=FileSystemReader(newest.path), no_dist=True)
    else:
        assert checkpoints.restore() is not None
    ended = time.time()
    model.check(SAVED)
    return {"began": began, "ended": ended, "storage": meter.bytes / 2**30, "peers": checkpoints.sources.peers / 2**30}


def save(options: argparse.Namespace, peers: Peers) -> dict[str, float]:
    """Make the checkpoint."""
    model = Model(options.gib, SAVED, alike=options.lean, aliased=options.aliased)
    checkpoints = _checkpoints(options, peers, model)
    checkpoints.restore()
    checkpoints.claim()
    assert checkpoints.save(Position(1)), checkpoints.problem()
    return {}


def _checkpoints(options: argparse.Namespace, peers: Peers, model: Model) -> Checkpointer:
    keeper = Keeper.named_by(os.environ, peers.rank, peers.world) if options.way == "survivors" else None
    folder = options.folder / "checkpoints"
    return Checkpointer(folder, {"model": model}, peers, 1, round_number=options.round, keeper=keeper)


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--way", choices=("save", "survivors", "once", "every"), required=True)
    parser.add_argument("--gib", type=float, required=True)
    parser.add_argument("--round", type=int, required=True)
    parser.add_argument("--aliased", action="store_true")
    parser.add_argument("--lean", action="store_true")
    parser.add_argument("--storage-bytes-per-s", type=float, default=0.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", f"file://{options.folder}/store.{options.round}", rank=rank, world_size=world)
    work = restore
    if options.way == "save":
        work, options.way = save, "survivors"
    print(json.dumps(work(options, Peers.join())), flush=True)
    os._exit(0)  # without gloo's destructors, as workers that are killed


if __name__ == "__main__":
    main()
