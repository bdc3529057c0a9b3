# Ends the sshd session of this user that still listens on a port of the loopback: that of a connection whose other end
# is gone, which sshd has not noticed. Nothing else is ended.
port=@port@
hex=$(printf '0100007F:%04X' "$port")
inodes=$(awk -v at="$hex" '$2 == at && $4 == "0A" { print $10 }' /proc/net/tcp)
for inode in $inodes; do
    for fd in /proc/[0-9]*/fd/*; do
        [ "$(readlink "$fd" 2>/dev/null)" = "socket:[$inode]" ] || continue
        pid=${fd#/proc/}
        pid=${pid%%/*}
        case $(cat "/proc/$pid/comm" 2>/dev/null) in sshd*) kill "$pid" 2>/dev/null || : ;; esac
    done
done
looks=0
while [ "$looks" -lt 30 ] && awk -v at="$hex" '$2 == at && $4 == "0A" { found = 1 } END { exit !found }' /proc/net/tcp; do
    sleep 0.1
    looks=$((looks + 1))
done
