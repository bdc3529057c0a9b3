"""Restores the state of a new round: from the memory of nodes that survived, and from storage what nobody has.

All ranks take part. Rank 0 chooses a snapshot or a checkpoint (survivors.py). Then each rank plans which parts of it it
needs, reads from its own node's memory what is there, and gets the rest from the ranks that have it. Each part that no
memory has is read from storage by one rank, which sends it on.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import torch

from spotsup_trainer.objects.store import StoreError
from spotsup_trainer.session import snapshot
from spotsup_trainer.session.checkpoint_dir import CheckpointError, Position
from spotsup_trainer.session.exchange import Exchange, Local
from spotsup_trainer.session.memory import Head, Keeper, Piece, Slot, bytes_at, checksum, is_shortage
from spotsup_trainer.session.parts import Parts, bits, metadata_of, numbers_in, parts_of, stored_bytes
from spotsup_trainer.session.peers import Peers
from spotsup_trainer.session.places import READ_TRIES, Checkpoint, Place, checkpoints_at
from spotsup_trainer.session.survivors import Box, Choice, Memory, Stored, choose, schedule

if TYPE_CHECKING:
    from torch.distributed.checkpoint import Metadata, ReadItem

_READ_PAUSE_S = 15.0
# What became of reading, on the rank where it went worst.
_READ, _DAMAGED, _AWAY, _SHORT = 0, 1, 2, 3
_T = TypeVar("_T")
_S = TypeVar("_S")
# The parts of a snapshot in the memory of a node, and what other ranks learn of them.
_Found = list[tuple[Slot, Head, list[Piece]]]
_Reported = list[tuple[Head, list[Piece]]]


@dataclass(frozen=True)
class Sources:
    """Bytes that all ranks together got, by where from."""

    # The memory of their own nodes.
    own: int = 0
    # Other ranks.
    peers: int = 0
    storage: int = 0

    @classmethod
    def total(cls, ranks: Iterable[Sources]) -> Sources:
        """Return the total of all ranks."""
        return cls(*(sum(each) for each in zip(*map(astuple, ranks))))


@dataclass(frozen=True)
class Restored:
    """What the state is now."""

    position: Position
    # The step of the newest complete checkpoint; 0: there is none.
    stored_step: int
    # Whether a newer one, in storage or memory, could not be read.
    older: bool
    sources: Sources


class _NotReadError(Exception):
    """On all ranks: some rank could not read its part."""

    def __init__(self, outcome: int, problem: str) -> None:
        super().__init__(problem)
        self.outcome = outcome


class Restorer:
    """One restore of a Session. `place`: see places.py. `keeper`: None: memory is not used.

    `sleep`: before an object store that did not answer is asked again. `warn` prints a line.
    """

    def __init__(  # one call
        self,
        state: snapshot.State,
        peers: Peers,
        place: Place,
        resume_from: Sequence[Path | str],
        keeper: Keeper | None,
        this_round: int,
        sleep: Callable[[float], None],
        warn: Callable[..., None],
    ) -> None:
        self._state = state
        self._peers = peers
        self.place = place
        self._resume_from = resume_from
        self._keeper = keeper
        self._round = this_round
        # A round that is newer than any snapshot: none in memory counts more than storage.
        self._owner_round = this_round
        self._sleep = sleep
        self._warn = warn
        self._nodes: list[int] = []
        # Steps of what could not be read.
        self._passed_over: list[int] = []
        # Why rank 0 could not look for checkpoints.
        self._failure: Exception | None = None
        # Whether there are checkpoints in storage, complete or not. On rank 0 only.
        self._stored = False

    def run(self) -> Restored | None:
        """Collective. None: there is nothing to restore. Raises CheckpointError if there is, but it cannot be read."""
        began = time.monotonic()
        memories = self._memories()
        problems: list[str] = []
        failed: set[int] = set()
        candidates = self._whole_checkpoints(problems) if self._peers.rank == 0 else iter(())
        candidate = self._next(candidates)
        # its token must be the same on all ranks
        self.place = self._peers.from_rank_0(self.place)
        while True:
            failure = "" if self._failure is None else f"{type(self._failure).__name__}: {self._failure}"
            found, failure = self._peers.from_rank_0((self._chosen(memories, candidate, failed), failure))
            if failure:
                raise self._failure or CheckpointError(f"rank 0 cannot look for checkpoints: {failure}")
            if found is None:
                break
            choice, checkpoint, position, stored_step = found
            done = self._read(choice, checkpoint, position, problems)
            if done is not None:
                position, sources = done
                self._say(position, sources, time.monotonic() - began)
                older = any(step > position.step for step in self._passed_over)
                return Restored(position, stored_step, older, sources)
            if choice.nodes:
                failed.add(choice.snapshot)
            else:
                candidate = self._next(candidates)
        problems, stored = self._peers.from_rank_0((problems, self._stored))
        if problems and stored:
            raise CheckpointError(
                f"no checkpoint in {self.place.root} can be read; repair one, or move them away to start over. "
                + " | ".join(problems)
            )
        if problems:
            raise CheckpointError(
                f"{self.place.title} has no complete checkpoint, and what the nodes have in memory cannot be read; "
                "cancel the job and submit it again to start over. " + " | ".join(problems)
            )
        if self._resume_from:
            folders = ", ".join(map(str, self._resume_from))
            raise CheckpointError(
                f"there is no complete checkpoint in {folders}: submit the job without --resume-from to start over"
            )
        return None

    # -- what there is -------------------------------------------------------------------------------------

    def _memories(self) -> list[Memory]:
        """Return what the memory of each node has. Collective."""
        keeper = self._keeper
        offer = None if keeper is None else (keeper.node, keeper.offer() if keeper.local_rank == 0 else None)
        offers = self._peers.from_all(offer)
        if None in offers:
            self._nodes = list(range(self._peers.world))
            return []
        self._nodes = [node for node, _ in offers]
        return [memory for _, memory in offers if memory is not None]

    def _whole_checkpoints(self, problems: list[str]) -> Iterator[tuple[Checkpoint, Position]]:
        """Yield the checkpoints from which no file is missing, the newest first. For rank 0."""
        with contextlib.suppress(OSError):  # then its owner counts as another process
            owner = self._patiently(self.place.remember_owner)
            self._owner_round = owner.round if owner else 0
        places = (self.place.root, *self._resume_from)
        found = (self._patiently(partial(checkpoints_at, place)) for place in places)
        for checkpoint in next(filter(None, found), []):
            self._stored = True
            try:
                if missing := self._patiently(partial(snapshot.incomplete, checkpoint.path)):
                    raise CheckpointError(missing)
                position = self._patiently(checkpoint.position)
            except CheckpointError as error:
                self._pass_over(checkpoint, checkpoint.step, str(error), problems)
                continue
            yield checkpoint, position

    def _next(self, candidates: Iterator[tuple[Checkpoint, Position]]) -> tuple[Checkpoint, Position] | None:
        """Return the next one for rank 0, which does not raise while the others wait for what it has found."""
        try:
            return next(candidates, None)
        except Exception as error:  # noqa: BLE001  # raised by `run` on all ranks
            self._failure = error
            return None

    def _chosen(
        self, memories: Sequence[Memory], candidate: tuple[Checkpoint, Position] | None, failed: set[int]
    ) -> tuple[Choice, Checkpoint | None, Position | None, int] | None:
        """Return what to read next, the checkpoint that it is in, if any, and the newest step in storage. For rank
        0."""
        if self._peers.rank != 0:
            return None
        checkpoint, position = candidate or (None, None)
        stored = Stored(position.step, position.snapshot, position.round) if position else None
        choice = choose(memories, stored, self._owner_round, self._round, failed)
        if choice is None:
            return None
        stored_step = stored.step if stored else 0
        return (choice, None, None, stored_step) if choice.whole else (choice, checkpoint, position, stored_step)

    def _patiently(self, call: Callable[[], _T]) -> _T:
        """Return what `call` returns. An object store that does not answer is asked again for some minutes: taking an
        older checkpoint, or failing, would cost steps. Raises its last StoreError."""
        for _ in range(READ_TRIES):
            try:
                return call()
            except StoreError as error:
                self._warn(f"{error}; it is tried again")
                self._sleep(_READ_PAUSE_S)
        return call()

    def _pass_over(self, checkpoint: Checkpoint | None, step: int, problem: str, problems: list[str]) -> None:
        self._passed_over.append(step)
        what = self._described(checkpoint, step)
        problems.append(f"{checkpoint.path.name if checkpoint else what}: {problem}")
        self._warn(f"skipping {what}: {problem}")

    # -- reading -------------------------------------------------------------------------------------------

    def _read(
        self,
        choice: Choice,
        checkpoint: Checkpoint | None,
        position: Position | None,
        problems: list[str],
    ) -> tuple[Position, Sources] | None:
        """Read it on every rank; None if any of them found it damaged. Raises CheckpointError if a store did not answer
        for long, or a rank has too little memory: then an older checkpoint is no remedy."""
        for tried in range(READ_TRIES):
            if tried:
                self._sleep(_READ_PAUSE_S)
            try:
                return self._try_to_read(choice, checkpoint, position)
            except _NotReadError as error:
                if error.outcome == _DAMAGED:
                    self._pass_over(checkpoint, choice.step, str(error), problems)
                    return None
                outcome, problem = error.outcome, str(error)
            if outcome == _SHORT:
                _free_memory()
        if outcome == _SHORT:
            raise CheckpointError(
                f"there is too little memory to restore {self._described(checkpoint, choice.step)}, which is not "
                f"damaged and stays: use less memory before the Session is made, or larger machines. {problem}"
            )
        raise CheckpointError(problem)

    def _described(self, checkpoint: Checkpoint | None, step: int) -> str:
        return f"checkpoint {checkpoint.path}" if checkpoint else f"the snapshot of step {step} in memory"

    def _try_to_read(
        self, choice: Choice, checkpoint: Checkpoint | None, position: Position | None
    ) -> tuple[Position, Sources]:
        """Return the position that was read. Collective. Raises _NotReadError; then the state may be partly
        overwritten."""
        found, reports = self._shared(lambda: self._report(choice))
        reported = sorted((each for parts in reports for each in parts), key=lambda each: each[0].rank)
        if choice.whole:
            metadata = metadata_of(piece for _, table in reported for piece in table)
            position = reported[0][0].position
        else:
            metadata = self._metadata(checkpoint)
        assert position is not None
        in_storage = stored_bytes(metadata)
        sizes = in_storage | {piece.key: piece.bytes for _, table in reversed(reported) for piece in table}
        parts = parts_of(metadata, sizes, max(self._nodes) + 1)
        if choice.nodes:
            parts.own, gathered = self._shared(lambda: self._own_pieces(found, reported, parts))
            self._hold(parts, gathered)
        (reading, here, wanted), wishes = self._shared(lambda: self._wishes(parts, metadata))
        transfers = schedule(wishes, parts.held, self._nodes, parts.sizes)
        reads = [each for each in transfers if each.from_storage]
        if reads and choice.whole:
            raise _NotReadError(_DAMAGED, "parts of it are damaged on all nodes that have them")
        own_reads = [each.box for each in reads if each.ranks[0] == self._peers.rank]
        local = Local(reading, here, parts)
        local.start()
        try:
            exchange, lengths = self._shared(lambda: self._prepare(parts, reading, own_reads, wanted, checkpoint))
            parts.sizes.update({number: length for each in lengths for number, length in each.items()})
            exchange.run(transfers)
        finally:
            local.join()  # it writes to the state, into which something else may be read next

        def finish_reading() -> tuple[None, Sources]:
            reading.finish()
            stored = sum(in_storage[parts.keys[box.piece]] for box in own_reads)
            return None, Sources(local.bytes, exchange.received_bytes, stored)

        def finish_receiving() -> None:
            exchange.finish()
            local.finish()

        self._together(finish_receiving)
        _, sources = self._shared(finish_reading)
        return position, Sources.total(sources)

    def _report(self, choice: Choice) -> tuple[_Found, _Reported]:
        """Return the parts of a snapshot that this node has, if it is among those that were chosen; and what it tells
        others, by one rank: of each part, the first node that has it. Where others have other values, as of the
        statistics of batch normalisation, those count, as in a checkpoint one rank's do."""
        keeper = self._keeper
        if keeper is None or not any(keeper.node in nodes for nodes in choice.nodes.values()):
            return [], []
        found = [(slot, head, slot.table(head)) for slot, head in keeper.find(choice.snapshot)]
        if keeper.local_rank != 0:
            return found, []
        own = [(head, table) for _, head, table in found if choice.nodes.get(head.copy.part, (-1,))[0] == keeper.node]
        return found, own

    def _metadata(self, checkpoint: Checkpoint | None) -> Metadata:
        """Return the metadata of a checkpoint. One rank reads it. Collective."""
        assert checkpoint is not None
        found = self._together(lambda: snapshot.metadata_of(checkpoint.path) if self._peers.rank == 0 else None)
        return self._peers.from_rank_0(found)

    def _own_pieces(self, found: _Found, reported: _Reported, parts: Parts) -> tuple[dict[int, torch.Tensor], bytes]:
        """Return the bytes of the pieces that this node has with the values that count, and which these are. Its ranks
        divide the comparison with the checksums."""
        counting = {piece.key: piece.checksum for _, table in reversed(reported) for piece in table}
        own: dict[int, torch.Tensor] = {}
        for at, (slot, _, table) in enumerate(found):
            assert self._keeper is not None
            compares = at % self._keeper.local_world == self._keeper.local_rank
            memory = slot.map()
            for piece in table:
                number = parts.number(piece.key)
                if number is None or piece.checksum != counting.get(piece.key):
                    continue
                raw = bytes_at(memory, piece.at, piece.bytes)
                if compares and checksum(raw) != piece.checksum:
                    self._warn(f"{piece.name} of the snapshot in memory is damaged, and not used", any_rank=True)
                else:
                    own.setdefault(number, raw)
        return own, bits(own, len(parts.keys))

    def _hold(self, parts: Parts, gathered: Sequence[bytes]) -> None:
        """Agree on which pieces the memory of each node has: those in which none of its ranks found damage."""
        for node in set(self._nodes):
            of_ranks = [numbers_in(raw) for raw, home in zip(gathered, self._nodes) if home == node]
            parts.held[node] = set.intersection(*of_ranks)
        own = parts.held[self._nodes[self._peers.rank]]
        parts.own = {number: raw for number, raw in parts.own.items() if number in own}

    def _wishes(
        self, parts: Parts, metadata: Metadata
    ) -> tuple[tuple[snapshot.Reading, list[ReadItem], dict[Box, ReadItem]], list[Box]]:
        """Return what is read here, from the memory of this node and from elsewhere; and the latter for others to
        know."""
        reading = snapshot.Reading(self._state, metadata)
        here = [item for item in reading.items if parts.box(item).piece in parts.own]
        wanted = {box: item for item in reading.items if (box := parts.box(item)).piece not in parts.own}
        return (reading, here, wanted), list(wanted)

    def _prepare(
        self,
        parts: Parts,
        reading: snapshot.Reading,
        boxes: list[Box],
        wanted: dict[Box, ReadItem],
        checkpoint: Checkpoint | None,
    ) -> tuple[Exchange, dict[int, int]]:
        """Return what sends and receives here, and the bytes of the objects that this rank has read from storage."""
        objects = self._read_stored(reading, parts, boxes, wanted, checkpoint)
        exchange = Exchange(self._peers, parts, reading, wanted, objects, parts.sizes)
        return exchange, {number: len(raw) for number, raw in objects.items()}

    def _read_stored(
        self,
        reading: snapshot.Reading,
        parts: Parts,
        boxes: list[Box],
        wanted: dict[Box, ReadItem],
        checkpoint: Checkpoint | None,
    ) -> dict[int, bytes]:
        """Read from storage what this rank is to send on, or needs alone. The objects among it, by their numbers."""
        if not boxes:
            return {}
        assert checkpoint is not None
        objects = reading.read([wanted[box] for box in boxes], checkpoint.path)
        return {box.piece: objects[parts.keys[box.piece][0]] for box in boxes if parts.is_object(box.piece)}

    def _say(self, position: Position, sources: Sources, took_s: float) -> None:
        """Say one line for people."""
        own, peers, storage = map(_shown, (sources.own, sources.peers, sources.storage))
        self._warn(
            f"step {position.step} is restored in {took_s:.1f} s: {own} from the memory of the ranks' own nodes, "
            f"{peers} from other ranks, {storage} from storage"
        )

    def _together(self, call: Callable[[], _T]) -> _T:
        """Return what `call` returns. It must not be collective, and is called on every rank. Raises _NotReadError, on
        all of them, if it failed on any."""
        outcome, problem, found = self._tried(call)
        worst, failed_rank = self._peers.highest([outcome, self._peers.rank if problem else -1])
        if worst != _READ:
            raise _NotReadError(worst, problem or _elsewhere(failed_rank))
        return cast("_T", found)

    def _shared(self, call: Callable[[], tuple[_T, _S]]) -> tuple[_T, list[_S]]:
        """Return the same of a call that also returns something for the others: that of each rank."""
        outcome, problem, found = self._tried(call)
        gathered = self._peers.from_all((outcome, found[1] if found is not None else None))
        outcomes = [each for each, _ in gathered]
        worst = max(outcomes)
        if worst != _READ:
            raise _NotReadError(worst, problem or _elsewhere(outcomes.index(worst)))
        assert found is not None
        return found[0], [shared for _, shared in gathered]

    def _tried(self, call: Callable[[], _T]) -> tuple[int, str, _T | None]:
        """Return what became of a call, why, and what it returned."""
        try:
            return _READ, "", call()
        except StoreError as error:
            outcome = _AWAY if snapshot.is_away(error) else _DAMAGED
            if outcome == _AWAY:
                self._warn(f"{error}; it is tried again", any_rank=True)
            return outcome, f"rank {self._peers.rank}: {error}", None
        except Exception as error:  # noqa: BLE001  # unpickling a damaged file raises anything
            outcome = _SHORT if is_shortage(error) else _DAMAGED
            if outcome == _SHORT:
                self._warn(f"rank {self._peers.rank} has too little memory, and tries again: {error}", any_rank=True)
            return outcome, f"rank {self._peers.rank}: {error!r}", None


def _elsewhere(rank: int) -> str:
    return f"rank {rank} cannot read it: see its output"


def _free_memory() -> None:
    """Free what a failed attempt has left."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _shown(size: int) -> str:
    if not size:
        return "nothing"
    return f"{size / 2**30:.2f} GiB" if size >= 2**27 else f"{size / 2**20:.2f} MiB"
