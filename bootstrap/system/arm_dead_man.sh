# Arms the dead-man switch that the user data brought.
set -eu
timer=@timer@ file=@file@ user=@user@
if [ ! -e "/etc/systemd/system/$timer" ]; then
    echo "the user data of this machine did not install $timer: nothing would end it if its cluster were gone" >&2
    exit 1
fi
if [ ! -e "$file" ]; then
    : >"$file"
    chown "$user:" "$file"
fi
systemctl daemon-reload
systemctl enable --now "$timer"
systemctl is-active "$timer" >/dev/null || { echo "$timer does not run" >&2; exit 1; }
