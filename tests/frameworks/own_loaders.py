"""A small job with data from somebody else's streaming package, through session.wrap.

    own_loaders.py mosaic | webdataset  FOLDER  STOP

Each batch that is trained on is a line of JSON in FOLDER: epoch, step, samples. Before step STOP + 1 the loop is left.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from spotsup_trainer.session import Counted, Session
from torch import nn

SAMPLES, GLOBAL_BATCH, EPOCHS = 96, 12, 2
KIND, FOLDER, STOP = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def wrapped_mosaic(session: Session) -> Any:
    """Its position is one for all ranks."""
    for name in ("feature_extraction_utils", "tokenization_utils_base"):  # before torchvision seems to be there
        importlib.import_module(f"transformers.{name}")

    # It imports torchvision for image sets that are not used here; there is none for a torch without CUDA on PyPI.
    has: dict[str, dict[str, Any]] = {
        "": {},
        ".datasets": {"VisionDataset": object},
        ".transforms": {},
        ".transforms.functional": {"to_tensor": None},
    }
    for name, members in has.items():
        module = types.ModuleType(f"torchvision{name}")
        module.__dict__.update(members)
        sys.modules[module.__name__] = module
    streaming: Any = importlib.import_module("streaming")

    made = FOLDER / "mds"
    if RANK == 0 and not made.exists():
        with streaming.MDSWriter(out=str(made), columns={"number": "int"}, size_limit=400) as writer:
            for number in range(SAMPLES):
                writer.write({"number": number})
    dist.barrier()
    streaming.base.util.clean_stale_shared_memory()  # of processes that were killed
    size = GLOBAL_BATCH // WORLD
    data = streaming.StreamingDataset(
        local=str(made), shuffle=True, shuffle_seed=3, batch_size=size, num_canonical_nodes=1
    )
    return session.wrap(streaming.StreamingDataLoader(data, batch_size=size), epochs=EPOCHS)


def wrapped_webdataset(session: Session) -> Any:
    """Two loaders, whatever the number of ranks, each of which counts its batches."""
    webdataset: Any = importlib.import_module("webdataset")

    urls = [str(FOLDER / f"{number}.tar") for number in range(8)]
    if RANK == 0 and not Path(urls[-1]).exists():
        for at, url in enumerate(urls):
            with webdataset.TarWriter(url) as writer:
                for number in range(at, SAMPLES, len(urls)):
                    writer.write({"__key__": f"{number:06}", "cls": str(number)})
    dist.barrier()

    def shard(of: int) -> Counted:
        def batches(epoch: int) -> Iterable[Any]:
            data = webdataset.WebDataset(
                urls[of::2], shardshuffle=8, detshuffle=True, seed=epoch, nodesplitter=None, empty_check=False
            )
            shuffled = data.compose(webdataset.detshuffle(16, seed=epoch)).decode().to_tuple("cls")
            loader = webdataset.WebLoader(shuffled.batched(GLOBAL_BATCH // 2), batch_size=None)
            return ({"number": torch.as_tensor(numbers)} for (numbers,) in loader)

        return Counted(batches)

    return session.wrap(shard, shards=2, epochs=EPOCHS)


def main() -> None:
    """Train."""
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    session = Session({"model": model, "optimizer": optimizer})
    with (FOLDER / f"seen.{os.getpid()}.jsonl").open("a") as seen:
        for batch in (wrapped_mosaic if KIND == "mosaic" else wrapped_webdataset)(session):
            if session.steps_done == STOP:
                break
            if session.weight:
                seen.write(json.dumps([session.epoch, session.steps_done + 1, batch["number"].tolist()]) + "\n")
            session.backward(model(batch["number"].float().unsqueeze(1)).mean())
            if session.accumulating:
                continue
            optimizer.step()
            optimizer.zero_grad()
            session.step()
    session.finish()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
