"""The machine image: a small Debian 12 with systemd, OpenSSH, cloud-init, NFS and torch, from Debian's own packages.

    .tools/acceptance/HASH/     disk.raw (ext4, no partitions), vmlinuz, initrd; HASH is that of the recipe

Needs root, for debootstrap's chroot. The mirror is the one that apt uses on this computer, where that has Debian 12.
torch is copied from .venv: bootstrap wants a node's interpreter to have it, and training shows that it works.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from tools.setup.errors import SetupError, output_tail, run
from tools.setup.programs import ensure_installed

PROGRAMS = {"debootstrap": "debootstrap", "mkfs.ext4": "e2fsprogs"}
SUITE = "bookworm"
PYTHON = (3, 11)
COPIED = ("torch", "numpy")  # torch does not ask for numpy, but cannot write a checkpoint without it
MIRROR = "http://deb.debian.org/debian"
DISK_BYTES = 8 << 30  # sparse
BUILD_TIMEOUT_S = 1200.0
# Root by `su` has not the folders of root's programs on its PATH.
_ENVIRON = {"PATH": f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"}
PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "udev", "kmod", "procps", "iproute2", "sudo", "openssh-server"),
    *("linux-image-cloud-amd64", "initramfs-tools", "zstd", "python3", "libgomp1", "libnss-myhostname"),
    # debootstrap resolves no virtual packages: python3-cffi-backend stands for one that cloud-init's own need.
    *("cloud-init", "python3-cffi-backend", "unattended-upgrades", "nfs-common", "nfs-kernel-server"),
)

# Real cloud-init, of which only what our user data asks for is run: under emulation each of its modules costs seconds.
CLOUD_INIT = """\
datasource_list: [NoCloud]
network: {config: disabled}
cloud_init_modules: [seed_random, write-files, users-groups, ssh]
cloud_config_modules: [runcmd]
cloud_final_modules: [scripts-user]
"""

# enp0s7 is QEMU's own network, with the host at 10.0.2.2. enp0s8 connects the machines: the kernel's command line has
# its address.
_FILES = {
    "etc/cloud/cloud.cfg.d/90-spotsup.cfg": CLOUD_INIT,
    "etc/systemd/network/10-host.network": "[Match]\nName=enp0s7\n[Network]\nDHCP=ipv4\nLinkLocalAddressing=no\n",
}

_NOT_STARTED = (
    *("nfs-server.service", "nfs-blkmap.service", "rpcbind.service", "rpcbind.socket", "rpc-statd-notify.service"),
    *("systemd-hwdb-update.service", "e2scrub_reap.service", "e2scrub_all.timer", "dpkg-db-backup.timer"),
    *("fstrim.timer", "cloud-init-hotplugd.socket", "getty@tty1.service", "serial-getty@ttyS0.service"),
)

_FINISH = r"""
set -eu
cat >/etc/initramfs-tools/conf.d/spotsup <<'END'
MODULES=list
COMPRESS=zstd
END
printf 'virtio_pci\nvirtio_blk\n' >>/etc/initramfs-tools/modules
update-initramfs -u -k all
for unit in "$@"; do systemctl disable "$unit" || :; done
systemctl enable systemd-networkd.service systemd-network-generator.service
systemctl disable systemd-networkd-wait-online.service || :
rm -f /usr/sbin/policy-rc.d /etc/resolv.conf /etc/ssh/ssh_host_* /etc/machine-id /var/lib/dbus/machine-id
: >/etc/machine-id
echo spotsup >/etc/hostname
apt-get clean
"""


def ensure_image(clone: Path) -> Path:
    """The image's folder, built where this recipe's is not there. Raises SetupError."""
    kept = clone / ".tools" / "acceptance"
    folder = kept / recipe()
    if folder.is_dir():
        return folder
    if os.geteuid() != 0:
        raise SetupError("building a machine image takes root (debootstrap unpacks a system): sudo make acceptance")
    if sys.version_info[:2] != PYTHON:
        raise SetupError(
            f".venv has Python {platform.python_version()}, and torch in it does not fit Debian 12, which has 3.11; "
            "try with PYTHON=python3.11 in a clone of its own"
        )
    ensure_installed(PROGRAMS, clone)
    for old in kept.glob("*"):
        _remove(old)
    print("building a machine image of Debian 12: some minutes, the first time", flush=True)
    scratch = kept / "new"
    (scratch / "root").mkdir(parents=True)
    _debootstrap(scratch / "root", scratch)
    _settle(scratch / "root")
    _make_disk(scratch)
    scratch.rename(folder)
    return folder


def recipe() -> str:
    """The identity of an image: a hash of everything that goes into it."""
    copied = [(name, metadata.version(name)) for name in COPIED]
    recipe = repr((SUITE, PACKAGES, _FILES, _NOT_STARTED, _FINISH, DISK_BYTES, copied))
    return hashlib.sha256(recipe.encode()).hexdigest()[:16]


def mirror() -> str:
    """The mirror from which this computer's apt gets Debian 12; else Debian's own address."""
    asked = ["apt-get", "indextargets", "--format", "$(SITE) $(RELEASE) $(COMPONENT)", "Created-By: Packages"]
    return mirror_in(run(asked, cwd=Path("/"), timeout_s=60.0).stdout)


def mirror_in(targets: str) -> str:
    """The first site of Debian 12's main part in lines of site, release and component."""
    lines = [line.split() for line in targets.splitlines()]
    found = [line[0] for line in lines if line[1:] == [SUITE, "main"]]
    return found[0] if found else MIRROR


