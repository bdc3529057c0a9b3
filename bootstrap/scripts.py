"""The scripts that steps run on a node: POSIX sh, with GNU coreutils and util-linux as every cloud image has them.

Each may be cut off anywhere and run again, also beside another copy of itself (a daemon that was replaced leaves its
commands running): what counts is made complete elsewhere and moved into place, or guarded by a lock.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from hashlib import sha256

from bootstrap.archive import Archive
from bootstrap.environment.lock import Lock
from bootstrap.errors import STDERR_LINES
from bootstrap.model import Paths, Setup
from bootstrap.system.facts import BORN_FILE
from bootstrap.templates import fill

ROOT_GRACE_S = 20.0  # beyond the limit of a command that is run as root: until it is killed, and says so

# Whoever else uses apt is waited for; the kernel stays as it is, for the modules are for the one that runs.
APT = """
set -eu
export DEBIAN_FRONTEND=noninteractive
apt_get() { apt-get -q -y -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "$@" >/dev/null; }
"""

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


def folder_of(python: str) -> str:
    """What goes on PATH for it."""
    return python.rpartition("/")[0] or "/"


def seconds(value: float) -> str:
    """As `timeout` and `sleep` take it."""
    return f"{value:.15g}"
