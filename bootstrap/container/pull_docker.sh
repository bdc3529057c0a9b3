# A login is kept for this pull alone, in a folder of its own; the password is on no command line.
set -eu
umask 077
# shellcheck source=/dev/null
. @env@
image=@image@ log=@log@ timeout_s=@timeout_s@
DOCKER_CONFIG=$(mktemp -d)
export DOCKER_CONFIG
trap 'rm -rf "$DOCKER_CONFIG"' EXIT
if [ -n "${SPOTSUP_REGISTRY_USER-}" ]; then
    printf %s "${SPOTSUP_REGISTRY_PASSWORD-}" |
        timeout -k 10 60 docker login --username "$SPOTSUP_REGISTRY_USER" --password-stdin @registry@ >/dev/null
fi
unset SPOTSUP_REGISTRY_USER SPOTSUP_REGISTRY_PASSWORD
status=0
timeout -k 10 "$timeout_s" docker pull --quiet "$image" </dev/null >"$log" 2>&1 || status=$?
. ./end_pull.sh
