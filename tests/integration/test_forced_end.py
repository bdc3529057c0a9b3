"""How `make contract-real` takes a node: by the cloud's own simulated preemption, else by a termination."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from provisioners.base import EndCause, Instance, InstanceState, Provisioner
from tests.clouds.base import CloudServer, wire_cloud
from tests.contract.forced_end import force_end
from tests.support.machines import OWNER, TIMEOUT_S, launch_running, wait_for

pytestmark = pytest.mark.nightly

ROLE = "arn:aws:iam::123456789012:role/fis"
NEEDED = {
    "aws": "fis:StartExperiment",
    "gcp": "compute.instances.simulateMaintenanceEvent",
    "azure": "Microsoft.Compute/virtualMachines/simulateEviction/action",
}


@pytest.fixture(params=["aws", "gcp", "azure"])
def server(request: pytest.FixtureRequest) -> Iterator[CloudServer]:
    with wire_cloud(request.param) as found:
        yield found


def force(server: CloudServer, role: str = ROLE) -> tuple[Provisioner, Instance, Any]:
    provisioner = server.provisioner()
    machine, other = launch_running(provisioner, "n1"), launch_running(provisioner, "n2")
    forced = force_end(provisioner, server.settings(), machine, role, TIMEOUT_S)
    (left,) = [each for each in provisioner.instances(OWNER, TIMEOUT_S) if each.id == other.id]
    assert (left.state, left.preempt_at) == (InstanceState.RUNNING, None)
    return provisioner, machine, forced


def test_it_is_announced_as_a_preemption_of_that_machine_alone(server: CloudServer) -> None:
    provisioner, machine, forced = force(server)
    assert forced.preempts, forced.answer
    (found,) = [each for each in provisioner.instances(OWNER, TIMEOUT_S) if each.id == machine.id]
    assert found.state is InstanceState.RUNNING
    assert found.preempt_at is not None


def test_where_it_is_not_allowed_the_machine_is_terminated_and_that_is_said(server: CloudServer) -> None:
    (name,) = [each for each in NEEDED if each == server.provisioner().name]
    server.cloud.denied = {NEEDED[name]}
    provisioner, machine, forced = force(server)
    assert not forced.preempts
    assert forced.answer.startswith("a termination (its simulated preemption was refused: ")

    def ended() -> Instance | None:
        found = provisioner.find(OWNER, machine.token, TIMEOUT_S)
        return found if found is not None and found.state is InstanceState.TERMINATED else None

    assert wait_for(ended, "its end").end_cause is EndCause.USER


def test_without_a_role_for_experiments_ec2_terminates() -> None:
    with wire_cloud("aws") as server:
        _, _, forced = force(server, "")
        assert (forced.preempts, forced.answer) == (False, "a termination")
        assert not [each for each in server.cloud.calls if each.service == "fis"]
