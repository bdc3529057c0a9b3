"""The monitoring step: what the image brought is started, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bootstrap.facts import System
from bootstrap.log_agent.model import LogAgent
from bootstrap.model import Run, Skip
from bootstrap.monitoring.facts import Monitoring, read_units
from bootstrap.monitoring.step import monitoring
from bootstrap.templates import fill
from tests.support.plans import FRESH, SYSTEMCTL_SHOW, a_setup

OURS = replace(FRESH, system=System(born="n1", os="ubuntu", version="22.04", root=True, systemd="running"))


def test_the_output_of_systemctl_is_read() -> None:
    assert read_units(SYSTEMCTL_SHOW) == {"prometheus-node-exporter": "active", "nvidia-dcgm": "inactive"}
    assert read_units("") == {}


def test_installed_exporters_that_do_not_run_are_started() -> None:
    facts = replace(OURS, monitoring=Monitoring({"nvidia-dcgm": "inactive", "dcgm-exporter": "inactive"}))
    decision = monitoring(facts, a_setup())
    assert isinstance(decision, tuple)
    (command,) = decision
    assert isinstance(command, Run)
    assert command.as_root
    assert str(command) == "start nvidia-dcgm, dcgm-exporter"
    assert command.script == fill("monitoring/start.sh", units=["nvidia-dcgm", "dcgm-exporter"])


@pytest.mark.parametrize(
    ("units", "reason"),
    [
        ({}, "no exporter is installed"),
        ({"node_exporter": "active"}, "node_exporter is active"),
        ({"node_exporter": "failed", "dcgm-exporter": "active"}, "node_exporter is failed, dcgm-exporter is active"),
    ],
)
def test_other_exporters_are_left_alone(units: dict[str, str], reason: str) -> None:
    assert monitoring(replace(OURS, monitoring=Monitoring(units)), a_setup()) == Skip(reason)


def test_exporters_of_machines_that_are_not_ours_are_left_alone() -> None:
    facts = replace(FRESH, monitoring=Monitoring({"node_exporter": "inactive"}))
    assert isinstance(monitoring(facts, a_setup()), Skip)


def test_a_log_group_is_a_name() -> None:
    with pytest.raises(ValueError, match="is not a log group"):
        LogAgent("cloudwatch", "a'; rm -rf /")
