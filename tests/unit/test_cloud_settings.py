"""The settings of the clouds: strict, and each complaint says what would be right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from spotsup_trainer.agent.gcp import SHUTDOWN_S

from provisioners.aws.settings import AwsSettings
from provisioners.azure.settings import AzureSettings
from provisioners.gcp.settings import GcpSettings
from provisioners.localcloud.models import NoticeBody
from provisioners.registry import CLOUDS
from supervisor.config import parse_config

PERMISSIONS = Path(__file__).resolve().parents[2] / "docs" / "permissions"


def aws(**given: Any) -> AwsSettings:
    return AwsSettings(**{"regions": ("us-east-1",), **given})


def test_little_has_to_be_said() -> None:
    settings = aws()
    assert (settings.ssh_user, settings.ssh_port, settings.public_address) == ("ubuntu", 22, True)
    assert settings.dead_man_s == 3600
    assert GcpSettings(regions=("us-central1",), project="p").notice_s == 0
    assert AzureSettings(regions=("eastus",), subscription="s", resource_group="g").identity == ""


def test_no_notice_that_a_cloud_may_give_is_longer_than_what_is_believed() -> None:
    assert all(cloud.notice_s <= cloud.max_notice_s for cloud in CLOUDS.values())
    longest = int(CLOUDS["gcp"].max_notice_s - SHUTDOWN_S)
    assert GcpSettings(regions=("us-central1",), project="p", notice_s=longest).notice_s == longest
    with pytest.raises(ValidationError):
        GcpSettings(regions=("us-central1",), project="p", notice_s=longest + 1)
    NoticeBody(notice_s=CLOUDS["local"].max_notice_s)
    with pytest.raises(ValidationError):
        NoticeBody(notice_s=CLOUDS["local"].max_notice_s + 1)
    rules = parse_config({}, "").rules()
    assert rules.max_notice_s == {name: cloud.max_notice_s for name, cloud in CLOUDS.items()}


def test_what_nodes_need_for_checkpoints_in_object_stores_is_in_a_file() -> None:
    assert aws(instance_profile="train").node_role == ("instance_profile", "train", "aws-checkpoints-policy.json")
    for settings in (
        aws(),
        GcpSettings(regions=("us-central1",), project="p"),
        AzureSettings(regions=("eastus",), subscription="s", resource_group="g"),
    ):
        assert settings.node_role is not None
        key, role, file = settings.node_role
        assert (getattr(settings, key), role) == ("", "")
        assert (PERMISSIONS / file).is_file()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"regions": ()}, "at least 1"),
        ({"region": "us-east-1"}, "Extra inputs"),
        ({"ssh_user": "me; rm"}, "pattern"),
        ({"dead_man_s": 60.0}, "at least 1800 s"),
        ({"tags": {"spotsup-cluster": "x"}}, "spotsup's own"),
        ({"image": "ubuntu"}, "neither an AMI"),
        ({"image": "ami-1", "regions": ("us-east-1", "us-west-2")}, "one region only"),
        ({"images": {"T4": "ami-1"}, "regions": ("us-east-1", "us-west-2")}, "one region only"),
        ({"endpoint": "localhost:4566"}, "pattern"),
        ({"disk_gb": 8}, "greater than or equal to 30"),
        ({"regions": ("us-east-1", "cn-north-1")}, "cn-north-1 is in a partition of AWS of its own"),
        ({"regions": ("us-gov-west-1",)}, "us-gov-west-1 is in a partition"),
        ({"regions": ("us-isob-east-1",)}, "us-isob-east-1 is in a partition"),
        ({"regions": ("eusc-de-east-1",)}, "eusc-de-east-1 is in a partition"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        aws(**given)


def test_an_ami_will_do_in_one_region_and_a_parameter_in_all() -> None:
    assert aws(image="ami-1").image == "ami-1"
    assert aws(image="/a/b", regions=("us-east-1", "us-west-2")).image == "/a/b"


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("us-central1-a", "'us-central1-a' is no ZONE/TYPE with a type of a3-highgpu-8g, "),
        ("us-central1-a/g2-standard-4", "is no ZONE/TYPE"),
        ("/a4-highgpu-8g", "is no ZONE/TYPE"),
        ("us-central1-a/a4-highgpu-8g", "a4-highgpu-8g has 9 further interfaces, not 2"),
    ],
)
def test_a_type_has_a_certain_number_of_interfaces(place: str, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        GcpSettings(regions=("us-central1",), project="p", further_subnetworks={place: ("a", "b")})
