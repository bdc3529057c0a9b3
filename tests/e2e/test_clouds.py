"""A job on each cloud: the real daemon, SDK, user data and agent, on the cloud's test cloud with real machines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.demo.clouds import CLOUDS, HandOnTestCloud, opened
from tools.stack import Stack

ACTIONS = {
    "aws": {"ec2:RunInstances", "ec2:DescribeInstances", "ec2:TerminateInstances"},
    "gcp": {"instances.insert", "instances.aggregatedList", "instances.delete"},
    "azure": {
        "Microsoft.Compute/virtualMachines/write",
        "Microsoft.Compute/virtualMachines/read",
        "Microsoft.Insights/eventtypes/values/read",
    },
}


def nodes(stack: Stack, state: str) -> list[str]:
    """The job's nodes that are in this state."""
    found: list[dict[str, Any]] = stack.ask("nodes")
    return [node["id"] for node in found if node["state"] == state]


@pytest.mark.nightly  # test_install_clouds has one of them in CI, and tests/contract all
@pytest.mark.parametrize("cloud", [name for name in CLOUDS if name != "local"])
@pytest.mark.usefixtures("own_environment")
def test_a_node_that_the_cloud_takes_is_replaced_and_all_is_released(cloud: str, tmp_path: Path) -> None:
    stack = Stack(tmp_path / "stack", cluster="test")
    stack.prepare()
    with opened(cloud, stack) as control:
        assert isinstance(control, HandOnTestCloud)
        try:
            _run_job(stack, control, tmp_path / "code")
        finally:
            assert stack.close().processes == ()


def _run_job(stack: Stack, control: HandOnTestCloud, code: Path) -> None:
    code.mkdir()
    (code / "train.py").write_text("import time\ntime.sleep(3600)\n")
    (code / "job.yaml").write_text(
        f"name: sleeper\nnodes: {{min: 1, desired: 2, max: 2}}\nrun: train.py\n{control.job}"
    )
    stack.start_daemon()
    control.lose_answer()
    assert stack.ctl("submit", str(code / "job.yaml")).returncode == 0
    stack.wait_for(lambda: len(nodes(stack, "member")) == 2, 120.0, "two members")
    assert len(control.machines()) == 2
    doomed = nodes(stack, "member")[0]
    # On the machine alone, not in the API: the agent has to read it. On some clouds it is off then, and still costs.
    control.preempt(doomed, 20.0)

    def is_replaced() -> bool:
        members = nodes(stack, "member")
        return len(members) == 2 and doomed not in members

    stack.wait_for(is_replaced, 120.0, "a replacement")
    events = [event["text"] for event in stack.ask("events", "sleeper")]
    assert any(doomed in text and "will be preempted" in text and f"({control.name})" in text for text in events), (
        events
    )
    assert stack.ctl("cancel", "sleeper").returncode == 0
    stack.wait_for(lambda: not control.left(), 60.0, "all machines to be gone")
    assert set(control.calls()) >= ACTIONS[control.name]
