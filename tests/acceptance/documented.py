"""The commands of docs/install.md."""

from __future__ import annotations

from tests.support.documents import blocks
from tools.stack import ROOT

INSTALL = ROOT / "docs" / "install.md"


def command(heading: str, begin: str) -> str:
    """The one command below a heading that begins so."""
    lines = [line for block in blocks(INSTALL, "sh") if block.heading == heading for line in block.commands()]
    (found,) = (line for line in lines if line.startswith(begin))
    return found
