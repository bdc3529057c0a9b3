"""`make bench-recovery`: for how long training pauses when a machine is lost: spotsup, stock torchrun, and the floor.

The pause lasts from the last step that all ranks of the old round completed to the first that all ranks of the new
one did. Writes build/bench/recovery.json.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from types import FrameType

from rich.console import Console

from scripts.bench import results, spotsup, stock
from scripts.bench.results import Row, Sample
from scripts.bench.stock import DEFAULT, FLOOR, TUNED, Fault, Tuning
from scripts.bench.watch import BenchError, Stop, Turn, Watched, steps_before_fault
from scripts.stack import ROOT, InterruptedByUserError, StackError

LEAST_LIMIT_S = spotsup.NOTICE_S + 10.0
COLD_START = "cold start"
FIRST, FULL, PAUSED, LOST = "pause to first step", "time to full world", "paused until then", "steps lost"

KILL = Fault("kill", 1)
KILL_ALONE = Fault("kill, not replaced", 1, replaced=False)
KILL_FIRST = Fault("kill of rank 0", 0)
NOTICE = Fault("notice", 1, notice=True)

SUBJECTS = {
    spotsup.SUBJECT: spotsup.IN_WORDS,
    DEFAULT.name: DEFAULT.in_words(),
    TUNED.name: TUNED.in_words(),
    FLOOR: "three processes started at once, cold, with fixed ranks and no rendezvous, until their first step",
}
NOTES = """\
kill: a node loses all its processes at once. torchrun gets its replacement at that very
  moment, for it has nobody who would ask for one; spotsup asks for, launches and bootstraps
  its own.
kill of rank 0: for torchrun the node that hosts the c10d store; for spotsup one like any.
notice: spotsup hears of it {notice_s} s before the end; torchrun's agent gets SIGTERM, and a
  replacement at that moment.
