"""Checks of the copy that a checkpoint is written from: its speed, and what of it and of the writing a step feels."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import torch
from spotsup_trainer import snapshot_files
from spotsup_trainer.session import Session
from spotsup_trainer.session.memory import Keeper, Room
from spotsup_trainer.session.staging import Staging, room_for
from torch import nn

from tests.gpu.place import Facts, Place, percentiles

MIB = 1 << 20
# A launcher's, for one worker.
ALONE = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1"}
COPIES = 3
QUIET_STEPS = 20
CHECKPOINTS, ANOTHER_S = 2, 8.0


def staging(place: Place) -> Facts:
    """The copy that a checkpoint is written from is of the moment: in pinned memory, and in the memory that a launcher
    keeps for its workers, as it is and registered with CUDA."""
    size = 16 * MIB
    if place.cuda:
        size = min(8192 * MIB, torch.cuda.mem_get_info()[0] // 4, snapshot_files.available_bytes() // 4) // MIB * MIB
    weights = torch.arange(size // 8, device=place.device)
    place.note("MiB", size // MIB)
    _copies(place, "pinned memory" if place.cuda else "memory", Staging().copy, weights, pinned=place.cuda)
    room = _slot(weights)
    if room is None:
        return {"not seen": "the memory of a launcher: this machine has too little to spare"}
    in_slot = Staging()
    _copies(place, "a launcher's memory", lambda state: in_slot.copy(state, room), weights)
    if not place.cuda:
        return {"left out": "pinned memory, and memory registered with CUDA"}
    address = torch.frombuffer(room.memory, dtype=torch.uint8, count=1).data_ptr()
    length = len(room.memory or b"")
    began = time.monotonic()
    status = int(torch.cuda.cudart().cudaHostRegister(address, length, 0))
    place.note("registering it with CUDA, s", round(time.monotonic() - began, 2))
    if status != 0:
        return {"not seen": f"a launcher's memory registered with CUDA: cudaHostRegister gives {status}"}
    _copies(place, "a launcher's memory, registered", lambda state: in_slot.copy(state, room), weights)
    began = time.monotonic()
    torch.cuda.cudart().cudaHostUnregister(address)
    return {"taking that back, s": round(time.monotonic() - began, 2)}


def _slot(weights: torch.Tensor) -> Room | None:
    """Return memory as the launcher gives it to a worker."""
    environ = {**ALONE, snapshot_files.VARIABLE: snapshot_files.create(1)}
    keeper = Keeper.named_by(environ, 0, 1)
    return keeper.room(room_for({"model": {"weights": weights}})) if keeper else None


def _copies(
    place: Place,
    name: str,
    copy: Callable[[dict[str, object]], dict[str, dict[str, torch.Tensor]]],
    weights: torch.Tensor,
    *,
    pinned: bool = False,
) -> None:
    """Copy several times while training goes on; note how fast."""
    seconds = []
    for number in range(COPIES):
        _synchronize(place)
        began = time.monotonic()
        kept = copy({"model": {"weights": weights}, "step": 3})["model"]["weights"]
        seconds.append(time.monotonic() - began)
        at_the_time = weights.clone()
        weights += 1  # training goes on
        _synchronize(place)
        assert kept.device.type == "cpu"
        seen = slice(None) if number == COPIES - 1 else slice(MIB)  # the way back takes as long
        assert torch.equal(kept[seen].to(place.device), at_the_time[seen]), f"{name}: copy {number} has what came later"
        assert kept.is_pinned() or not pinned, "it is not in pinned memory"
    best = min(seconds[1:])
    speed = f"{weights.nbytes / best / 1e9:.2f} GB/s"
    place.note(f"to {name}", f"{speed}; first copy {seconds[0]:.3f} s, each further one {best:.4f} s")


def _synchronize(place: Place) -> None:
    if place.cuda:
        torch.cuda.synchronize()


def saving(place: Place) -> Facts:
    """Steps go on while a checkpoint is written beside them: how much slower, and how long the copy stops them."""
    width, layers = (4096, 4) if place.cuda else (256, 4)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))).to(place.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    wanted = place.folder / "save"
    files = {**ALONE, snapshot_files.VARIABLE: snapshot_files.create(1), "SPOTSUP_SAVE_FILE": str(wanted)}
    state = {"model": model, "optimizer": optimizer}
    session = Session(state, checkpoints=place.folder / "checkpoints", every_steps=10**9, keep=1, environ=files)
    checkpoints = session._checkpoints
    assert checkpoints is not None
    times: dict[str, list[float]] = {"quiet": [], "writing": [], "copying": []}
    data = torch.randn(64, width)
    made = 0
    while made == 0 or checkpoints.busy or wanted.exists() or (made < CHECKPOINTS and place.left_s() > ANOTHER_S):
        assert place.left_s() > 1, f"the checkpoint was not written in time: {checkpoints.problem()}"
        if not checkpoints.busy and len(times["quiet"]) >= (made + 1) * QUIET_STEPS:
            wanted.touch()
            made += 1
        kind = "copying" if wanted.exists() else "writing" if checkpoints.busy else "quiet"
        _synchronize(place)
        began = time.monotonic()
        loss = model(data.to(place.device)).square().mean()
        session.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        session.step()
        _synchronize(place)
        times[kind].append(time.monotonic() - began)
    assert not checkpoints.problem(), checkpoints.problem()
    size = sum(each.nbytes for each in model.parameters()) * 3 // MIB
    found: Facts = {
        "a checkpoint, MiB": size,
        "from its copy until it is written, s": round(checkpoints.took_s(0.5), 2),
    }
    found |= {f"a step, {kind}, ms": f"{percentiles(each)} of {len(each)}" for kind, each in times.items() if each}
    return found | ({} if place.cuda else {"left out": f"a GPU: {os.cpu_count()} processors compute and write"})
