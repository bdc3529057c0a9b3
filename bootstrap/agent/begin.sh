# One starter at a time. Ends here, with status 0, when the agent with this configuration runs already.
. ./processes.sh
key=@key@ lock=@lock@ wait_s=@wait_s@
exec 9>"$lock"
flock -w "$wait_s" 9 || { echo "another bootstrap has held $lock for $wait_s s" >&2; exit 1; }
agent_pid
if runs "$pid"; then
    ! carries "$pid" "SPOTSUP_AGENT_KEY=$key" || exit 0
    echo "an agent with another configuration was started meanwhile, pid $pid" >&2
    exit 1
fi
kill_stragglers
