"""`make bench-recovery`: for how long training pauses when a machine is lost: spotsup, stock torchrun, and the floor.

The pause lasts from the last step that all ranks of the old round completed to the first that all ranks of the new
one did. grid.py lists what is measured. Writes build/bench/recovery.json, or recovery-part.json for a
selection.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial
from types import MappingProxyType

from benchmarks import results
from benchmarks.command import FOLDER, add_repeat, count, measured, parser_of, show, stopwatch
from benchmarks.recovery import goals, launchers, spotsup, stock
from benchmarks.recovery import table as recovery_table
from benchmarks.recovery.goals import FENCED, FIRST, FULL, LATE, LOST, PAUSED
from benchmarks.recovery.grid import (
    CELLS,
    DEFAULT,
    FLOOR,
    FLOOR_SESSION,
    OMISSIONS,
    SPOTSUP,
    SPOTSUP_CHAR,
    TUNED,
    Cell,
    Fault,
    Recovery,
    cells_of,
)
from benchmarks.recovery.machines import RES_OPTIONS
from benchmarks.recovery.spotsup import Fence
from benchmarks.recovery.table import metric_of
from benchmarks.recovery.watch import Stop, Turn, Watched, phase_of
from benchmarks.results import Sample

MIN_LIMIT_S = spotsup.NOTICE_S + 10.0
COLD_START = "cold start"
FLOORS_PER_REPETITION = 2

SUBJECTS = {
    SPOTSUP: spotsup.DESCRIPTIONS,
    SPOTSUP_CHAR: "the same with the char model of trainer/examples as program",
    **launchers.DESCRIPTIONS,
    TUNED: stock.TUNED.describe(),
    DEFAULT: stock.DEFAULT.describe(),
    FLOOR: "three processes started at once, cold, with fixed ranks and no rendezvous, until their first step",
    FLOOR_SESSION: "the same, of a program with a Session",
}
NOTES = """\
replacement: torchrun is given one at once, as it cannot request one; spotsup requests, launches and bootstraps its
  own. spare: a node that waited outside the round; torchrun keeps it in its redundancy list. shrinking: no
  replacement is available.
kill: a node loses all its processes at once; spotsup's daemon learns of it from the cloud; the launchers alone are
  notified at once.
freeze: all processes of a node are stopped while its cloud reports it running; its lease of {lease_s:g} s ends.
  spotsup gives such a node up after 20 s and then requests its replacement.
SIGTERM: to torchrun's agent, and to spotsup's: the node leaves the round in order.
notice: spotsup hears of it {notice_s} s before the end, and the node trains on until another takes its place; where
  there is none, until 8 s before the end. torchrun hears of none: see SIGTERM.
floor-session, cold-session: with spotsup's Session, which for its checkpoints imports what a cold start pays for;
  goals that are not about it are judged by the floor without.
