# Runs a script as root. Checks on the machine itself that it was made for this node: no other machine's system is
# changed, whatever was planned.
born=@born@ node=@node@ timeout_s=@timeout_s@
[ "$(head -n 1 "$born" 2>/dev/null)" = "$node" ] || {
    echo "$born does not name $node: this machine was not made for it, and is left as it is" >&2
    exit 1
}
cd /
if [ "$(id -u)" = 0 ]; then set --; else set -- sudo -n; fi
status=0
"$@" timeout -k 10 "$timeout_s" /bin/sh -c @script@ </dev/null || status=$?
[ "$status" -ne 124 ] || echo "it did not end within $timeout_s s, and was ended" >&2
exit "$status"
