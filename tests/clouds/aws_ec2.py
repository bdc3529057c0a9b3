"""EC2's calls that the test cloud answers itself, or corrects before and after moto."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from moto.core import DEFAULT_ACCOUNT_ID
from moto.efs.models import efs_backends
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.test import run_wsgi_app

from tests.clouds.aws_account import Account
from tests.clouds.aws_efs import as_efs
from tests.clouds.aws_faults import Faults
from tests.clouds.aws_instances import Instances, Record, Seen
from tests.clouds.aws_keys import Keys
from tests.clouds.aws_reservations import BLOCK, Reservations, target
from tests.clouds.aws_wire import Call, FakeAwsError, ec2_answer, matches, without
from tests.clouds.base import Answer
from tests.clouds.machines import Machines

# No test asks for the 600 images that moto makes for each account and region, and keeps: 0.7 GB after 80 tests.
os.environ.setdefault("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")

IMAGES = {
    "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id": "ami-0open",
    "/aws/service/deeplearning/ami/x86_64/base-proprietary-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id": "ami-0closed",
}
_MAX_PRICE = "InstanceMarketOptions.SpotOptions.MaxPrice"
_ADDRESSES = ("ipAddress", "dnsName", "privateIpAddress", "privateDnsName", "association")


# skypilot#6315
_OTHER_ARCHITECTURE = (
    "The architecture '{of_type}' of the specified instance type does not match the architecture 'arm64' of the "
    "specified AMI. Specify an instance type and an AMI that have matching architectures, and try again. You can use "
    "'describe-instance-types' or 'describe-images' to discover the architecture of the instance type or AMI."
)


class Ec2:
    """One account's EC2 in all regions. What can be set: vCPU `quotas`, `images` by SSM parameter, `page` size, and how
    often a call that names a young machine does not know it (`forgets`). Callers hold `fleet.lock`.
    """

    def __init__(self, machines: Machines) -> None:
        self.fleet = Instances(machines)
        self.quotas: dict[str, float] = defaultdict(lambda: 4096.0)
        self.images = dict(IMAGES)
        self.page = 100
        self.forgets = 0
        self.keys = Keys()
        self.reservations = Reservations()
        # File system -> (zone, state) of its mount targets.
        self.mount_targets: dict[str, list[tuple[str, str]]] = {}
        # Zone -> the security group of mount targets there; else the default one, as where none is named.
        self.mount_target_groups: dict[str, str] = {}
        # Names of instance profiles that do not exist; images for machines with Arm processors.
        self.missing_profiles: set[str] = set()
        self.arm_images: set[str] = set()
        self.image_gb = 30
        # Spot prices that are not the invented ones, by (type, zone).
        self.spot_prices: dict[tuple[str, str], str] = {}
        self._regions: set[str] = set()
        self._unknown: Counter[str] = Counter()
        self._tokens: dict[tuple[str, str, str], tuple[str, Answer, str]] = {}
        self._moto = DomainDispatcherApplication(create_backend_app)
        self.account = Account(self._by_moto, self.fleet.backend)
        self._handlers: dict[str, Callable[[Call], Answer]] = {
            **self.account.handlers,
            **self.keys.handlers,
            **self.reservations.handlers,
            **Faults(self.fleet, self._by_moto).handlers,
            "RunInstances": self._run_instances,
            "DescribeInstances": self._describe_instances,
            "TerminateInstances": self._terminate_instances,
            "DescribeSpotInstanceRequests": self._describe_spot_requests,
            "CancelSpotInstanceRequests": self._cancel_spot_requests,
            "DescribeSpotPriceHistory": self._spot_prices,
            "GetConsoleOutput": self._console,
            "DescribeImages": self._describe_images,
            "GetParameter": self._parameter,
            "GetServiceQuota": self._quota,
            "GetProducts": self._products,
            "DescribeMountTargets": self._mount_targets,
            "DescribeMountTargetSecurityGroups": self._mount_target_groups,
            "CreateNetworkInterface": self._create_interface,
            "DeleteNetworkInterface": self._delete_interface,
        }

    def serve(self, call: Call) -> Answer:
        """One call. Raises FakeAwsError."""
        if call.service == "ec2":
            self._furnish(call.region)
        return self._handlers.get(call.action, self._by_moto)(call)

    def _by_moto(self, call: Call) -> Answer:
        inner = {**call.environ, "wsgi.input": io.BytesIO(call.body), "CONTENT_LENGTH": str(len(call.body))}
        parts, status, headers = run_wsgi_app(self._moto, inner)
        kept = {name: headers[name] for name in ("Content-Type", "x-amzn-ErrorType") if name in headers}
        answer = Answer(int(status.split()[0]), b"".join(parts), kept)
        return as_efs(call, answer) if call.service == "elasticfilesystem" else answer

    def let_in(self, region: str) -> None:
        """A rule of the default security group, for the daemon's address."""
        self._furnish(region)
        group = self._default_group(region)
        self.fleet.backend(region).authorize_security_group_ingress(
            group.id, "tcp", "1", "65535", [{"CidrIp": "198.51.100.1/32"}]
        )

    def _default_group(self, region: str) -> Any:
        backend = self.fleet.backend(region)
        vpc = backend.get_default_vpc().id
        return next(each for each in backend.describe_security_groups() if (each.vpc_id, each.name) == (vpc, "default"))

    def _furnish(self, region: str) -> None:
        """What moto's default VPC lacks: a way out, and the rule of its default security group, for its members alone.

        Sources: "Default VPC components" and "Default security groups for your VPCs" in Amazon's VPC guide.
        """
        if region in self._regions:
            return
        self._regions.add(region)
        backend = self.fleet.backend(region)
        vpc, group = backend.get_default_vpc(), self._default_group(region)
        gateway = backend.create_internet_gateway()
        backend.attach_internet_gateway(gateway.id, vpc.id)
        table = next(each for each in backend.describe_route_tables() if each.vpc_id == vpc.id)
        backend.create_route(table.id, "0.0.0.0/0", gateway_id=gateway.id)
        backend.authorize_security_group_ingress(group.id, "-1", "", "", [], source_groups=[{"GroupId": group.id}])

    # -- instances -----------------------------------------------------------------------------------------

    def _run_instances(self, call: Call) -> Answer:
        zone = self._zone(call)
        key = (call.region, zone, call.form.get("ClientToken", ""))
        print_ = hashlib.sha256(repr(sorted(call.form.items())).encode()).hexdigest()
        if key in self._tokens:
            return self._replay(key, print_)
        self._check(call, zone)
        if call.form.get("DryRun") == "true":
            raise FakeAwsError("DryRunOperation", "Request would have succeeded, but DryRun flag is set.")
        self._check_room(call, zone)
        image = self._image(call.form["ImageId"])
        changed = call.body.replace(_quoted(f"ImageId={call.form['ImageId']}"), f"ImageId={image}".encode())
        for name, value in call.form.items():  # moto knows no network cards, and tells interfaces by their device index
            if card := re.fullmatch(r"NetworkInterface\.(\d+)\.DeviceIndex", name):
                changed = changed.replace(f"{name}={value}".encode(), f"{name}={int(card[1]) - 1}".encode())
        answer = self._by_moto(replace(call, body=changed))
        if answer.status != 200:
            return answer
        machines = [each.decode() for each in re.findall(rb"<instanceId>(i-[0-9a-f]+)</instanceId>", answer.body)]
        body = without(answer.body, _ADDRESSES)
        for machine in machines:
            record = self._born(call, machine)
            spot, born = record.spot, record.moto.launch_time.strftime("%Y-%m-%dT%H:%M:%S.000Z")
            body = re.sub(rb"<launchTime>[^<]*", f"<launchTime>{born}".encode(), body)
            if spot is not None:
                mark = f"{machine}</instanceId>".encode()
                more = f"<spotInstanceRequestId>{spot.id}</spotInstanceRequestId>".encode()
                body = body.replace(mark, mark + more, 1)
        answer = Answer(200, body, answer.headers)
        self._tokens[key] = (print_, answer, machines[0])
        return answer

    def _born(self, call: Call, machine: str) -> Record:
        spot_tags = call.tags("spot-instances-request") if _is_spot(call) else None
        user_data = base64.b64decode(call.form.get("UserData", "")).decode()
        record = self.fleet.add(machine, call.region, user_data, spot_tags)
        record.reservation = target(call)
        record.lifecycle = BLOCK if call.form.get("InstanceMarketOptions.MarketType") == BLOCK else ""
        record.max_price = call.form.get(_MAX_PRICE, "")
        record.moto.launch_time += timedelta(seconds=self.fleet.ahead_s)
        record.moto.placement.group_name = call.form.get("Placement.GroupName", "")
        mine = call.form.get("NetworkInterface.1.NetworkInterfaceId", "")
        for nic in record.moto.nics.values():
            if nic.id != mine:
                nic.add_tags(call.tags("network-interface"))
                nic.delete_on_termination = True
        record.public = call.form.get("NetworkInterface.1.AssociatePublicIpAddress") == "true" or any(
            each.eni is not None and each.eni.id == mine
            for each in self.fleet.backend(call.region).describe_addresses()
        )
        key = self.keys.by_region.get(call.region)
        if key is not None and (reason := key.ends_launches_with(spot=record.spot is not None)):
            self.fleet.lose(machine, reason)
        if self.forgets:
            self._unknown[machine] = self.forgets
        return record

    def _replay(self, key: tuple[str, str, str], print_: str) -> Answer:
        known, answer, machine = self._tokens[key]
        if known != print_:
            message = (
                "Arguments on this idempotent request are inconsistent with arguments used in previous request(s)."
            )
            raise FakeAwsError("IdempotentParameterMismatch", message)
        self.fleet.sync(self.fleet.records[machine])
        if self.fleet.records[machine].past[-1].state in {"shutting-down", "terminated"}:
            raise FakeAwsError("IdempotentInstanceTerminated", f"The instance {machine} has been terminated.")
        return answer

    def _zone(self, call: Call) -> str:
        zones = [each.name for each in self.fleet.backend(call.region).describe_availability_zones()]
        subnet = call.form.get("NetworkInterface.1.SubnetId")
        if subnet:
            known = {each.id: each.availability_zone for each in self.fleet.backend(call.region).describe_subnets()}
            if subnet not in known:
                raise FakeAwsError("InvalidSubnetID.NotFound", f"The subnet ID '{subnet}' does not exist")
            return str(known[subnet])
        zone = call.form["Placement.AvailabilityZone"]
        if zone not in zones:
            raise FakeAwsError("InvalidParameterValue", f"Invalid availability zone: [{zone}]")
        return zone

    def _check(self, call: Call, zone: str) -> None:
        name, form = call.form["InstanceType"], call.form
        backend = self.fleet.backend(call.region)
        types = {each["InstanceType"]: each for each in backend.describe_instance_types()}
        if name not in types:
            raise FakeAwsError("InvalidParameterValue", f"Invalid value '{name}' for InstanceType.")
        offered = backend.describe_instance_type_offerings("availability-zone", {"instance-type": [name]})
        if zone not in {each["Location"] for each in offered}:
            raise FakeAwsError("Unsupported", f"Your requested instance type ({name}) is not supported in {zone}.")
        image, (of_type, *_) = self._image(form["ImageId"]), types[name]["ProcessorInfo"]["SupportedArchitectures"]
        if image in self.arm_images and of_type != "arm64":
            raise FakeAwsError("InvalidParameterValue", _OTHER_ARCHITECTURE.format(of_type=of_type))
        disk_gb = int(form["BlockDeviceMapping.1.Ebs.VolumeSize"])
        if disk_gb < self.image_gb:
            # docs.spot.io, stateful nodes, troubleshooting
            message = f"Volume of size {disk_gb}GB is smaller than snapshot 'snap-1', expect size >= {self.image_gb}GB"
            raise FakeAwsError("InvalidBlockDeviceMapping", message)
        profile = form.get("IamInstanceProfile.Name", "")
        if profile in self.missing_profiles:
            # terraform-provider-aws#27516
            message = f"Value ({profile}) for parameter iamInstanceProfile.name is invalid. "
            message += "Invalid IAM Instance Profile name"
            raise FakeAwsError("InvalidParameterValue", message)
        if len(base64.b64decode(form.get("UserData", ""))) > 16384:
            raise FakeAwsError("InvalidParameterValue", "User data is limited to 16384 bytes")
        cards = [each for each in form if re.fullmatch(r"NetworkInterface\.\d+\.DeviceIndex", each)]
        self._check_interfaces(call, [each.removesuffix(".DeviceIndex") for each in cards])
        if len(cards) > 1 and form.get("NetworkInterface.1.AssociatePublicIpAddress") == "true":
            message = (
                "The associatePublicIPAddress parameter cannot be specified when launching with multiple interfaces."
            )
            raise FakeAwsError("InvalidParameterCombination", message)
        self._check_max_price(form, name, zone)
        if not _is_spot(call) and call.tags("spot-instances-request"):
            message = "'spot-instances-request' is not a valid taggable resource type for this operation."
            raise FakeAwsError("InvalidParameterValue", message)

    def _check_max_price(self, form: Mapping[str, str], name: str, zone: str) -> None:
        """Source: the EC2 API's reference of SpotMarketOptions.MaxPrice, and the guide's "Spot Instance pricing"."""
        most = form.get(_MAX_PRICE)
        if most is None:
            return
        if not re.fullmatch(r"\d+(\.\d+)?", most) or float(most) <= 0.001:
            raise FakeAwsError("InvalidParameterValue", f"Invalid value '{most}' for spotPrice.")
        price = self.spot_price(name, zone)
        if float(most) < float(price):
            message = f"Your Spot request price of {most} is lower than the minimum required Spot request fulfillment "
            raise FakeAwsError("SpotMaxPriceTooLow", f"{message}price of {price}.")

    def _check_interfaces(self, call: Call, names: list[str]) -> None:
        form, places = call.form, set()
        for name in names:
            place = (form[f"{name}.NetworkCardIndex"], form[f"{name}.DeviceIndex"])
            if place in places:
                raise FakeAwsError(
                    "InvalidParameterCombination", "Each network interface requires a unique device index."
                )
            places.add(place)
            mine = form.get(f"{name}.NetworkInterfaceId")
            if mine and set(form) & {f"{name}.{key}" for key in ("DeleteOnTermination", "SubnetId", "InterfaceType")}:
                message = "A network interface may not specify a network interface ID and delete on termination as true"
                raise FakeAwsError("InvalidParameterCombination", message)
            known = {each.id: each for each in self.fleet.backend(call.region).get_all_network_interfaces()}
            if mine and mine not in known:
                raise FakeAwsError(
                    "InvalidNetworkInterfaceID.NotFound", f"The networkInterface ID '{mine}' does not exist"
                )
            if mine and known[mine].instance is not None:
                raise FakeAwsError("InvalidNetworkInterface.InUse", f"Interface: [{mine}] in use.")
        if form.get("NetworkInterface.1.InterfaceType") == "efa-only":
            raise FakeAwsError("InvalidParameterCombination", "An EFA-only interface cannot be the primary one.")

    def _create_interface(self, call: Call) -> Answer:
        """Idempotent by its token, which moto does not know."""
        key = (call.region, "", call.form["ClientToken"])
        if key not in self._tokens:
            self._tokens[key] = ("", self._by_moto(call), "")
        return self._tokens[key][1]

    def _delete_interface(self, call: Call) -> Answer:
        """Its address stays, without an association."""
        backend = self.fleet.backend(call.region)
        for each in backend.describe_addresses():
            if each.eni is not None and each.eni.id == call.form["NetworkInterfaceId"]:
                backend.disassociate_address(association_id=each.association_id)
        return self._by_moto(call)

    def _check_room(self, call: Call, zone: str) -> None:
        name = call.form["InstanceType"]
        alive = [each for each in self.fleet.records.values() if each.past[-1].state != "terminated"]
        self.reservations.check(call, zone, alive)
        if not target(call) and self.fleet.is_full(zone, name, (each.moto._placement.zone for each in alive)):
            message = (
                f"We currently do not have sufficient {name} capacity in the Availability Zone you requested ({zone})."
            )
            raise FakeAwsError("InsufficientInstanceCapacity", message)
        if self.fleet.most_machines and len(alive) >= self.fleet.most_machines:
            code = "MaxSpotInstanceCountExceeded" if _is_spot(call) else "VcpuLimitExceeded"
            raise FakeAwsError(code, "You have requested more vCPU capacity than your current limit.")

    def _image(self, image: str) -> str:
        name = image.removeprefix("resolve:ssm:")
        if name.startswith("/") and name not in self.images:
            raise FakeAwsError("InvalidParameterValue", f"The SSM parameter {name} could not be resolved.")
        if name.startswith("ami-") and not name.startswith("ami-0"):
            raise FakeAwsError("InvalidAMIID.NotFound", f"The image id '[{name}]' does not exist")
        if name.startswith("ami-"):
            return name
        return self.images[name]

    def _describe_instances(self, call: Call) -> Answer:
        found = [_described(*each) for each in self.fleet.listed(call.region)]
        wanted = [each for each in found if matches(call.filters(), _filtered(each))]
        first = int(call.form.get("NextToken") or 0)
        page = int(call.form.get("MaxResults") or 1000)
        token = str(first + page) if len(wanted) > first + page else None
        reservations = [{"ReservationId": "r-1", "Instances": [each]} for each in wanted[first : first + page]]
        answer = ec2_answer("DescribeInstances", {"Reservations": reservations, "NextToken": token})
        return Answer(answer.status, without(answer.body, self.fleet.missing), answer.headers)

    def _terminate_instances(self, call: Call) -> Answer:
        machines = call.listed("InstanceId")
        for machine in machines:
            self._must_know(call, machine)
        states = []
        for machine in machines:
            before = self.fleet.records[machine].past[-1].state
            self.fleet.terminated(machine)
            after = self.fleet.records[machine].past[-1].state
            states.append({"InstanceId": machine, "PreviousState": {"Name": before}, "CurrentState": {"Name": after}})
        return ec2_answer("TerminateInstances", {"TerminatingInstances": states})

    def _must_know(self, call: Call, machine: str) -> None:
        if not re.fullmatch(r"i-[0-9a-f]+", machine):
            raise FakeAwsError("InvalidInstanceID.Malformed", f'Invalid id: "{machine}"')
        known = self.fleet.records.get(machine)
        if known is None or known.region != call.region or self._unknown[machine] > 0:
            self._unknown[machine] -= 1
            raise FakeAwsError("InvalidInstanceID.NotFound", f"The instance ID '{machine}' does not exist")

    def _console(self, call: Call) -> Answer:
        machine = call.form["InstanceId"]
        self._must_know(call, machine)
        text = base64.b64encode(self.fleet.machines.console(machine).encode()).decode()
        return ec2_answer("GetConsoleOutput", {"InstanceId": machine, "Output": text, "Timestamp": datetime.now(UTC)})

    # -- spot ----------------------------------------------------------------------------------------------

    def _describe_spot_requests(self, call: Call) -> Answer:
        found = []
        for each in self.fleet.spot_requests(call.region):
            tags = {f"tag:{tag['Key']}": tag["Value"] for tag in each["Tags"]}
            if matches(call.filters(), {**tags, "state": each["State"], "instance-id": each["InstanceId"] or ""}):
                found.append(each)
        first = int(call.form.get("NextToken") or 0)
        page = int(call.form.get("MaxResults") or 1000)
        token = str(first + page) if len(found) > first + page else None
        result = {"SpotInstanceRequests": found[first : first + page], "NextToken": token}
        return ec2_answer("DescribeSpotInstanceRequests", result)

    def _cancel_spot_requests(self, call: Call) -> Answer:
        cancelled = []
        for name in call.listed("SpotInstanceRequestId"):
            if name not in self.fleet.requests:
                raise FakeAwsError("InvalidSpotInstanceRequestID.NotFound", f"The spot request '{name}' does not exist")
            self.fleet.requests[name][1].set_status("cancelled", "canceled-before-fulfillment")
            cancelled.append({"SpotInstanceRequestId": name, "State": "cancelled"})
        return ec2_answer("CancelSpotInstanceRequests", {"CancelledSpotInstanceRequests": cancelled})

    def spot_price(self, instance_type: str, zone: str) -> str:
        """Now."""
        return self.spot_prices.get((instance_type, zone)) or spot_price(instance_type, zone)

    def set_spot_price(self, instance_type: str, zone: str, price: str) -> None:
        """Change it. Machines whose requests pay less are interrupted, without a notice that comes in time."""
        self.spot_prices[instance_type, zone] = price
        for record in self.fleet.alive():
            pool = (record.moto.instance_type, record.moto._placement.zone)
            if pool == (instance_type, zone) and record.max_price and float(record.max_price) < float(price):
                self.fleet.preempt(record.name, 0.0)

    def _spot_prices(self, call: Call) -> Answer:
        """Two prices of each type and zone; the older one is absurd, and only the newer is valid."""
        names = call.listed("InstanceType")
        listed = self.fleet.backend(call.region).describe_instance_type_offerings(
            "availability-zone", {"instance-type": names}
        )
        now = datetime.now(UTC)
        prices = [
            {
                "InstanceType": each["InstanceType"],
                "AvailabilityZone": each["Location"],
                "ProductDescription": "Linux/UNIX",
                "SpotPrice": price,
                "Timestamp": now - timedelta(hours=age_h),
            }
            for each in sorted(listed, key=lambda each: (each["InstanceType"], each["Location"]))
            for age_h, price in ((9, "999.0"), (1, self.spot_price(each["InstanceType"], each["Location"])))
        ]
        first = int(call.form.get("NextToken") or 0)
        token = str(first + self.page) if len(prices) > first + self.page else None
        return ec2_answer(
            "DescribeSpotPriceHistory", {"SpotPriceHistory": prices[first : first + self.page], "NextToken": token}
        )

    # -- around it -----------------------------------------------------------------------------------------

    def _describe_images(self, call: Call) -> Answer:
        (name,) = call.listed("ImageId")
        if not name.startswith("ami-0"):
            raise FakeAwsError("InvalidAMIID.NotFound", f"The image id '[{name}]' does not exist")
        device = "/dev/xvda" if name.endswith("amazon") else "/dev/sda1"
        disks = [
            {"DeviceName": "/dev/sdb", "VirtualName": "ephemeral0"},
            {"DeviceName": device, "Ebs": {"VolumeSize": self.image_gb, "SnapshotId": "snap-1"}},
        ]
        found = {"ImageId": name, "RootDeviceName": device, "BlockDeviceMappings": disks}
        return ec2_answer("DescribeImages", {"Images": [found]})

    def _parameter(self, call: Call) -> Answer:
        name = call.form["Name"]
        if name not in self.images:
            raise FakeAwsError("ParameterNotFound", "")
        return Answer(200, {"Parameter": {"Name": name, "Value": self.images[name]}})

    def _mount_targets(self, call: Call) -> Answer:
        name = call.form["FileSystemId"]
        if name in efs_backends[DEFAULT_ACCOUNT_ID][call.region].file_systems_by_id:
            return self._by_moto(call)
        if name not in self.mount_targets:
            raise FakeAwsError("FileSystemNotFound", f"File system '{name}' does not exist.")
        found = [
            {
                "MountTargetId": f"fsmt-{name.removeprefix('fs-')}{number:08x}",
                "VpcId": self.fleet.backend(call.region).get_default_vpc().id,
                "FileSystemId": name,
                "SubnetId": "subnet-00000001",
                "LifeCycleState": state,
                "AvailabilityZoneName": zone,
            }
            for number, (zone, state) in enumerate(self.mount_targets[name])
        ]
        return Answer(200, {"MountTargets": found})

    def _mount_target_groups(self, call: Call) -> Answer:
        name = call.form["MountTargetId"].removeprefix("fsmt-")
        system = f"fs-{name[:-8]}"
        if system not in self.mount_targets:
            return self._by_moto(call)
        zone, _ = self.mount_targets[system][int(name[-8:], 16)]
        group = self.mount_target_groups.get(zone) or self._default_group(call.region).id
        return Answer(200, {"SecurityGroups": [group]})

    def _products(self, call: Call) -> Answer:
        """One product per type, as AWS lists them: JSON within JSON, with terms that are not on demand beside."""
        if call.region not in {"us-east-1", "eu-central-1", "ap-south-1"}:
            raise FakeAwsError("UnrecognizedClientException", f"there is no price list in {call.region}")
        filters: Any = call.form["Filters"]
        wanted = {each["Field"]: each for each in filters}
        assert wanted["instanceType"]["Type"] == "ANY_OF"
        region, names = wanted["regionCode"]["Value"], wanted["instanceType"]["Value"].split(",")
        listed = [_product(name, region) for name in names]
        first = int(call.form.get("NextToken") or 0)
        more = {"NextToken": str(first + self.page)} if len(listed) > first + self.page else {}
        return Answer(200, {"FormatVersion": "aws_v1", "PriceList": listed[first : first + self.page], **more})

    def _quota(self, call: Call) -> Answer:
        code = call.form["QuotaCode"]
        return Answer(200, {"Quota": {"QuotaCode": code, "Value": self.quotas[code]}})


