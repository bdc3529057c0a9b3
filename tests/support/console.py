"""What the long test programs share: a console, an orderly end on Ctrl-C, result files."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from tools.stack import InterruptedByUserError

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

console = Console(highlight=False, soft_wrap=True)


def stop_on_signals() -> None:
    """The first of Ctrl-C, SIGTERM and SIGHUP raises InterruptedByUserError; later ones do not disturb the clean-up."""
    for number in SIGNALS:
        signal.signal(number, _interrupt)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    ignore_signals()
    raise InterruptedByUserError


def ignore_signals() -> None:
    """From now on nothing disturbs the clean-up, nor Python's own exit, which would change the exit status."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def write_result(path: Path, content: Mapping[str, Any]) -> None:
    """Write a result file at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=2) + "\n")
    temporary.replace(path)
