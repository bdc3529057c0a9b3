# The environment that a process began with stays readable in /proc, and is empty for a zombie.
set -eu
own=@own@ end_container=@end_container@ kill_tenths=@kill_tenths@
agent_pid() {
    pid=$(cat "$own/agent.pid" 2>/dev/null) || pid=0
    case $pid in '' | *[!0-9]*) pid=0 ;; esac
}
carries() { { tr '\0' '\n' <"/proc/$1/environ" | grep -qxF "$2"; } 2>/dev/null; } # PID VARIABLE=VALUE
runs() { carries "$1" "SPOTSUP_AGENT_FOLDER=$own"; }                             # PID
stragglers() {
    grep -lzxF "SPOTSUP_AGENT_FOLDER=$own" /proc/[0-9]*/environ 2>/dev/null | sed 's|^/proc/||; s|/environ$||'
}
kill_stragglers() {
    # A container is a child of its runtime, and carries no mark of ours that we may read.
    [ ! -x "$end_container" ] || "$end_container"
    left=$kill_tenths
    while pids=$(stragglers) && [ -n "$pids" ]; do
        # shellcheck disable=SC2034 # for stop.sh
        outcome=killed
        # shellcheck disable=SC2086 # one word for each process
        [ "$left" -gt 0 ] || { echo "SIGKILL did not end" $pids >&2; exit 1; }
        # shellcheck disable=SC2086
        kill -KILL $pids 2>/dev/null || :
        sleep 0.1
        left=$((left - 1))
    done
}
