"""What the soaks' command lines have in common."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from benchmarks.results import Row
from tests.soak.verdict import SUBJECT
from tools.stack import InterruptedByUserError

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SUBJECTS = {SUBJECT: "etcd, launchers and workers on one machine; the driver plays cloud, daemon and agents"}

console = Console(highlight=False, soft_wrap=True)


def stop_on_signals() -> None:
    """The first of Ctrl-C and the like raises InterruptedByUserError; the clean-up itself is not disturbed."""
    for number in _SIGNALS:
        signal.signal(number, _interrupt)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise InterruptedByUserError


def write(path: Path, rows: Sequence[Row], about: Mapping[str, Any], broken: Sequence[str], **more: Any) -> None:
    """The result file: as every benchmark's, and whether all went well. `about`: the machine."""
    content = {"ok": not broken, "broken": list(broken), **more, "machine": dict(about)}
    content |= {"rows": [row.as_json() for row in rows], "subjects": _SUBJECTS}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")
    temporary.replace(path)


def conclude(broken: Sequence[str], folder: Path, again: str) -> int:
    """Say what was broken, where its logs are, and how to have it again; the exit status."""
    for text in broken:
        console.print(f"broken: {text}", style="red", markup=False)
    if broken:
        console.print(f"logs: {folder}; again: {again}", markup=False)
        return 1
    console.print("[green]every promise was kept[/green]")
    return 0
