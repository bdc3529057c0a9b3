"""EC2's faults for the storm of launches; and `python -m tests.clouds.aws_storm` for a long one."""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import boto3

from provisioners.aws.provisioner import AwsProvisioner
from provisioners.aws.settings import AwsSettings
from provisioners.base import HostKey, LaunchRequest, Market, Offer
from tests.clouds import aws
from tests.clouds.machines import PaperMachines
from tests.clouds.storm import Tally, run_storm
from tests.support.machines import CLIENT_KEY, CLUSTER, HOST_KEY

REGION = "us-east-1"
ZONES = ("us-east-1a", "us-east-1b", "us-east-1c")


@dataclass(slots=True)
class AwsTarget:
    """EC2's test cloud with machines on paper."""

    server: aws.AwsServer
    provisioner: AwsProvisioner

    def request(self, token: str, rng: random.Random) -> LaunchRequest:
        """A T4, spot or not."""
        offer = Offer("aws", REGION, rng.choice(ZONES), "g4dn.xlarge", rng.choice(list(Market)), None, "T4", 1)
        key = HostKey(HOST_KEY.public, HOST_KEY.private_openssh)
        return LaunchRequest(token, CLUSTER, f"node-{token}", offer, key, CLIENT_KEY.public, dead_man_s=3600.0)

    def faults(self) -> Sequence[str]:
        """All faults of RunInstances except slow ones."""
        refused = ("throttled", "transient", "internal", "quota", "unheard-of", "full")
        return (*refused, "drop-reply", "done-but-error", "twice", "garbage", "lag")

    def inject(self, fault: str) -> None:
        """A lag of listings ends with the next fault of another kind."""
        self.server.cloud.lag(0.2 if fault == "lag" else 0.0)
        if fault != "lag":
            self.server.cloud.fail_next("RunInstances", fault)

    def born(self) -> dict[str, list[str]]:
        """By the tag, as EC2 has it."""
        found: dict[str, list[str]] = {}
        for record in self.server.cloud.ec2.instances.records.values():
            found.setdefault(record.tags["spotsup-token"], []).append(f"{record.region}:{record.id}")
        return found

    def alive(self) -> list[str]:
        """Read from the test cloud, whatever its tags are."""
        ec2 = boto3.client("ec2", region_name=REGION, endpoint_url=self.server.url)
        records = self.server.cloud.ec2.instances.records.values()
        found = [record.id for record in records if record.past[-1].state != "terminated"]
        found += _ids(ec2.describe_volumes()["Volumes"], "VolumeId")
        found += _ids(ec2.describe_network_interfaces()["NetworkInterfaces"], "NetworkInterfaceId")
        found += _ids(ec2.describe_addresses()["Addresses"], "AllocationId")
        requests = self.server.cloud.ec2.instances.requests.values()
        return found + [request.id for _, request in requests if request.state in {"open", "active"}]


def _ids(resources: list[dict[str, Any]], key: str) -> list[str]:
    return [each[key] for each in resources]


@contextmanager
def aws_target() -> Iterator[AwsTarget]:
    """A cloud of its own."""
    with aws.aws_cloud(PaperMachines()) as server:
        yield AwsTarget(server, AwsProvisioner(AwsSettings(regions=(REGION,), endpoint=server.url)))


def main() -> int:
    """Exit code 0 when nothing leaked, doubled or was lost."""
    parser = argparse.ArgumentParser(prog="python -m tests.clouds.aws_storm", description=__doc__)
    parser.add_argument("--launches", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    os.environ.update(aws.ENVIRON)
    with aws_target() as target:
        tally: Tally = run_storm(target, options.launches, seed=options.seed)
    for name, value in asdict(tally).items():
        sys.stdout.write(f"{name:<10} {value}\n")
    return 1 if tally.leaked or tally.doubled or tally.lost else 0


if __name__ == "__main__":
    sys.exit(main())
