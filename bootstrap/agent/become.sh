# Becomes the agent, with or without systemd; the pid stays. The agent logs to its own file and not to the journal: that
# is where `collect` looks on every machine. The job's variables come first, so that they cannot replace ours.
set -eu
mkdir -p @run@ @log@
# shellcheck source=/dev/null
. @env@
set -- @own@ @bin@ @trainer@
PATH=$2:$PATH
PYTHONPATH=$3${PYTHONPATH:+:$PYTHONPATH}
SPOTSUP_AGENT_FOLDER=$1
SPOTSUP_AGENT_KEY=@key@
export PATH PYTHONPATH SPOTSUP_AGENT_FOLDER SPOTSUP_AGENT_KEY
SPOTSUP_CONTAINER=@container@
if [ -n "$SPOTSUP_CONTAINER" ]; then export SPOTSUP_CONTAINER; else unset SPOTSUP_CONTAINER; fi
cd "$1"
echo "$$" >"$1/agent.pid.own" # its starter writes the same file, under another temporary name
mv "$1/agent.pid.own" "$1/agent.pid"
exec @python@ -m spotsup_trainer.agent --config "$1/agent.json" </dev/null >>"$1/agent.log" 2>&1
