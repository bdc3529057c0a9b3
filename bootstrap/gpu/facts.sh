# A process that a hung driver holds in the kernel cannot be killed: it is left behind, and is not waited for.
. ../shell/json.sh
sys=@sys@ proc=@proc@ own=@own@ born=@born@ node=@node@ installed=@installed@ checked=@checked@
limit_s=@limit_s@ patience_s=@patience_s@ query=@query@
ours() { [ "$(head -n 1 "$born")" = "$node" ]; } 2>/dev/null
as_root() { ours && timeout -k 1 10 sudo -n "$@"; }
work='' try=0
limited() { # SECONDS COMMAND...: whether it ended; output and status are in $work, of each try by itself
    try=$((try + 1)) seconds=$1
    shift
    {
        timeout -k 1 "$seconds" "$@" >"$work/output$try" 2>&1
        echo $? >"$work/status$try"
    } >/dev/null 2>&1 </dev/null &
    left=$((seconds * 10 + 20))
    while [ ! -s "$work/status$try" ] && [ "$left" -gt 0 ]; do
        sleep 0.1
        left=$((left - 1))
    done
    case $(cat "$work/status$try" 2>/dev/null) in '' | 124 | 137) return 1 ;; esac
}
ask() { limited "$1" nvidia-smi "--query-gpu=$query" --format=csv,noheader,nounits; }
# Where nothing keeps the driver loaded, each call wakes every GPU, which takes minutes on a large machine. So a call that
# is slow is tried once more, with patience, and after persistence mode is on: a GPU hangs only if that does not end either.
ask_patiently() {
    ! ask "$limit_s" || return
    ! ours || limited "$patience_s" sudo -n nvidia-smi -pm 1 || return
    ask "$patience_s"
}
pci='' mellanox=''
for device in "$sys"/bus/pci/devices/*; do
    { read -r vendor <"$device/vendor" && read -r id <"$device/device" && read -r class <"$device/class"; } || continue
    line="${device##*/} $id $class"
    case $vendor in
    0x10de) pci="$pci$line
" ;;
    0x15b3) mellanox="$mellanox$line
" ;;
    esac
done 2>/dev/null
printf '{'
if [ -n "$pci" ]; then
    field pci "$pci"
    field mellanox "$mellanox"
    field version "$(cat "$proc/driver/nvidia/version" 2>/dev/null)"
    if command -v nvidia-smi >/dev/null && work=$(mktemp -d); then
        trap 'rm -rf "$work"' EXIT
        ask_patiently
        field smi "$(cat "$work/output$try")"
        field smi_status "$(cat "$work/status$try" 2>/dev/null || echo hung)"
    fi
    field xids "$({ dmesg || as_root dmesg; } 2>/dev/null | grep -a 'NVRM: Xid' | tail -n 50)"
    field fabric_manager "$(systemctl show -p LoadState -p ActiveState nvidia-fabricmanager 2>/dev/null)"
    field installed "$(cat "$installed" 2>/dev/null)"
    field checked "$(cat "$own/$checked" 2>/dev/null)"
fi
printf '"":""}\n'
