# Only timers are stopped: dpkg that is ended in the middle leaves broken packages. What already runs is waited for.
set -eu
set -- @units@
for unit; do
    case $unit in *.timer) systemctl stop "$unit" ;; esac
done
systemctl mask "$@"
