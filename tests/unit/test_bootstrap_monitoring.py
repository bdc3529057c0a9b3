"""The monitoring step: what the image brought is started, and nothing else."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from bootstrap.facts import System
from bootstrap.facts.monitoring import Monitoring, monitoring_facts, monitoring_script, read_units
from bootstrap.model import Run, Skip
from bootstrap.steps.monitoring import monitoring
from tests.sandbox import Sandbox
from tests.unit.test_bootstrap_steps import FRESH, a_setup

SAID = """\
Id=node_exporter.service
LoadState=not-found
ActiveState=inactive

Id=prometheus-node-exporter.service
LoadState=loaded
ActiveState=active

Id=nvidia-dcgm.service
LoadState=loaded
ActiveState=inactive

Id=dcgm-exporter.service
LoadState=masked
ActiveState=inactive
"""
OURS = replace(FRESH, system=System(born="n1", os="ubuntu", version="22.04", root=True, systemd="running"))


def test_what_systemctl_says_is_read() -> None:
    assert read_units(SAID) == {"prometheus-node-exporter": "active", "nvidia-dcgm": "inactive"}
    assert read_units("") == {}


def test_what_is_installed_and_was_not_started_is_started() -> None:
    facts = replace(OURS, monitoring=Monitoring({"nvidia-dcgm": "inactive", "dcgm-exporter": "inactive"}))
    decision = monitoring(facts, a_setup())
    assert isinstance(decision, tuple)
    (command,) = decision
    assert isinstance(command, Run)
    assert command.as_root
    assert str(command) == "start nvidia-dcgm, dcgm-exporter"
    script = "systemctl enable --now nvidia-dcgm || :\nsystemctl enable --now dcgm-exporter || :\n"
    assert command.script == script


@pytest.mark.parametrize(
    ("units", "reason"),
    [
        ({}, "no exporter is installed"),
        ({"node_exporter": "active"}, "node_exporter is active"),
        ({"node_exporter": "failed", "dcgm-exporter": "active"}, "node_exporter is failed, dcgm-exporter is active"),
    ],
)
def test_else_nothing_is_done(units: dict[str, str], reason: str) -> None:
    assert monitoring(replace(OURS, monitoring=Monitoring(units)), a_setup()) == Skip(reason)


def test_other_peoples_machines_are_left_as_they_are() -> None:
    facts = replace(FRESH, monitoring=Monitoring({"node_exporter": "inactive"}))
    assert isinstance(monitoring(facts, a_setup()), Skip)


def test_it_is_done_on_a_machine_of_ours_and_only_there(tmp_path: Path) -> None:
    box = Sandbox(tmp_path / "box")
    box.write("state/said", SAID)
    box.program(
        "systemctl",
        'case $1 in show) cat "$BOX/state/said" ;; enable) echo "$*" >>"$BOX/log" ;; *) echo running ;; esac',
    )
    assert box.facts(a_setup()).monitoring.units == {"prometheus-node-exporter": "active", "nvidia-dcgm": "inactive"}
    (command,) = box.bootstrap(a_setup(), "monitoring")
    assert box.log == ["enable --now nvidia-dcgm"]
    assert isinstance(command, Run)
    assert box.run(command, node="another").returncode == 1
    assert len(box.log) == 1


def test_the_script_reads_this_machine() -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", monitoring_script(a_setup())], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert isinstance(monitoring_facts(json.loads(done.stdout))["monitoring"], Monitoring)
