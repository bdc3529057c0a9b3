"""What a Session and its loader were asked for, and what of that has to be alike on all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from spotsup_trainer.session.cadence import Cadence
from spotsup_trainer.session.checkpoint_dir import Position
from spotsup_trainer.session.course import SessionError
from spotsup_trainer.session.dataloader import taken_apart
from spotsup_trainer.session.parallel import Mesh
from spotsup_trainer.session.sampler import Order, OwnBatches, Part, Plan, piece_count

# Options of torch's DataLoader that decide which samples it gives.
_REFUSED = {
    "in_order": "batches have to come in the order of the steps that they are counted for",
    "sampler": "give the order of samples by shuffle= and seed=, or each step's samples by batch_sampler=",
    "batch_size": "give the samples of a step of all ranks by global_batch=, and those of a batch by micro_batch=",
}


def of_session(
    state: Iterable[str], place: object, mesh: Any, data_dims: object, others: Mapping[str, Any]
) -> dict[str, Any]:
    """Arguments of a Session, as they are compared. The place of checkpoints may have another name on each node."""
    return {
        "state": f"of {', '.join(state)}",
        "checkpoints": "given" if place else "not given",
        "mesh": "not given" if mesh is None else Mesh.of(mesh),
        "data_dims": data_dims,
        **others,
    }


def when_saved(cadence: Cadence, place: object) -> str:
    """Return when and where a Session saves, for people."""
    return f"checkpoints {cadence} to {place}" if place else "no checkpoints"


def start_line(steps: tuple[str, str], part: Part, ranks: int, at: Position, epochs: int, checkpoints: str) -> str:
    """Return what was arranged, in one line for people. `steps`: what a step has, and what `at` counts in an epoch."""
    shares = f"{ranks} rank{'s' if ranks > 1 else ''}"
    shares += "" if ranks == part.world else f" ({part.world} with samples of their own)"
    where = f"epoch {at.epoch} from {steps[1]} {at.offset:,} of {epochs} epochs"
    return f"{shares}, {steps[0]}, {where}, {checkpoints}"


@dataclass(frozen=True)
class Arrangement:
    """A data set, its order, and how it is loaded."""

    dataset: Any
    order: Order
    epochs: int
    micro_batch: int | None
    # For torch's DataLoader.
    options: dict[str, Any]
    # True if the loop has to look at session.accumulating: `micro_batch` is the batch size of the program's DataLoader.
    must_ask: bool = False

    def arguments(self) -> dict[str, Any]:
        """Return what has to be alike on all ranks, by the name that the program gives it. Without `micro_batch`: see
        Session.loader."""
        length = {"the length of the data set": len(self.dataset)}
        if isinstance(self.order, OwnBatches):
            return {**length, "the number of batches of batch_sampler": self.order.identity[1], "epochs": self.epochs}
        assert isinstance(self.order, Plan)
        names = ("global_batch", "seed", "shuffle", "drop_last")
        return {**length, **{name: getattr(self.order, name) for name in names}, "epochs": self.epochs}

    def steps(self, part: Part) -> tuple[str, str]:
        """As `start_line` has them."""
        if not isinstance(self.order, Plan):
            return "batches of a batch_sampler", "batch"
        size, micro = self.order.global_batch, self.micro_batch
        pieces = piece_count(size, part.world, micro)
        largest = -(-size // (part.world * pieces))
        exact = "" if part.world * pieces * largest == size else "up to "
        return f"global batch {size:,} = {part.world} x {pieces} x {exact}{largest}", "sample"


def arranged(  # noqa: PLR0913  # as many as Session.loader has
    dataset: Any,
    global_batch: int | None,
    batch_sampler: Any,
    *,
    epochs: int,
    seed: int | None,
    shuffle: bool | None,
    drop_last: bool | None,
    micro_batch: int | None,
    options: dict[str, Any],
) -> Arrangement:
    """Return the arrangement that the arguments of Session.loader ask for, where `dataset` is a DataLoader by what that
    has.

    Raises TypeError, ValueError and SessionError for wrong ones.
    """
    must_ask = False
    if isinstance(dataset, DataLoader):
        found, of_loader = taken_apart(dataset)
        if global_batch is not None and "batch_sampler" in found:
            raise SessionError(
                "this DataLoader has a batch_sampler: leave global_batch out if its batches are those of all ranks "
                "together, or give session.loader() the data set"
            )
        dataset, options = dataset.dataset, {**of_loader, **options}
        batch_sampler = found.get("batch_sampler") if batch_sampler is None else batch_sampler
        seed = found.get("seed") if seed is None else seed
        shuffle = found.get("shuffle") if shuffle is None else shuffle
        drop_last = found.get("drop_last") if drop_last is None else drop_last
        if micro_batch is None and global_batch is not None:
            micro_batch = found.get("micro_batch")
            must_ask = micro_batch is not None and micro_batch < global_batch
    indexed = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if not indexed or isinstance(dataset, IterableDataset):
        raise TypeError(f"{type(dataset).__name__} has no length or no index; session.loader() needs both to resume")
    if (global_batch is None) == (batch_sampler is None):
        raise ValueError("give session.loader() either a global_batch or a batch_sampler: the samples of all ranks")
    for name, reason in _REFUSED.items():
        if name in options and not (name == "in_order" and options[name]):
            raise SessionError(f"session.loader() takes no {name}={options[name]!r}: {reason}")
    if micro_batch is not None and micro_batch < 1:
        raise ValueError(f"micro_batch is {micro_batch}; it must be at least 1")
    order: Order
    if global_batch is None:
        order = OwnBatches(batch_sampler, len(dataset))
    else:
        order = Plan(len(dataset), global_batch, seed or 0, shuffle is not False, bool(drop_last))
    return Arrangement(dataset, order, epochs, micro_batch, options, must_ask)
