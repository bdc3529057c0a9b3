"""What every `make bench-*` shares: signals, one-sentence errors, exit status, output."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from benchmarks.recovery.watch import BenchError, Stop
from supervisor.errors import StartError
from tools.stack import InterruptedByUserError, StackError

T = TypeVar("T")

progress = Console(stderr=True, highlight=False)


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
    tables: Sequence[Table], notes: str, path: Path, *, sentences: Iterable[str] = (), width: int | None = None
) -> None:
    """Print the tables, their legend, the conclusions, and the path of the JSON file."""
    console = Console(highlight=False, width=width)
    for table in tables:
        console.print(table)
        console.print()
    console.print(notes, style="dim", soft_wrap=True)
    for sentence in sentences:
        console.print(sentence, soft_wrap=True)
    console.print(str(path), style="dim", markup=False, soft_wrap=True)
