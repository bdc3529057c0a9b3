"""The checks that `spotsupd check` makes on AWS. They launch nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial

from provisioners.aws import encryption, launch, network, reservations
from provisioners.aws.client import Aws
from provisioners.aws.errors import ERRORS
from provisioners.aws.offers import permitted_limit
from provisioners.aws.quota import TABLE
from provisioners.aws.settings import AwsSettings
from provisioners.base import (
    CLUSTER_TAG,
    DeniedError,
    Finding,
    HostKey,
    LaunchRequest,
    Market,
    Offer,
    Owner,
    ProvisionerError,
    Scope,
)
from provisioners.calls import Deadline
from provisioners.catalog import Catalog
from provisioners.checks import CloudChecks, check_disk, read_all
from provisioners.codes import ApiError

_READS = (
    ("describe_instances", "ec2:DescribeInstances"),
    ("describe_spot_instance_requests", "ec2:DescribeSpotInstanceRequests"),
    ("describe_volumes", "ec2:DescribeVolumes"),
    ("describe_network_interfaces", "ec2:DescribeNetworkInterfaces"),
    ("describe_addresses", "ec2:DescribeAddresses"),
)
_GPU_QUOTAS = ("L-3819A6DF", "L-7212CCBC", "L-C4BD4855")


class Checks(CloudChecks):
    """As CloudChecks says."""

    def __init__(self, aws: Aws, settings: AwsSettings, catalog: Catalog, now: Callable[[], datetime]) -> None:
        self._aws = aws
        self._settings = settings
        self._catalog = catalog
        self._now = now

    def _explain(self, error: ProvisionerError) -> str:
        row = ERRORS.row(error.reply) if isinstance(error, ApiError) else None
        return f"{error}: {row.remedy}" if row and row.remedy else str(error)

    def _credentials(self, deadline: Deadline) -> str:
        answer = self._aws.ask("sts", self._settings.regions[0], "get_caller_identity", deadline)
        return f"the daemon's AWS identity is {answer['Arn']}"

    def _further(self, deadline: Deadline) -> Iterator[Finding]:
        for region in self._settings.regions:
            yield from self._region(region, deadline)
        if self._settings.reservations:
            yield self._try("reservations", lambda: self._reservations(deadline))

    def _reservations(self, deadline: Deadline) -> str:
        """Raise ProvisionerError for each that is not there or cannot be used, but for one that has not begun yet."""
        wanted, regions = self._settings.reservations, self._settings.regions
        known, silent = reservations.read(self._aws, wanted, regions, deadline)
        if silent:
            raise next(iter(silent.values()))
        now, said, wrong = self._now().timestamp(), [], []
        for ec2_id in wanted:
            found = known.get(ec2_id)
            why = found.why_unusable(now) if found else f"is not in {', '.join(regions)}"
            if found is None or (why and not found.is_coming):
                wrong.append(f"{ec2_id} {why}")
            else:
                said.append(f"{found}, and {why}" if why else str(found))
        if wrong:
            raise ProvisionerError(f"{'; '.join(wrong)}: take it out of aws.reservations")
        return "; ".join(said)

    def _region(self, region: str, deadline: Deadline) -> Iterator[Finding]:
        if problem := self._not_enabled(region, deadline):
            yield Finding(f"{region} region", ok=False, message=problem)
            return
        yield self._try(f"{region} reading", lambda: self._reading(region, deadline))
        for image in self._images():
            yield self._try(f"{region} image", partial(self._image, region, image, deadline))
        yield self._try(f"{region} network", lambda: network.check(self._aws, self._settings, region, deadline))
        yield self._try(f"{region} encryption", lambda: encryption.check(self._aws, region, deadline))
        yield self._try(f"{region} launching", lambda: self._launching(region, deadline))
        yield self._try(f"{region} quota", lambda: self._quota(region, deadline))

    def _not_enabled(self, region: str, deadline: Deadline) -> str:
        """Return why a region refuses credentials that are good in the first one; "" if it accepts them.

        EC2 answers AuthFailure, as for wrong credentials (turbot/steampipe-plugin-aws#75, fog/fog-aws#585).
        """
        first = self._settings.regions[0]
        if region == first:
            return ""  # STS has accepted them there
        filters = [{"Name": f"tag:{CLUSTER_TAG}", "Values": ["none"]}]
        try:
            self._aws.ask("ec2", region, "describe_instances", deadline, Filters=filters)
        except DeniedError as error:
            if error.scope is Scope.GLOBAL:
                return (
                    f"{region} does not accept the credentials that {first} accepts: enable it for the account (AWS "
                    "console, Account, AWS Regions), or remove it from aws.regions"
                )
        except ProvisionerError:
            pass  # the checks of the region say so
        return ""

    def _reading(self, region: str, deadline: Deadline) -> str:
        filters = [{"Name": f"tag:{CLUSTER_TAG}", "Values": ["none"]}]
        reads = (
            (permission, partial(self._aws.ask, "ec2", region, call, deadline, Filters=filters))
            for call, permission in _READS
        )
        read_all(reads, "the daemon's role lacks")
        return f"machines, disks, interfaces, addresses and spot requests in {region} can be listed"

    def _images(self) -> list[str]:
        settings = self._settings
        return list(dict.fromkeys([settings.image, settings.image_proprietary, *settings.images.values()]))

    def _image(self, region: str, image: str, deadline: Deadline) -> str:
        ami = image
        if image.startswith("/"):
            try:
                ami = self._aws.ask("ssm", region, "get_parameter", deadline, Name=image)["Parameter"]["Value"]
            except ApiError as error:
                raise ProvisionerError(
                    f"{region} has no SSM parameter {image} ({error.reply.code}): {self._image_key(image)}"
                ) from error
        try:
            answer = self._aws.ask("ec2", region, "describe_images", deadline, ImageIds=[ami])
        except ApiError as error:
            raise ProvisionerError(f"{error}: {self._image_key(image)}") from error
        if not (found := answer.get("Images")):
            raise ProvisionerError(f"{region} has no image {ami}: {self._image_key(image)}")
        device = found[0].get("RootDeviceName", "")
        if device != launch.ROOT_DEVICE:
            raise ProvisionerError(
                f"the root device of {ami} is {device}, and spotsup sets the size of {launch.ROOT_DEVICE}: "
                f"{self._image_key(image)}, to one that is made from Ubuntu"
            )
        mappings = found[0].get("BlockDeviceMappings") or ()
        sizes = (each.get("Ebs", {}).get("VolumeSize", 0) for each in mappings if each.get("DeviceName") == device)
        check_disk("aws", self._settings.disk_gb, ami, next(sizes, 0))
        return f"{image} is {ami} in {region}"

    def _image_key(self, image: str) -> str:
        settings = self._settings
        if image == settings.image:
            return "set aws.image"
        if image == settings.image_proprietary:
            return "set aws.image_proprietary, or ask for no V100"
        return f"change it in aws.images ({', '.join(gpu for gpu, name in settings.images.items() if name == image)})"

    def _launching(self, region: str, deadline: Deadline) -> str:
        """Make a dry run of the call that launches."""
        filters = [{"Name": "instance-type", "Values": [each.name for each in self._catalog.cloud("aws").types]}]
        answer = self._aws.ask(
            "ec2",
            region,
            "describe_instance_type_offerings",
            deadline,
            LocationType="availability-zone",
            Filters=filters,
        )
        offered = sorted((each["InstanceType"], each["Location"]) for each in answer["InstanceTypeOfferings"])
        usable = [each for each in offered if not self._settings.subnets or each[1] in self._settings.subnets]
        if not usable:
            raise ProvisionerError(f"{region} offers no instance type of the catalog: remove it from aws.regions")
        name, zone = usable[0]
        request = _dry_request(region, zone, name)
        machine = self._catalog.type_of("aws", name)
        parameters = launch.run_instances(request, self._settings, machine, self._catalog.driver_of(machine))
        try:
            self._aws.ask("ec2", region, "run_instances", deadline, **parameters, DryRun=True)
        except ApiError as error:
            if error.reply.code == "DryRunOperation":
                return f"a launch of {name} in {zone} would have been allowed"
            outcome = ERRORS.launch_outcome(error.reply, f"{zone}, {name}")
            raise ProvisionerError(getattr(outcome, "message", str(error))) from error
        raise ProvisionerError(
            f"EC2 in {region} launched an instance on a dry run: terminate the instance of node check"
        )

    def _quota(self, region: str, deadline: Deadline) -> str:
        quotas = [each for each in TABLE if each.code in _GPU_QUOTAS]
        limits = {each.name: permitted_limit(self._aws, region, each, deadline) for each in quotas}
        shown = ", ".join(f"{name}: {'?' if limit is None else f'{limit:g}'}" for name, limit in limits.items())
        if all(limit == 0 for limit in limits.values()):
            raise ProvisionerError(
                f"the quotas of {region} allow no GPU spot instance (vCPUs: {shown}): request more in Service Quotas"
            )
        return f"vCPUs in {region}: {shown}"


def _dry_request(region: str, zone: str, instance_type: str) -> LaunchRequest:
    offer = Offer("aws", region, zone, instance_type, Market.SPOT, None)
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA check"
    return LaunchRequest("check", Owner("check", ""), "check", offer, HostKey(key, "none"), (key,))
