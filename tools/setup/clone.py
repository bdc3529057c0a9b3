"""Sets up this clone: .venv with the pinned dependencies, and etcd and sshd. Standard library only, as it comes first.

Nothing outside the clone is touched, unless etcd and sshd can be had in no other way (see programs.py). It may be
interrupted anywhere; of two at the same time the second waits.
"""

from __future__ import annotations

import fcntl
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.setup.environment import ensure_environment
from tools.setup.errors import SetupError
from tools.setup.programs import ensure_programs

LOCK_WAIT_S = 3600.0


def main() -> int:
    """0 when the clone is ready; else 1, after one sentence on stderr."""
    clone = Path.cwd()
    tools = clone / ".tools"
    tools.mkdir(exist_ok=True)
    try:
        with _locked(tools / "setup.lock"):
            installed = ensure_environment(clone)
            ensure_programs(clone)
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("setup: interrupted; the next run goes on where this one began", file=sys.stderr)
        return 130
    if installed:
        # pip's warnings are the last that was read before.
        print("setup: done; next: `make demo`, or docs/quickstart.md", flush=True)
    return 0


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w", encoding="utf-8") as file:
        deadline = time.monotonic() + LOCK_WAIT_S
        reported = False
        while not _try_lock(file.fileno()):
            if not reported:
                print("setup: another one is at work in this clone; waiting for it", file=sys.stderr)
                reported = True
            if time.monotonic() > deadline:
                raise SetupError(f"another one has held {path} for {LOCK_WAIT_S:.0f} s; end it, then try again")
            time.sleep(0.2)
        yield


def _try_lock(number: int) -> bool:
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
