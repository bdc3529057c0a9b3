# Puts the image as a file into the cache, complete or not at all, and once for all nodes that share the cache.
set -eu
# shellcheck source=/dev/null
. @env@
image=@image@ sif=@sif@ log=@log@ timeout_s=@timeout_s@
mkdir -p "${sif%/*}"
exec 9>"$sif.lock"
flock -w "$timeout_s" 9 || { echo "another node has been pulling this image for $timeout_s s" >&2; exit 1; }
[ ! -e "$sif" ] || exit 0
# Left by a pull that was killed.
find "${sif%/*}" -maxdepth 1 -name "${sif##*/}.??????" -mmin +1440 -exec rm -rf {} + 2>/dev/null || :
work=$(mktemp -d "$sif.XXXXXX")
trap 'rm -rf "$work"' EXIT
if [ -n "${SPOTSUP_REGISTRY_USER-}" ]; then
    export APPTAINER_DOCKER_USERNAME="$SPOTSUP_REGISTRY_USER"
    export APPTAINER_DOCKER_PASSWORD="${SPOTSUP_REGISTRY_PASSWORD-}"
fi
unset SPOTSUP_REGISTRY_USER SPOTSUP_REGISTRY_PASSWORD
export APPTAINER_TMPDIR="$work" APPTAINER_CACHEDIR="$work/cache"
status=0
timeout -k 10 "$timeout_s" @apptainer@ pull "$work/image.sif" "docker://$image" \
    </dev/null >"$log" 2>&1 9>&- || status=$?
. ./end_pull.sh
mv -T "$work/image.sif" "$sif"
