"""The scripts of the mounts step: clients, mounting, the proof that checkpoints can be written, and unmounting."""

from __future__ import annotations

import shlex

from bootstrap.model import Paths
from bootstrap.mounts.facts import PROBE_S, SCRATCH_LABEL, WITHIN_FUNCTION
from bootstrap.mounts.model import Mount, MountKind
from bootstrap.templates import fill

# By kind: the file system's type, and options as its provider gives them (docs/nodes.md). All are hard: a soft mount
# answers a slow server's silence with an error, and a checkpoint with a hole in it.
OPTIONS: dict[MountKind, tuple[str, str]] = {
    "nfs": ("nfs4", "vers=4.1,hard,timeo=600,retrans=2,noresvport,nconnect=4"),
    "efs": ("nfs4", "nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport"),
    "azure-files": ("nfs4", "vers=4,minorversion=1,sec=sys,nconnect=4,noresvport,actimeo=30,hard,timeo=600"),
    "filestore": ("nfs", "hard,timeo=600,retrans=3,rsize=524288,wsize=524288,async"),
    "lustre": ("lustre", "relatime,flock"),
    "scratch": ("ext4", "noatime"),
}

FSX_RELEASES = {"22.04": "jammy", "24.04": "noble"}

_APT = r"""
set -eu
export DEBIAN_FRONTEND=noninteractive
apt() { apt-get -q -y -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "$@" >/dev/null; }
apt update
"""

_NFS_CLIENT = r"""
apt install --no-install-recommends nfs-common
"""

# A client is built for one kernel: docs.aws.amazon.com/fsx/latest/LustreGuide/install-lustre-client.html
_FSX_CLIENT = r"""
apt install --no-install-recommends ca-certificates curl
key=/usr/share/keyrings/fsx-ubuntu-public-key.asc
curl -fsS --retry 3 --max-time 60 -o "$key" \
    https://fsx-lustre-client-repo-public-keys.s3.amazonaws.com/fsx-ubuntu-public-key.asc
echo "deb [signed-by=$key] https://fsx-lustre-client-repo.s3.amazonaws.com/ubuntu @release@ main" \
    >/etc/apt/sources.list.d/fsxlustreclientrepo.list
apt update
apt install "lustre-client-modules-$(uname -r)"
modprobe lustre
"""

_MOUNTED_FUNCTION = r"""
mounted() { awk -v place="$1" '$2 == place { found = 1 } END { exit !found }' /proc/mounts; }
"""

# The lock: an earlier connection's command may still be at it, and one thing mounted twice is mounted over itself.
_BEGIN = (
    _MOUNTED_FUNCTION
    + WITHIN_FUNCTION
    + r"""
set -eu
place=@place@
exec 9>/run/spotsup-mount.lock
flock -w @limit_s@ 9 || { echo "something else has been mounting for @limit_s@ s" >&2; exit 1; }
! mounted "$place" || exit 0
mkdir -p "$place"
"""
)

_MOUNT = r"""
status=0
timeout -k 5 @limit_s@ mount -t @type@ -o @options@,@mode@ @source@ "$place" 9>&- || status=$?
if [ "$status" -eq 124 ] || [ "$status" -eq 137 ]; then
    echo "@source@ did not answer within @limit_s@ s: may this machine reach it (for NFS: TCP port 2049)?" >&2
    exit 1
elif [ "$status" -ne 0 ]; then
    echo "@source@ cannot be mounted at $place: mount ended with status $status" >&2
    exit 1
fi
within 30 stat -t "$place" || { echo "@source@ was mounted at $place, but does not answer" >&2; exit 1; }
"""

# A disk gets a file system only if nothing at all is on it. Without one, the boot disk has to do.
_SCRATCH = r"""
disk=@disk@ new=@new@
if [ -n "$disk" ]; then
    if [ "$new" = true ]; then
        found=$(wipefs -n -p "$disk" 2>&1 | grep -v '^#') || :
        [ -z "$found" ] || { echo "$disk is not empty, and stays as it is: $found" >&2; exit 1; }
        timeout -k 5 @limit_s@ mkfs.ext4 -q -m 0 -L @label@ "$disk"
    fi
    mount -t @type@ -o @options@ "$disk" "$place"
else
    base=/var/lib/spotsup
    ! mounted /opt/dlami/nvme || base=/opt/dlami/nvme
    mkdir -p "$base/scratch$place"
    mount --bind "$base/scratch$place" "$place"
fi
chown @user@: "$place"
"""

# As the user first: root is nobody on most NFS servers. As root where only root may write, on a fresh one for instance.
_OWN_FOLDER = r"""
set -eu
folder=@folder@ user=@user@
[ ! -d "$folder" ] || exit 0
if command -v runuser >/dev/null; then as="runuser -u $user --"; else as="sudo -n -u $user --"; fi
$as mkdir -p "$folder" 2>/dev/null && exit 0
mkdir -p "$folder"
chown "$user:" "$folder"
"""

