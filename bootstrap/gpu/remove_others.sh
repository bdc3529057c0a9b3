# Kernel modules of the wrong kind would be loaded instead of ours; NVIDIA's own installer is not a package.
if [ -x /usr/bin/nvidia-uninstall ]; then /usr/bin/nvidia-uninstall --silent >/dev/null; fi
# shellcheck disable=SC2016 # dpkg-query's own variables
others=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' \
    'linux-modules-nvidia-*' 'linux-objects-nvidia-*' 'nvidia-dkms-*' 'nvidia-kernel-*dkms' 2>/dev/null |
    sed -n 's/^installed //p')
# shellcheck disable=SC2086 # one word for each package
[ -z "$others" ] || apt_get purge $others
apt_get update
