"""A module's weights from a checkpoint of another run: to evaluate, to export, or to begin from.

python -m spotsup_trainer.session.weights /mnt/shared/JOB-ID weights.pt                  of the newest checkpoint
python -m spotsup_trainer.session.weights s3://BUCKET/PREFIX/JOB-ID weights.pt --best accuracy

`weights.pt` is a plain dictionary for `load_state_dict`, whatever wrapped the module: DDP, FSDP or torch.compile.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict

from spotsup_trainer.objects import url as urls
from spotsup_trainer.objects.store import StoreError
from spotsup_trainer.session import snapshot
from spotsup_trainer.session.checkpoint_dir import CheckpointError, Position
from spotsup_trainer.session.places import Checkpoint, checkpoints_at

_NAMED = 4


def find(place: str | os.PathLike[str], *, best: str | None = None, step: int | None = None) -> Checkpoint:
    """Return the newest checkpoint of a run from which nothing is missing; the best by a metric; or that of a step.

    Raises CheckpointError if there is none, StoreError while an object store does not answer.
    """
    wanted = f" that was the best by {best}" if best is not None else f" of step {step}" if step is not None else ""
    found: list[tuple[Checkpoint, float]] = []
    skipped = []
    for checkpoint in checkpoints_at(place if isinstance(place, str) else Path(place)):
        try:
            position = checkpoint.position()
            value = _rank(position, best)
            if value is None or (step is not None and checkpoint.step != step):
                continue
            if missing := snapshot.incomplete(checkpoint.path):
                raise CheckpointError(missing)
        except CheckpointError as error:
            skipped.append(str(error))
            continue
        found.append((checkpoint, value))
        if best is None:
            break
    if not found:
        raise CheckpointError(" | ".join([f"there is no complete checkpoint{wanted} in {place}", *skipped]))
    return max(found, key=lambda each: each[1])[0]


def _rank(position: Position, best: str | None) -> float | None:
    """Return how good a checkpoint is, the higher the better; None if it is not one that was the best."""
    if best is None:
        return 0.0
    for each in position.best:
        if each.name == best and each.step == position.step and not each.spare:
            return -each.value if each.mode == "min" else each.value
    return None


def weights(
    source: str | os.PathLike[str], *, module: str = "model", best: str | None = None, step: int | None = None
) -> dict[str, torch.Tensor]:
    """Return the tensors of the module that the Session's state had under that name, by their names, on the CPU.

    `source`: the folder or address of a run's checkpoints; or a file by torch.save, with a dictionary of tensors or
    with one under `module`. Raises as `find`; CheckpointError if there is no such module.
    """
    if _is_file(source):
        return _of_file(source, module)
    path = find(source, best=best, step=step).path
    wanted = {name: torch.empty(size, dtype=dtype) for name, (size, dtype) in _stored(path, module).items()}
    snapshot.read_tensors({f"{module}.{name}": tensor for name, tensor in wanted.items()}, path)
    return wanted


def load_weights(
    model: torch.nn.Module,
    source: str | os.PathLike[str],
    *,
    module: str = "model",
    best: str | None = None,
    step: int | None = None,
    strict: bool = True,
) -> str:
    """Load into `model`, which may be wrapped or sharded, what `weights` would return; each rank reads its part.

    Not collective for checkpoints of ours; for a file, every rank has to call it. Returns a sentence that says what was
    loaded, and what is missing, unexpected, or of another shape. Raises CheckpointError with it if that is anything;
    unless `strict` is false: then such tensors of the model stay as they are.
    """
    with torch.no_grad():
        own = {name: each for name, each in get_model_state_dict(model).items() if isinstance(each, torch.Tensor)}
    if _is_file(source):
        loaded = _of_file(source, module)
        there = {name: (tensor.shape, tensor.dtype) for name, tensor in loaded.items()}
        where = f"{source}"
    else:
        path = find(source, best=best, step=step).path
        there, where = _stored(path, module), f"{path}"
    fitting = [name for name in own if name in there and own[name].shape == there[name][0]]
    sentence = _sentence(where, fitting, own, there)
    if strict and not len(fitting) == len(own) == len(there):
        raise CheckpointError(f"{sentence}. With strict=False, what fits is loaded")
    if _is_file(source):
        fill = {name: loaded[name] for name in fitting}
    else:
        fill = {name: own[name] for name in fitting}
        with torch.no_grad():
            snapshot.read_tensors({f"{module}.{name}": tensor for name, tensor in fill.items()}, path)
    options = StateDictOptions(full_state_dict=_is_file(source), strict=False)
    set_model_state_dict(model, fill, options=options)
    return sentence


def _sentence(where: str, fitting: list[str], own: Mapping[str, Any], there: Mapping[str, Any]) -> str:
    parts = [f"{len(fitting)} of {len(own)} tensors of the model are in {where}"]
    for what, names in (
        ("not there", own.keys() - there.keys()),
        ("not in the model", there.keys() - own.keys()),
        ("of another shape", (own.keys() & there.keys()) - set(fitting)),
    ):
        if names:
            parts.append(f"{what}: {_listed(names)}")
    return "; ".join(parts)


def _listed(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - _NAMED} more" if len(ordered) > _NAMED else ""
    return ", ".join(ordered[:_NAMED]) + more


def _is_file(source: str | os.PathLike[str]) -> bool:
    return not urls.is_url(str(source)) and Path(source).is_file()


def _of_file(source: str | os.PathLike[str], module: str) -> dict[str, torch.Tensor]:
    try:
        found = torch.load(source, map_location="cpu", weights_only=True)
    except Exception as error:  # a file of somebody else's may raise anything
        raise CheckpointError(f"{source} cannot be read as tensors by torch.load: {error}") from error
    found = found.get(module, found) if isinstance(found, dict) else found
    if not isinstance(found, dict) or not any(isinstance(each, torch.Tensor) for each in found.values()):
        raise CheckpointError(f"{source} has no dictionary of tensors, and none under {module!r}")
    return {name: each for name, each in found.items() if isinstance(each, torch.Tensor)}


def _stored(path: Any, module: str) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Size and type of each tensor of a module in a checkpoint."""
    tensors = snapshot.tensors_in(path)
    found = {name.removeprefix(f"{module}."): each for name, each in tensors.items() if name.startswith(f"{module}.")}
    if not found:
        names = sorted({name.partition(".")[0] for name in tensors})
        raise CheckpointError(f"{path} has no module {module!r}; it has {', '.join(names)}: choose one by module=")
    return found


def main() -> int:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("place", help="the folder or address of a run's checkpoints")
    parser.add_argument("file", type=Path)
    parser.add_argument("--best", metavar="METRIC", help="the best by this metric, as session.save_best() was told")
    parser.add_argument("--step", type=int)
    parser.add_argument("--module", default="model", help="its name in the Session's state (default: model)")
    options = parser.parse_args()
    temporary = options.file.with_name(f"{options.file.name}.tmp")
    try:
        found = weights(options.place, module=options.module, best=options.best, step=options.step)
        torch.save(found, temporary)
        temporary.replace(options.file)
    except (StoreError, CheckpointError, OSError, ValueError) as error:
        print(f"weights: {error}", file=sys.stderr)
        return 1
    print(f"{options.file}: {len(found)} tensors")
    return 0


if __name__ == "__main__":
    sys.exit(main())
