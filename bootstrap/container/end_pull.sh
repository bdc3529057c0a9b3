# shellcheck disable=SC2154 # status, log, image and timeout_s are those of the script that includes this
if [ "$status" -ne 0 ]; then
    tail -n @lines@ "$log" >&2
    [ "$status" -ne 124 ] || echo "pulling $image did not end within $timeout_s s" >&2
    exit "$status"
fi
