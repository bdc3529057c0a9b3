"""A launcher on a machine where workers outlive SIGKILL while the file that SPOTSUP_TEST_STUCK names exists, as they do
while the kernel frees much memory, or waits for a dead file server. SPOTSUP_TEST_OUTLIVE_S: for how long at most."""

import os
import signal
import sys
from pathlib import Path

from spotsup_trainer.launcher import forkserver, main
from spotsup_trainer.launcher.supervision import Limits

_kill = forkserver.WorkerServer.kill


def kill(server: forkserver.WorkerServer, pid: int, number: int, *, group: bool = False) -> None:
    """Nothing reaches a process that hangs in the kernel."""
    if number != signal.SIGKILL or not Path(os.environ["SPOTSUP_TEST_STUCK"]).exists():
        _kill(server, pid, number, group=group)


forkserver.WorkerServer.kill = kill  # type: ignore[assignment]

main._limits = lambda environ: Limits(outlive_s=float(environ["SPOTSUP_TEST_OUTLIVE_S"]))

if __name__ == "__main__":
    sys.exit(main.main())
