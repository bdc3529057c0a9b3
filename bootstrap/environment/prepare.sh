# Runs the user's `setup` line in the folder of the code, once. The job's variables are set for that line alone.
set -eu
own=@own@ prepared=@prepared@ marker=@marker@ bin=@bin@ line=@line@
wait_s=@wait_s@ timeout_s=@timeout_s@
mkdir -p "$prepared"
exec 9>"$prepared/$marker.lock"
flock -w "$wait_s" 9 || { echo "the same setup still runs from an earlier connection, after $wait_s s" >&2; exit 1; }
[ ! -e "$prepared/$marker" ] || exit 0
cd @code@
status=0
(
    set -- "$bin" timeout -k 10 "$timeout_s" bash -e -o pipefail -c "$line"
    # shellcheck source=/dev/null
    . "$own/env.sh"
    PATH=$1:$PATH
    export PATH
    shift
    exec "$@"
) </dev/null >"$own/setup.log" 2>&1 9>&- || status=$?
if [ "$status" -ne 0 ]; then
    tail -n @lines@ "$own/setup.log" >&2
    [ "$status" -ne 124 ] || echo "setup did not end within $timeout_s s" >&2
    exit "$status"
fi
: >"$prepared/$marker"
