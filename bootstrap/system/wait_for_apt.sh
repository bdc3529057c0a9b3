. ./locks.sh
limit_s=@limit_s@
left=$limit_s
while held=$(locks) && [ -n "$held" ]; do
    if [ "$left" -le 0 ]; then
        echo "apt or dpkg is still at work after $limit_s s: $held" >&2
        exit 1
    fi
    sleep 1
    left=$((left - 1))
done
