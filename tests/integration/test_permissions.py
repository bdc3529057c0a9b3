"""The policies and roles in docs/permissions: exactly what the daemon needs on each cloud."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioners.base import BY_THE_HOUR, Market, NoCapacity, OfferQuery, Provisioner, ProvisionerError, Unknown
from provisioners.registry import CLOUDS
from tests.clouds import azure_machines, gcp_compute
from tests.clouds.aws_keys import SPOT_ROLE
from tests.clouds.base import CloudServer, wire_cloud
from tests.support.machines import OWNER, TIMEOUT_S, launched_by, request_at, request_for
from tests.unit.test_cloud_docs import granted as granted_on_ec2

PERMISSIONS = Path(__file__).resolve().parents[2] / "docs" / "permissions"
# Any credentials may ask whose they are: "GetCallerIdentity", AWS STS API reference.
NEEDS_NO_PERMISSION = {"sts:GetCallerIdentity"}
# Granted on the nodes' account only: on the project it would allow acting as any account.
ON_THE_ACCOUNT = "iam.serviceAccounts.actAs"


def granted_on_gcp(file: str) -> set[str]:
    return set(yaml.safe_load((PERMISSIONS / file).read_text())["includedPermissions"])


def granted_on_azure(file: str) -> set[str]:
    return set(json.loads((PERMISSIONS / file).read_text())["Actions"])


# What the daemon may, by cloud.
DAEMONS = {
    "aws": granted_on_ec2(),
    "gcp": granted_on_gcp("gcp-role.yaml"),
    "azure": granted_on_azure("azure-role.json") | granted_on_azure("azure-subscription-role.json"),
}


EVERYTHING_ON_AZURE: dict[str, Any] = {
    "identity": azure_machines.IDENTITY,
    "scale_sets": {"eastus-1": azure_machines.SCALE_SET},
    "capacity_reservations": (azure_machines.RESERVED,),
    "image": azure_machines.GALLERY_VERSION,
    "images": {
        "T4": azure_machines.IMAGE,
        "A100": azure_machines.GALLERY_IMAGE,
        "H100": "microsoft-dsvm:ubuntu-hpc:2404:latest",
    },
}


def do_everything(server: CloudServer, **settings: Any) -> Provisioner:
    """All calls that the daemon makes on a cloud."""
    cloud = server.provisioner(**settings)
    cloud.check(30.0)
    descriptor = CLOUDS[cloud.name]
    assert descriptor.types is not None
    descriptor.types(server.settings(**settings), 60.0)
    for market in BY_THE_HOUR:
        cloud.offers(OfferQuery(market=market), TIMEOUT_S)
    request = replace(request_for(cloud, "n1"), dead_man_s=3600.0)
    machine = launched_by(cloud, request)
    assert len(cloud.instances(OWNER, TIMEOUT_S)) == 1
    assert len(cloud.instances(None, TIMEOUT_S)) == 1
    cloud.coverage(TIMEOUT_S)
    assert launched_by(cloud, request).id == machine.id
    cloud.find(OWNER, machine.token, TIMEOUT_S)
    cloud.console(machine.id, TIMEOUT_S)
    cloud.terminate(machine.id, TIMEOUT_S)
    server.cloud.fleet.leave_behind(OWNER, "gone")
    for each in cloud.leftovers(OWNER, TIMEOUT_S):
        cloud.remove(each, TIMEOUT_S)
    assert not cloud.leftovers(OWNER, TIMEOUT_S)
    return cloud


@pytest.mark.long
def test_ec2s_policy_grants_exactly_what_is_called() -> None:
    with wire_cloud("aws") as server:
        server.cloud.ec2.keys.encrypt(grantees=[SPOT_ROLE])
        backend = server.cloud.fleet.backend("us-east-1")
        subnet, group = backend.describe_subnets()[0], backend.describe_security_groups()[0].id
        known = {"subnets": {subnet.availability_zone: subnet.id}, "security_groups": {"us-east-1": (group,)}}
        ec2 = do_everything(server, **known)
        server.cloud.ec2.mount_targets["fs-00000001"] = [(subnet.availability_zone, "available")]
        assert ec2.offers(OfferQuery(file_servers=("fs-00000001.efs.us-east-1.amazonaws.com",)), TIMEOUT_S)
        server.provisioner().check(30.0)  # in the default VPC
        # In what the account has reserved.
        server.cloud.ec2.reservations.add("cr-1", subnet.availability_zone, 1)
        reserving = server.provisioner(**known, reservations=("cr-1",))
        reserving.check(30.0)
        launched_by(reserving, request_at(reserving.offers(OfferQuery(market=Market.RESERVED), TIMEOUT_S)[0], "n0"))
        # A role for nodes, which moto would have to know.
        with_role = server.provisioner(**known, instance_profile="spotsup-node")
        assert not isinstance(with_role.launch(request_for(ec2, "n2"), TIMEOUT_S), Unknown)
        # With several interfaces and a public address, whose launch is granted, and then refused.
        many = server.provisioner(**known, efa=True)
        wide = replace(request_for(ec2, "n3").offer, instance_type="p4d.24xlarge", zone=subnet.availability_zone)
        launched_by(many, request_at(wide, "n3"))
        server.cloud.exhaust(wide.zone)
        assert isinstance(many.launch(request_at(wide, "n4"), TIMEOUT_S), NoCapacity)
        assert granted_on_ec2() == server.cloud.used() - NEEDS_NO_PERMISSION


def test_compute_engines_role_grants_exactly_what_is_called() -> None:
    with wire_cloud("gcp") as server:
        account = server.cloud.compute.account.know(f"nodes@{gcp_compute.PROJECT}.iam.gserviceaccount.com")
        server.cloud.compute.images[gcp_compute.PROJECT] = {"ours"}
        do_everything(
            server,
            image=f"projects/{gcp_compute.PROJECT}/global/images/ours",
            images={"T4": "projects/ubuntu-os-accelerator-images/global/images/family/ubuntu-accelerator-2404-amd64"},
            subnetworks={"us-central1": "default"},
            network_tags=("gpu",),
            service_account=account,
        )
        server.cloud.compute.reserved.make("ours", "g2-standard-4")
        more = server.provisioner(reservations=("us-central1-a/ours",))
        for market in (Market.FLEX, Market.RESERVED):
            launched_by(more, request_at(more.offers(OfferQuery(market=market), TIMEOUT_S)[0], market))
        server.cloud.compute.placement_policies.add("near")
        near = server.provisioner(placement_policies={"us-central1": "near"})
        launched_by(near, request_at(replace(request_for(near, "n2").offer, instance_type="g2-standard-4"), "n2"))
        assert granted_on_gcp("gcp-role.yaml") | {ON_THE_ACCOUNT} == server.cloud.used()


def test_azures_roles_grant_exactly_what_is_called() -> None:
    """All actions that the daemon calls on Azure, by scope: the resource group or the subscription."""
    used: dict[str, set[str]] = {"azure-role.json": set(), "azure-subscription-role.json": set()}
    with wire_cloud("azure") as server:
        cloud = do_everything(server, **EVERYTHING_ON_AZURE)
        with pytest.raises(ProvisionerError, match="models"):
            cloud.offers(OfferQuery(file_servers=("models.file.core.windows.net",)), TIMEOUT_S)
        (reserved,) = cloud.offers(OfferQuery(market=Market.RESERVED), TIMEOUT_S)
        launched_by(cloud, request_at(reserved, "n2"))
        for call in server.cloud.calls:
            for name in server.cloud.needed(call):
                # Images of one's own may be in any resource group.
                inside = "/resourcegroups/" in call.path.lower() and "/images/" not in name
                used["azure-role.json" if inside else "azure-subscription-role.json"].add(name)
    assert {name: granted_on_azure(name) for name in used} == used
    assert not any("*" in action for actions in used.values() for action in actions)


def test_a_node_may_deallocate_itself_and_nothing_else() -> None:
    assert granted_on_azure("azure-node-role.json") == {"Microsoft.Compute/virtualMachines/deallocate/action"}
