"""What the clouds call things, for the tests of their calls; and one cloud's API as those tests use it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from provisioners.base import (
    Instance,
    LaunchOutcome,
    LaunchRequest,
    LeftoverKind,
    Market,
    Offer,
    OfferQuery,
    Provisioner,
)
from tests.clouds import azure
from tests.support.machines import OWNER, TIMEOUT_S, found_by, launched_by, request_at

T4 = OfferQuery(gpu="T4", gpus_per_node=1)
_FAMILY = "projects/ubuntu-os-accelerator-images/global/images/family/nothing"


@dataclass(frozen=True, slots=True)
class Names:
    """What one cloud calls things."""

    region: str
    zone: str
    instance_type: str
    other_zone: str
    # A zone of a region that is not configured.
    elsewhere: str
    listing: str
    # Replies to a listing after which it is repeated, and the error of one that is throttled for good.
    passing: tuple[str, ...]
    throttled: str
    # Replies to a launch that cannot be read.
    unreadable: tuple[str, ...]
    # How the cloud is made to answer an unknown code, and that code.
    unknown: Mapping[str, str]
    # What must be denied so that neither listing nor launch is allowed, and what the error says.
    denied: frozenset[str]
    denial: str
    # What must be denied so that `check` complains, and of what.
    not_reading: tuple[frozenset[str], tuple[str, str]]
    # What can be wrong with credentials, and the error.
    credentials: Mapping[str, str]
    # The environment without credentials ("" is not set), and the error.
    without: Mapping[str, str]
    set_up: str
    # The id of a machine that does not exist.
    nobody: str
    # Fields of a description that may be missing, with what a machine has instead; and one that may not.
    optional: Mapping[str, tuple[str, str]]
    required: str
    # The reason of a machine's end that it caused itself.
    own_end: str
    leftovers: frozenset[LeftoverKind]
    # What `check` finds; settings of which it complains, and how.
    findings: frozenset[str]
    wrong: tuple[tuple[Mapping[str, Any], str, str], ...]
    # A call of each kind: listing, end, leftovers, offers, console.
    hanging: tuple[str, str, str, str, str]
    # The calls of a listing of so many machines.
    cost: Callable[[int], dict[str, int]]
    # Queries without an offer, and why.
    absent: tuple[tuple[OfferQuery, str], ...]


NAMES = {
    "aws": Names(
        region="us-east-1",
        zone="us-east-1a",
        instance_type="g4dn.xlarge",
        other_zone="us-east-1b",
        elsewhere="us-west-2a",
        listing="DescribeInstances",
        passing=("throttled", "internal", "garbage"),
        throttled="RequestLimitExceeded",
        unreadable=("drop-reply", "garbage"),
        unknown={"unheard-of": "SomethingNew"},
        denied=frozenset({"ec2:DescribeInstances", "ec2:RunInstances"}),
        denial=r"ec2:DescribeInstances.*docs/permissions/aws-iam-policy\.json",
        not_reading=(
            frozenset({"ec2:DescribeVolumes", "ec2:DescribeAddresses"}),
            ("us-east-1 reading", "lacks ec2:DescribeVolumes, ec2:DescribeAddresses"),
        ),
        credentials={
            "wrong": "AuthFailure.*renew the daemon's AWS credentials",
            "expired": "RequestExpired.*renew the daemon's AWS credentials",
        },
        without={"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""},
        set_up=r"no AWS credentials.*aws\.profile",
        nobody="us-east-1:i-0123456789abcdef0",
        optional={"placement": ("zone", ""), "ipAddress": ("ssh_host", ""), "instanceType": ("instance_type", "")},
        required="instanceState",
        own_end="Client.InstanceInitiatedShutdown",
        leftovers=frozenset(LeftoverKind),
        findings=frozenset({"credentials", "us-east-1 launching", "us-east-1 quota"}),
        wrong=(
            (
                {"image": "/our/image"},
                "us-east-1 image",
                r"no SSM parameter /our/image \(.*\): set aws.image",
            ),
            ({"image": "ami-9"}, "us-east-1 image", "ami-9.*: set aws.image"),
            (
                {"images": {"L4": "ami-0amazon"}},
                "us-east-1 image",
                r"ami-0amazon is /dev/xvda.*images \(L4\)",
            ),
            ({"subnets": {"us-east-1a": "subnet-0gone"}}, "us-east-1 network", "subnet-0gone.*set aws.subnets"),
        ),
        hanging=(
            "DescribeInstances",
            "TerminateInstances",
            "DescribeVolumes",
            "DescribeInstanceTypeOfferings",
            "GetConsoleOutput",
        ),
        cost=lambda _: {"ec2:DescribeInstances": 1, "ec2:DescribeSpotInstanceRequests": 1},
        absent=(
            (OfferQuery(gpu="K80"), "K80: no cloud rents it any more"),
            (OfferQuery(instance_types=("p2.xlarge",)), "P2 .* is gone"),
            (OfferQuery(gpu="T4", gpus_per_node=16), "no EC2 instance type has 16 or more T4"),
            (replace(T4, regions=("eu-west-1",)), r"none of eu-west-1 is one of aws.regions \(us-east-1\)"),
            (replace(T4, zones=("us-east-1z",)), "is offered in us-east-1 in zones us-east-1z: name other"),
            (OfferQuery(instance_types=("c99.huge",)), "none of c99.huge is offered in us-east-1: name other"),
        ),
    ),
    "gcp": Names(
        region="us-central1",
        zone="us-central1-a",
        instance_type="n1-standard-8+t4x1",
        other_zone="us-central1-b",
        elsewhere="us-west1-a",
        listing="instances.aggregatedList",
        passing=("throttled", "internal", "garbage", "proxy", "drop-reply"),
        throttled="rateLimitExceeded",
        unreadable=("drop-reply", "garbage"),
        unknown={"unheard-of": "SOMETHING_NEW", "unheard-of-at-once": "somethingNew"},
        denied=frozenset({"compute.instances.list", "compute.instances.create"}),
        denial=r"compute\.instances\.list.*docs/permissions/gcp-role\.yaml",
        not_reading=(
            frozenset({"compute.disks.list", "compute.globalOperations.list"}),
            ("reading", "lacks compute.disks.list, compute.globalOperations.list"),
        ),
        credentials={"wrong": r"Invalid JWT Signature.*gcloud auth", "expired": r"401.*renew them"},
        without={"GOOGLE_APPLICATION_CREDENTIALS": "/nowhere.json"},
        set_up=r"no Google credentials.*gcloud auth application-default login",
        nobody="us-central1-a:spotsup-1",
        optional={"networkInterfaces": ("ssh_host", ""), "machineType": ("instance_type", "")},
        required="status",
        own_end="compute.instances.guestTerminate",
        leftovers=frozenset({LeftoverKind.DISK}),
        findings=frozenset(
            {"credentials", "reading", "image", "network", "us-central1 machine types", "us-central1 quota"}
        ),
        wrong=(
            ({"image": _FAMILY}, "image", rf"image {_FAMILY} does not exist \(notFound\): set gcp.image"),
            ({"images": {"L4": "ubuntu"}}, "image of L4", "form projects/P/global/images/family/F: set gcp.images"),
            ({"image_proprietary": _FAMILY}, "image_proprietary", "set gcp.image_proprietary"),
            ({"subnetworks": {"us-central1": "nowhere"}}, "us-central1 subnetwork", "gcp.subnetworks"),
            ({"project": "nobodys"}, "credentials", "set gcp.project"),
        ),
        hanging=(
            "instances.aggregatedList",
            "instances.delete",
            "disks.aggregatedList",
            "machineTypes.aggregatedList",
            "instances.getSerialPortOutput",
        ),
        # Google gives 500 at once.
        cost=lambda machines: {
            "instances.aggregatedList": 1 + (machines - 1) // 500,
            "globalOperations.aggregatedList": 1,
        },
        absent=(
            (OfferQuery(gpu="K80"), "K80: no cloud rents it any more"),
            (OfferQuery(gpu="T4", gpus_per_node=16), "no machine type has 16 or more T4"),
            (replace(T4, regions=("us-west1",)), r"none of us-west1 is one of gcp.regions \(us-central1\)"),
            (replace(T4, zones=("us-central1-c",)), "is offered in us-central1 in zones us-central1-c: name other"),
            (OfferQuery(instance_types=("c99-huge",)), "none of c99-huge is offered in us-central1: name other"),
        ),
    ),
    "azure": Names(
        region="eastus",
        zone="eastus-1",
        instance_type="Standard_NC4as_T4_v3",
        other_zone="eastus-2",
        elsewhere="westus2-1",
        listing=azure.LISTING,
        passing=("transient", "internal", "garbage", "empty"),
        throttled="TooManyRequests",
        unreadable=("drop-reply", "garbage", "empty"),
        unknown={"unheard-of": "SomethingNew"},
        denied=frozenset({azure.LISTING, azure.LAUNCH}),
        denial="virtualMachines/read.*docs/permissions/azure-",
        not_reading=(
            frozenset({"Microsoft.Compute/disks/read", azure.LOG}),
            ("reading", "may not read disks, the activity log"),
        ),
        credentials={
            "wrong": "AADSTS7000215",
            "refused": "InvalidAuthenticationToken.*renew the daemon's Azure credentials",
            "expired": "ExpiredAuthenticationToken.*renew the daemon's Azure credentials",
        },
        without={"AZURE_CLIENT_SECRET": ""},
        set_up=r"no valid Azure credentials.*set them up for the daemon's user",
        nobody="spotsup-1-c-n",
        optional={
            "hardwareProfile": ("instance_type", ""),
            "zones": ("zone", "eastus"),
            "networkProfile": ("node", "n1"),
        },
        required="provisioningState",
        own_end="",
        leftovers=frozenset(LeftoverKind) - {LeftoverKind.SPOT_REQUEST},
        findings=frozenset(
            {
                *("credentials", "reading", "launching", "dead-man switch"),
                *("eastus image", "eastus network", "eastus sizes", "eastus quota"),
            }
        ),
        wrong=(
            ({"dead_man_role": ""}, "dead-man switch", "set azure.dead_man_role, or azure.dead_man_s = 0"),
            (
                {"image": "microsoft-dsvm:ubuntu-hpc:1404:latest"},
                "eastus image",
                "set azure.image to one that eastus has",
            ),
            ({"image": "microsoft-dsvm:ubuntu-hpc:2404:1.2.3"}, "eastus image", "has no image"),
            ({"image": "ubuntu"}, "eastus image", "neither publisher:offer:sku:version"),
            ({"subnets": {}}, "eastus network", "set azure.subnets.eastus"),
            ({"subnets": {"eastus": "mine"}}, "eastus network", "is not the resource id of one of Azure's subnets"),
            ({"security_groups": {}}, "eastus network", "a public address without an inbound rule"),
            ({"resource_group": "elsewhere"}, "credentials", "ResourceGroupNotFound"),
            ({"subscription": "0"}, "credentials", "SubscriptionNotFound"),
        ),
        hanging=(
            azure.LISTING,
            "Microsoft.Compute/virtualMachines/delete",
            "Microsoft.Compute/disks/read",
            "Microsoft.Compute/skus/read",
            "Microsoft.Compute/virtualMachines/retrieveBootDiagnosticsData/action",
        ),
        # The machines, their power, their interfaces and addresses, the log.
        cost=lambda _: {
            azure.LISTING: 2,
            "Microsoft.Network/networkInterfaces/read": 1,
            "Microsoft.Network/publicIPAddresses/read": 1,
            azure.LOG: 1,
        },
        absent=(
            (OfferQuery(gpu="K80"), "K80: no cloud rents it any more"),
            (OfferQuery(instance_types=("Standard_NC6",)), "NC .* is gone"),
            (OfferQuery(gpu="T4", gpus_per_node=16), "no Azure size has 16 or more T4"),
            (replace(T4, regions=("westus2",)), r"none of westus2 is one of azure.regions \(eastus\)"),
            (replace(T4, zones=("eastus-9",)), "in eastus in zones eastus-9: name other"),
            (OfferQuery(instance_types=("Standard_Huge",)), "none of Standard_Huge is offered"),
        ),
    ),
}


@dataclass(frozen=True, slots=True)
class Api:
    """A provisioner, the server of its test cloud, and what that cloud calls things."""

    name: str
    server: Any
    provisioner: Provisioner

    @property
    def names(self) -> Names:
        """What this cloud calls things."""
        return NAMES[self.name]

    @property
    def cloud(self) -> Any:
        """The test cloud."""
        return self.server.cloud

    def with_settings(self, **settings: Any) -> Api:
        """The same cloud, for a daemon with other settings."""
        return replace(self, provisioner=self.server.provisioner(**settings))

    def request(self, node: str, zone: str = "", market: Market = Market.SPOT) -> LaunchRequest:
        """One machine with a T4."""
        zone = zone or self.names.zone
        region = zone[:-1] if self.name == "aws" else zone.rpartition("-")[0] or zone
        return request_at(Offer(self.name, region, zone, self.names.instance_type, market, None, "T4", 1), node)

    def launch(self, node: str, zone: str = "", market: Market = Market.SPOT) -> LaunchOutcome:
        """What comes of a request."""
        return self.provisioner.launch(self.request(node, zone, market), TIMEOUT_S)

    def launched(self, node: str, zone: str = "", market: Market = Market.SPOT) -> Instance:
        """A machine."""
        return launched_by(self.provisioner, self.request(node, zone, market))

    def found(self, node: str) -> Instance:
        """A node's machine, which the cloud knows."""
        return found_by(self.provisioner, node)

    def listed(self) -> Sequence[Instance]:
        """The cluster's machines."""
        return self.provisioner.instances(OWNER, TIMEOUT_S)

    def terminate(self, machine: Instance) -> None:
        """End a machine."""
        self.provisioner.terminate(machine.id, TIMEOUT_S)

    def launches(self) -> int:
        """How often a launch was called."""
        return sum(call.action == self.cloud.launch for call in self.cloud.calls)

    def offers(self, query: OfferQuery = T4) -> Sequence[Offer]:
        """What the cloud offers."""
        return self.provisioner.offers(query, TIMEOUT_S)

    def complaints(self) -> dict[str, str]:
        """What `check` finds wrong."""
        return {each.what: each.message for each in self.provisioner.check(30.0) if not each.ok}
