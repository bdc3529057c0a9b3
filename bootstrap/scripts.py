"""The scripts that steps run on a node: POSIX sh, with GNU coreutils and util-linux as every cloud image has them.

Each may be cut off anywhere and run again, also beside another copy of itself (a daemon that was replaced leaves its
commands running): what counts is made complete elsewhere and moved into place, or guarded by a lock.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from hashlib import sha256

from bootstrap.agent_unit import UNIT_FOLDER, unit_name
from bootstrap.errors import STDERR_LINES
from bootstrap.facts import AGENT_FOLDER_VARIABLE, AGENT_KEY_VARIABLE
from bootstrap.facts.system import BORN_FILE
from bootstrap.model import Archive, Lock, Paths, Setup, shell_path

KILL_WAIT_S = 5.0
BEGIN_WAIT_S = 15.0  # until a unit has written its pid
ROOT_GRACE_S = 20.0  # beyond the limit of a command that is run as root: until it is killed, and says so
STOP_PREFIX = "spotsup-agent "

_HOLE = re.compile(r"@(\w+)@")

# What was not all read when the connection broke has another sum, and goes.
_PUT = r"""
set -eu
umask 077
scratch=
trap '[ -z "$scratch" ] || rm -f "$scratch"' EXIT
put() { # PLACE MODE BYTES SHA256
    mkdir -p "${1%/*}"
    chmod 700 "${1%/*}"
    scratch=$1.@nonce@.part
    head -c "$3" >"$scratch"
    found=$(sha256sum <"$scratch")
    if [ "${found%% *}" != "$4" ]; then
        echo "the sha256 of $1 is ${found%% *} on the node, $4 here" >&2
        exit 1
    fi
    chmod "$2" "$scratch"
    mv -f "$scratch" "$1"
    scratch=
}
@puts@
"""

_UNPACK = r"""
set -eu
folder=@folder@
kind=$(dirname "$folder")
mkdir -p "$kind"
work=$(mktemp -d "$kind/.unpack.XXXXXX")
trap 'rm -rf "$work"' EXIT
cat >"$work/packed"
found=$(sha256sum <"$work/packed")
if [ "${found%% *}" != @sha256@ ]; then
    echo "its sha256 is ${found%% *} on the node, @sha256@ here" >&2
    exit 1
fi
mkdir "$work/whole"
tar -xzf "$work/packed" -C "$work/whole" --no-same-owner
chmod 755 "$work/whole"
mv -T "$work/whole" "$folder" || [ -d "$folder" ] # someone else was first
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

# An environment names its own place in its scripts, so it is built where it stays; what makes it complete is the link
# to it. Of a builder that died there is left what nothing links to: gone after a day, when somebody builds again.
_BUILD = r"""
set -eu
own=@own@ cache=@cache@ name=@name@ python=@python@ file=@file@
mkdir -p "$cache" "$own"
exec 9>"$cache/$name.lock"
flock -w @wait_s@ 9 || { echo "another node has been building this environment for @wait_s@ s" >&2; exit 1; }
[ ! -x "$cache/$name/bin/python" ] || exit 0
rm -f "$cache/$name"
find "$cache" -maxdepth 1 -name "$name-*" -mmin +1440 -exec rm -rf {} + 2>/dev/null || :
place=$(mktemp -d "$cache/$name-XXXXXX")
trap 'rm -rf "$place"' EXIT
chmod 755 "$place"
. "$own/env.sh"
export UV_CACHE_DIR="${UV_CACHE_DIR:-$cache/downloads/uv}" PIP_CACHE_DIR="${PIP_CACHE_DIR:-$cache/downloads/pip}"
cat >"$place/build.sh" <<'END'
set -eux
python=$1 venv=$2 file=$3
@build@
END
cd @code@
status=0
timeout -k 10 @timeout_s@ sh "$place/build.sh" "$python" "$place/venv" "$file" \
    </dev/null >"$own/environment.log" 2>&1 9>&- || status=$?
if [ "$status" -ne 0 ]; then
    tail -n @lines@ "$own/environment.log" >&2
    [ "$status" -ne 124 ] || echo "building the environment did not end within @timeout_s@ s" >&2
    exit "$status"
fi
cd /
@check@if ln -s "${place##*/}/venv" "$cache/$name" 2>/dev/null; then
    trap - EXIT
elif [ ! -x "$cache/$name/bin/python" ]; then # else: the lock broke, and someone else was first
    echo "the environment cannot be linked to $cache/$name" >&2
    exit 1
fi
"""

_CHECK_BUILT = r""""$place/venv/bin/python" -c 'import importlib.util, sys
if importlib.util.find_spec("torch") is None:
    sys.exit(sys.argv[1] + " does not bring torch: name it there")' "$file"
"""

