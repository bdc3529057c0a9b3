# Whether the agent runs, and how many seconds ago its workers wrote their progress, a sign of life, or output.
. ./processes.sh
run=@run@ log=@log@ prefix=@prefix@
agent_pid
state=absent
if runs "$pid"; then state=running; fi
newest=0
for file in "$run"/progress-* "$run"/session-* "$log"; do
    at=$(stat -c %Y "$file" 2>/dev/null) || continue
    if [ "$at" -gt "$newest" ]; then newest=$at; fi
done
printf '\n%s%s %s\n' "$prefix" "$state" "$(($(date +%s) - newest))"