def torch_files() -> list[tuple[Path, Path]]:
    """What is copied and all that it needs, as (file, path below site-packages)."""
    wanted, seen = list(COPIED), set[str]()
    files: list[tuple[Path, Path]] = []
    while wanted:
        name = wanted.pop()
        if name in seen:
            continue
        seen.add(name)
        distribution = metadata.distribution(name)
        for each in distribution.files or ():
            path = Path(str(distribution.locate_file(each)))
            if ".." not in each.parts and each.parts[:2] != ("torch", "include") and path.is_file():
                files.append((path, Path(each)))
        requirements = map(Requirement, distribution.requires or ())
        wanted += [each.name for each in requirements if not each.marker or each.marker.evaluate({"extra": ""})]
    return files


def _remove(folder: Path) -> None:
    """Where debootstrap was killed, the /proc and /sys of this computer may still be mounted below. Raises OSError."""
    below = mounts_below(folder.resolve(), Path("/proc/self/mountinfo").read_text())
    for mount in reversed(below):
        done = run(["umount", str(mount)], cwd=Path("/"), timeout_s=60.0)
        if done.returncode != 0:
            raise SetupError(f"{mount} cannot be unmounted: {output_tail(done)}")
    shutil.rmtree(folder)


def mounts_below(folder: Path, mountinfo: str) -> list[Path]:
    """The mounted folders below one, in the order in which they were mounted: lines of /proc/self/mountinfo."""
    words = [line.split()[4] for line in mountinfo.splitlines()]
    places = [Path(re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), word)) for word in words]
    return [place for place in places if place.is_relative_to(folder)]


@contextmanager
def plainly_named(folder: Path) -> Iterator[Path]:
    """A path of the folder that a shell takes as one word without quotes: debootstrap runs `chroot $TARGET`."""
    if re.fullmatch(r"[\w/.+-]+", str(folder), re.ASCII):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="spotsup-", dir="/tmp") as place:  # whatever TMPDIR is
        link = Path(place) / "root"
        link.symlink_to(folder)
        yield link


def _debootstrap(root: Path, folder: Path) -> None:
    include = f"--include={','.join(PACKAGES)}"
    with plainly_named(root) as target:
        command = ["debootstrap", "--variant=minbase", include, SUITE, str(target), mirror()]
        done = run(command, cwd=folder, timeout_s=BUILD_TIMEOUT_S, environ=_ENVIRON)
    if done.returncode != 0:
        log = root / "debootstrap" / "debootstrap.log"
        more = "\n".join(log.read_text(errors="replace").splitlines()[-20:]) if log.exists() else ""
        raise SetupError(f"debootstrap failed: {output_tail(done)}\n{more}")


def _settle(root: Path) -> None:
    for name, text in _FILES.items():
        (root / name).write_text(text)
    command = ["chroot", str(root), "/bin/sh", "-c", _FINISH, "sh", *_NOT_STARTED]
    done = run(command, cwd=root, timeout_s=BUILD_TIMEOUT_S, environ=_ENVIRON)
    if done.returncode != 0:
        raise SetupError(f"the machine image cannot be finished: {output_tail(done)}")
    place = root / "usr/local/lib/python3.11/dist-packages"  # where pip as root would, before Debian's own
    for source, below in torch_files():
        (place / below).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, place / below)


def _make_disk(folder: Path) -> None:
    root, disk = folder / "root", folder / "disk.raw"
    for name in ("vmlinuz", "initrd.img"):  # links to the newest, relative to the root
        shutil.copyfile(root / (root / name).readlink(), folder / name)
    with disk.open("wb") as file:
        file.truncate(DISK_BYTES)
    command = ["mkfs.ext4", "-q", "-F", "-L", "root", "-d", str(root), str(disk)]
    done = run(command, cwd=folder, timeout_s=600.0, environ=_ENVIRON)
    if done.returncode != 0:
        raise SetupError(f"the machine image's disk cannot be made: {output_tail(done)}")
    shutil.rmtree(root)
