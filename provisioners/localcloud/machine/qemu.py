"""A machine that is a virtual one: QEMU as a child of init, with the machine image's disk below what it writes.

By KVM where that works, else by emulation. What a machine writes goes to a file of QEMU's own without a name: nothing
of it is left once QEMU has ended. It has two networks: QEMU's own, where the host's loopback is 10.0.2.2 and port 22 is
reached at the machine's loopback address, and one that connects the machines of a cloud, by multicast on loopback.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

from provisioners.localcloud.machine.child import ChildError, reachable, spawn
from provisioners.localcloud.machine.spec import MARKER_VARIABLE, Folder, Spec

PROGRAM = "qemu-system-x86_64"
USER = "spotsup"
"""Who logs in: made by cloud-init from our user data, as on a cloud."""

HOST = "10.0.2.2"
"""The host's loopback, seen from within."""

INTERFACE = "enp0s8"
"""What connects machines, by its place on the bus."""

MEMORY_MIB = 1536
_PROBE_S = 20
_SEED = "format=raw,if=virtio,readonly=on"

# Quick to boot, and the network between machines set before the first program runs.
_KERNEL = (
    "root=/dev/vda rw console=ttyS0 loglevel=4 mitigations=off nokaslr audit=0 no_timer_check "
    "tsc=nowatchdog systemd.show_status=0 ds=nocloud"
)

# rdtsc; shl rdx, 32; or rax, rdx; ret
_READ_TSC = b"\x0f\x31\x48\xc1\xe2\x20\x48\x09\xd0\xc3"
_MEASURE_S = 0.2
_READINGS = 50

# mov al, 16; out 0xf4, al; hlt: QEMU ends with (16 << 1) | 1 once a processor has run it.
_PROBE = b"\xb0\x10\xe6\xf4\xf4".ljust(510, b"\0") + b"\x55\xaa"
_PROBED = 33


def inner_address(address: str) -> str:
    """Return a machine's address among the machines of its cloud: 10.64.0.0/10, as its loopback one is
    127.64.0.0/10."""
    return f"10.{address.partition('.')[2]}"


def command(spec: Spec, folder: Folder, port: int, tsc_khz: int = 0) -> list[str]:
    """QEMU's command line. `tsc_khz`: this computer's, for an emulated processor; 0 for KVM."""
    image = Path(spec.image)
    inner = inner_address(spec.address)
    mac = "02:54:00:" + ":".join(f"{int(part):02x}" for part in inner.split(".")[1:])
    accel = ["-accel", "tcg,thread=multi", "-cpu", "Nehalem"] if tsc_khz else ["-accel", "kvm", "-cpu", "host"]
    kernel = f"{_KERNEL} tsc_early_khz={tsc_khz}" if tsc_khz else _KERNEL
    return [
        *(PROGRAM, "-nodefaults", "-no-user-config", "-display", "none", "-machine", "q35", *accel),
        *("-smp", "1", "-m", str(MEMORY_MIB)),
        *("-kernel", str(image / "vmlinuz"), "-initrd", str(image / "initrd.img")),
        *("-append", f"{kernel} ip={inner}:::255.192.0.0::{INTERFACE}:off"),
        *("-drive", f"file={_quoted(image / 'disk.raw')},format=raw,if=virtio,snapshot=on"),
        *("-drive", f"file.driver=vvfat,file.dir={_quoted(folder.seed)},file.label=CIDATA,{_SEED}"),
        *("-netdev", f"user,id=host,hostfwd=tcp:{spec.address}:{port}-:22"),
        *("-device", "virtio-net-pci,netdev=host,addr=7"),
        *("-netdev", f"socket,id=lan,mcast={group(spec.id)},localaddr=127.0.0.1"),
        *("-device", f"virtio-net-pci,netdev=lan,addr=8,mac={mac}"),
        *("-device", "virtio-rng-pci", "-serial", "stdio"),
    ]


def group(machine: str) -> str:
    """Return the multicast group and port of a machine's cloud, from its id: local-CLOUD-NUMBER."""
    number = int(machine.split("-")[1], 16)
    return f"239.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}:{10000 + (number >> 24)}"


def start(spec: Spec, folder: Folder) -> tuple[int, int]:
    """Start QEMU; returns (pid, port) once it listens for the machine's SSH, which may not answer yet, as on a cloud.

    Raises ChildError.
    """
    program = shutil.which(PROGRAM)
    if program is None:
        raise ChildError(f"there is no {PROGRAM}; install qemu-system-x86")
    tsc_khz = 0 if kvm_works(folder) else measured_tsc_khz()
    return reachable(
        "QEMU",
        spec.address,
        spec.ssh_port,
        lambda port: _spawn(program, command(spec, folder, port, tsc_khz), spec.id),
        folder.log,
    )


def kvm_works(folder: Folder) -> bool:
    """True if a processor runs under KVM: /dev/kvm may be there and fail."""
    program = shutil.which(PROGRAM)
    if program is None or not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return False
    if not has_virtualization(Path("/proc/cpuinfo").read_text()):
        return False
    sector = folder.path / "probe.img"
    sector.write_bytes(_PROBE)
    arguments = [
        *(PROGRAM, "-nodefaults", "-no-user-config", "-display", "none", "-accel", "kvm", "-cpu", "host", "-m", "32"),
        *("-device", "isa-debug-exit,iobase=0xf4", "-drive", f"file={_quoted(sector)},format=raw,if=ide"),
    ]
    pid = _spawn(program, arguments, "")
    deadline = time.monotonic() + _PROBE_S
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status) == _PROBED
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


def has_virtualization(cpuinfo: str) -> bool:
    """True if the processor has VT-x or AMD-V. A host may offer /dev/kvm without: its guests run a boot sector, and
    fail at the first `lock cmpxchg16b` of their kernel ("KVM internal error", seen with QEMU 7.2)."""
    flags = next((line for line in cpuinfo.splitlines() if line.startswith("flags")), "").split()
    return "vmx" in flags or "svm" in flags


def measured_tsc_khz() -> int:
    """Return how fast this computer's time stamp counter runs, which an emulated processor has for its own.

    A machine that finds out by itself while others want the processor is wrong by factors, and so is then its clock.
    """
    with mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as page:
        page.write(_READ_TSC)
        start = ctypes.c_char.from_buffer(page)
        read = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(start))
        began, first = _both_clocks(read)
        time.sleep(_MEASURE_S)
        ended, last = _both_clocks(read)
        del read, start  # the page cannot be closed before
    return int((last - first) * 1_000_000 // (ended - began))


def _both_clocks(read_tsc: Callable[[], int]) -> tuple[int, int]:
    """Nanoseconds and the counter at the same moment: of several readings, the one that took the shortest time.

    On a busy computer this process may lose the processor for milliseconds between two instructions.
    """
    readings = [(time.monotonic_ns(), read_tsc(), time.monotonic_ns()) for _ in range(_READINGS)]
    before, counter, after = min(readings, key=lambda each: each[2] - each[0])
    return (before + after) // 2, counter


def _spawn(program: str, arguments: list[str], machine: str) -> int:
    environ = {"PATH": os.environ.get("PATH", os.defpath), MARKER_VARIABLE: machine}
    return spawn(program, arguments, environ)


def _quoted(path: Path) -> str:
    """Return a text as QEMU reads a value of an option."""
    return str(path).replace(",", ",,")
