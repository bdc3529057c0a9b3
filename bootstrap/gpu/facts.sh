# A process that a hung driver holds in the kernel cannot be killed: it is left behind, and is not waited for.
. ../shell/json.sh
sys=@sys@ proc=@proc@ own=@own@ born=@born@ node=@node@ installed=@installed@ checked=@checked@
limit_s=@limit_s@ query=@query@
as_root() { [ "$(head -n 1 "$born")" = "$node" ] && timeout -k 1 10 sudo -n "$@"; }
work=
limited() { # COMMAND...
    {
        timeout -k 1 "$limit_s" "$@" >"$work/output" 2>&1
        echo $? >"$work/status"
    } >/dev/null 2>&1 </dev/null &
    left=$((limit_s * 10 + 20))
    while [ ! -s "$work/status" ] && [ "$left" -gt 0 ]; do
        sleep 0.1
        left=$((left - 1))
    done
}
pci=
for device in "$sys"/bus/pci/devices/*; do
    { read -r vendor <"$device/vendor" && [ "$vendor" = 0x10de ]; } || continue
    { read -r id <"$device/device" && read -r class <"$device/class"; } || continue
    pci="$pci${device##*/} $id $class
"
done 2>/dev/null
printf '{'
if [ -n "$pci" ]; then
    field pci "$pci"
    field version "$(cat "$proc/driver/nvidia/version" 2>/dev/null)"
    if command -v nvidia-smi >/dev/null && work=$(mktemp -d); then
        trap 'rm -rf "$work"' EXIT
        limited nvidia-smi "--query-gpu=$query" --format=csv,noheader,nounits
        field smi "$(cat "$work/output")"
        field smi_status "$(cat "$work/status" 2>/dev/null || echo hung)"
    fi
    field xids "$({ dmesg || as_root dmesg; } 2>/dev/null | grep -a 'NVRM: Xid' | tail -n 50)"
    field fabric_manager "$(systemctl show -p LoadState -p ActiveState nvidia-fabricmanager 2>/dev/null)"
    field installed "$(cat "$installed" 2>/dev/null)"
    field checked "$(cat "$own/$checked" 2>/dev/null)"
fi
printf '"":""}\n'
