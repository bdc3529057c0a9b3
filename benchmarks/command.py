"""What every `make bench-*` shares: signals, one-sentence errors, exit status, output."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, TypeVar

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from benchmarks.recovery.watch import BenchError, Stop
from supervisor.errors import StartError
from tools.stack import ROOT, InterruptedByUserError, StackError

T = TypeVar("T")

FOLDER = ROOT / "build" / "bench"

MAX_COLUMNS = 1000

progress = Console(stderr=True, highlight=False)


def parser_of(name: str, doc: str | None) -> argparse.ArgumentParser:
    """The command line of `make bench-NAME`, with the options that all have. `doc`: its first line says what it is."""
    parser = argparse.ArgumentParser(prog=f"bench-{name}", description=(doc or "").splitlines()[0])
    parser.add_argument(
        "--folder",
        type=lambda text: Path(text).absolute(),
        default=FOLDER / name,
        help="for all that is written meanwhile",
    )
    parser.add_argument("--json", type=Path, default=FOLDER / f"{name}.json", help="the result")
    return parser


def add_repeat(parser: argparse.ArgumentParser) -> None:
    """`--repeat` and `--quick`."""
    parser.add_argument("--repeat", type=count, default=3, metavar="N")
    parser.add_argument("--quick", action="store_const", dest="repeat", const=1, help="the same as --repeat 1")


def count(text: str) -> int:
    """An argument that is a number of something."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def stopwatch() -> Callable[[str], None]:
    """Prints a line of progress, behind the time since now."""
    began = time.monotonic()
    return lambda text: progress.print(f"[dim]{time.monotonic() - began:6.1f} s[/dim]  {text}", soft_wrap=True)


def measured(name: str, work: Callable[[Stop], T]) -> T:
    """What `work` returns. Where it does not, the program ends: with 130 after Ctrl-C, with 1 and a sentence where it
    could not be measured."""
    stop = Stop()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop.ask()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, on_signal)
    try:
        return work(stop)
    except InterruptedByUserError:
        progress.print("interrupted; every process was ended")
        sys.exit(130)
    except (BenchError, StackError, StartError, OSError) as error:
        # Output of programs is full of brackets, which rich would read as markup.
        progress.print(f"{name}: {error}", style="red", markup=False, soft_wrap=True)
        sys.exit(1)


def show(
    tables: Sequence[Table], notes: str, path: Path, *, sentences: Iterable[str] = (), file: IO[str] | None = None
) -> None:
    """Print the tables, their legend, the conclusions, and the path of the JSON file. No table is cut: rich takes a
    pipe for 80 columns, and on a terminal that is narrower long lines go on in the next."""
    console = Console(highlight=False, file=file)
    for table in tables:
        wide = console.options.update(max_width=MAX_COLUMNS)
        console.width = max(console.width, Measurement.get(console, wide, table).maximum)
        console.print(table)
        console.print()
    console.print(notes, style="dim", soft_wrap=True)
    for sentence in sentences:
        console.print(sentence, soft_wrap=True)
    console.print(str(path), style="dim", markup=False, soft_wrap=True)
