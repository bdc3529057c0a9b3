"""One check in a process of its own: `python -m tests.gpu.checks NAME --device cuda --gpus 1 --folder DIR`.

It writes `result.json` into the folder. A check that crashes the driver, or hangs, is only itself.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spotsup_trainer.launcher.parent_death import die_with_parent

from tests.gpu.place import Facts, NotSeenError, Place, noted
from tests.gpu.plan import CHECKS


def function_of(name: str) -> Callable[[Place], Facts]:
    """Return a check's function. Only its own module is imported: some need no torch."""
    module, _, function = CHECKS[name].function.partition(":")
    found: Callable[[Place], Facts] = getattr(importlib.import_module(f"tests.gpu.{module}"), function)
    return found


def checked(name: str, function: Callable[[Place], Facts], place: Place) -> dict[str, Any]:
    """Return the outcome of one check."""
    row: dict[str, Any] = {"check": name, "what": (function.__doc__ or "").strip()}
    facts: Facts = {}
    try:
        facts = function(place)
        row |= {"outcome": "seen"}
    except NotSeenError as error:
        row |= {"outcome": "not seen", "why": str(error)}
    except Exception as error:  # noqa: BLE001 - whatever it is, it belongs into the report
        row |= {"outcome": "failed", "why": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    return row | {"facts": noted(place.folder) | facts}


def main() -> None:
    """Run one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=list(CHECKS))
    parser.add_argument("--device", choices=["cuda", "cpu"], required=True)
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    die_with_parent(os.getppid())
    ends_at = time.monotonic() + options.seconds
    place = Place(options.device, options.gpus, options.folder.absolute(), ends_at)
    row = checked(options.name, function_of(options.name), place)
    (options.folder / "result.json").write_text(json.dumps(row, default=str))


if __name__ == "__main__":
    main()
