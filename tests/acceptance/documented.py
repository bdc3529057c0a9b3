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


def faults(checked: str) -> list[str]:
    """What `spotsupd check` finds wrong, but for one thing: Debian's etcd has no fix of CVE-2026-33343 yet."""
    return [line for line in checked.splitlines() if line.split()[0] != "ok" and "CVE-2026-33343" not in line]
