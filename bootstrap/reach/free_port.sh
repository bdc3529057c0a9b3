# Ends the sshd session of this user that still listens on a port of the loopback: that of a connection whose other end
# is gone, which sshd has not noticed. Nothing else is ended. Looks at sshd's processes only: a node that trains has
# thousands of open files.
port=@port@
hex=$(printf '0100007F:%04X' "$port")
inodes=$(awk -v at="$hex" '$2 == at && $4 == "0A" { print $10 }' /proc/net/tcp)
ended=
# shellcheck disable=SC2013 # a name has no spaces
for comm in $(grep -l '^sshd' /proc/[0-9]*/comm 2>/dev/null); do
    pid=${comm#/proc/}
    pid=${pid%/comm}
    open=$(ls -l "/proc/$pid/fd" 2>/dev/null || :)
    for inode in $inodes; do
        case $open in *"socket:[$inode]"*) kill "$pid" 2>/dev/null && ended="$ended $pid" || : ;; esac
    done
done
looks=0
while [ "$ended" ] && [ "$looks" -lt 30 ] && awk -v at="$hex" '$2 == at && $4 == "0A" { found = 1 } END { exit !found }' /proc/net/tcp; do
    sleep 0.1
    looks=$((looks + 1))
    # One that is stopped, or hangs, takes no SIGTERM.
    # shellcheck disable=SC2086 # a list of numbers
    [ "$looks" -ne 10 ] || kill -KILL $ended 2>/dev/null || :
done
