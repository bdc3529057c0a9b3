# The image's python3, called like an interpreter of this machine. Only the variables of spotsup, of the job and of its
# network go in, and by their names, so that no value is on a command line: PATH and the like are the image's own. What
# is started ends with its caller: container_init.py. Our own variables begin with `_`: any other may be the job's.
set -eu
_own=@own@ _init=@container_init@
mkdir -p "$_own/home" @folders@
_names=$(awk 'BEGIN { for (name in ENVIRON) print name }' | grep -xE @names@ |
    grep -vxE 'SPOTSUP_REGISTRY_USER|SPOTSUP_REGISTRY_PASSWORD' || :)
if [ -n "${SPOTSUP_CONTAINER-}" ]; then
    set -- -I "$_init" python3 "$@"
else
    set -- -I "$_init" --unattended python3 "$@"
fi
