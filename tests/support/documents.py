"""The blocks of a Markdown document: what a reader copies out of it, so that a test can run it as it stands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r" {0,3}```(\S*)")
_HEADING = re.compile(r"#+ (.*)")
_FILE = re.compile(r"<!-- file: (\S+) -->")


@dataclass(frozen=True, slots=True)
class Block:
    """One block of code, fenced or indented by four spaces."""

    text: str
    # Of its first line in the document, counted from 1.
    line: int
    # What the fence says: python, yaml, …; "" where it says nothing, and for indented blocks.
    language: str = ""
    # Of the comment `<!-- file: NAME -->` in the line before the block; "" without one.
    file: str = ""
    # The heading above it, of whatever level, without its marks.
    heading: str = ""

    def commands(self) -> list[str]:
        """The shell commands of the block: continued lines joined, comments and empty lines left out."""
        joined = re.sub(r"\\\n\s*", "", self.text)
        lines = (re.sub(r"(^|\s+)#.*$", "", line).strip() for line in joined.splitlines())
        return [line for line in lines if line]


def blocks(document: Path, language: str | None = None) -> list[Block]:
    """All blocks of a document, or those of one language, in order."""
    return [block for block in _blocks(document.read_text()) if language in {None, block.language}]


def block(document: Path, file: str) -> Block:
    """The one block that the document gives this file name."""
    (found,) = (block for block in blocks(document) if block.file == file)
    return found


def _blocks(text: str) -> Iterator[Block]:
    lines = text.splitlines()
    at, file, heading = 0, "", ""
    while at < len(lines):
        if fence := _FENCE.match(lines[at]):
            end = next(n for n in range(at + 1, len(lines)) if lines[n].strip() == "```")
            yield Block(_joined(lines[at + 1 : end]), at + 2, fence[1], file, heading)
            at, file = end + 1, ""
        elif lines[at].startswith("    ") and (at == 0 or not lines[at - 1].strip()):
            end = next((n for n in range(at, len(lines)) if lines[n][:4].strip()), len(lines))
            yield Block(_joined([line[4:] for line in lines[at:end]]).rstrip("\n") + "\n", at + 1, "", file, heading)
            at, file = end, ""
        else:
            if title := _HEADING.match(lines[at]):
                heading = title[1]
            found = _FILE.fullmatch(lines[at].strip())
            file = found[1] if found else file if not lines[at].strip() else ""
            at += 1


def _joined(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
