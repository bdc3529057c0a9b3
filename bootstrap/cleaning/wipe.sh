# As root, on a machine of our own: ends whatever still runs for the user that jobs run as, and removes what it left
# outside spotsup's folder. Files that were there at the machine's first boot stay.
set -eu
unit=@unit@ units=@units@ root=@root@ cache=@cache@ born=@born@ heard=@heard@ label=@label@ limit_s=@limit_s@ shared=@shared@
user=${SUDO_USER:-root}
uid=$(id -u "$user") # the user that jobs run as: it has become root by sudo
home=$(getent passwd "$user" | cut -d : -f 6)
case $root in [~]/*) root=$home/${root#??} ;; esac
case $cache in [~]/*) cache=$home/${cache#??} ;; esac
if [ -d /run/systemd/system ]; then
    systemctl kill -s KILL "$unit" 2>/dev/null || :
    systemctl stop "$unit" 2>/dev/null || :
    rm -f "$units/$unit"
    systemctl daemon-reload
    systemctl reset-failed "$unit" 2>/dev/null || :
    [ "$uid" = 0 ] || systemctl stop "user@$uid.service" 2>/dev/null || :
fi
if command -v docker >/dev/null && found=$(timeout "$limit_s" docker ps -aq 2>/dev/null) && [ -n "$found" ]; then
    # shellcheck disable=SC2086 # one word for each container
    timeout "$limit_s" docker rm -f -v $found >/dev/null
fi
# This connection's own processes: from this shell up to sshd.
ours=' ' each=$$
while [ "$each" -gt 1 ]; do
    ours="$ours$each "
    each=$(sed 's/.*) //' "/proc/$each/stat" | cut -d ' ' -f 2)
done
of_user() {
    for folder in /proc/[0-9]*; do
        pid=${folder#/proc/}
        case $ours in *" $pid "*) continue ;; esac
        [ "$(stat -c %u "$folder" 2>/dev/null)" = "$uid" ] || continue
        case $(sed 's/.*) //' "$folder/stat" 2>/dev/null) in '' | Z*) ;; *) echo "$pid" ;; esac
    done
}
looks=50
while [ "$uid" != 0 ] && pids=$(of_user) && [ -n "$pids" ]; do
    # shellcheck disable=SC2086
    [ "$looks" -gt 0 ] || { echo "SIGKILL did not end" $pids >&2; exit 1; }
    # shellcheck disable=SC2086
    kill -KILL $pids 2>/dev/null || :
    sleep 0.1
    looks=$((looks - 1))
done
crontab -r -u "$user" 2>/dev/null || :
rm -f /var/spool/cron/atjobs/* /var/spool/at/* 2>/dev/null || :
set -- @places@
for place; do
    while grep -q " $place " /proc/self/mounts; do
        timeout -k 5 "$limit_s" umount "$place"
    done
done
# The next job's scratch disk is formatted anew: its mount finds nothing on it.
disk=$(blkid -L "$label" 2>/dev/null) || disk=
[ -z "$disk" ] || wipefs -q -a "$disk"
rm -rf --one-file-system /var/lib/spotsup/scratch /opt/dlami/nvme/scratch
ipcrm -a 2>/dev/null || :
find "$shared" -xdev -mindepth 1 -delete
set -- @temporary@
find "$@" -xdev -mindepth 1 -user "$user" -prune -exec rm -rf --one-file-system {} +
rm -rf "$root/nodes" "$root/code" "$root/prepared" "$root/trainer"
if [ "$uid" != 0 ]; then
    find "$home" -xdev \( -path "$root" -o -path "$cache" -o -path "$home/.ssh/authorized_keys" -o -path "$home/$heard" \) \
        -prune -o ! -type d -cnewer "$born" -exec rm -f {} +
    find "$home" -xdev -mindepth 1 -type d -empty -cnewer "$born" ! -path "$root*" ! -path "$cache*" -delete
    pids=$(of_user)
    # shellcheck disable=SC2086
    [ -z "$pids" ] || { echo "still runs:" $pids >&2; exit 1; }
fi
left=$(find "$shared" -xdev -mindepth 1 | head -n 1)
[ -z "$left" ] || { echo "$left is still there" >&2; exit 1; }
