"""A plain script that saves when it gets SIGTERM, as people write them for Slurm: `save_s` long, then it ends with
`code`. On rank `fast` it is done at once. No collective: no peer's end can end it."""

import json
import os
import signal
import sys
import time
from pathlib import Path

SETTINGS = {"events": "", "until": "", "save_s": "4", "code": "143", "fast": ""}
SETTINGS |= dict(argument.split("=", 1) for argument in sys.argv[1:])


def tell(kind: str) -> None:
    """Append to the events that launching.py reads."""
    world, rank, number = (int(os.environ[name]) for name in ("WORLD_SIZE", "RANK", "SPOTSUP_ROUND"))
    event = {"kind": kind, "world": world, "rank": rank, "round": number, "at": time.time(), "step": 0}
    with Path(SETTINGS["events"]).open("a") as file:
        file.write(json.dumps(event) + "\n")


def main() -> None:
    """Train until asked to end, or until the file is there."""
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    tell("step")
    while not asked and not Path(SETTINGS["until"]).exists():
        time.sleep(0.05)
    if asked:
        tell("asked")
        time.sleep(0.0 if os.environ["RANK"] == SETTINGS["fast"] else float(SETTINGS["save_s"]))
        tell("saved")
        raise SystemExit(int(SETTINGS["code"]))


main()
