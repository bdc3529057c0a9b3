"""What is mounted where the job wants its file systems, and whether it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bootstrap.model import Paths, Setup, shell_path
from bootstrap.templates import fill

PROBE_S = 5


@dataclass(frozen=True, slots=True)
class MountFact:
    """What is mounted at one of the wanted places. `type`: as the kernel calls it. `alive`: it answered the probe."""

    source: str
    type: str
    mode: str
    alive: bool


@dataclass(frozen=True, slots=True)
class Mounts:
    """Of the wanted file systems. Nothing is looked for where none is wanted.

    `found`: what is mounted, by mountpoint. `nfs`, `lustre`: whether the client is installed. `disks`: local disks of
    the machine's own, with nothing on them; `scratch_disks`: those that carry the scratch file system of ours already.
    `proof`: what `steps.mounts` noted when it had written a checkpoint's folder.
    """

    found: tuple[tuple[str, MountFact], ...] = ()
    nfs: bool = False
    lustre: bool = False
    disks: tuple[str, ...] = ()
    scratch_disks: tuple[str, ...] = ()
    proof: str = ""

    def at(self, mountpoint: str) -> MountFact | None:
        """What is mounted there."""
        return dict(self.found).get(mountpoint)


# A process that waits for a dead server may not even be killed: it is left behind, and nobody waits for it. What can be
# killed is, with all that it started: it has a session of its own.
WITHIN_FUNCTION = r"""
within() { # SECONDS COMMAND...: its status, or 124 when it has not ended by then
    left=$(($1 * 10))
    shift
    setsid "$@" </dev/null >/dev/null 2>&1 &
    child=$!
    while case $(sed 's/.*) //' "/proc/$child/stat" 2>/dev/null) in '' | Z*) false ;; esac; do
        if [ "$left" -le 0 ]; then
            kill -s KILL -- "-$child" 2>/dev/null
            return 124
        fi
        sleep 0.1
        left=$((left - 1))
    done
    wait "$child"
}
"""

SCRATCH_LABEL = "spotsup-scratch"

# What the clouds call disks that end with the machine: EC2's instance store, Azure's NVMe and Compute Engine's local
# SSD (its disks that last say nvme_card-pd).
_SCRIPT = (
    WITHIN_FUNCTION
    + r"""
json() { printf '"%s"' "$(printf %s "$1" | sed 's/[\\"]/\\&/g')"; }
jsons() {
    between=
    for word; do
        printf '%s"%s"' "$between" "$word"
        between=,
    done
}
installed() { command -v "$1" >/dev/null 2>&1 || [ -x "/sbin/$1" ] || [ -x "/usr/sbin/$1" ]; }
disks() {
    for disk in $(lsblk -dnpo NAME 2>/dev/null); do
        case $(lsblk -dno MODEL "$disk") in
        *'Instance Storage'* | *'NVMe Direct Disk'* | nvme_card | 'nvme_card ' | EphemeralDisk*) ;;
        *) continue ;;
        esac
        # One line: no partitions, nothing built upon it. No mount point: nobody uses it.
        [ "$(lsblk -nro NAME "$disk" | wc -l)" -eq 1 ] && [ -z "$(lsblk -dnro MOUNTPOINT "$disk")" ] || continue
        echo "$disk $(lsblk -dnro FSTYPE "$disk"):$(lsblk -dnro LABEL "$disk")"
    done
}
cd /
printf '{"found":['
between=
for place in @places@; do
    # The last line counts: what is mounted on top.
    line=$(awk -v place="$place" '$2 == place { last = $1 " " $3 " " $4 } END { print last }' /proc/mounts)
    [ -n "$line" ] || continue
    read -r source type options <<END
$line
END
    case ,$options, in *,ro,*) mode=ro ;; *) mode=rw ;; esac
    alive=false
    if within @probe_s@ stat -t "$place"; then alive=true; fi
    printf '%s["%s",%s,"%s","%s",%s]' "$between" "$place" "$(json "$source")" "$type" "$mode" "$alive"
    between=,
done
nfs=false lustre=false
if installed mount.nfs; then nfs=true; fi
if installed mount.lustre; then lustre=true; fi
all=$(disks)
printf '],"nfs":%s,"lustre":%s,"disks":[%s],"scratch_disks":[%s],"proof":%s}\n' "$nfs" "$lustre" \
    "$(jsons $(echo "$all" | sed -n 's/ :$//p'))" "$(jsons $(echo "$all" | sed -n 's/ ext4:@label@$//p'))" \
    "$(json "$(head -n 1 @proof@ 2>/dev/null)")"
"""
)


def mounts_script(setup: Setup) -> str:
    """Prints one JSON object; an empty one where nothing is to be mounted."""
    if not setup.mounts:
        return "echo '{}'\n"
    values = {
        "places": " ".join(mount.mountpoint for mount in setup.mounts),
        "probe_s": str(PROBE_S),
        "label": SCRATCH_LABEL,
        "proof": shell_path(Paths(setup.root, setup.node).proof),
    }
    return fill(_SCRIPT, **values)


def mounts_facts(value: Any) -> dict[str, Any]:
    """The field of Facts that this section knows. Raises ValueError, KeyError, TypeError."""
    found = tuple(
        (str(place), MountFact(str(source), str(kind), str(mode), bool(alive)))
        for place, source, kind, mode, alive in value.get("found", ())
    )
    disks = {name: tuple(map(str, value.get(name, ()))) for name in ("disks", "scratch_disks")}
    return {"mounts": Mounts(**(value | {"found": found} | disks))}