_BUILDS = {
    ("requirements", True): r"""
uv venv --python "$python" "$venv"
uv pip install --python "$venv/bin/python" -r "$file"
""",
    ("requirements", False): r"""
"$python" -m venv "$venv"
"$venv/bin/python" -m pip install --no-input --disable-pip-version-check -r "$file"
""",
    ("uv", True): r"""
UV_PROJECT_ENVIRONMENT=$venv uv sync --frozen --no-dev --no-install-project --python "$python"
""",
}

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
    for end in "$own"/containers/*/end; do
        [ ! -x "$end" ] || "$end" # a container is a child of its runtime, and carries no mark of ours that we may read
    done
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

# Asked once more on the machine itself: whatever was planned, no other machine's system is changed.
_AS_ROOT = r"""
[ "$(head -n 1 @born@ 2>/dev/null)" = @node@ ] || {
    echo @born@" does not name "@node@": this machine was not made for it, and is left as it is" >&2
    exit 1
}
cd /
if [ "$(id -u)" = 0 ]; then set --; else set -- sudo -n; fi
status=0
"$@" timeout -k 10 @timeout_s@ /bin/sh -c @script@ </dev/null || status=$?
[ "$status" -ne 124 ] || echo "it did not end within @timeout_s@ s, and was ended" >&2
exit "$status"
"""

# Not waited for: the connection ends before systemctl does.
_REBOOT = r"""
if [ -d /run/systemd/system ]; then exec systemctl --no-block reboot; fi
(sleep 1; reboot || shutdown -r now) >/dev/null 2>&1 &
"""

_COLLECT = r"""
for log in @logs@; do
    [ ! -e "$log" ] || tail -n @lines@ "$log"
done
"""


def put(files: Sequence[tuple[str, int, bytes]], nonce: str) -> str:
    """Read these files, (place, mode, content) each, from stdin one after the other; each appears complete or not.

    `nonce`: nobody else's; what is half written is called by it.
    """
    puts = (f"put {shlex.quote(place)} {mode:o} {len(data)} {sha256(data).hexdigest()}" for place, mode, data in files)
    return fill(_PUT, nonce=nonce, puts="\n".join(puts))


def unpack(archive: Archive, folder: str) -> str:
    """Unpack the archive, which comes on stdin, into `folder`, which appears complete or not at all."""
    return fill(_UNPACK, folder=shlex.quote(folder), sha256=archive.sha256)


def prepare(line: str, paths: Paths, code: Archive, python: str, marker: str, timeout_s: float, wait_s: float) -> str:
    """Run the user's line by bash in the code's folder, once; `python`'s own folder comes first on PATH.

    Ends with the line's status, the last of what it printed on stderr.
    """
    return fill(
        _PREPARE,
        own=shlex.quote(paths.own),
        prepared=shlex.quote(paths.prepared),
        marker=marker,
        wait_s=seconds(wait_s),
        bin=shlex.quote(folder_of(python)),
        code=shlex.quote(paths.code(code)),
        timeout_s=seconds(timeout_s),
        line=shlex.quote(line),
        lines=str(STDERR_LINES),
    )


def build_environment(lock: Lock, name: str, cache: str, uv: str, python: str, paths: Paths, setup: Setup) -> str:
    """Build what `lock` says into `cache`, where it appears as `name`, complete or not at all; once, whoever asks.

    `uv`: as `facts.Environments` has it; without, pip builds from requirements. Ends with the builder's status.
    """
    timeout_s = setup.setup_timeout_s
    call = '"$python" -m uv' if uv == "module" else shlex.quote(uv)
    function = f'uv() {{ {call} "$@"; }}\n' if uv else ""
    return fill(
        _BUILD,
        own=shlex.quote(paths.own),
        cache=shlex.quote(cache),
        name=name,
        python=shlex.quote(python),
        file=shlex.quote(lock.file),
        build=function + _BUILDS[lock.kind, bool(uv)].strip(),
        check=_CHECK_BUILT if setup.torch else "",
        code=shlex.quote(paths.code(setup.code)),
        wait_s=seconds(timeout_s),
        timeout_s=seconds(timeout_s),
        lines=str(STDERR_LINES),
    )


def check_torch(python: str) -> str:
    """Fails unless `python` can find torch. Does not import it: that takes seconds."""
    return fill(_CHECK_TORCH, python=shlex.quote(python))


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


def as_root(script: str, node: str, timeout_s: float) -> str:
    """Run `script` as root for `timeout_s` at most, on the machine that was made for `node`; fails on any other."""
    return fill(
        _AS_ROOT,
        born=shlex.quote(BORN_FILE),
        node=shlex.quote(node),
        timeout_s=seconds(timeout_s),
        script=shlex.quote(script),
    )


def reboot() -> str:
    """Start the machine anew; ends before it does."""
    return _REBOOT


def collect(paths: Paths, lines: int) -> str:
    """Print the end of the agent's log and of its launcher's, nothing where there is none."""
    logs = f"{shell_path(paths.agent_log)} {shell_path(paths.launcher_log)}"
    return fill(_COLLECT, logs=logs, lines=str(lines))


def _agent_values(paths: Paths) -> dict[str, str]:
    return {
        "own": shell_path(paths.own),
        "folder_variable": AGENT_FOLDER_VARIABLE,
        "key_variable": AGENT_KEY_VARIABLE,
        "kill_tenths": str(round(KILL_WAIT_S * 10)),
    }


def folder_of(python: str) -> str:
    """What goes on PATH for it."""
    return python.rpartition("/")[0] or "/"


def seconds(value: float) -> str:
    """As `timeout` and `sleep` take it."""
    return f"{value:.15g}"


def fill(script: str, /, **values: str) -> str:
    """`script` with each `@name@` replaced; every value is one word of sh already."""
    return _HOLE.sub(lambda found: values[found[1]], script)
