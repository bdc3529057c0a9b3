"""The scripts of the log-agent step, run in a sandbox."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bootstrap.log_agent.model import LogAgent
from bootstrap.model import Run
from bootstrap.steps import plan
from tests.support.plans import a_setup
from tests.support.sandbox import Sandbox

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


def test_a_log_group_is_a_name() -> None:
    with pytest.raises(ValueError, match="is not a log group"):
        LogAgent("cloudwatch", "a'; rm -rf /")
