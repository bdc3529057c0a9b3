# SIGTERM to the agent; after the grace SIGKILL to it and all that descends from it. Prints the outcome.
. ./processes.sh
prefix=@prefix@
agent_pid
outcome=absent
if runs "$pid"; then
    outcome=stopped
    kill -TERM "$pid" || :
    left=@grace_tenths@
    while [ "$left" -gt 0 ] && runs "$pid"; do
        sleep 0.1
        left=$((left - 1))
    done
fi
kill_stragglers
rm -f "$own/agent.pid"
printf '\n%s%s\n' "$prefix" "$outcome"
