"""Prints the output of a job's nodes as it comes, each line once."""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from supervisor.errors import UsageError

# A terminal's colours, which do no harm; or what else it would obey.
_COLOUR_OR_CONTROL = re.compile(r"(\x1b\[[0-9;:]{0,32}m)|[^\S \t]|[\x00-\x08\x0e-\x1f\x7f-\x9f]")


def harmless(line: str) -> str:
    """Return a line of a job's output that changes nothing on a terminal but colours: no title, clipboard, cursor.

    A progress bar writes over its line: of what carriage returns divide the last is shown, as a terminal would.
    """
    shown = line.rstrip("\r").rpartition("\r")[2]
    text = _COLOUR_OR_CONTROL.sub(lambda found: found[1] or "\ufffd", shown)
    return f"{text}\x1b[0m" if "\x1b[" in text else text


class LogPrinter:
    """Prints the chunks of a log that it has not printed yet."""

    def __init__(
        self,
        *,
        named: bool,
        ranks: Mapping[str, int | None] = MappingProxyType({}),
        pattern: str | None = None,
        tail: int | None = None,
        begins: Mapping[str, tuple[str, int]] = MappingProxyType({}),
    ) -> None:
        """`named`: with the node's id before each line, and its rank. `pattern`: only lines in which it is found.

        `tail`: of what is shown until `end_of_past`, only so many lines. `begins`: by node, the chunk and the character
        in it that are shown first. Raises UsageError for a broken pattern.
        """
        self._named = named
        self._harmless = sys.stdout.isatty()
        self._ranks = {node: rank for node, rank in ranks.items() if rank is not None}
        try:
            self._pattern = re.compile(pattern) if pattern else None
        except re.error as error:
            raise UsageError(f"--grep {pattern!r} is no regular expression: {error}") from error
        # The last lines, while they are held back.
        self._held: deque[str] | None = deque(maxlen=tail) if tail is not None else None
        # By node: the newest chunk, and how much of it is printed. It grows until the next one begins.
        self._seen: dict[str, tuple[str, int]] = dict(begins)
        self._open: dict[str, str] = {}

    def show(self, chunks: Sequence[dict[str, Any]]) -> None:
        """Print what is new. An incomplete line waits for its rest."""
        for chunk in chunks:
            node = chunk["node"]
            newest, printed = self._seen.get(node, ("", 0))
            if chunk["chunk"] < newest:
                continue
            new = chunk["text"][printed if chunk["chunk"] == newest else 0 :]
            self._seen[node] = chunk["chunk"], len(chunk["text"])
            lines = (self._open.pop(node, "") + new).split("\n")
            if lines[-1]:
                self._open[node] = lines[-1]
            for line in lines[:-1]:
                self._print(node, line)
        sys.stdout.flush()  # for what reads it through a pipe

    def end_of_past(self, *, open_lines: bool) -> None:
        """Take note that all that was there has been shown. `open_lines`: nothing follows, so print lines without an
        end, too."""
        if open_lines:
            for node, line in self._open.items():
                self._print(node, line)
            self._open = {}
        held, self._held = self._held or (), None
        for line in held:
            print(line)
        sys.stdout.flush()

    def _print(self, node: str, line: str) -> None:
        if self._pattern is not None and not self._pattern.search(line):
            return
        line = harmless(line) if self._harmless else line
        rank = f" [{self._ranks[node]}]" if node in self._ranks else ""
        text = f"{node}{rank} | {line}" if self._named else line
        if self._held is None:
            print(text)
        else:
            self._held.append(text)
