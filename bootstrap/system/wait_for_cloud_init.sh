. ./cloud_init.sh
limit_s=@limit_s@
left=$limit_s
while [ "$(cloud_init)" = running ]; do
    if [ "$left" -le 0 ]; then
        tail -n @lines@ /var/log/cloud-init-output.log >&2 2>/dev/null
        stage=$(sed -n 's/^ *"stage": *\(.*[^,]\),*$/\1/p' /run/cloud-init/status.json 2>/dev/null)
        echo "cloud-init has not ended after $limit_s s; its stage is ${stage:-unknown}" >&2
        exit 1
    fi
    sleep 1
    left=$((left - 1))
done
