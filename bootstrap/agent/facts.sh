# A pid may be used again by another process: an agent carries its folder in its environment.
. ../shell/json.sh
own=@own@
agent=null
if read -r pid <"$own/agent.pid"; then
    case $pid in *[!0-9]*) pid=0 ;; esac
    variables=$(tr '\0' '\n' <"/proc/$pid/environ") || variables=
    if printf '%s\n' "$variables" | grep -qxF "SPOTSUP_AGENT_FOLDER=$own"; then
        key=$(printf '%s\n' "$variables" | sed -n 's/^SPOTSUP_AGENT_KEY=//p')
        agent="{\"pid\":$pid,\"key\":$(text "$key")}"
    fi
fi 2>/dev/null
printf '%s\n' "$agent"
