"""What cannot work, cloud by cloud, through the real SDKs: `spotsupd check` and `spotsupctl submit` say so in one
sentence, with the fix, and nothing is launched. A job waits for credentials, which are no job's fault.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from provisioners.base import Fatal, OfferQuery
from tests.clouds.base import wire_cloud
from tests.support.machines import TIMEOUT_S, request_at
from tests.unit.quoting import api, spec


@dataclass(frozen=True, slots=True)
class Case:
    """What is wrong, and how the messages of `check` (for `subject`) and `submit` end."""

    cloud: str
    wrong: str
    subject: str
    check: str
    submit: str = ""
    fault: Callable[[Any], object] = lambda _: None
    settings: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.cloud}-{self.wrong}"

    @property
    def denied(self) -> bool:
        """Whether the cloud denies everything: jobs are accepted, and wait until that is fixed."""
        return self.subject == "credentials"


def credentials(state: str) -> Callable[[Any], object]:
    return lambda cloud: setattr(cloud, "credentials", state)


def strict_clock(cloud: Any) -> None:
    cloud.fleet.ahead_s, cloud.strict = -3600.0, True


def no_ec2_quota(cloud: Any) -> None:
    cloud.ec2.quotas.update(dict.fromkeys(("L-3819A6DF", "L-7212CCBC", "L-C4BD4855"), 0.0))


def no_gcp_quota(cloud: Any) -> None:
    cloud.compute.quotas["us-central1"] = {"CPUS": 24.0, "NVIDIA_T4_GPUS": 0.0}


def no_azure_quota(cloud: Any) -> None:
    cloud.arm.quotas["lowPriorityCores"] = 0


def no_azure_sizes(cloud: Any) -> None:
    cloud.arm.restrictions |= {(size, "eastus") for size in cloud.arm.sizes}


RENEW = {
    "aws": "renew the daemon's AWS credentials",
    "gcp": "renew them (gcloud auth application-default login, or a new key of the service account)",
    "azure": "renew the daemon's Azure credentials",
}
GONE = "projects/ubuntu-os-accelerator-images/global/images/family/nothing"
RENEW_OR_ENABLE = f"{RENEW['aws']}, or enable the region, if it is one that an account has to enable"
CASES = (
    Case("aws", "credentials", "credentials", RENEW_OR_ENABLE, RENEW_OR_ENABLE, credentials("wrong")),
    Case(
        "aws",
        "expired token",
        "credentials",
        "renew the daemon's AWS credentials, and check this computer's clock",
        "renew the daemon's AWS credentials, and check this computer's clock",
        credentials("expired"),
    ),
    Case(
        "aws",
        "clock",
        "credentials",
        "set this computer's clock: it differs from AWS's by minutes",
        "set this computer's clock: it differs from AWS's by minutes",
        credentials("clock"),
    ),
    Case("aws", "image", "us-east-1 image", ": set aws.image", settings={"image": "ami-1gone"}),
    Case(
        "aws",
        "no type",
        "ca-west-1 launching",
        "ca-west-1 offers no instance type of the catalog: remove it from aws.regions",
        "is offered in ca-west-1: name other regions, zones or types",
        settings={"regions": ("ca-west-1",)},
    ),
    Case(
        "aws",
        "quota",
        "us-east-1 quota",
        "request more in Service Quotas",
        "request more in Service Quotas",
        no_ec2_quota,
    ),
    Case("gcp", "credentials", "credentials", RENEW["gcp"], RENEW["gcp"], credentials("wrong")),
    Case("gcp", "expired token", "credentials", RENEW["gcp"], RENEW["gcp"], credentials("expired")),
    Case(
        "gcp",
        "clock",
        "credentials",
        "set this computer's clock: it differs from Google's by minutes",
        "set this computer's clock: it differs from Google's by minutes",
        strict_clock,
    ),
    Case("gcp", "image", "image", "(notFound): set gcp.image", settings={"image": GONE}),
    Case(
        "gcp",
        "no type",
        "europe-north1 machine types",
        "europe-north1 offers no machine type of the catalog: remove it from gcp.regions",
        "is offered in europe-north1: name other regions, zones or types",
        settings={"regions": ("europe-north1",)},
    ),
    Case(
        "gcp",
        "quota",
        "us-central1 quota",
        "no GPU quota of us-central1 is above 0: request more at IAM & Admin, Quotas",
        "request more at IAM & Admin, Quotas",
        no_gcp_quota,
    ),
    Case("azure", "credentials", "credentials", "for the daemon's user", "for the daemon's user", credentials("wrong")),
    Case("azure", "refused token", "credentials", RENEW["azure"], RENEW["azure"], credentials("refused")),
    Case(
        "azure",
        "expired token",
        "credentials",
        "renew the daemon's Azure credentials, and check this computer's clock",
        "renew the daemon's Azure credentials, and check this computer's clock",
        credentials("expired"),
    ),
    Case(
        "azure",
        "image",
        "eastus image",
        "set azure.image to one that eastus has",
        settings={"image": "microsoft-dsvm:ubuntu-hpc:1404:latest"},
    ),
    Case(
        "azure",
        "no type",
        "eastus sizes",
        "remove it from azure.regions, or ask Azure to lift the restriction",
        "name other regions, zones or types, or ask Azure to lift the restriction",
        no_azure_sizes,
    ),
    Case(
        "azure",
        "quota",
        "eastus quota",
        "request more under Quotas in the portal",
        "request more under Quotas in the portal",
        no_azure_quota,
    ),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_cannot_work_is_refused_with_the_fix_before_money_is_spent(case: Case) -> None:
    with wire_cloud(case.cloud) as server:
        cloud = server.provisioner(**case.settings)
        case.fault(server.cloud)
        message = {each.what: each.message for each in cloud.check(30.0) if not each.ok}[case.subject]
        assert message.endswith(case.check)
        assert is_a_sentence(message)
        if case.submit:
            job = spec(resources={"gpu": "T4", "gpus_per_node": 1}, placement={"cloud": case.cloud})
            reply = api(**{case.cloud: cloud}).post("/v1/check", json=job)
            if case.denied:
                assert reply.status_code == 200
                (message,) = reply.json()["warnings"]
                assert message.startswith(f"{case.cloud} did not list its offers (")
                assert message.endswith(f"{case.submit}): the job waits until it does")
            else:
                assert reply.status_code == 409
                message = reply.json()["error"]
                assert message.startswith(f"{case.cloud} cannot give what job asks for: ")
                assert message.endswith(case.submit)
            assert is_a_sentence(message)
        assert not server.cloud.fleet.born()


FIXES = {
    "aws": "set aws.image to an AMI, or an SSM parameter, that this region has",
    "gcp": "look at gcp.image, gcp.network, gcp.subnetworks and gcp.service_account",
    "azure": "set azure.image to one that this region has",
}
IMAGES = {"aws": "ami-1gone", "gcp": GONE, "azure": "microsoft-dsvm:ubuntu-hpc:1404:latest"}


@pytest.mark.parametrize("name", IMAGES)
def test_a_launch_with_a_missing_image_is_refused_for_good(name: str) -> None:
    """A job does not choose its image, so the first launch reports this; a failed launch costs nothing."""
    with wire_cloud(name) as server:
        cloud = server.provisioner(image=IMAGES[name])
        offer = cloud.offers(OfferQuery(gpu="T4", gpus_per_node=1), TIMEOUT_S)[0]
        outcome = cloud.launch(request_at(offer, "n1"), TIMEOUT_S)
        assert isinstance(outcome, Fatal)
        assert outcome.message.endswith(FIXES[name])
        assert is_a_sentence(outcome.message)
        assert not server.cloud.fleet.born()


def is_a_sentence(text: str) -> bool:
    return "\n" not in text and len(text) < 400 and "Traceback" not in text
