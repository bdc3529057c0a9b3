# A disk is formatted only if nothing at all is on it. Without a disk, a folder of the boot disk is mounted.
. ./begin.sh
disk=@disk@ new=@new@ label=@label@ type=@type@ options=@options@ user=@user@
if [ -n "$disk" ]; then
    if [ "$new" = true ]; then
        found=$(wipefs -n -p "$disk" 2>&1 | grep -v '^#') || :
        [ -z "$found" ] || { echo "$disk is not empty, and stays as it is: $found" >&2; exit 1; }
        timeout -k 5 "$limit_s" mkfs.ext4 -q -m 0 -L "$label" "$disk"
    fi
    mount -t "$type" -o "$options" "$disk" "$place"
else
    base=/var/lib/spotsup
    ! mounted /opt/dlami/nvme || base=/opt/dlami/nvme
    mkdir -p "$base/scratch$place"
    mount --bind "$base/scratch$place" "$place"
fi
chown "$user:" "$place"
