# Canonical's modules are built and signed for each kernel, and need NVIDIA's packages of the same version; where they
# cannot be installed for this kernel, modules are built here. Loaded by a reboot.
. ../shell/apt.sh
. ./secure_boot.sh
. ./remove_others.sh
branch=@branch@ driver=@driver@ kernel=@kernel@
modules=linux-modules-nvidia-$driver-$kernel
others="nvidia-headless-no-dkms-$driver nvidia-utils-$branch-server"
# shellcheck disable=SC2086 # one word for each package
if ! apt_get -s install --no-install-recommends $modules $others 2>/dev/null; then
    can_build
    modules="linux-headers-$kernel nvidia-dkms-$driver"
fi
# shellcheck disable=SC2086
apt_get install --no-install-recommends $modules $others
. ./note.sh
