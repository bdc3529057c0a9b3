"""`make acceptance`: bare virtual machines become nodes, by the same code as rented ones.

Exits non-zero where a promise was broken; writes build/acceptance.json. Needs root, for the machine image.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bootstrap import BootstrapError
from provisioners.base import ProvisionerError
from scripts.acceptance import job, tried
from scripts.acceptance.image import ensure_image
from scripts.acceptance.job import Job
from scripts.acceptance.site import CALL_S, STORAGE, TRIED, Site
from scripts.acceptance.table import BrokenError, Results, console, expect
from scripts.acceptance.tried import Tried
from scripts.demo import stop_on_signals
from scripts.setup_errors import SetupError
from scripts.setup_programs import ensure_installed
from scripts.stack import ROOT, InterruptedByUserError, Stack, StackError
from supervisor.errors import SpotsupError

PROGRAMS = {"qemu-system-x86_64": "qemu-system-x86", "debootstrap": "debootstrap", "mkfs.ext4": "e2fsprogs"}
BOOT = "machines boot: Debian 12, real cloud-init, our user data"
ROWS = (
    *(BOOT, tried.LOCK, tried.REBOOT, tried.HYGIENE, tried.AGAIN, tried.KILLED),
    *(job.UNITS, job.SHARED, job.FROZEN, tried.DEAD, job.GONE),
)


def play(site: Site, results: Results) -> None:
    """From no machine to no machine."""
    site.open()
    with results.row(BOOT) as row:
        began = time.monotonic()
        for node in (STORAGE, TRIED):
            site.launch(node)
        source = site.serve_storage()
        born = site.run(TRIED, "cat /etc/spotsup/born")
        expect(born == TRIED, f"/etc/spotsup/born says {born!r}")
        row.words = f"both answer by SSH, with our host keys, after {time.monotonic() - began:.0f} s"
    training = Job(site, results, source)
    training.submit()
    machine = Tried(site, results, source)
    machine.all()
    training.train()
    training.share()
    training.freeze()
    training.freeze_for_ever()
    machine.dead()
    with results.row(job.GONE) as row:
        row.words = _release(site, training)


def _release(site: Site, training: Job) -> str:
    """All machines, with storage still frozen."""
    machines = {each.id: each for each in site.cloud.instances("", CALL_S)}
    ports = [(each.ssh_host, each.ssh_port) for each in machines.values() if each.ssh_host]
    training.cancel()
    for node in (TRIED, STORAGE):
        site.cloud.terminate(site.instance(node).id, CALL_S)
    site.stack.wait_for(lambda: not site.stack.processes(), 60.0, "the last process to end")
    for address, port in ports:
        with socket.socket() as probe:
            expect(probe.connect_ex((address, port)) != 0, f"somebody listens at {address}:{port}")
    kept = [path for each in machines for path in (site.stack.cloud_dir / "machines" / each).glob("seed*")]
    expect(not kept, f"secrets are left: {kept}")
    open_disks = _holders(site.image)
    expect(not open_disks, f"processes hold the image: {open_disks}")
    return f"{len(machines)} machines were there; 0 processes, 0 of {len(ports)} ports, 0 disks are"


def _holders(image: Path) -> list[str]:
    """Processes that have a file of the image open: a machine's own disk is a nameless file above it."""
    found = []
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if Path(os.readlink(link)).is_relative_to(image):  # noqa: PTH115 - it may have ended meanwhile
                found.append(link.parts[2])
        except OSError:
            continue
    return sorted(set(found))


def main(arguments: Sequence[str]) -> int:
    """Build, play, clean up, judge."""
    results = Results(ROWS)
    broken: list[str] = []
    stack = Stack(ROOT / "build" / "acceptance")
    stop_on_signals(stack)
    try:
        ensure_installed(PROGRAMS, ROOT)
        image = ensure_image(ROOT)
        results.tell(f"the machine image is {image.relative_to(ROOT)}")
    except SetupError as error:
        console.print(f"acceptance: {error}", markup=False)
        return 1
    if "--image" in arguments:
        return 0
    try:
        play(Site(stack, image), results)
    except InterruptedByUserError:
        broken.append("interrupted")
    except (BrokenError, StackError, BootstrapError, ProvisionerError, SpotsupError) as error:
        broken.append(str(error))
    finally:
        console.print("[dim]cleaning up[/dim]")
        leftovers = stack.close()
    broken += [f"a process was left behind: {survivor}" for survivor in leftovers.processes]
    results.show("Bare virtual machines become nodes", ROOT / "build" / "acceptance.json")
    for text in broken:
        console.print(f"broken: {text}", style="red", markup=False)
    return 0 if results.ok and not broken else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
