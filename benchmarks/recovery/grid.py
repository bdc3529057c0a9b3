"""What `make bench-recovery` measures, as data: what happens to which node, and who takes its place."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import product

NODES = 3
MIN_NODES = 2

SPOTSUP = "spotsup"
SPOTSUP_CHAR = "spotsup-char"
LAUNCHERS_WARM = "spotsup-launchers-warm"
LAUNCHERS_COLD = "spotsup-launchers-cold"
LAUNCHERS_COLD_SESSION = "spotsup-cold-session"
LAUNCHERS_IMPORT = "spotsup-slow-import"
LAUNCHERS_IMPORT_LATE = "spotsup-no-preload"
TUNED = "torchrun-c10d-tuned"
DEFAULT = "torchrun-c10d-default"
FLOOR = "floor"
FLOOR_SESSION = "floor-session"


class Fault(StrEnum):
    """What happens to a node."""

    KILL = "kill"
    FREEZE = "freeze"
    SIGTERM = "SIGTERM"
    NOTICE = "notice"


class Victim(StrEnum):
    """Which node. Rank 0's launcher serves the round's store; with c10d its agent serves everybody's."""

    OTHER = "rank 1"
    FIRST = "rank 0"

    @property
    def rank(self) -> int:
        """As a number."""
        return int(self.split()[1])


class Recovery(StrEnum):
    """What takes the node's place: one that is started now, one that waited outside the round, or none."""

    REPLACEMENT = "replacement"
    SPARE = "spare"
    SHRINKING = "shrinking"


@dataclass(frozen=True, slots=True)
class Cell:
    """One thing to measure. `once`: in the first repetition only."""

    fault: Fault
    victim: Victim
    recovery: Recovery
    once: bool = False

    @property
    def case(self) -> str:
        """Its name in results."""
        return f"{self.fault}, {self.victim}, {self.recovery}"

    @property
    def nodes_after(self) -> int:
        """How many nodes train in the end."""
        return NODES - 1 if self.recovery is Recovery.SHRINKING else NODES


@dataclass(frozen=True, slots=True)
class Omission:
    """What a subject is not measured for, and why. Empty: all of them."""

    subject: str
    why: str
    faults: tuple[Fault, ...] = ()
    victims: tuple[Victim, ...] = ()
    recoveries: tuple[Recovery, ...] = ()

    def covers(self, cell: Cell) -> bool:
        """Whether it applies to this cell."""
        return all(
            not named or value in named
            for named, value in (
                (self.faults, cell.fault),
                (self.victims, cell.victim),
                (self.recoveries, cell.recovery),
            )
        )


def _cells(
    faults: Iterable[Fault], victims: Iterable[Victim], recoveries: Iterable[Recovery], *, once: bool = False
) -> tuple[Cell, ...]:
    return tuple(Cell(*each, once=once) for each in product(faults, victims, recoveries))


_KILL, _FREEZE, _SIGTERM, _NOTICE = Fault
_OTHER, _FIRST = Victim
_REPLACEMENT, _SPARE, _SHRINKING = Recovery

# The ones that wait for a fixed time, or that differ only by their victim from one that is repeated, are measured once.
CELLS: dict[str, tuple[Cell, ...]] = {
    SPOTSUP: (
        *_cells([_KILL], [_OTHER], [_REPLACEMENT, _SHRINKING]),
        *_cells([_KILL], [_FIRST], [_REPLACEMENT, _SHRINKING], once=True),
        *_cells([_NOTICE], [_OTHER], [_REPLACEMENT]),
        *_cells([_NOTICE], [_FIRST], [_REPLACEMENT], once=True),
        *_cells([_NOTICE], [_OTHER], [_SHRINKING], once=True),
        *_cells([_SIGTERM], [_OTHER, _FIRST], [_REPLACEMENT], once=True),
        *_cells([_SIGTERM], [_OTHER], [_SHRINKING], once=True),
        *_cells([_FREEZE], [_OTHER], [_SHRINKING]),
        *_cells([_FREEZE], [_FIRST], [_SHRINKING], once=True),
        *_cells([_FREEZE], [_OTHER], [_REPLACEMENT], once=True),
        *_cells([_KILL], [_OTHER, _FIRST], [_SPARE]),
        *_cells([_NOTICE], [_OTHER], [_SPARE]),
        *_cells([_NOTICE], [_FIRST], [_SPARE], once=True),
        *_cells([_SIGTERM], [_OTHER], [_SPARE]),
        *_cells([_SIGTERM], [_FIRST], [_SPARE], once=True),
        *_cells([_FREEZE], [_OTHER], [_SPARE]),
        *_cells([_FREEZE], [_FIRST], [_SPARE], once=True),
    ),
    SPOTSUP_CHAR: _cells([_KILL, _NOTICE, _FREEZE], [_OTHER], [_SPARE]),
    LAUNCHERS_WARM: _cells([_KILL], [_OTHER, _FIRST], [_SPARE]),
    LAUNCHERS_COLD: _cells([_KILL], [_OTHER, _FIRST], [_SPARE]),
    LAUNCHERS_COLD_SESSION: _cells([_KILL], [_OTHER, _FIRST], [_SPARE], once=True),
    LAUNCHERS_IMPORT: _cells([_KILL], [_OTHER], [_SPARE]),
    LAUNCHERS_IMPORT_LATE: _cells([_KILL], [_OTHER], [_SPARE]),
    TUNED: (
        *_cells([_KILL], [_OTHER], Recovery),
        *_cells([_SIGTERM], [_OTHER], [_REPLACEMENT]),
        *_cells([_SIGTERM], [_OTHER], [_SPARE, _SHRINKING], once=True),
        *_cells([_FREEZE], [_OTHER], [_REPLACEMENT, _SPARE]),
        *_cells([_FREEZE], [_OTHER], [_SHRINKING], once=True),
        *_cells([_KILL, _SIGTERM, _FREEZE], [_FIRST], [_REPLACEMENT], once=True),
    ),
    DEFAULT: (
        *_cells([_KILL], [_OTHER], [_REPLACEMENT, _SHRINKING]),
        *_cells([_SIGTERM, _FREEZE], [_OTHER], [_REPLACEMENT]),
        *_cells([_KILL], [_FIRST], [_REPLACEMENT]),
    ),
}

