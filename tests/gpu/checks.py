"""One check in a process of its own: `python -m tests.gpu.checks NAME --device cuda --gpus 1 --folder DIR`.

It writes `result.json` into the folder. A check that crashes the driver, or hangs, is only itself.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.gpu import hardware, processes, training
from tests.gpu.place import Facts, NotSeenError, Place

CHECKS: Mapping[str, Callable[[Place], Facts]] = {
    "machine": hardware.machine,
    "nvml": hardware.nvml,
    "xid": hardware.xid,
    "gpu-check": hardware.gpu_check,
    "fork-server": processes.fork_server,
    "nccl": processes.nccl,
    "kill-and-re-form": processes.reform,
    "staging": training.staging,
    "loss": training.loss_reading,
    "mixed-precision": training.mixed_precision,
    "compile": training.compiled,
    "examples": training.examples,
}


def checked(name: str, place: Place) -> dict[str, Any]:
    """The outcome of one check."""
    began = time.monotonic()
    row: dict[str, Any] = {"check": name, "what": (CHECKS[name].__doc__ or "").strip(), "device": place.device}
    try:
        row |= {"outcome": "seen", "facts": CHECKS[name](place)}
    except NotSeenError as error:
        row |= {"outcome": "not seen", "why": str(error)}
    except Exception as error:  # noqa: BLE001 - whatever it is, it belongs into the report
        row |= {"outcome": "failed", "why": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    return row | {"seconds": round(time.monotonic() - began, 1)}


def main() -> None:
    """Run one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=list(CHECKS))
    parser.add_argument("--device", choices=["cuda", "cpu"], required=True)
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    place = Place(options.device, options.gpus, options.folder)
    row = checked(options.name, place)
    (options.folder / "result.json").write_text(json.dumps(row))


if __name__ == "__main__":
    main()
