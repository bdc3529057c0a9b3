# A process that waits for a dead server may not even be killed: it is left behind. Any other is killed with all that it
# started, for it has a session of its own.
within() { # SECONDS COMMAND...: its status, or 124 when it has not ended by then
    left=$(($1 * 10))
    shift
    setsid "$@" </dev/null >/dev/null 2>&1 &
    child=$!
    while case $(sed 's/.*) //' "/proc/$child/stat" 2>/dev/null) in '' | Z*) false ;; esac; do
        if [ "$left" -le 0 ]; then
            kill -s KILL -- "-$child" 2>/dev/null
            return 124
        fi
        sleep 0.1
        left=$((left - 1))
    done
    wait "$child"
}
