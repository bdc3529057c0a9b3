born=@born@ node=@node@
units=
if [ "$(head -n 1 "$born" 2>/dev/null)" = "$node" ] && [ -d /run/systemd/system ]; then
    units=$(timeout -k 1 5 systemctl show -p Id -p LoadState -p ActiveState @units@ 2>/dev/null)
fi
printf '"%s"\n' "$(printf %s "$units" | base64 -w0)"
