. ../shell/json.sh
. ../shell/within.sh
probe_s=@probe_s@ label=@label@ proof=@proof@
installed() { command -v "$1" >/dev/null 2>&1 || [ -x "/sbin/$1" ] || [ -x "/usr/sbin/$1" ]; }
# What the clouds call disks that end with the machine: EC2's instance store, Azure's NVMe and Compute Engine's local SSD
# (its disks that last say nvme_card-pd).
disks() {
    for disk in $(lsblk -dnpo NAME 2>/dev/null); do
        case $(lsblk -dno MODEL "$disk") in
        *'Instance Storage'* | *'NVMe Direct Disk'* | nvme_card | 'nvme_card ' | EphemeralDisk*) ;;
        *) continue ;;
        esac
        # One line: no partitions, nothing built upon it. No mount point: not in use.
        [ "$(lsblk -nro NAME "$disk" | wc -l)" -eq 1 ] && [ -z "$(lsblk -dnro MOUNTPOINT "$disk")" ] || continue
        echo "$disk $(lsblk -dnro FSTYPE "$disk"):$(lsblk -dnro LABEL "$disk")"
    done
}
cd /
printf '{"found":['
between=
set -- @places@
for place; do
    # The last line counts: what is mounted on top.
    line=$(awk -v place="$place" '$2 == place { last = $1 " " $3 " " $4 } END { print last }' /proc/mounts)
    [ -n "$line" ] || continue
    read -r source type options <<END
$line
END
    case ,$options, in *,ro,*) mode=ro ;; *) mode=rw ;; esac
    alive=false
    if within "$probe_s" stat -t "$place"; then alive=true; fi
    printf '%s["%s",%s,"%s","%s",%s]' "$between" "$place" "$(text "$source")" "$type" "$mode" "$alive"
    between=,
done
nfs=false lustre=false
if installed mount.nfs; then nfs=true; fi
if installed mount.lustre; then lustre=true; fi
all=$(disks)
printf '],"nfs":%s,"lustre":%s,"disks":[%s],"scratch_disks":[%s],"proof":%s}\n' "$nfs" "$lustre" \
    "$(echo "$all" | sed -n 's/ :$//p' | texts)" "$(echo "$all" | sed -n "s/ ext4:$label\$//p" | texts)" \
    "$(text "$(head -n 1 "$proof" 2>/dev/null)")"