_STATES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopping": 64, "stopped": 80}


# As the guide's page on troubleshooting launches has them: EC2's own code, and the reason in the message.
_LAUNCHES = {
    "Client.InternalError": "Client.InternalError: Client error on launch",
    # CiscoDevNet/cloud-cml#8
    "Client.InvalidKMSKey.InvalidState": (
        "Client.InvalidKMSKey.InvalidState: The KMS key provided is in an incorrect state"
    ),
    "Client.VolumeLimitExceeded": "Client.VolumeLimitExceeded: Volume limit exceeded",
}
_MESSAGES = {
    "Server.InsufficientInstanceCapacity": "Server.InsufficientInstanceCapacity: Insufficient capacity to launch",
    "Server.SpotInstanceTermination": "Server.SpotInstanceTermination: Spot instance termination",
}


def _described(record: Record, seen: Seen) -> dict[str, Any]:
    """As boto3 returns it."""
    code = "Server.InternalError" if seen.reason in _LAUNCHES else seen.reason
    message = {**_LAUNCHES, **_MESSAGES}.get(seen.reason, seen.reason)
    reason = {"Code": code, "Message": message} if seen.reason else None
    return {
        "InstanceId": record.id,
        "InstanceType": record.moto.instance_type,
        "LaunchTime": record.moto.launch_time,
        "Placement": {"AvailabilityZone": record.moto._placement.zone, "GroupName": record.moto._placement.group_name},
        "State": {"Name": seen.state, "Code": _STATES[seen.state]},
        "StateReason": reason,
        "PublicIpAddress": (seen.address if record.public else "") or None,
        "PrivateIpAddress": seen.address or None,
        "InstanceLifecycle": "spot" if record.spot else record.lifecycle or None,
        "CapacityReservationId": record.reservation or None,
        "SpotInstanceRequestId": record.spot.id if record.spot else None,
        "MetadataOptions": {"HttpTokens": record.moto.metadata_options.http_tokens},
        "Tags": [{"Key": key, "Value": value} for key, value in record.tags.items()],
    }


