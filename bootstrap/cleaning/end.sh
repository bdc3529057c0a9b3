# Ends the agent and all that descends from it, and removes the node's own folder: configuration, variables, access to
# etcd, logs, scratch files. Below a home folder, which is this machine's alone, also code and what `setup` has prepared.
. ../agent/processes.sh
root=@root@ home=@home@
agent_pid
kill_stragglers
rm -rf "$own"
if [ "$home" = true ]; then
    rm -rf "$root/code" "$root/prepared" "$root/trainer"
fi
left=$(stragglers)
# shellcheck disable=SC2086 # one word for each process
[ -z "$left" ] || { echo "still runs:" $left >&2; exit 1; }
[ ! -e "$own" ] || { echo "$own is still there" >&2; exit 1; }