rank 0: for torchrun the node that hosts the c10d store; for spotsup one like any.
parts of a pause: as status shows them, of one survivor and by its own clock; docs/glossary.md says what each is.
Names are not looked up (RES_OPTIONS={res_options}): c10d asks for its peers' names, and a lost answer costs seconds.
paused in all: less than the time to the full world where a smaller round trained meanwhile.
never: no process was left that could go on. >{limit_s:g} s: it was watched for no longer."""


class Bench:
    """All measurements, one after the other."""

    def __init__(self, options: argparse.Namespace, stop: Stop) -> None:
        self.samples: list[Sample] = []
        self._options = options
        self._stop = stop
        self._print = stopwatch()

    def run(self) -> list[Sample]:
        """Each repetition measures every subject in turn, so that a busy machine affects all of them."""
        stock.end_leftovers(self._options.folder)
        launchers.end_leftovers(self._options.folder)
        repeat = self._options.repeat
        for repetition in range(repeat):
            self._print(f"[bold]repetition {repetition + 1} of {repeat}[/bold]")
            turn = Turn(self._options.folder, phase_of(repetition, repeat), self._options.limit, self._stop)
            for measure in self._measurements(repetition):
                self._stop.check()
                measure(turn)
        return self.samples

    def _measurements(self, repetition: int) -> Iterator[Callable[[Turn], None]]:
        wanted = {
            subject: cells_of(subject, repetition, self._options.only)
            for subject in self._options.subjects
            if subject in CELLS and (subject != DEFAULT or repetition < self._options.repeat_default)
        }
        for subject in (FLOOR, FLOOR_SESSION):
            for _ in range(FLOORS_PER_REPETITION if subject in self._options.subjects else 0):
                yield partial(self._floor, subject)
        for subject in launchers.DESCRIPTIONS:
            if cells := wanted.get(subject):
                yield partial(self._launchers, subject, cells)
        for subject in (SPOTSUP, SPOTSUP_CHAR):
            if cells := wanted.get(subject):
                yield partial(self._spotsup, subject, cells)
        for tuning in (stock.TUNED, stock.DEFAULT):
            for cell in wanted.get(tuning.name, ()):
                yield partial(self._torchrun, tuning, cell)

    def _floor(self, subject: str, turn: Turn) -> None:
        seconds = stock.measure_floor(subject, turn)
        self.samples.append(Sample(COLD_START, subject, FIRST, "s", seconds))
        self._print(f"{subject}: {COLD_START}: {FIRST} {seconds:.2f} s")

    def _launchers(self, subject: str, cells: Sequence[Cell], turn: Turn) -> None:
        with closing(launchers.measure(subject, cells, turn)) as outcomes:
            for cell, watched, parts in outcomes:
                self._note(subject, cell, watched, parts=parts)

    def _spotsup(self, subject: str, cells: Sequence[Cell], turn: Turn) -> None:
        with closing(spotsup.measure(cells, turn, subject)) as outcomes:
            for struck in outcomes:
                self._note(subject, struck.cell, struck.watched, struck.fence, struck.parts)

    def _torchrun(self, tuning: stock.Tuning, cell: Cell, turn: Turn) -> None:
        self._note(tuning.name, cell, stock.measure_torchrun(tuning, cell, turn))

    def _note(
        self,
        subject: str,
        cell: Cell,
        watched: Watched,
        fence: Fence | None = None,
        parts: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        samples = samples_of(subject, cell, watched, fence, parts)
        self.samples += samples
        figures = ", ".join(f"{sample.metric} {_formatted(sample)}" for sample in samples)
        self._print(f"{subject}: {cell.case}: {figures}")


def samples_of(
    subject: str,
    cell: Cell,
    watched: Watched,
    fence: Fence | None = None,
    parts: Mapping[str, float] = MappingProxyType({}),
) -> list[Sample]:
    """The samples of one fault. A time that never came has no value; what depends on it is left out. `parts`: what the
    pause to the first step consisted of."""
    found = watched.outcome
    times = [(FIRST, found.first_s)]
    if cell.recovery is not Recovery.SHRINKING:
        times.append((FULL, found.full_s))
        times += [(PAUSED, found.paused_s)] if found.paused_s is not None else []
    samples = [Sample(cell.case, subject, metric, "s", value, watched.limit_s, watched.why) for metric, value in times]
    if found.steps_lost is not None:
        samples.append(Sample(cell.case, subject, LOST, "steps", float(found.steps_lost)))
    if fence is not None:
        why = f"its workers still ran {spotsup.FENCE_TIMEOUT_S:g} s later"
        samples.append(Sample(cell.case, subject, FENCED, "s", fence.stopped_s, spotsup.FENCE_TIMEOUT_S, why))
        samples.append(Sample(cell.case, subject, LATE, "steps", float(fence.late_steps)))
    return samples + [Sample(cell.case, subject, metric_of(name), "s", value) for name, value in parts.items()]


def _formatted(sample: Sample) -> str:
    if sample.value is None:
        return f"never ({sample.why})"
    return f"{sample.value:.2f} s" if sample.unit == "s" else f"{sample.value:g}"


def in_order(samples: Sequence[Sample]) -> list[Sample]:
    """The cases by fault, victim and recovery, and within each the subjects, always in the same order."""
    every = {cell.case: cell for cells in CELLS.values() for cell in cells}
    faults, recoveries, subjects = list(Fault), list(Recovery), list(SUBJECTS)

    def place(sample: Sample) -> tuple[int, int, int, int]:
        cell = every.get(sample.case)
        if cell is None:
            return -1, 0, 0, 0
        return (
            faults.index(cell.fault),
            recoveries.index(cell.recovery),
            -cell.victim.rank,
            subjects.index(sample.subject),
        )

    return sorted(samples, key=place)


def main() -> int:
    """Measure, write, show. Exit status 0 where everything could be measured; 130 after Ctrl-C."""
    options, about = parse_arguments(), results.machine()
    options.json.unlink(missing_ok=True)
    rows = results.summarise(in_order(measured("bench-recovery", lambda stop: Bench(options, stop).run())))
    judged = goals.judge(rows, spotsup.LEASE_S)
    more = {"goals": [goal.as_json() for goal in judged], "not_measured": [asdict(each) for each in OMISSIONS]}
    results.write(options.json, rows, about, SUBJECTS, more)
    tables = [recovery_table.table(rows), recovery_table.parts_table(rows)]
    tables += [goals.table(judged)] if judged else []
    notes = NOTES.format(
        notice_s=spotsup.NOTICE_S, limit_s=options.limit, lease_s=spotsup.LEASE_S, res_options=RES_OPTIONS
    )
    show(tables, notes, options.json)
    return 0


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options; what is wrong with them ends the program with 2. Where only a part is measured, the result is
    recovery-part.json."""
    parser = parser_of("recovery", __doc__)
    add_repeat(parser)
    parser.add_argument(
        "--repeat-default",
        type=count,
        default=1,
        metavar="N",
        help="repetitions with torchrun's default settings: their fixed waits hardly vary, and take most of the time",
    )
    parser.add_argument("--only", type=_faults, default=tuple(Fault), metavar="FAULT,...", help=", ".join(Fault))
    parser.add_argument(
        "--subjects", type=_subjects, default=tuple(SUBJECTS), metavar="SUBJECT,...", help=", ".join(SUBJECTS)
    )
    parser.add_argument("--limit", type=float, default=60.0, metavar="S", help="how long a job may need to recover")
    parser.set_defaults(json=None)
    options = parser.parse_args(arguments)
    if options.limit < MIN_LIMIT_S:
        parser.error(f"--limit is {options.limit:g}: a notice alone takes that long; give {MIN_LIMIT_S:g} or more")
    if options.json is None:
        whole = set(options.only) == set(Fault) and set(options.subjects) == set(SUBJECTS)
        options.json = FOLDER / ("recovery.json" if whole else "recovery-part.json")
    return options


def _faults(text: str) -> tuple[Fault, ...]:
    return tuple(Fault(name) for name in _names(text, list(Fault)))


def _subjects(text: str) -> tuple[str, ...]:
    return tuple(_names(text, list(SUBJECTS)))


def _names(text: str, known: Sequence[str]) -> list[str]:
    found = [name for name in text.split(",") if name]
    unknown = [name for name in found if name not in known]
    if unknown or not found:
        raise argparse.ArgumentTypeError(f"{text!r}: there are {', '.join(known)}")
    return found


if __name__ == "__main__":
    sys.exit(main())
