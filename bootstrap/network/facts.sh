# Only files and one cache are read: nothing here can hang.
. ../shell/json.sh
sys=@sys@ proc=@proc@ opt=@opt@ installed=@installed@
drivers() {
    for interface in "$sys"/class/net/*; do
        [ ! -e "$interface/device/driver" ] || basename "$(readlink -f "$interface/device/driver")"
    done
}
efa() {
    for device in "$sys"/bus/pci/devices/*; do
        read -r vendor <"$device/vendor" && [ "$vendor" = 0x1d0f ] || continue
        read -r id <"$device/device" && case $id in 0xefa*) echo "$id" ;; esac
    done
}
infiniband() {
    for device in "$sys"/class/infiniband/*/ports/*/link_layer; do
        read -r layer <"$device" && [ "$layer" = InfiniBand ] && echo "$device"
    done
}
topologies() { cd "$opt/microsoft" && echo *-topo.xml; }
printf '{'
field routes "$(cat "$proc/net/route" 2>/dev/null)"
field drivers "$(drivers 2>/dev/null)"
field efa "$(efa 2>/dev/null)"
[ ! -d "$sys/module/efa" ] || field efa_module yes
[ ! -x "$opt/amazon/efa/bin/fi_info" ] || field efa_version "$(head -n 1 "$opt/amazon/efa_installed_packages")"
field nccl_plugin "$({ ldconfig -p || /sbin/ldconfig -p; } 2>/dev/null | grep -o 'libnccl-net[a-z-]*\.so' | head -n 1)"
field infiniband "$(infiniband 2>/dev/null)"
field topologies "$(topologies 2>/dev/null)"
field efa_installed "$(cat "$installed" 2>/dev/null)"
printf '"":""}\n'
