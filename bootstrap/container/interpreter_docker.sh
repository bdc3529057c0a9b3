#!/bin/sh
. ./interpreter.sh
_answer_s=@answer_s@
_exists() { # whether the container of an earlier launcher is still there
    _status=0
    timeout -k 1 "$_answer_s" docker container inspect "$SPOTSUP_CONTAINER" </dev/null >/dev/null 2>&1 || _status=$?
    case $_status in 124 | 137) echo "Docker has not answered for $_answer_s s" >&2 && exit 1 ;; esac
    return "$_status"
}
set -- @image@ "$@"
for _name in $_names; do set -- --env "$_name" "$@"; done
[ ! -e /dev/infiniband ] || set -- --device /dev/infiniband "$@"
if [ -n "${SPOTSUP_CONTAINER-}" ]; then
    _looks=0
    while _exists; do
        [ "$_looks" -lt 100 ] || { echo "Docker does not remove the container $SPOTSUP_CONTAINER" >&2; exit 1; }
        timeout -k 1 "$_answer_s" docker rm -f "$SPOTSUP_CONTAINER" </dev/null >/dev/null 2>&1 || :
        sleep 0.1
        _looks=$((_looks + 1))
    done
    set -- --name "$SPOTSUP_CONTAINER" --interactive "$@"
fi
_shm_kib=$(($(sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo) / 2))
# shellcheck disable=SC3045 # every sh of Linux has hard limits
_files=$(ulimit -Hn)
# shellcheck disable=SC3045
_locked=$(ulimit -Hl) # RDMA pins memory: the agent's unit has no limit
case $_locked in unlimited) _locked=-1 ;; *) _locked=$((_locked * 1024)) ;; esac
exec docker run --rm --pull never --network host --shm-size "${_shm_kib}k" --pids-limit -1 \
    --ulimit "memlock=$_locked:$_locked" --ulimit "nofile=$_files:$_files" --user "$(id -u):$(id -g)" \
    --env HOME="$_own/home" --env USER="$(id -un)" --env LOGNAME="$(id -un)" --workdir "$PWD" \
    @options@ --entrypoint python3 "$@"
