"""The cloud's own agent for logs, if one is configured. After ours has started: training does not wait for it.

None of this has run on a cloud yet. Sources: Amazon's guide to the CloudWatch agent (package, agent-ctl,
collect_list), Google's guide to the Ops Agent (repository script, receivers of type files).
"""

from __future__ import annotations

import json
from hashlib import sha256

from bootstrap.decision import Decision, not_ours, ours, paths_on
from bootstrap.facts import Facts
from bootstrap.log_agent.facts import LOG_AGENT_FILE, UNITS
from bootstrap.log_agent.model import LogAgent
from bootstrap.model import Paths, Run, Setup, Skip
from bootstrap.templates import fill

LIMIT_S = 240
TIMEOUT_S = LIMIT_S + 30.0


def log_agent(facts: Facts, setup: Setup) -> Decision:
    """Install it where it is missing, configure it to ship our logs, and start it."""
    wanted = setup.log_agent
    if wanted is None:
        return Skip("no log agent of the cloud is configured")
    if not ours(facts, setup):
        return not_ours(facts, setup)
    unit, key = UNITS[wanted.kind], log_agent_key(facts, setup, wanted)
    if facts.log_agent.active and facts.log_agent.key == key:
        return Skip(f"{unit} ships the logs")
    if facts.system.os not in ("debian", "ubuntu"):
        return Skip(f"{unit} is not installed on {facts.system.os or 'this system'}: the image has to bring it")
    config = _config(wanted, paths_on(facts, setup))
    if wanted.kind == "cloudwatch":
        install = fill("log_agent/cloudwatch.sh", config=config, os=facts.system.os)
    else:
        install = fill("log_agent/ops.sh", config=config)
    script = fill("log_agent/set_up.sh", install=install, limit_s=LIMIT_S, file=LOG_AGENT_FILE, key=key, unit=unit)
    return (Run(f"have {unit} ship the logs", script, TIMEOUT_S, as_root=True),)


def log_agent_key(facts: Facts, setup: Setup, wanted: LogAgent) -> str:
    """Changes when the configuration does."""
    return sha256(_config(wanted, paths_on(facts, setup)).encode()).hexdigest()[:32]


def _config(wanted: LogAgent, paths: Paths) -> str:
    """JSON for CloudWatch; YAML, in which JSON strings are valid, for the Ops Agent."""
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
