# Builds an environment in the cache. An environment names its own place in its scripts, so it is built where it stays,
# and is complete when it is linked to. What a builder that died has left is linked from nowhere, and is removed by a
# later build when it is a day old.
. ./torch.sh
set -eu
own=@own@ cache=@cache@ name=@name@ python=@python@ file=@file@ torch=@torch@ uv=@uv@ managed=@managed@
wait_s=@wait_s@ timeout_s=@timeout_s@
mkdir -p "$cache" "$own"
exec 9>"$cache/$name.lock"
flock -w "$wait_s" 9 || { echo "another node has been building this environment for $wait_s s" >&2; exit 1; }
[ ! -x "$cache/$name/bin/python" ] || exit 0
rm -f "$cache/$name"
find "$cache" -maxdepth 1 -name "$name-*" -mmin +1440 -exec rm -rf {} + 2>/dev/null || :
place=$(mktemp -d "$cache/$name-XXXXXX")
trap 'rm -rf "$place"' EXIT
chmod 755 "$place"
# uv looks for the library beside the path that it is given, and a link may lie in another prefix.
[ "$managed" = true ] || python=$(readlink -f "$python")
cd @code@
status=0
(
    set -- "$cache/downloads" timeout -k 10 "$timeout_s" sh -c @build@ build "$python" "$place/venv" "$file" "$uv"
    # shellcheck source=/dev/null
    . "$own/env.sh"
    export UV_CACHE_DIR="${UV_CACHE_DIR:-$1/uv}" PIP_CACHE_DIR="${PIP_CACHE_DIR:-$1/pip}"
    if [ "$managed" = true ]; then # in the cache, where all nodes find it that find the environment
        export UV_MANAGED_PYTHON=1 UV_PYTHON_INSTALL_DIR="$cache/python"
    else
        export UV_PYTHON_DOWNLOADS=never
    fi
    shift
    exec "$@"
) </dev/null >"$own/environment.log" 2>&1 9>&- || status=$?
if [ "$status" -ne 0 ]; then
    tail -n @lines@ "$own/environment.log" >&2
    [ "$status" -ne 124 ] || echo "building the environment did not end within $timeout_s s" >&2
    exit "$status"
fi
cd /
if [ "$torch" = true ]; then
    "$place/venv/bin/python" -c "$torch_check" "$file does not bring torch: name it there"
fi
if ln -s "${place##*/}/venv" "$cache/$name" 2>/dev/null; then
    trap - EXIT
elif [ ! -x "$cache/$name/bin/python" ]; then # else: the lock broke, and another node was faster
    echo "the environment cannot be linked to $cache/$name" >&2
    exit 1
fi
