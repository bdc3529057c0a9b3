"""The scripts of the monitoring and log-agent steps, run in a sandbox."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from bootstrap.log_agent.model import LogAgent
from bootstrap.model import Run
from bootstrap.monitoring.facts import Monitoring, monitoring_facts, monitoring_script
from bootstrap.steps import plan
from tests.support.plans import SYSTEMCTL_SHOW, a_setup
from tests.support.sandbox import Sandbox


def test_exporters_are_started_on_a_machine_of_ours_only(tmp_path: Path) -> None:
    box = Sandbox(tmp_path / "box")
    box.write("state/show", SYSTEMCTL_SHOW)
    box.program(
        "systemctl",
        'case $1 in show) cat "$BOX/state/show" ;; enable) echo "$*" >>"$BOX/log" ;; *) echo running ;; esac',
    )
    assert box.facts(a_setup()).monitoring.units == {"prometheus-node-exporter": "active", "nvidia-dcgm": "inactive"}
    (command,) = box.bootstrap(a_setup(), "monitoring")
    assert box.log == ["enable --now nvidia-dcgm"]
    assert isinstance(command, Run)
    assert box.run(command, node="another").returncode == 1
    assert len(box.log) == 1


def test_the_script_gathers_facts_of_this_computer() -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", monitoring_script(a_setup())], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert isinstance(monitoring_facts(json.loads(done.stdout))["monitoring"], Monitoring)


CTL = "opt/aws/amazon-cloudwatch-agent/bin/amazon-cloudwatch-agent-ctl"
PACKAGE = f"""
mkdir -p "$BOX/{Path(CTL).parent}" "$BOX/opt/aws/amazon-cloudwatch-agent/etc"
printf '#!/bin/sh\\necho "ctl $*" >>"$BOX/log"; touch "$BOX/state/active-amazon-cloudwatch-agent"\\n' >"$BOX/{CTL}"
chmod 755 "$BOX/{CTL}"
"""


def test_the_clouds_own_agent_is_installed_configured_for_our_logs_and_then_left_alone(tmp_path: Path) -> None:
    box = Sandbox(tmp_path / "box")
    box.program("curl", "")
    box.program("apt-get", PACKAGE)
    setup = replace(a_setup(), log_agent=LogAgent("cloudwatch", "spotsup/nodes"))
    (command,) = box.bootstrap(setup, "log-agent")
    assert str(command) == "have amazon-cloudwatch-agent ship the logs"
    config = box.box / "opt/aws/amazon-cloudwatch-agent/etc/spotsup.json"
    assert f"ctl -a fetch-config -m ec2 -s -c file:{config}" in box.log
    (log, agent) = json.loads(config.read_text())["logs"]["logs_collected"]["files"]["collect_list"]
    assert log == {
        "file_path": f"{box.home}/.spotsup/nodes/n1/log/*.log",
        "log_group_name": "spotsup/nodes",
        "log_stream_name": "n1",
    }
    assert agent["log_stream_name"] == "n1/agent"
    assert box.bootstrap(setup, "log-agent") == []
    assert len(box.bootstrap(replace(setup, log_agent=LogAgent("cloudwatch", "other")), "log-agent")) == 1


@pytest.mark.parametrize("wanted", [LogAgent("cloudwatch", "spotsup/nodes"), LogAgent("ops")])
def test_a_node_goes_on_without_the_clouds_own_agent(tmp_path: Path, wanted: LogAgent) -> None:
    box = Sandbox(tmp_path / "box")
    box.program("curl", "echo 'curl: (6) Could not resolve host' >&2; exit 6")
    setup = replace(a_setup(), log_agent=wanted)
    (command,) = plan(box.facts(setup), setup)[-1].decision  # type: ignore[misc] # a tuple: it is not there
    assert isinstance(command, Run)
    done = box.run(command)
    assert done.returncode == 0
    assert done.stderr.splitlines()[0] == "curl: (6) Could not resolve host"
    assert done.stderr.splitlines()[-1].endswith(" does not ship this node's logs; training goes on")
    assert box.facts(setup).log_agent.key == ""
