"""The first of a claim's processes, the ancestor of all others, the last to go. Standard library only, Python 3.9.

It reaps what descendants leave behind. When sshd ends it goes on without, as a machine does whose sshd crashed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from provisioners.localcloud.machine import namespace, sshd
from provisioners.localcloud.machine.spec import Folder, Report, read_json

PR_SET_CHILD_SUBREAPER = 36
PR_SET_NAME = 15
ENVIRONMENT = "environment.json"


def main() -> None:
    """Run until it is killed."""
    folder = Folder(Path(sys.argv[1]))
    try:
        _run(folder, read_json(folder.path / ENVIRONMENT) or {})
    except Exception as error:
        folder.write_report(_report(error=str(error) or repr(error)))
        raise


def _run(folder: Folder, environ: Mapping[str, str]) -> None:
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)  # daemons whose parent ended stay in this tree
    libc.prctl(PR_SET_NAME, b"spotsup-node")
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    namespace.prepare(folder.path)
    child, port = sshd.start(folder.read_spec(), folder, environ)
    folder.write_report(_report(ssh_port=port))
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            print(f"sshd ended with {os.waitstatus_to_exitcode(status)}", file=sys.stderr, flush=True)
            signal.pause()  # the machine runs and cannot be reached, until it is given back


def _report(*, ssh_port: int = 0, error: str = "") -> Report:
    stat = Path("/proc/self/stat").read_text(encoding="utf-8")
    started = int(stat.rsplit(")", 1)[1].split()[19])
    return Report(os.getpid(), started, ssh_port, error=error)