def _filtered(raw: dict[str, Any]) -> dict[str, str]:
    """The values that filters can match."""
    tags = {f"tag:{tag['Key']}": tag["Value"] for tag in raw["Tags"]}
    return {**tags, "instance-id": raw["InstanceId"], "instance-state-name": raw["State"]["Name"]}


def spot_price(instance_type: str, zone: str) -> str:
    """Invented, but always the same."""
    digest = hashlib.sha256(f"{instance_type} {zone}".encode()).digest()
    return f"0.{100 + digest[0]}"


def on_demand_price(instance_type: str, region: str) -> str:
    """Invented, but always the same."""
    digest = hashlib.sha256(f"{instance_type} {region} on demand".encode()).digest()
    return f"1.{100 + digest[0]}0000000"


def _product(name: str, region: str) -> str:
    """Source of the form: the Price List API's guide, "Reading price list files"."""
    code = "SKU.JRTCKXETXF"
    dimension = {
        "unit": "Hrs",
        "pricePerUnit": {"USD": on_demand_price(name, region)},
        "rateCode": f"{code}.6YS6EN2CT7",
    }
    return json.dumps(
        {
            "product": {
                "productFamily": "Compute Instance",
                "attributes": {"instanceType": name, "regionCode": region},
            },
            "serviceCode": "AmazonEC2",
            "terms": {
                "OnDemand": {code: {"priceDimensions": {dimension["rateCode"]: dimension}}},
                "Reserved": {
                    "SKU.X": {"priceDimensions": {"SKU.X.Y": {"unit": "Hrs", "pricePerUnit": {"USD": "0.1"}}}}
                },
            },
        }
    )


def _is_spot(call: Call) -> bool:
    return call.form.get("InstanceMarketOptions.MarketType") == "spot"


def _quoted(text: str) -> bytes:
    name, _, value = text.partition("=")
    return f"{name}={quote(value, safe='')}".encode()
