"""The scripts that steps run on a node: POSIX sh, with GNU coreutils and util-linux as every cloud image has them.

Each may be cut off anywhere and run again, also beside another copy of itself (a daemon that was replaced leaves its
commands running): what counts is made complete elsewhere and moved into place, or guarded by a lock.
"""

from __future__ import annotations

import re
import shlex

from bootstrap.errors import STDERR_LINES
from bootstrap.facts import AGENT_FOLDER_VARIABLE, AGENT_KEY_VARIABLE
from bootstrap.model import Archive, Paths, shell_path

KILL_WAIT_S = 5.0
STOP_PREFIX = "spotsup-agent "

_HOLE = re.compile(r"@(\w+)@")

_UNPACK = r"""
set -eu
packed=@packed@ folder=@folder@
kind=$(dirname "$folder")
mkdir -p "$kind"
work=$(mktemp -d "$kind/.unpack.XXXXXX")
trap 'rm -rf "$work"' EXIT
tar -xzf "$packed" -C "$work" --no-same-owner
chmod 755 "$work"
mv -T "$work" "$folder" || [ -d "$folder" ] # someone else was first
rm -f "$packed"
"""

_PREPARE = r"""
set -eu
own=@own@ prepared=@prepared@ marker=@marker@
mkdir -p "$prepared"
exec 9>"$prepared/$marker.lock"
flock -w @wait_s@ 9 || { echo "the same setup still runs from an earlier connection, after @wait_s@ s" >&2; exit 1; }
[ ! -e "$prepared/$marker" ] || exit 0
. "$own/env.sh"
PATH=@bin@:$PATH
export PATH
cd @code@
status=0
timeout -k 10 @timeout_s@ bash -e -o pipefail -c @line@ </dev/null >"$own/setup.log" 2>&1 9>&- || status=$?
if [ "$status" -ne 0 ]; then
    tail -n @lines@ "$own/setup.log" >&2
    [ "$status" -ne 124 ] || echo "setup did not end within @timeout_s@ s" >&2
    exit "$status"
fi
: >"$prepared/$marker"
"""

_CHECK_TORCH = r"""
cd /
exec @python@ -c 'import importlib.util, sys
if importlib.util.find_spec("torch") is None:
    sys.exit(f"{sys.executable} cannot import torch, not even after `setup`")'
"""

# The environment at a process's start stays readable in /proc, and is empty for a zombie.
_AGENT_FUNCTIONS = r"""
set -eu
own=@own@
agent_pid() {
    pid=$(cat "$own/agent.pid" 2>/dev/null) || pid=0
    case $pid in '' | *[!0-9]*) pid=0 ;; esac
}
carries() { { tr '\0' '\n' <"/proc/$1/environ" | grep -qxF "$2"; } 2>/dev/null; }
runs() { carries "$1" "@folder_variable@=$own"; }
stragglers() {
    grep -lzxF "@folder_variable@=$own" /proc/[0-9]*/environ 2>/dev/null | sed 's|^/proc/||; s|/environ$||'
}
kill_stragglers() {
    left=@kill_tenths@
    while pids=$(stragglers) && [ -n "$pids" ]; do
        outcome=killed
        [ "$left" -gt 0 ] || { echo "SIGKILL did not end" $pids >&2; exit 1; }
        kill -KILL $pids 2>/dev/null || :
        sleep 0.1
        left=$((left - 1))
    done
}
"""

_STOP = r"""
agent_pid
outcome=absent
if runs "$pid"; then
    outcome=stopped
    kill -TERM "$pid" || :
    left=@grace_tenths@
    while [ "$left" -gt 0 ] && runs "$pid"; do
        sleep 0.1
        left=$((left - 1))
    done
fi
kill_stragglers
rm -f "$own/agent.pid"
printf '\n@prefix@%s\n' "$outcome"
"""

