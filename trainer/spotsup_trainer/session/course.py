"""How far training is, and what the step that is under way consists of."""

from __future__ import annotations

from dataclasses import replace

from spotsup_trainer.session.checkpoint_dir import Position
from spotsup_trainer.session.retention import Best
from spotsup_trainer.session.sampler import Cursor, Step

# Length, seed and kind of an order of samples: what must stay the same for an epoch to be exact.
Identity = tuple[int, int, int]


class SessionError(RuntimeError):
    """A Session is used in a wrong way. The message says what to do."""


class Course:
    """The position of the last completed step, and the step after it.

    A step counts once it is completed; what was taken from a loader before, and not completed, is skipped by it.
    """

    def __init__(self, position: Position) -> None:
        self.position = position
        self._taken = position
        self._step: Step | None = None
        # The micro-batch of it that is trained on.
        self.piece = 0
        # What the newest loader gives, if a step of it was completed here.
        self._begun: Identity | None = None
        self._trained: Identity | None = None

    @property
    def cursor(self) -> Cursor:
        """Return where a loader begins."""
        return Cursor(self.position.epoch, self.position.offset)

    @property
    def is_last_piece(self) -> bool:
        """True if nothing is left of the current step but the optimizer's part; also without a loader."""
        return self._step is None or self.piece == len(self._step.pieces) - 1

    @property
    def weight(self) -> float:
        """As Session.weight says."""
        return 1.0 if self._step is None else self._step.pieces[self.piece][1]

    @property
    def digest(self) -> int:
        """Return a digest of the current step's samples, of all ranks; 0 where there is nothing to compare."""
        return 0 if self._step is None else self._step.digest

    @property
    def samples_here(self) -> int:
        """This rank's samples of the current step; 0: not known."""
        return 0 if self._step is None else len(self._step.counted)

    @property
    def step(self) -> Step:
        """Return the current one. Raises SessionError without a loader, and before its first batch."""
        if self._step is None:
            raise SessionError("there is no current batch: use indices while iterating over a loader")
        return self._step

    def begin(self, identity: Identity, epochs: int) -> None:
        """Begin a loader at `cursor`. Raises SessionError within an epoch of another order, which would repeat some
        samples and miss others; and for a loader made again in a loop over epochs, whose second turn is empty.
        """
        at = self.position
        if epochs <= at.epoch and identity == self._trained:
            raise self.nothing_left(epochs)
        saved = (at.data_length, at.data_seed, at.data_shuffled)
        if at.offset and saved != identity:
            raise SessionError(
                f"epoch {at.epoch} was begun with length, seed, order = {_shown(saved)}, but this loader has "
                f"{_shown(identity)}: use the same until the epoch is over; or begin anew in another checkpoint "
                "directory with the trained weights, by load_weights(model, DIRECTORY)"
            )
        self._taken, self._step, self._begun = at, None, identity

    def nothing_left(self, epochs: int) -> SessionError:
        """Return what to say where a loop over epochs, as it is written around a DataLoader, would go on without a
        batch."""
        complete = "epoch 0 is" if epochs == 1 else f"all {epochs} epochs are"
        return SessionError(
            f"{complete} complete, and nothing is left for another turn: one loop over a session's loader gives the "
            "batches of all `epochs`, which count from the first step of all, over all rounds. Make the loader once, "
            "with all epochs, and write `for epoch in loader.epochs():` and `for batch in epoch:` instead; "
            "`epoch.number` is right after a restart, too"
        )

    def take(self, identity: Identity, step: Step, piece: int) -> None:
        """Take note that a micro-batch of `step` is about to be trained on."""
        self._step, self.piece = step, piece
        if piece == 0:
            length, seed, kind = identity
            self._taken = replace(
                self._taken,
                epoch=step.after.epoch,
                offset=step.after.offset,
                samples=self._taken.samples + step.size,
                data_length=length,
                data_seed=seed,
                data_shuffled=kind,
            )

    def skip_to(self, epoch: int) -> None:
        """Leave out the rest of the epoch before `epoch`."""
        self._taken = replace(self._taken, epoch=epoch, offset=0)
        self.position = replace(self.position, epoch=epoch, offset=0)
        self._step = None

    def rewind(self) -> None:
        """Begin the current epoch again."""
        self.skip_to(self.position.epoch)

    def leave(self) -> None:
        """Leave: a loader has ended: what follows has no weight of its last step."""
        self._step = None

    def close(self, epochs: int) -> None:
        """Take note that what follows the last batch of an epoch has been done for the first `epochs` epochs."""
        self._taken = replace(self._taken, epochs_closed=epochs)
        self.position = replace(self.position, epochs_closed=epochs)

    def know_best(self, best: tuple[Best, ...]) -> None:
        """Keep the best values so far."""
        self._taken, self.position = replace(self._taken, best=best), replace(self.position, best=best)

    def complete(self) -> None:
        """Take note that the optimizer's step is done. Raises SessionError in the middle of it."""
        if not self.is_last_piece:
            raise SessionError(
                f"step() was called after micro-batch {self.piece + 1} of {len(self.step.pieces)}: go on with the "
                "next one while session.accumulating is true"
            )
        self.position = replace(self._taken, step=self.position.step + 1)
        self._trained = self._begun


def _shown(identity: Identity) -> str:
    length, seed, kind = identity
    return f"({length}, {seed}, {('in order', 'shuffled', 'by a batch_sampler', 'by a wrapped loader')[kind]})"
