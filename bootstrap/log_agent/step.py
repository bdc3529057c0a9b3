"""The cloud's own agent for logs, where it is asked for: after ours has started, for training waits for no logs.

None of this was ever run on a cloud. Sources: Amazon's guide to the CloudWatch agent (package, agent-ctl,
collect_list), Google's guide to the Ops Agent (repository script, receivers of type files).
"""

from __future__ import annotations

import json
import shlex
from hashlib import sha256

from bootstrap.decision import Decision, not_ours, ours, paths_on
from bootstrap.facts import Facts
from bootstrap.log_agent.facts import LOG_AGENT_FILE, UNITS
from bootstrap.log_agent.model import LogAgent
from bootstrap.model import Paths, Run, Setup, Skip
from bootstrap.templates import fill

LIMIT_S = 240
TIMEOUT_S = LIMIT_S + 30.0

_BEGIN = """
export DEBIAN_FRONTEND=noninteractive
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"""

_CLOUDWATCH = """
ctl=/opt/aws/amazon-cloudwatch-agent/bin/amazon-cloudwatch-agent-ctl
config=/opt/aws/amazon-cloudwatch-agent/etc/spotsup.json
if [ ! -x "$ctl" ]; then
    curl -fsS --retry 3 --max-time 120 -o "$work/agent.deb" \\
        https://amazoncloudwatch-agent.s3.amazonaws.com/@os@/amd64/latest/amazon-cloudwatch-agent.deb
    apt-get -q -y -o DPkg::Lock::Timeout=120 install "$work/agent.deb" >/dev/null
fi
printf %s @config@ >"$config"
"$ctl" -a fetch-config -m ec2 -s -c "file:$config" >/dev/null
"""

_OPS = """
config=/etc/google-cloud-ops-agent/config.yaml
if [ ! -d /etc/google-cloud-ops-agent ]; then
    curl -fsS --retry 3 --max-time 60 -o "$work/add.sh" \\
        https://dl.google.com/cloudagents/add-google-cloud-ops-agent-repo.sh
    bash "$work/add.sh" --also-install >/dev/null
fi
printf %s @config@ >"$config"
systemctl restart google-cloud-ops-agent
"""

# It may fail, or take too long: the node has its logs, and we ship them, too.
_SET_UP = """
if timeout -k 10 @limit_s@ /bin/sh -eu -c @body@; then
    mkdir -p "$(dirname @file@)"
    echo @key@ >@file@
else
    echo "@unit@ does not ship this node's logs; training goes on" >&2
fi
"""


def log_agent(facts: Facts, setup: Setup) -> Decision:
    """Installed where it is missing, told of our logs, and started."""
    wanted = setup.log_agent
    if wanted is None:
        return Skip("no agent of the cloud's own is asked for")
    if not ours(facts, setup):
        return not_ours(facts, setup)
    unit, key = UNITS[wanted.kind], log_agent_key(facts, setup, wanted)
    if facts.log_agent.active and facts.log_agent.key == key:
        return Skip(f"{unit} ships the logs")
    if facts.system.os not in ("debian", "ubuntu"):
        return Skip(f"{unit} is not installed on {facts.system.os or 'this system'}: the image has to bring it")
    config = shlex.quote(_config(wanted, paths_on(facts, setup)))
    body = _BEGIN + fill(_CLOUDWATCH if wanted.kind == "cloudwatch" else _OPS, config=config, os=facts.system.os)
    script = fill(_SET_UP, body=shlex.quote(body), limit_s=str(LIMIT_S), file=LOG_AGENT_FILE, key=key, unit=unit)
    return (Run(f"have {unit} ship the logs", script, TIMEOUT_S, as_root=True),)


def log_agent_key(facts: Facts, setup: Setup, wanted: LogAgent) -> str:
    """What must be the same for its configuration to be ours."""
    return sha256(_config(wanted, paths_on(facts, setup)).encode()).hexdigest()[:32]


def _config(wanted: LogAgent, paths: Paths) -> str:
    """JSON for CloudWatch; YAML for the Ops Agent, for which JSON's strings are strings."""
    files = {paths.node: f"{paths.log}/*.log", f"{paths.node}/agent": paths.agent_log}
    if wanted.kind == "cloudwatch":
        collected = [
            {"file_path": place, "log_group_name": wanted.group, "log_stream_name": stream}
            for stream, place in files.items()
        ]
        return json.dumps({"logs": {"logs_collected": {"files": {"collect_list": collected}}}}, indent=1)
    places = "".join(f"      - {json.dumps(place)}\n" for place in files.values())
    return (
        "logging:\n  receivers:\n    spotsup:\n      type: files\n      record_log_file_path: true\n"
        f"      include_paths:\n{places}"
        "  service:\n    pipelines:\n      spotsup:\n        receivers: [spotsup]\n"
    )
