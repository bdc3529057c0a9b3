# Canonical's modules are built and signed for each kernel; where there are none for this kernel, they are built here.
# Loaded by a reboot.
. ../shell/apt.sh
. ./remove_others.sh
branch=@branch@ driver=@driver@ kernel=@kernel@
modules=linux-modules-nvidia-$driver-$kernel
if ! apt-cache show "$modules" >/dev/null 2>&1; then
    modules="linux-headers-$kernel nvidia-dkms-$driver"
fi
# shellcheck disable=SC2086 # one word for each package
apt_get install --no-install-recommends $modules "nvidia-headless-no-dkms-$driver" "nvidia-utils-$branch-server"
. ./note.sh
