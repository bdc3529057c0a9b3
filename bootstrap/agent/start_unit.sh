# Starts the agent as a unit of systemd.
. ./begin.sh
unit=@unit@ folder=@folder@ begin_tenths=@begin_tenths@
mkdir -p "$folder"
cp "$own/agent.service" "$folder/$unit"
chmod 644 "$folder/$unit"
systemctl daemon-reload
systemctl reset-failed "$unit" 2>/dev/null || :
systemctl start "$unit" 9>&- || :
looks=0
while [ "$looks" -lt "$begin_tenths" ]; do
    sleep 0.1
    looks=$((looks + 1))
    if ! systemctl -q is-active "$unit"; then
        tail -n @lines@ "$own/agent.log" >&2 2>/dev/null || :
        echo "the agent ended at once, with status $(systemctl show -p ExecMainStatus --value "$unit")" >&2
        exit 1
    fi
    agent_pid
    [ "$looks" -lt 3 ] || [ "$(systemctl show -p MainPID --value "$unit")" != "$pid" ] || exit 0
done
echo "$unit runs, but has not become the agent; see journalctl -u $unit" >&2
exit 1