# The child has its new environment only once it has become the interpreter, so the last loop asks for its state.
_START = r"""
mkdir -p @run@ @log@
exec 9>"$own/lock"
flock -w @wait_s@ 9 || { echo "another bootstrap has held $own/lock for @wait_s@ s" >&2; exit 1; }
agent_pid
if runs "$pid"; then
    ! carries "$pid" @key_variable@=@key@ || exit 0
    echo "an agent with another configuration was started meanwhile, pid $pid" >&2
    exit 1
fi
kill_stragglers
. "$own/env.sh"
PATH=@bin@:$PATH
PYTHONPATH=@trainer@${PYTHONPATH:+:$PYTHONPATH}
export PATH PYTHONPATH @folder_variable@="$own" @key_variable@=@key@
cd "$own"
setsid @python@ -m spotsup_trainer.agent --config "$own/agent.json" </dev/null >>"$own/agent.log" 2>&1 9>&- &
pid=$!
echo "$pid" >"$own/agent.pid.new"
mv "$own/agent.pid.new" "$own/agent.pid"
for _ in 1 2 3; do
    sleep 0.1
    case $(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null) in
    '' | Z*)
        status=0
        wait "$pid" || status=$?
        tail -n @lines@ "$own/agent.log" >&2
        echo "the agent ended at once, with status $status" >&2
        exit 1
        ;;
    esac
done
"""

_COLLECT = r"""
[ ! -e @log@ ] || exec tail -n @lines@ @log@
"""


def unpack(packed: str, folder: str) -> str:
    """Unpack the tar.gz at `packed` into `folder`, which appears complete or not at all; then remove `packed`."""
    return _fill(_UNPACK, packed=shlex.quote(packed), folder=shlex.quote(folder))


def prepare(line: str, paths: Paths, code: Archive, python: str, marker: str, timeout_s: float, wait_s: float) -> str:
    """Run the user's line by bash in the code's folder, once; `python`'s own folder comes first on PATH.

    Ends with the line's status, the last of what it printed on stderr.
    """
    return _fill(
        _PREPARE,
        own=shlex.quote(paths.own),
        prepared=shlex.quote(paths.prepared),
        marker=marker,
        wait_s=_seconds(wait_s),
        bin=shlex.quote(_folder_of(python)),
        code=shlex.quote(paths.code(code)),
        timeout_s=_seconds(timeout_s),
        line=shlex.quote(line),
        lines=str(STDERR_LINES),
    )


def check_torch(python: str) -> str:
    """Fails unless `python` can find torch. Does not import it: that takes seconds."""
    return _fill(_CHECK_TORCH, python=shlex.quote(python))


def stop_agent(paths: Paths, grace_s: float) -> str:
    """SIGTERM to the agent, SIGKILL after `grace_s` to it and all that descends from it. Prints the outcome."""
    return _fill(
        _AGENT_FUNCTIONS + _STOP,
        **_agent_values(paths),
        grace_tenths=str(max(0, round(grace_s * 10))),
        prefix=STOP_PREFIX,
    )


def start_agent(paths: Paths, python: str, trainer: Archive, key: str, wait_s: float) -> str:
    """Start the agent in a session of its own; it outlives the connection. Fails when it ends at once."""
    return _fill(
        _AGENT_FUNCTIONS + _START,
        **_agent_values(paths),
        run=shlex.quote(paths.run),
        log=shlex.quote(paths.log),
        wait_s=_seconds(wait_s),
        key=key,
        bin=shlex.quote(_folder_of(python)),
        trainer=shlex.quote(paths.trainer(trainer)),
        python=shlex.quote(python),
        lines=str(STDERR_LINES),
    )


def collect(paths: Paths, lines: int) -> str:
    """Print the end of the agent's log, nothing where there is none."""
    return _fill(_COLLECT, log=shell_path(paths.agent_log), lines=str(lines))


def _agent_values(paths: Paths) -> dict[str, str]:
    return {
        "own": shell_path(paths.own),
        "folder_variable": AGENT_FOLDER_VARIABLE,
        "key_variable": AGENT_KEY_VARIABLE,
        "kill_tenths": str(round(KILL_WAIT_S * 10)),
    }


def _folder_of(python: str) -> str:
    return python.rpartition("/")[0] or "/"


def _seconds(value: float) -> str:
    return f"{value:.15g}"


def _fill(script: str, **values: str) -> str:
    """`script` with each `@name@` replaced; every value is one word of sh already."""
    return _HOLE.sub(lambda found: values[found[1]], script)
