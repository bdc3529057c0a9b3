"""The roles in docs/permissions: exactly what the code needs on Compute Engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from provisioners.base import OfferQuery
from provisioners.gcp.provisioner import GcpProvisioner
from provisioners.gcp.settings import GcpSettings
from tests.clouds import gcp
from tests.clouds.machines import PaperMachines
from tests.support.machines import CLUSTER, TIMEOUT_S, request_for

PERMISSIONS = Path(__file__).resolve().parents[2] / "docs" / "permissions"
# Granted on the nodes' account only: on the project it would allow acting as any account.
ON_THE_ACCOUNT = "iam.serviceAccounts.actAs"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[gcp.GcpServer]:
    with gcp.gcp_cloud(PaperMachines()) as running:
        for name, value in running.environ(tmp_path / "key").items():
            monkeypatch.setenv(name, value)
        yield running


def granted(file: str) -> set[str]:
    return set(yaml.safe_load((PERMISSIONS / file).read_text())["includedPermissions"])


def do_everything(server: gcp.GcpServer) -> None:
    """All calls that the daemon makes on Compute Engine."""
    server.cloud.compute.images[gcp.PROJECT] = {"ours"}
    settings = GcpSettings(
        project=gcp.PROJECT,
        regions=("us-central1",),
        endpoint=server.url,
        image=f"projects/{gcp.PROJECT}/global/images/ours",
        images={"T4": "projects/ubuntu-os-accelerator-images/global/images/family/ubuntu-accelerator-2204-amd64"},
        subnetworks={"us-central1": "default"},
        network_tags=("gpu",),
        service_account=f"nodes@{gcp.PROJECT}.iam.gserviceaccount.com",
    )
    compute = GcpProvisioner(settings)
    compute.check(30.0)
    compute.offers(OfferQuery(), TIMEOUT_S)
    compute.launch(request_for(compute, "n1"), TIMEOUT_S)
    (machine,) = compute.instances(CLUSTER, TIMEOUT_S)
    compute.find(machine.token, TIMEOUT_S)
    compute.console(machine.id, TIMEOUT_S)
    compute.terminate(machine.id, TIMEOUT_S)
    server.cloud.leave_behind("us-central1-a", {"spotsup-cluster": CLUSTER})
    for each in compute.leftovers(CLUSTER, TIMEOUT_S):
        compute.remove(each, TIMEOUT_S)


def test_the_role_grants_exactly_the_permissions_that_are_called(server: gcp.GcpServer) -> None:
    do_everything(server)
    assert granted("gcp-role.yaml") | {ON_THE_ACCOUNT} == server.cloud.used()


def test_a_node_may_delete_machines_and_nothing_else() -> None:
    assert granted("gcp-node-role.yaml") == {"compute.instances.delete"}
