# Locks of apt are POSIX locks, and /proc/locks names their holders. They are found by inode alone: the device numbers
# there are not those of stat on btrfs and overlays.
locks() {
    for file in /var/lib/dpkg/lock-frontend /var/lib/dpkg/lock /var/lib/apt/lists/lock /var/cache/apt/archives/lock; do
        inode=$(stat -c %i "$file" 2>/dev/null) || continue
        pid=$(awk -v inode="$inode" '$2 != "->" && $4 == "WRITE" && split($6, at, ":") && at[3] == inode { print $5 }' \
            /proc/locks | head -n 1)
        [ -z "$pid" ] || echo "$(cat "/proc/$pid/comm" 2>/dev/null || echo process) ($pid) holds $file"
    done
}
