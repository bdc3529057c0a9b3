. ./clock.sh
limit_s=@limit_s@
left=$limit_s
while [ "$(clock)" = waiting ]; do
    if [ "$left" -le 0 ]; then
        echo "the clock is not synchronized after $limit_s s: does the time service reach a server (UDP port 123)?" >&2
        exit 1
    fi
    sleep 1
    left=$((left - 1))
done
