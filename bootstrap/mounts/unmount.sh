# Lazily where it must be: the name is gone at once, the rest when the last file is closed, or with the machine.
. ./mounted.sh
limit_s=@limit_s@
status=0
set -- @places@
for place; do
    mounted "$place" || continue
    timeout -k 5 "$limit_s" umount "$place" && continue
    echo "$place is in use or its server hangs; it is unmounted lazily" >&2
    timeout -k 5 "$limit_s" umount -f -l "$place" || timeout -k 5 "$limit_s" umount -l "$place" || status=1
done
exit "$status"