_NO_NOTICE = "torchrun hears of no notice: the best that its user can do is to send its agent SIGTERM"
_STORE_GONE = "rank 0's agent serves the c10d store: without it no node can continue, with or without a replacement"
_ALONE = "the launchers alone stand for what a spare and a tombstone cost; the rest rests on the daemon"
_AS_PLAIN = "the model makes no difference there: measured with the program of all subjects"

OMISSIONS: tuple[Omission, ...] = (
    Omission(
        SPOTSUP,
        "rank 0 leaves as any other does, and has no replacement: measured with rank 1",
        (_NOTICE, _SIGTERM),
        (_FIRST,),
        (_SHRINKING,),
    ),
    Omission(
        SPOTSUP,
        "its first step comes as when shrinking, and its replacement as with rank 1",
        (_FREEZE,),
        (_FIRST,),
        (_REPLACEMENT,),
    ),
    Omission(SPOTSUP_CHAR, _AS_PLAIN, (_SIGTERM,)),
    Omission(SPOTSUP_CHAR, _AS_PLAIN, (_KILL, _NOTICE, _FREEZE), (_FIRST,)),
    Omission(SPOTSUP_CHAR, _AS_PLAIN, (_KILL, _NOTICE, _FREEZE), (_OTHER,), (_REPLACEMENT, _SHRINKING)),
    *(
        Omission(subject, _ALONE, faults, (), recoveries)
        for subject in (LAUNCHERS_WARM, LAUNCHERS_COLD, LAUNCHERS_COLD_SESSION, LAUNCHERS_IMPORT, LAUNCHERS_IMPORT_LATE)
        for faults, recoveries in (((_FREEZE, _SIGTERM, _NOTICE), ()), ((_KILL,), (_REPLACEMENT, _SHRINKING)))
    ),
    *(
        Omission(subject, "who is lost makes no difference to what workers import", (_KILL,), (_FIRST,), (_SPARE,))
        for subject in (LAUNCHERS_IMPORT, LAUNCHERS_IMPORT_LATE)
    ),
    *(Omission(subject, _NO_NOTICE, (_NOTICE,)) for subject in (TUNED, DEFAULT)),
    *(
        Omission(subject, _STORE_GONE, (_KILL, _FREEZE, _SIGTERM), (_FIRST,), (_SPARE, _SHRINKING))
        for subject in (TUNED, DEFAULT)
    ),
    Omission(
        DEFAULT,
        "its end is the same as when rank 0 is killed",
        (_FREEZE, _SIGTERM),
        (_FIRST,),
        (_REPLACEMENT,),
    ),
    Omission(
        DEFAULT,
        "as a replacement does, a spare waits for an address that is never written",
        (_KILL, _FREEZE, _SIGTERM),
        (_OTHER,),
        (_SPARE,),
    ),
    Omission(
        DEFAULT,
        "its waits, for the keep-alive and for the last call, are the same as after a kill",
        (_FREEZE, _SIGTERM),
        (_OTHER,),
        (_SHRINKING,),
    ),
)


def cells_of(subject: str, repetition: int, faults: Collection[Fault]) -> list[Cell]:
    """What to measure with `subject` in this repetition, counted from 0."""
    return [cell for cell in CELLS[subject] if cell.fault in faults and (repetition == 0 or not cell.once)]