# All that a checkpoint does: written, forced to the disk, renamed, read back.
_PROVE = (
    WITHIN_FUNCTION
    + r"""
set -u
folder=@folder@
file="$folder/.spotsup-proof-@node@"
status=0
within @limit_s@ sh -c '
    echo "$2" >"$1.new" && sync "$1.new" && mv "$1.new" "$1" && [ "$(cat "$1")" = "$2" ] && rm "$1"
' sh "$file" "@key@" || status=$?
if [ "$status" -eq 124 ]; then
    echo "writing a file to $folder did not end within @limit_s@ s: its server hangs" >&2
    exit 1
elif [ "$status" -ne 0 ]; then
    echo "a file cannot be written to $folder, renamed and read back; is it $(id -un)'s, and is there room?" >&2
    ls -ld "$folder" >&2
    df -hP "$folder" >&2
    exit 1
fi
"""
)

_NOTE = r"""
mkdir -p @own@
echo @key@ >@proof@.new
mv @proof@.new @proof@
"""

_WAIT = (
    WITHIN_FUNCTION
    + r"""
uptime() { read -r up _ </proc/uptime && echo "${up%.*}"; }
end=$(($(uptime) + @limit_s@))
while [ "$(uptime)" -lt "$end" ]; do
    ! within @probe_s@ stat -t @place@ || exit 0
    sleep 1
done
echo "@source@, mounted at @place@, has not answered for @limit_s@ s: its server is down, or no longer reached" >&2
exit 1
"""
)

# Lazily where it must be: the name is gone at once, the rest when the last file is closed, or with the machine.
_UNMOUNT = (
    _MOUNTED_FUNCTION
    + r"""
status=0
for place in @places@; do
    mounted "$place" || continue
    timeout -k 5 @limit_s@ umount "$place" && continue
    echo "$place is in use or its server hangs; it is unmounted lazily" >&2
    timeout -k 5 @limit_s@ umount -f -l "$place" || timeout -k 5 @limit_s@ umount -l "$place" || status=1
done
exit "$status"
"""
)


def install_nfs_client() -> str:
    """Debian's and Ubuntu's own. As root."""
    return _APT + _NFS_CLIENT


def install_fsx_client(release: str) -> str:
    """Amazon's Lustre client for this Ubuntu and the kernel that runs. As root."""
    return _APT + fill(_FSX_CLIENT, release=release)


def mount(wanted: Mount, limit_s: int) -> str:
    """Mount it, or say within `limit_s` why not. As root; where something is mounted already, nothing is done."""
    kind, options = OPTIONS[wanted.kind]
    return fill(
        _BEGIN + _MOUNT,
        place=wanted.mountpoint,
        source=wanted.source,
        type=kind,
        options=options,
        mode=wanted.mode,
        limit_s=str(limit_s),
    )


def scratch(wanted: Mount, disk: str, user: str, limit_s: int, *, new: bool) -> str:
    """Mount a local disk, formatted first if `new`; a folder of the boot disk where `disk` is "". As root."""
    kind, options = OPTIONS[wanted.kind]
    return fill(
        _BEGIN + _SCRATCH,
        place=wanted.mountpoint,
        disk=shlex.quote(disk),
        new=str(new).lower(),
        label=SCRATCH_LABEL,
        type=kind,
        options=options,
        user=shlex.quote(user),
        limit_s=str(limit_s),
    )


def own_folder(folder: str, user: str, *, needed: bool = True) -> str:
    """Make the folder, the user's. As root. Where it is not `needed`, it is no failure that it cannot be made."""
    script = fill(_OWN_FOLDER, folder=shlex.quote(folder), user=shlex.quote(user))
    return script if needed else f"({script}) || :\n"


def prove_folder(folder: str, paths: Paths, key: str, limit_s: int) -> str:
    """Write, force to disk, rename, read back a file in `folder`, in a process that is left behind when it hangs."""
    values = {"folder": shlex.quote(folder), "node": paths.node, "key": key, "limit_s": str(limit_s)}
    return fill(_PROVE, **values) + note(paths, key)


def note(paths: Paths, key: str) -> str:
    """Note what was mounted and proven."""
    return fill(_NOTE, own=shlex.quote(paths.own), proof=shlex.quote(paths.proof), key=key)


def wait_until_alive(wanted: Mount, limit_s: int) -> str:
    """Until what is mounted answers; on expiry whose server does not."""
    return fill(
        _WAIT,
        place=wanted.mountpoint,
        source=wanted.source or "scratch",
        probe_s=str(PROBE_S),
        limit_s=str(limit_s),
    )


def unmount(places: tuple[str, ...], limit_s: int) -> str:
    """Unmount these in their order, lazily where there is no other way. As root."""
    return fill(_UNMOUNT, places=" ".join(places), limit_s=str(limit_s))
