# On a machine that is not ours, nothing is tried that leaves a trace: sudo writes to its log.
. ../shell/json.sh
. ./locks.sh
. ./cloud_init.sh
. ./clock.sh
born_file=@born@ node=@node@ dead_man_file=@dead_man_file@ timer=@timer@
updaters() {
    set -- @units@
    for unit; do
        if [ -e "/usr/lib/systemd/system/$unit" ] || [ -e "/lib/systemd/system/$unit" ]; then
            [ "$(readlink "/etc/systemd/system/$unit")" = /dev/null ] || echo "$unit"
        fi
    done
}
unheld() {
    command -v dpkg-query >/dev/null 2>&1 || return 0
    # shellcheck disable=SC2016 # dpkg-query's own variables
    dpkg-query -W -f '${db:Status-Want} ${db:Status-Status} ${Package}\n' 'linux-image-*' 2>/dev/null |
        sed -n 's/^install installed //p'
}
# Root is no user whose memory logind removes; without a session of his, logind does not know a user.
lingers() {
    [ "$(id -u)" != 0 ] || return 0
    [ "$(timeout -k 1 5 loginctl show-user "$(id -un)" -p Linger --value 2>/dev/null)" != no ]
}
cd /
system=
if [ -d /run/systemd/system ]; then
    system=$(timeout -k 1 5 systemctl is-system-running 2>/dev/null) || :
    system=${system:-unknown}
fi
born='' vendor=''
{ read -r born <"$born_file"; read -r vendor </sys/class/dmi/id/sys_vendor; } 2>/dev/null || :
printf '{"born":'
text "$born"
(
    # shellcheck source=/dev/null
    [ ! -r /etc/os-release ] || . /etc/os-release
    printf ',"os":'
    text "${ID-}"
    printf ',"version":'
    text "${VERSION_ID-}"
)
printf ',"kernel":'
text "$(uname -r)"
printf ',"systemd":'
text "$system"
printf ',"vendor":'
text "$vendor"
if [ "$born" = "$node" ]; then
    root=false dead_man=false lingers=true clock=unknown updaters=
    if [ "$(id -u)" = 0 ] || timeout -k 1 10 sudo -n true >/dev/null 2>&1; then
        root=true
    fi
    if [ -n "$system" ]; then
        clock=$(clock)
        updaters=$(updaters | texts)
        if [ -e "$HOME/$dead_man_file" ] && systemctl -q is-active "$timer"; then
            dead_man=true
        fi
        lingers || lingers=false
    fi
    printf ',"root":%s,"cloud_init":"%s","locks":[%s],"updaters":[%s],"unheld":[%s],"clock":"%s","dead_man":%s,"lingers":%s' \
        "$root" "$(cloud_init)" "$(locks | texts)" "$updaters" "$(unheld | texts)" "$clock" "$dead_man" "$lingers"
fi
printf '}\n'
