. ./begin.sh
. ../shell/within.sh
source=@source@ type=@type@ options=@options@
status=0
timeout -k 5 "$limit_s" mount -t "$type" -o "$options" "$source" "$place" 9>&- || status=$?
if [ "$status" -eq 124 ] || [ "$status" -eq 137 ]; then
    echo "$source did not answer within $limit_s s: may this machine reach it (for NFS: TCP port 2049)?" >&2
    exit 1
elif [ "$status" -ne 0 ]; then
    echo "$source cannot be mounted at $place: mount ended with status $status" >&2
    exit 1
fi
within 30 stat -t "$place" || { echo "$source was mounted at $place, but does not answer" >&2; exit 1; }
