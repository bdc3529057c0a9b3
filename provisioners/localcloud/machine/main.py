"""A machine's init: the first of its processes, the ancestor of all others, the last to go.

    python -S -P -m provisioners.localcloud.machine.main FOLDER

It reaps what descendants leave behind, serves the metadata, and looks for an announced preemption on SIGUSR1. When
sshd ends it goes on without: a machine whose sshd crashed is a machine that runs and cannot be reached. A virtual
machine's init has QEMU in sshd's place, and ends with it.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import selectors
import signal
import socket
import sys
import time
from pathlib import Path

from provisioners.localcloud.machine import namespace, sshd
from provisioners.localcloud.machine.metadata import MetadataService
from provisioners.localcloud.machine.spec import EXIT_ALREADY_RUNNING, Folder, Report

PR_SET_CHILD_SUBREAPER = 36
PR_SET_NAME = 15


def main() -> None:
    """Run the machine until it is killed."""
    folder = Folder(Path(sys.argv[1]))
    lock = os.open(folder.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        # A cloud that was killed between starting us and noting it starts us again after its own restart.
        sys.exit(EXIT_ALREADY_RUNNING)
    try:
        _run(folder)
    except Exception as error:
        folder.write_report(_report(error=str(error) or repr(error)))
        raise


def _run(folder: Folder) -> None:
    spec = folder.read_spec()
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)  # daemons whose parent ended stay in this tree
    libc.prctl(PR_SET_NAME, b"spotsup-machine")
    wake, waker = socket.socketpair()
    for each in (wake, waker):
        each.setblocking(False)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGUSR1):
        signal.signal(number, lambda *_: None)
    if not spec.image:
        namespace.prepare(folder.path)
    # A virtual machine reaches our 127.0.0.1 alone.
    listener = socket.create_server(("127.0.0.1" if spec.image else spec.address, 0), backlog=64)
    selector = selectors.DefaultSelector()
    facts = {"id": spec.id, "zone": spec.zone, "instance_type": spec.instance_type}
    service = MetadataService(listener, selector, facts)
    metadata_port = listener.getsockname()[1]
    if spec.image:
        from provisioners.localcloud.machine import qemu  # what a machine of processes does not need

        child, ssh_port = qemu.start(spec, folder)
    else:
        child, ssh_port = sshd.start(spec, folder, metadata_variables(f"{spec.address}:{metadata_port}"))
    folder.write_report(_report(ssh_port=ssh_port, metadata_port=metadata_port))
    selector.register(wake, selectors.EVENT_READ)
    service.announce(folder.read_preemption())
    while True:
        ready = [key.fd for key, _ in selector.select(service.timeout_s(time.monotonic()))]
        if wake.fileno() in ready:
            wake.recv(4096)
            _reap(child, ends_with_it=bool(spec.image))
            service.announce(folder.read_preemption())
        service.step(ready, time.monotonic())


def metadata_variables(address: str) -> dict[str, str]:
    """Return how who asks for a real cloud's metadata, at 169.254.169.254, asks `address` instead."""
    return {
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://{address}",
        "GCE_METADATA_HOST": address,
        "SPOTSUP_AZURE_METADATA": f"http://{address}",
    }


def _reap(child: int, *, ends_with_it: bool) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid == child:
            what = "QEMU" if ends_with_it else "sshd"
            print(f"{what} ended with {os.waitstatus_to_exitcode(status)}", file=sys.stderr, flush=True)
            if ends_with_it:  # the machine has switched itself off
                sys.exit(0)


def _report(*, ssh_port: int = 0, metadata_port: int = 0, error: str = "") -> Report:
    stat = Path("/proc/self/stat").read_text(encoding="utf-8")
    started = int(stat.rsplit(")", 1)[1].split()[19])
    return Report(os.getpid(), started, ssh_port, metadata_port, error)


if __name__ == "__main__":
    main()
