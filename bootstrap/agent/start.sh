# Starts the agent in a session of its own, so that it outlives the connection. Its variables and its pid mark it as ours
# before it has become the interpreter.
. ./begin.sh
export SPOTSUP_AGENT_FOLDER="$own" SPOTSUP_AGENT_KEY="$key"
setsid /bin/sh "$own/agent.sh" </dev/null >>"$own/agent.log" 2>&1 9>&- &
pid=$!
echo "$pid" >"$own/agent.pid.new"
mv "$own/agent.pid.new" "$own/agent.pid"
for _ in 1 2 3; do
    sleep 0.1
    case $(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null) in
    '' | Z*)
        status=0
        wait "$pid" || status=$?
        tail -n @lines@ "$own/agent.log" >&2 2>/dev/null || :
        echo "the agent ended at once, with status $status" >&2
        exit 1
        ;;
    esac
done
