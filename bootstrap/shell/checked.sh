# A check with the job's variables, which are set for it alone. It ends the script where it fails.
checked() { # ENV LATE COMMAND...; LATE: what to say when `timeout` had to end it
    late=$2 status=0
    (
        # shellcheck source=/dev/null
        . "$1"
        shift 2
        exec "$@"
    ) </dev/null >&2 || status=$?
    [ "$status" -ne 124 ] || echo "$late" >&2
    [ "$status" -eq 0 ] || exit "$status"
}
