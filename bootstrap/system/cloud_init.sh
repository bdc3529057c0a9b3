# cloud-init removes its result at the beginning of each boot, and writes it when its last stage has ended.
cloud_init() {
    if [ -e /run/cloud-init/result.json ]; then
        echo 'done'
    elif ! command -v cloud-init >/dev/null 2>&1; then
        echo absent
    elif [ -e /etc/cloud/cloud-init.disabled ] || [ -e /run/cloud-init/disabled ]; then
        echo disabled
    else
        echo running
    fi
}
