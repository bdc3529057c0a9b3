# Debian 12's own driver is 535, which gets no more fixes; these are NVIDIA's packages for Debian. Loaded by a reboot.
. ../shell/apt.sh
. ./nvidia_repository.sh
. ./secure_boot.sh
can_build
. ./remove_others.sh
branch=@branch@ modules=@modules@ kernel=@kernel@
add_nvidia_repository debian12
apt_get install "nvidia-driver-pinning-$branch"
apt_get install --no-install-recommends "linux-headers-$kernel" nvidia-driver-cuda "$modules"
. ./note.sh
