"""The numbered assumptions of docs/clouds.md: one table, which the report and a test read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tools.stack import ROOT

DOCUMENT = ROOT / "docs" / "clouds.md"
_ROW = re.compile(r"\| ([AEGZ]\d+) \| (.+?) \| (.+?) \| (.+?) \| (.+?) \|")
_LINK = re.compile(r"`([^`]+)`")


@dataclass(frozen=True, slots=True)
class Assumption:
    """One row. `files`: where the code relies on it; `test`: "path::name"; `tried`: by runs on accounts, too."""

    number: str
    text: str
    files: tuple[str, ...]
    test: str
    tried: bool


def read(path: Path = DOCUMENT) -> list[Assumption]:
    """All rows, in the order of the document."""
    found = []
    for line in path.read_text().splitlines():
        if row := _ROW.fullmatch(line.strip()):
            number, text, files, test, tried = row.groups()
            found.append(
                Assumption(number, text, tuple(_LINK.findall(files)), (_LINK.findall(test) or [""])[0], tried == "yes")
            )
    return found
