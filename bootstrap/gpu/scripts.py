"""The scripts of the gpu steps. All but `check_gpus` run as root, on machines that were made for their node."""

from __future__ import annotations

import shlex

from bootstrap.gpu.facts import CHECKED_FILE, INSTALLED_FILE, Flavour
from bootstrap.model import Paths
from bootstrap.scripts import APT
from bootstrap.templates import fill

# Kernel modules of the wrong kind would be loaded instead of ours; NVIDIA's own installer knows no packages.
_REMOVE_OTHERS = """
if [ -x /usr/bin/nvidia-uninstall ]; then /usr/bin/nvidia-uninstall --silent >/dev/null; fi
others=$(dpkg-query -W -f '${db:Status-Status} ${Package}\\n' \\
    'linux-modules-nvidia-*' 'linux-objects-nvidia-*' 'nvidia-dkms-*' 'nvidia-kernel-*dkms' 2>/dev/null |
    sed -n 's/^installed //p')
[ -z "$others" ] || apt_get purge $others
apt_get update
"""

# Canonical's modules are built and signed for each kernel; where there are none for this one, they are built here.
_UBUNTU = """
driver=@branch@-server@open@ kernel=@kernel@
modules=linux-modules-nvidia-$driver-$kernel
if ! apt-cache show "$modules" >/dev/null 2>&1; then
    modules="linux-headers-$kernel nvidia-dkms-$driver"
fi
apt_get install --no-install-recommends $modules "nvidia-headless-no-dkms-$driver" nvidia-utils-@branch@-server
"""

# Debian 12's own driver is 535, which is no longer looked after; these are NVIDIA's packages for it.
_DEBIAN = """
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
apt_get install --no-install-recommends ca-certificates curl
curl -fsS --retry 3 --max-time 60 -o "$work/keyring.deb" \\
    https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/cuda-keyring_1.1-1_all.deb
dpkg -i "$work/keyring.deb" >/dev/null
apt_get update
apt_get install nvidia-driver-pinning-@branch@
apt_get install --no-install-recommends linux-headers-@kernel@ nvidia-driver-cuda @modules@
"""

_NOTE = """
mkdir -p "$(dirname @file@)"
echo @key@ >@file@
"""

# Its version has to be the driver's own, to the last digit.
_FABRIC_MANAGER = """
apt_get update
apt_get install --no-install-recommends nvidia-fabricmanager-@branch@=@version@"-*"
"""

_START_FABRIC_MANAGER = """
systemctl unmask nvidia-fabricmanager
systemctl enable --now nvidia-fabricmanager
"""

# The sum is exact in float32, and in TF32 too: all are powers of two.
_PROGRAM = """
import sys
try:
    import torch
except Exception as error:
    sys.exit(f"{sys.executable} cannot import torch: {error}")
if torch.version.cuda is None:
    sys.exit(f"torch {torch.__version__} was built without CUDA; install one with it, by `setup` or in the image")
try:
    found = torch.cuda.device_count()
    torch.cuda.init()
    if found < int(sys.argv[1]):
        sys.exit(f"torch finds {found} GPUs, {sys.argv[1]} should be here; is CUDA_VISIBLE_DEVICES set?")
    for index in range(found):
        ones = torch.ones(1024, 1024, device=f"cuda:{index}")
        total = float((ones @ ones).sum())
        if total != 1024.0**3:
            sys.exit(f"GPU {index} ({torch.cuda.get_device_name(index)}) computes wrongly: {total} for {1024.0**3}")
except Exception as error:
    first = (str(error).splitlines() or [type(error).__name__])[0]
    sys.exit(f"torch {torch.__version__} (CUDA {torch.version.cuda}) cannot compute on the GPUs: {first}")
"""

_CHECK = """
set -eu
own=@own@
. "$own/env.sh"
cd /
status=0
timeout -k 10 @limit_s@ @python@ -c @program@ @gpus@ </dev/null >&2 || status=$?
[ "$status" -ne 124 ] || echo "computing on the GPUs did not end within @limit_s@ s: one of them hangs" >&2
[ "$status" -eq 0 ] || exit "$status"
echo @key@ >"$own/@checked@.new"
mv "$own/@checked@.new" "$own/@checked@"
"""


def install_driver_ubuntu(branch: int, flavour: Flavour, kernel: str, key: str) -> str:
    """Ubuntu's packages of the server branch, with modules for `kernel`; then note `key`. Loaded by a reboot."""
    opened = "-open" if flavour == "open" else ""
    install = fill(_UBUNTU, branch=str(branch), open=opened, kernel=shlex.quote(kernel))
    return APT + _REMOVE_OTHERS + install + _note(key)


def install_driver_debian(branch: int, flavour: Flavour, kernel: str, key: str) -> str:
    """NVIDIA's packages for Debian 12, with modules for `kernel`; then note `key`. Loaded by a reboot."""
    modules = "nvidia-kernel-open-dkms" if flavour == "open" else "nvidia-kernel-dkms"
    install = fill(_DEBIAN, branch=str(branch), kernel=shlex.quote(kernel), modules=modules)
    return APT + _REMOVE_OTHERS + install + _note(key)


def start_fabric_manager(version: str, *, installed: bool) -> str:
    """Start it now and at each boot, the driver's own version of it installed first where there is none."""
    if installed:
        return "set -eu" + _START_FABRIC_MANAGER
    branch = version.partition(".")[0]
    return APT + fill(_FABRIC_MANAGER, branch=branch, version=shlex.quote(version)) + _START_FABRIC_MANAGER


def check_gpus(paths: Paths, python: str, gpus: int, key: str, limit_s: float) -> str:
    """Have torch compute on each GPU, `gpus` at least, in a process that can be killed; then note `key`."""
    return fill(
        _CHECK,
        own=shlex.quote(paths.own),
        python=shlex.quote(python),
        program=shlex.quote(_PROGRAM),
        gpus=str(gpus),
        key=key,
        limit_s=f"{limit_s:g}",
        checked=CHECKED_FILE,
    )


def _note(key: str) -> str:
    return fill(_NOTE, file=shlex.quote(INSTALLED_FILE), key=shlex.quote(key))
