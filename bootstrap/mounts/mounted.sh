mounted() { awk -v place="$1" '$2 == place { found = 1 } END { exit !found }' /proc/mounts; }
