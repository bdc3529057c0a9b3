# Debian 12's own driver is 535, which gets no more fixes; these are NVIDIA's packages for Debian. Loaded by a reboot.
. ../shell/apt.sh
. ./secure_boot.sh
can_build
. ./remove_others.sh
branch=@branch@ modules=@modules@ kernel=@kernel@
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
apt_get install --no-install-recommends ca-certificates curl
curl -fsS --retry 3 --max-time 60 -o "$work/keyring.deb" \
    https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/cuda-keyring_1.1-1_all.deb
dpkg -i "$work/keyring.deb" >/dev/null
apt_get update
apt_get install "nvidia-driver-pinning-$branch"
apt_get install --no-install-recommends "linux-headers-$kernel" nvidia-driver-cuda "$modules"
. ./note.sh
