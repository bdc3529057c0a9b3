# Waits for other users of apt. Packages are installed and not upgraded: driver modules are built for the kernel that runs.
set -eu
export DEBIAN_FRONTEND=noninteractive
apt_get() { apt-get -q -y -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "$@" >/dev/null; }
