"""What was shown and how: one row per promise, in the order in which they were tried."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

console = Console(highlight=False, soft_wrap=True)


class BrokenError(Exception):
    """Something is not as it was promised; says what was found."""


@dataclass
class Row:
    """`ok` is None where it was not come to. `words`: what was seen."""

    name: str
    ok: bool | None = None
    words: str = ""
    took_s: float = 0.0


@dataclass
class Results:
    """The table as it grows."""

    names: tuple[str, ...]
    began: float = field(default_factory=time.monotonic)
    rows: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rows = [Row(name) for name in self.names]

    def tell(self, text: str) -> None:
        """One line of the story."""
        console.print(f"[dim]{time.monotonic() - self.began:6.0f} s[/dim]  ", end="")
        console.print(text, markup=False)

    @contextmanager
    def row(self, name: str) -> Iterator[Row]:
        """What happens in it shows this row, unless it raises."""
        row = next(each for each in self.rows if each.name == name)
        began = time.monotonic()
        self.tell(f"{name} ...")
        try:
            yield row
            row.ok = True
        except Exception as error:
            row.ok, row.words = False, str(error)
            raise
        finally:
            row.took_s = round(time.monotonic() - began, 1)
            self.tell(f"{name}: {'shown' if row.ok else 'BROKEN'}: {row.words}")

    @property
    def ok(self) -> bool:
        """Whether all of it was shown."""
        return all(row.ok for row in self.rows)

    def show(self, how: str, path: Path) -> None:
        """The table, and the same as JSON."""
        table = Table(title=how, title_justify="left", title_style="bold", box=None, pad_edge=False)
        for column in ("shown", "what", "took", "seen"):
            table.add_column(column, justify="right" if column == "took" else "left", overflow="fold")
        for row in self.rows:
            said = "yes" if row.ok else "[red]not reached[/red]" if row.ok is None else "[red]NO[/red]"
            first = (row.words.splitlines() or [""])[0]
            table.add_row(said, row.name, f"{row.took_s:.0f} s", first)
        console.print()
        console.print(table)
        wall_s = round(time.monotonic() - self.began, 1)
        console.print(f"\nwall time {wall_s / 60:.1f} min   ({path})")
        whole = {"ok": self.ok, "how": how, "wall_s": wall_s, "rows": [asdict(row) for row in self.rows]}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(whole, indent=2) + "\n")


def expect(holds: bool, words: str) -> None:
    """Raise BrokenError unless it holds."""
    if not holds:
        raise BrokenError(words)
