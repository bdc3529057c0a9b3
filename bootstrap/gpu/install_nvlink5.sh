# The fabric manager reaches NVSwitches of NVLink 5 over InfiniBand: with modules that Ubuntu has in a package apart from
# its kernel, and with NVIDIA's subnet manager, which it starts itself.
. ../shell/apt.sh
. ./nvidia_repository.sh
distribution=@distribution@ kernel=@kernel@
apt_get update
load() { modprobe -a mlx5_ib ib_umad; }
if ! load 2>/dev/null; then
    apt_get install --no-install-recommends "linux-modules-extra-$kernel"
    load
fi
printf '%s\n' mlx5_ib ib_umad >/etc/modules-load.d/spotsup-nvlink.conf
install_manager() { apt_get "$@" install --no-install-recommends nvlsm infiniband-diags; }
install_manager -s 2>/dev/null || add_nvidia_repository "$distribution"
install_manager
