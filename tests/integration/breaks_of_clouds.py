"""How the rows of tools/broken_setups/clouds.py are broken."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from tests.support.broken_setups import AWS, AZURE, GCP, Setup, breaks


@breaks("sdk-missing")
def _(setup: Setup) -> None:
    setup.config |= {"aws": {"regions": ["us-east-1"], "endpoint": "http://127.0.0.1:9"}, "local": {"enabled": False}}
    setup.monkeypatch.setitem(sys.modules, "boto3", None)


@breaks("aws-no-credentials")
def _(setup: Setup) -> None:
    setup.cloud(AWS)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        del os.environ[name]


@breaks("aws-no-profile")
def _(setup: Setup) -> None:
    setup.cloud(AWS, profile="research")


@breaks("aws-wrong-credentials")
def _(setup: Setup) -> None:
    setup.cloud(AWS).credentials = "wrong"


@breaks("aws-expired-credentials")
def _(setup: Setup) -> None:
    setup.cloud(AWS).credentials = "expired"


@breaks("aws-clock")
def _(setup: Setup) -> None:
    setup.cloud(AWS).credentials = "clock"


@breaks("aws-may-not-read")
def _(setup: Setup) -> None:
    setup.cloud(AWS).denied |= {"ec2:DescribeVolumes", "ec2:DescribeAddresses"}


@breaks("aws-may-not-launch")
def _(setup: Setup) -> None:
    setup.cloud(AWS).denied.add("ec2:RunInstances")


@breaks("aws-may-not-tag")
def _(setup: Setup) -> None:
    setup.cloud(AWS).denied.add("ec2:CreateTags")


@breaks("aws-may-not-pass-role")
def _(setup: Setup) -> None:
    setup.cloud(AWS, instance_profile="nodes").denied.add("iam:PassRole")


@breaks("aws-no-image")
def _(setup: Setup) -> None:
    setup.cloud(AWS, image="ami-1gone")


@breaks("aws-region-not-enabled")
def _(setup: Setup) -> None:
    setup.cloud(AWS, regions=("us-east-1", "me-central-1")).not_enabled.add("me-central-1")


@breaks("aws-first-region-not-enabled")
def _(setup: Setup) -> None:
    setup.cloud(AWS, regions=("me-central-1",)).not_enabled.add("me-central-1")


@breaks("aws-arm-image")
def _(setup: Setup) -> None:
    image = "ami-0123456789abcdef0"
    setup.cloud(AWS, image=image).ec2.arm_images.add(image)


@breaks("aws-no-profile-of-nodes")
def _(setup: Setup) -> None:
    setup.cloud(AWS, instance_profile="nodes").ec2.missing_profiles.add("nodes")


@breaks("aws-closed-group")
def _(setup: Setup) -> None:
    server = setup.cloud(AWS)
    group = server.ec2._default_group("us-east-1")
    backend = server.fleet.backend("us-east-1")
    backend.revoke_security_group_ingress(group.id, "tcp", "1", "65535", [{"CidrIp": "198.51.100.1/32"}])
    setup.values |= {"group": group.id, "vpc": group.vpc_id}


@breaks("aws-no-group")
def _(setup: Setup) -> None:
    setup.cloud(AWS, security_groups={"us-east-1": ("sg-0123456789abcdef0",)})


@breaks("aws-no-default-network")
def _(setup: Setup) -> None:
    setup.cloud(AWS).fleet.backend("us-east-1").get_default_vpc().is_default = "false"


@breaks("aws-private-subnets")
def _(setup: Setup) -> None:
    backend = setup.cloud(AWS).fleet.backend("us-east-1")
    setup.values["vpc"] = backend.get_default_vpc().id
    (table,) = backend.describe_route_tables()
    backend.delete_route(table.id, "0.0.0.0/0")


@breaks("aws-key-denied")
def _(setup: Setup) -> None:
    setup.cloud(AWS).ec2.keys.encrypt()


@breaks("aws-key-disabled")
def _(setup: Setup) -> None:
    setup.cloud(AWS).ec2.keys.encrypt(state="Disabled")


@breaks("aws-no-quota")
def _(setup: Setup) -> None:
    setup.cloud(AWS).ec2.quotas.update(dict.fromkeys(("L-3819A6DF", "L-7212CCBC", "L-C4BD4855"), 0.0))


@breaks("aws-region-without-types")
def _(setup: Setup) -> None:
    cloud = setup.cloud(AWS, regions=("ca-west-1",))
    cloud.ec2.let_in("ca-west-1")


@breaks("aws-subnet-of-another-zone")
def _(setup: Setup) -> None:
    cloud = setup.cloud(AWS)
    backend = cloud.fleet.backend("us-east-1")
    subnet = next(each for each in backend.describe_subnets() if each.availability_zone == "us-east-1b")
    setup.config[AWS]["subnets"] = {"us-east-1a": subnet.id}
    setup.values["subnet"] = subnet.id


def _efs_job(setup: Setup) -> Any:
    """A job that mounts an EFS file system; the cloud."""
    job = {"name": "first", "nodes": {"min": 1, "desired": 1, "max": 1}, "run": "first.py", "checkpoints": "none"}
    storage = [{"mount": "/mnt/data", "nfs": "fs-01234567.efs.us-east-1.amazonaws.com:/", "mode": "ro"}]
    text = json.dumps({**job, "resources": {"instance_types": ["g4dn.xlarge"]}, "storage": storage})
    setup.arguments = ["--job", setup.write("job.yaml", text)]
    return setup.cloud(AWS)


@breaks("aws-no-mount-target")
def _(setup: Setup) -> None:
    _efs_job(setup).ec2.mount_targets["fs-01234567"] = [("us-east-1a", "creating")]


@breaks("aws-mount-target-of-another-zone")
def _(setup: Setup) -> None:
    _efs_job(setup).ec2.mount_targets["fs-01234567"] = [("us-east-1e", "available")]


@breaks("aws-closed-mount-target")
def _(setup: Setup) -> None:
    cloud = _efs_job(setup)
    cloud.ec2.mount_targets["fs-01234567"] = [("us-east-1a", "available")]
    backend = cloud.fleet.backend("us-east-1")
    group = backend.create_security_group("nfs", "of a mount target", backend.get_default_vpc().id)
    cloud.ec2.mount_target_groups["us-east-1a"] = group.id


@breaks("aws-no-file-system")
def _(setup: Setup) -> None:
    _efs_job(setup)


@breaks("gcp-wrong-credentials")
def _(setup: Setup) -> None:
    setup.cloud(GCP).credentials = "wrong"


@breaks("gcp-no-credentials")
def _(setup: Setup) -> None:
    setup.cloud(GCP)
    os.environ["GOOGLE_APPLICATION_CREDENTIALS"] = str(setup.folder / "nowhere.json")


@breaks("gcp-clock")
def _(setup: Setup) -> None:
    cloud = setup.cloud(GCP)
    cloud.fleet.ahead_s, cloud.strict = -3600.0, True


@breaks("gcp-no-project")
def _(setup: Setup) -> None:
    setup.cloud(GCP, project="no-such-project")


@breaks("gcp-api-disabled")
def _(setup: Setup) -> None:
    setup.cloud(GCP).api_enabled = False


@breaks("gcp-may-not-read")
def _(setup: Setup) -> None:
    setup.cloud(GCP).denied.add("compute.instances.list")


@breaks("gcp-no-image")
def _(setup: Setup) -> None:
    setup.cloud(GCP, image="projects/ubuntu-os-accelerator-images/global/images/family/nothing")


@breaks("gcp-arm-image")
def _(setup: Setup) -> None:
    family = "ubuntu-accelerator-2404-arm64-with-nvidia-580"
    setup.cloud(GCP, image=f"projects/ubuntu-os-accelerator-images/global/images/family/{family}")


@breaks("gcp-x64-image")
def _(setup: Setup) -> None:
    family = "ubuntu-accelerator-2404-amd64-with-nvidia-580"
    image = f"projects/ubuntu-os-accelerator-images/global/images/family/{family}"
    setup.cloud(GCP, images={"GB200": image}, catalog=_arm_types(setup, GCP))


def _arm_types(setup: Setup, cloud: str) -> str:
    """A catalogue that adds machines with Arm processors."""
    gpu, machine = "[gpus.GB200]\nmemory_gib = 186", '{name = "arm", gpu = "GB200", gpus = 4, arch = "arm64"}'
    return setup.write("arm.toml", f"{gpu}\n[{cloud}]\ntypes = [{machine}]\n")


@breaks("gcp-no-account")
def _(setup: Setup) -> None:
    setup.cloud(GCP, service_account="nodes@a-project.iam.gserviceaccount.com")


@breaks("gcp-may-not-act-as")
def _(setup: Setup) -> None:
    account = "nodes@a-project.iam.gserviceaccount.com"
    setup.cloud(GCP, service_account=account).compute.account.know(account, act_as=False)


@breaks("gcp-closed-network")
def _(setup: Setup) -> None:
    cloud = setup.cloud(GCP)
    cloud.compute.firewalls = [each for each in cloud.compute.firewalls if each["name"] != "ssh"]
    cloud.compute.firewalls[0]["allowed"][0]["ports"] = ["2379"]


@breaks("gcp-no-quota")
def _(setup: Setup) -> None:
    setup.cloud(GCP).compute.quotas["us-central1"] = {"CPUS": 24.0, "NVIDIA_T4_GPUS": 0.0}


@breaks("gcp-region-without-types")
def _(setup: Setup) -> None:
    setup.cloud(GCP, regions=("europe-north1",))


@breaks("azure-wrong-credentials")
def _(setup: Setup) -> None:
    setup.cloud(AZURE).credentials = "wrong"


@breaks("azure-no-group")
def _(setup: Setup) -> None:
    setup.cloud(AZURE, resource_group="elsewhere")


@breaks("azure-not-registered")
def _(setup: Setup) -> None:
    setup.cloud(AZURE).arm.account.unregistered = {"Microsoft.Compute"}


@breaks("azure-may-not-launch")
def _(setup: Setup) -> None:
    setup.cloud(AZURE).arm.granted = [{"actions": ["*/read"], "notActions": []}]


@breaks("azure-no-switch")
def _(setup: Setup) -> None:
    setup.cloud(AZURE, dead_man_role="")


@breaks("azure-no-subnet")
def _(setup: Setup) -> None:
    setup.cloud(AZURE, subnets={})


@breaks("azure-closed-group")
def _(setup: Setup) -> None:
    setup.cloud(AZURE).arm.rules.clear()


@breaks("azure-no-image")
def _(setup: Setup) -> None:
    setup.cloud(AZURE, image="microsoft-dsvm:ubuntu-hpc:1404:latest")


@breaks("azure-arm-image")
def _(setup: Setup) -> None:
    setup.cloud(AZURE, image="Canonical:ubuntu-24_04-lts:server-arm64:latest")


@breaks("azure-x64-image")
def _(setup: Setup) -> None:
    images = {"GB200": "microsoft-dsvm:ubuntu-hpc:2404:24.04.2026010100"}
    setup.cloud(AZURE, images=images, catalog=_arm_types(setup, AZURE))


@breaks("azure-no-quota")
def _(setup: Setup) -> None:
    setup.cloud(AZURE).arm.quotas["lowPriorityCores"] = 0


@breaks("azure-no-sizes")
def _(setup: Setup) -> None:
    cloud = setup.cloud(AZURE)
    cloud.arm.restrictions |= {(size, "eastus") for size in cloud.arm.sizes}
