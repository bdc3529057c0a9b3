"""For one process, whose PYTHONPATH has this folder: its time of day is off by as many seconds as a file says.

Python imports this before anything else. Of libc's clocks, libfaketime would change the time of day, too, but then
sleeping fails now and then (EINVAL), and with it SSH; the daemon reads the time of day by `time.time` alone.
"""

import os
import time
from pathlib import Path

_file = Path(os.environ["CHAOS_CLOCK"])
_right = time.time


def _wrong() -> float:
    return _right() + float(_file.read_text() or 0.0)


time.time = _wrong