paused until then: less than the time to the full world where a smaller round trained meanwhile.
never: no process was left that could go on. >{limit_s:g} s: it was watched for no longer."""

progress = Console(stderr=True, highlight=False)


class Bench:
    """All measurements, one after the other."""

    def __init__(self, options: argparse.Namespace, stop: Stop) -> None:
        self.samples: list[Sample] = []
        self._options = options
        self._stop = stop
        self._began = time.monotonic()

    def run(self) -> None:
        """Every repetition has each subject in turn: a minute in which the machine is busy strikes all of them."""
        stock.end_leftovers(self._options.folder)
        repeat = self._options.repeat
        for repetition in range(repeat):
            self._tell(f"[bold]repetition {repetition + 1} of {repeat}[/bold]")
            steps = steps_before_fault(repetition, repeat)
            turn = Turn(self._options.folder, steps, self._options.limit, self._stop)
            for measure in self._measurements(repetition):
                self._stop.check()
                measure(turn)

    def _measurements(self, repetition: int) -> Iterator[Callable[[Turn], None]]:
        once = [KILL_FIRST] if repetition == 0 else []
        yield self._floor
        yield partial(self._spotsup, [KILL, NOTICE, *once])
        for fault in (KILL, KILL_ALONE, NOTICE, *once):
            yield partial(self._torchrun, TUNED, fault)
        if repetition < self._options.repeat_default:
            for fault in (KILL, KILL_ALONE, NOTICE, *once):
                yield partial(self._torchrun, DEFAULT, fault)

    def _floor(self, turn: Turn) -> None:
        seconds = stock.measure_floor(turn)
        self.samples.append(Sample(COLD_START, FLOOR, FIRST, "s", seconds))
        self._tell(f"{FLOOR}: {COLD_START}: {FIRST} {seconds:.2f} s")

    def _spotsup(self, faults: Sequence[Fault], turn: Turn) -> None:
        with closing(spotsup.measure(faults, turn)) as outcomes:
            for fault, watched in outcomes:
                self._note(spotsup.SUBJECT, fault, watched)

    def _torchrun(self, tuning: Tuning, fault: Fault, turn: Turn) -> None:
        self._note(tuning.name, fault, stock.measure_torchrun(tuning, fault, turn))

    def _note(self, subject: str, fault: Fault, watched: Watched) -> None:
        samples = samples_of(subject, fault, watched)
        self.samples += samples
        told = ", ".join(f"{sample.metric} {_in_words(sample)}" for sample in samples)
        self._tell(f"{subject}: {fault.case}: {told}")

    def _tell(self, text: str) -> None:
        progress.print(f"[dim]{time.monotonic() - self._began:6.1f} s[/dim]  {text}", soft_wrap=True)


def samples_of(subject: str, fault: Fault, watched: Watched) -> list[Sample]:
    """What one fault tells. A time that there is none of is told as such; what rests on it is left out."""
    found = watched.outcome
    times = [(FIRST, found.first_s)]
    if fault.replaced:
        times.append((FULL, found.full_s))
        times += [(PAUSED, found.paused_s)] if found.paused_s is not None else []
    samples = [Sample(fault.case, subject, metric, "s", value, watched.limit_s, watched.why) for metric, value in times]
    if found.steps_lost is not None:
        samples.append(Sample(fault.case, subject, LOST, "steps", float(found.steps_lost)))
    return samples


def _in_words(sample: Sample) -> str:
    if sample.value is None:
        return f"never ({sample.why})"
    return f"{sample.value:.2f} s" if sample.unit == "s" else f"{sample.value:g}"


def floor_s(rows: Sequence[Row]) -> float | None:
    """The median of the floor, in seconds."""
    return next((row.median for row in rows if row.subject == FLOOR), None)


def main() -> int:
    """Measure, write, show. Exit status 0 where everything could be measured; 130 after Ctrl-C."""
    options = _parse()
    stop = Stop()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop.ask()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, on_signal)
    options.json.unlink(missing_ok=True)
    about = results.machine()
    bench = Bench(options, stop)
    try:
        bench.run()
    except InterruptedByUserError:
        progress.print("interrupted; every process was ended")
        return 130
    except (BenchError, StackError) as error:
        # What programs print is full of brackets, which rich would read as markup.
        progress.print(f"bench-recovery: {error}", style="red", markup=False, soft_wrap=True)
        return 1
    rows = results.summarise(bench.samples)
    results.write(options.json, rows, about, SUBJECTS)
    _show(rows, options)
    return 0


def _show(rows: Sequence[Row], options: argparse.Namespace) -> None:
    console = Console(highlight=False)
    console.print(results.table("Training pauses when a machine is lost", rows, floor_s(rows)))
    console.print()
    console.print(NOTES.format(notice_s=spotsup.NOTICE_S, limit_s=options.limit), style="dim", soft_wrap=True)
    console.print(str(options.json), style="dim", markup=False, soft_wrap=True)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench-recovery", description=(__doc__ or "").splitlines()[0])
    build = ROOT / "build" / "bench"
    parser.add_argument("--repeat", type=_count, default=3, metavar="N")
    parser.add_argument("--quick", action="store_true", help="the same as --repeat 1")
    parser.add_argument(
        "--repeat-default",
        type=_count,
        default=1,
        metavar="N",
        help="repetitions with torchrun's default settings: their fixed waits hardly vary, and take most of the time",
    )
    parser.add_argument("--limit", type=float, default=60.0, metavar="S", help="how long a job may need to recover")
    parser.add_argument("--folder", type=Path, default=build / "recovery", help="for all that is written meanwhile")
    parser.add_argument("--json", type=Path, default=build / "recovery.json")
    options = parser.parse_args()
    if options.limit < LEAST_LIMIT_S:
        parser.error(f"--limit is {options.limit:g}: a notice alone takes that long; give {LEAST_LIMIT_S:g} or more")
    if options.quick:
        options.repeat = 1
    options.folder = options.folder.absolute()
    return options


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of repetitions, 1 or more")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
