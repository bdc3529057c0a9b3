"""The results: one row per promise, in the order in which they were checked."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.table import Table

from tests.support.console import console, write_result


class BrokenError(Exception):
    """A promise is broken; says what was observed."""


@dataclass
class Row:
    """`ok` is None where the check was not reached. `observed`: what was seen."""

    name: str
    ok: bool | None = None
    observed: str = ""
    took_s: float = 0.0


@dataclass
class Results:
    """The rows, printed as they complete."""

    names: tuple[str, ...]
    began: float = field(default_factory=time.monotonic)
    rows: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rows = [Row(name) for name in self.names]

    def print_line(self, text: str) -> None:
        """Print one line."""
        console.print(f"[dim]{time.monotonic() - self.began:6.0f} s[/dim]  ", end="")
        console.print(text, markup=False)

    @contextmanager
    def row(self, name: str) -> Iterator[Row]:
        """A row that holds unless its block raises."""
        row = next(each for each in self.rows if each.name == name)
        began = time.monotonic()
        self.print_line(f"{name} ...")
        try:
            yield row
            row.ok = True
        except Exception as error:
            row.ok, row.observed = False, str(error)
            raise
        finally:
            row.took_s = round(time.monotonic() - began, 1)
            self.print_line(f"{name}: {'holds' if row.ok else 'BROKEN'}: {row.observed}")

    @property
    def ok(self) -> bool:
        """Whether every row holds."""
        return all(row.ok for row in self.rows)

    def show(self, how: str, path: Path) -> None:
        """Print the table and write it as JSON."""
        table = Table(title=how, title_justify="left", title_style="bold", box=None, pad_edge=False)
        for column in ("holds", "what", "took", "observed"):
            table.add_column(column, justify="right" if column == "took" else "left", overflow="fold")
        for row in self.rows:
            verdict = "yes" if row.ok else "[red]not reached[/red]" if row.ok is None else "[red]NO[/red]"
            first = (row.observed.splitlines() or [""])[0]
            table.add_row(verdict, row.name, f"{row.took_s:.0f} s", first)
        console.print()
        console.print(table)
        wall_s = round(time.monotonic() - self.began, 1)
        console.print(f"\nwall time {wall_s / 60:.1f} min   ({path})")
        whole = {"ok": self.ok, "how": how, "wall_s": wall_s, "rows": [asdict(row) for row in self.rows]}
        write_result(path, whole)


def expect(holds: bool, observed: str) -> None:
    """Raise BrokenError unless `holds`."""
    if not holds:
        raise BrokenError(observed)
