"""The scripts that start, stop and look at a node's agent. Each may be cut off and run again, as in scripts.py."""

from __future__ import annotations

import shlex

from bootstrap.agent.unit import UNIT_FOLDER, unit_name
from bootstrap.archive import Archive
from bootstrap.errors import STDERR_LINES
from bootstrap.facts import AGENT_FOLDER_VARIABLE, AGENT_KEY_VARIABLE
from bootstrap.model import Paths, shell_path
from bootstrap.scripts import folder_of, seconds
from bootstrap.templates import fill

KILL_WAIT_S = 5.0
BEGIN_WAIT_S = 15.0  # until a unit has written its pid
STOP_PREFIX = "spotsup-agent "

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
    # A container is a child of its runtime, and carries no mark of ours that we may read.
    [ ! -x @end@ ] || @end@
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

# What starts the agent, by systemd or without: it becomes the agent, so the pid stays. It logs to its own file, not to
# the journal: that is where `collect` looks on every machine.
_BECOME_AGENT = r"""
set -eu
own=@own@
mkdir -p @run@ @log@
. "$own/env.sh"
PATH=@bin@:$PATH
PYTHONPATH=@trainer@${PYTHONPATH:+:$PYTHONPATH}
export PATH PYTHONPATH @folder_variable@="$own" @key_variable@=@key@
@more@cd "$own"
echo "$$" >"$own/agent.pid.own" # another name than its starter's, who writes the same
mv "$own/agent.pid.own" "$own/agent.pid"
exec @python@ -m spotsup_trainer.agent --config "$own/agent.json" </dev/null >>"$own/agent.log" 2>&1
"""

# Who looks meanwhile must see that it is ours before it has become the interpreter: so the variables, and the pid.
_START = r"""
exec 9>"$own/lock"
flock -w @wait_s@ 9 || { echo "another bootstrap has held $own/lock for @wait_s@ s" >&2; exit 1; }
agent_pid
if runs "$pid"; then
    ! carries "$pid" @key_variable@=@key@ || exit 0
    echo "an agent with another configuration was started meanwhile, pid $pid" >&2
    exit 1
fi
kill_stragglers
export @folder_variable@="$own" @key_variable@=@key@
setsid /bin/sh "$own/agent.sh" </dev/null >>"$own/agent.log" 2>&1 9>&- &
pid=$!
echo "$pid" >"$own/agent.pid.new"
mv "$own/agent.pid.new" "$own/agent.pid"
for _ in 1 2 3; do
    sleep 0.1
    case $(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null) in
    '' | Z*)
        status=0
        wait "$pid" || status=$?
        tail -n @lines@ "$own/agent.log" >&2 2>/dev/null || :
        echo "the agent ended at once, with status $status" >&2
        exit 1
        ;;
    esac
done
"""

_START_UNIT = r"""
unit=@unit@
exec 9>"/run/$unit.lock"
flock -w @wait_s@ 9 || { echo "another bootstrap has held /run/$unit.lock for @wait_s@ s" >&2; exit 1; }
agent_pid
if runs "$pid"; then
    ! carries "$pid" @key_variable@=@key@ || exit 0
    echo "an agent with another configuration was started meanwhile, pid $pid" >&2
    exit 1
fi
kill_stragglers
mkdir -p @folder@
cp "$own/agent.service" "@folder@/$unit"
chmod 644 "@folder@/$unit"
systemctl daemon-reload
systemctl reset-failed "$unit" 2>/dev/null || :
systemctl start "$unit" 9>&- || :
looks=0
while [ "$looks" -lt @begin_tenths@ ]; do
    sleep 0.1
    looks=$((looks + 1))
    if ! systemctl -q is-active "$unit"; then
        tail -n @lines@ "$own/agent.log" >&2 2>/dev/null || :
        echo "the agent ended at once, with status $(systemctl show -p ExecMainStatus --value "$unit")" >&2
        exit 1
    fi
    agent_pid
    [ "$looks" -lt 3 ] || [ "$(systemctl show -p MainPID --value "$unit")" != "$pid" ] || exit 0
done
echo "$unit runs, but has not become the agent; see journalctl -u $unit" >&2
exit 1
"""

_COLLECT = r"""
for log in @logs@; do
    [ ! -e "$log" ] || tail -n @lines@ "$log"
done
"""


def stop_agent(paths: Paths, grace_s: float) -> str:
    """SIGTERM to the agent, SIGKILL after `grace_s` to it and all that descends from it. Prints the outcome."""
    return fill(
        _AGENT_FUNCTIONS + _STOP,
        **_agent_values(paths),
        grace_tenths=str(max(0, round(grace_s * 10))),
        prefix=STOP_PREFIX,
    )


def become_agent(paths: Paths, python: str, trainer: Archive, key: str, more: str = "") -> str:
    """What `Paths.agent_start` holds: it becomes the agent. `more`: lines for its environment."""
    return fill(
        _BECOME_AGENT,
        **_agent_values(paths),
        run=shlex.quote(paths.run),
        log=shlex.quote(paths.log),
        key=key,
        more=more,
        bin=shlex.quote(folder_of(python)),
        trainer=shlex.quote(paths.trainer(trainer)),
        python=shlex.quote(python),
    )


def start_agent(paths: Paths, key: str, wait_s: float) -> str:
    """Start the agent in a session of its own; it outlives the connection. Fails when it ends at once."""
    values = _agent_values(paths) | {"key": key, "wait_s": seconds(wait_s), "lines": str(STDERR_LINES)}
    return fill(_AGENT_FUNCTIONS + _START, **values)


def start_agent_unit(paths: Paths, key: str, wait_s: float) -> str:
    """Start the agent as a unit of systemd. As root. Fails when it ends at once."""
    values = _agent_values(paths) | {"key": key, "wait_s": seconds(wait_s), "lines": str(STDERR_LINES)}
    begin_tenths = str(round(BEGIN_WAIT_S * 10))
    return fill(
        _AGENT_FUNCTIONS + _START_UNIT,
        **values,
        unit=shlex.quote(unit_name(paths.node)),
        folder=UNIT_FOLDER,
        begin_tenths=begin_tenths,
    )


def collect(paths: Paths, lines: int) -> str:
    """Print the end of the agent's log and of its launcher's, nothing where there is none."""
    logs = f"{shell_path(paths.agent_log)} {shell_path(paths.launcher_log)}"
    return fill(_COLLECT, logs=logs, lines=str(lines))


def _agent_values(paths: Paths) -> dict[str, str]:
    return {
        "own": shell_path(paths.own),
        "end": shell_path(paths.end_container),
        "folder_variable": AGENT_FOLDER_VARIABLE,
        "key_variable": AGENT_KEY_VARIABLE,
        "kill_tenths": str(round(KILL_WAIT_S * 10)),
    }
