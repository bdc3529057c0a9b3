# One mount at a time: an earlier connection's command may still run, and what is mounted twice is mounted over itself.
# Ends here, with status 0, when something is mounted at the place.
. ./mounted.sh
set -eu
place=@place@ limit_s=@limit_s@
exec 9>/run/spotsup-mount.lock
flock -w "$limit_s" 9 || { echo "something else has been mounting for $limit_s s" >&2; exit 1; }
! mounted "$place" || exit 0
mkdir -p "$place"
