"""`make acceptance`: bare virtual machines become nodes, by the same code as rented ones.

Exits non-zero where a promise was broken; writes build/acceptance.json. Needs root, for the machine image.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bootstrap import BootstrapError
from provisioners.base import ProvisionerError
from supervisor.errors import SpotsupError
from tests.acceptance import checks, job
from tests.acceptance.image import ensure_image
from tests.acceptance.job import Job
from tests.acceptance.table import BrokenError, Results, expect
from tests.acceptance.testbed import BARE_NODE, CALL_S, STORAGE, Testbed
from tests.support.console import console, ignore_signals, stop_on_signals
from tools.setup.errors import SetupError
from tools.setup.programs import ensure_installed
from tools.stack import ROOT, InterruptedByUserError, Stack, StackError

PROGRAMS = {"qemu-system-x86_64": "qemu-system-x86"}
BOOT = "machines boot: Debian 12, real cloud-init, our user data"
ROWS = (
    *(BOOT, checks.LOCK, checks.REBOOT, checks.HYGIENE, checks.AGAIN, checks.KILLED),
    *(job.UNITS, job.SHARED, job.FROZEN, checks.DEAD, job.GONE),
)
_FAULTS = (BrokenError, StackError, BootstrapError, ProvisionerError, SpotsupError)


def run_all(testbed: Testbed, results: Results, nodes: int) -> None:
    """All checks, from an empty cloud to an empty cloud."""
    testbed.open()
    with results.row(BOOT) as row:
        began = time.monotonic()
        for node in (STORAGE, BARE_NODE):
            testbed.launch(node)
        training = Job(testbed, results, testbed.storage(), nodes)
        training.submit()  # its machines boot meanwhile, so the storage must be served first
        testbed.serve_storage()
        born = testbed.run(BARE_NODE, "cat /etc/spotsup/born")
        expect(born == BARE_NODE, f"/etc/spotsup/born says {born!r}")
        row.observed = f"both answer by SSH, with our host keys, after {time.monotonic() - began:.0f} s"
    machine = checks.Machine(testbed, results, testbed.storage())
    machine.all()
    training.train()
    training.share()
    training.freeze()
    training.freeze_for_ever()
    machine.dead()
    with results.row(job.GONE) as row:
        row.observed = _release(testbed, training)


def _release(testbed: Testbed, training: Job) -> str:
    """Release all machines while the storage is still frozen."""
    machines = {each.id: each for each in testbed.cloud.instances(None, CALL_S)}
    ports = [(each.ssh_host, each.ssh_port) for each in machines.values() if each.ssh_host]
    training.cancel()
    for node in (BARE_NODE, STORAGE):
        testbed.cloud.terminate(testbed.instance(node).id, CALL_S)
    testbed.stack.wait_for(lambda: not testbed.stack.processes(), 60.0, "the last process to end")
    # A process's files are closed when its last thread ends.
    testbed.stack.wait_for(lambda: not any(map(_listens, ports)), 30.0, "the machines' ports to close")
    folder = testbed.stack.cloud_dir / "machines"
    testbed.stack.wait_for(
        lambda: not [*folder.glob("*/seed"), *folder.glob("*/host_key")], 30.0, "secrets to be removed"
    )
    open_disks = _holders(testbed.image.resolve())
    expect(not open_disks, f"processes hold the image: {open_disks}")
    return f"{len(machines)} machines were there; 0 processes, 0 of {len(ports)} ports, 0 disks are"


def _listens(at: tuple[str, int]) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(at) == 0


def _holders(image: Path) -> list[str]:
    """Processes that have a file of the image open; a machine's own disk is an unnamed file on top of it."""
    found = []
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if Path(os.readlink(link)).is_relative_to(image):  # noqa: PTH115 - it may have ended meanwhile
                found.append(link.parts[2])
        except OSError:
            continue
    return sorted(set(found))


def main(arguments: Sequence[str]) -> int:
    """Build the image, run the checks, clean up, judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=2, choices=(1, 2), help="of the job that trains")
    options = parser.parse_args(arguments)
    results = Results(ROWS)
    broken: list[str] = []
    stack = Stack(ROOT / "build" / "acceptance")
    stop_on_signals()  # at whatever stage; a machine's processes are found by its mark
    try:
        ensure_installed(PROGRAMS, ROOT)
        image = ensure_image(ROOT)
        results.print_line(f"the machine image is {image.relative_to(ROOT)}")
    except InterruptedByUserError:
        console.print("acceptance: interrupted")
        return 130
    except (SetupError, OSError) as error:
        console.print(f"acceptance: {error}", markup=False)
        return 1
    try:
        run_all(Testbed(stack, image), results, options.nodes)
    except InterruptedByUserError:
        broken.append("interrupted")
    except (*_FAULTS, OSError, ValueError, subprocess.TimeoutExpired) as error:
        broken.append(f"{type(error).__name__}: {error}")
    finally:
        console.print("[dim]cleaning up[/dim]")
        ignore_signals()
        leftovers = stack.close()
    broken += [f"a process was left behind: {survivor}" for survivor in leftovers.processes]
    results.show("Bare virtual machines become nodes", ROOT / "build" / "acceptance.json")
    for text in broken:
        console.print(f"broken: {text}", style="red", markup=False)
    return 0 if results.ok and not broken else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
