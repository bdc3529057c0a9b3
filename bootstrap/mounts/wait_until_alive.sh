. ../shell/within.sh
source=@source@ place=@place@ probe_s=@probe_s@ limit_s=@limit_s@
uptime() { read -r up _ </proc/uptime && echo "${up%.*}"; }
end=$(($(uptime) + limit_s))
while [ "$(uptime)" -lt "$end" ]; do
    ! within "$probe_s" stat -t "$place" || exit 0
    sleep 1
done
echo "$source, mounted at $place, has not answered for $limit_s s: its server is down or cannot be reached" >&2
exit 1
