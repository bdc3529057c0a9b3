"""Compute Engine's faults for the storm of launches; and `python -m tests.clouds.gcp_storm` for a long one."""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from provisioners.base import HostKey, LaunchRequest, Market, Offer
from provisioners.gcp.provisioner import GcpProvisioner
from provisioners.gcp.settings import GcpSettings
from tests.clouds import gcp
from tests.clouds.machines import PaperMachines
from tests.clouds.storm import Tally, run_storm
from tests.support.machines import CLIENT_KEY, CLUSTER, HOST_KEY

REGION = "us-central1"
ZONES = ("us-central1-a", "us-central1-b", "us-central1-f")


@dataclass(slots=True)
class GcpTarget:
    """Compute Engine's test cloud with machines on paper."""

    server: gcp.GcpServer
    provisioner: GcpProvisioner

    def request(self, token: str, rng: random.Random) -> LaunchRequest:
        """A T4, spot or not."""
        market = rng.choice(list(Market))
        offer = Offer("gcp", REGION, rng.choice(ZONES), "n1-standard-8+t4x1", market, None, "T4", 1)
        key = HostKey(HOST_KEY.public, HOST_KEY.private_openssh)
        return LaunchRequest(token, CLUSTER, f"node-{token}", offer, key, CLIENT_KEY.public, dead_man_s=3600.0)

    def faults(self) -> Sequence[str]:
        """All faults of an insertion, at once or later, except slow ones."""
        at_once = ("throttled", "internal", "quota-at-once", "unheard-of-at-once", "drop-reply", "garbage", "proxy")
        later = ("transient", "quota", "unheard-of", "full", "done-but-failed")
        return (*at_once, *later, "done-but-error", "twice", "lag")

    def inject(self, fault: str) -> None:
        """A lag of listings ends with the next fault of another kind."""
        self.server.cloud.lag(0.2 if fault == "lag" else 0.0)
        if fault != "lag":
            self.server.cloud.fail_next("instances.insert", fault)

    def born(self) -> dict[str, list[str]]:
        """By the metadata; also deleted ones."""
        found: dict[str, list[str]] = {}
        for record in self.server.cloud.compute.instances.records:
            found.setdefault(record.items["spotsup-token"], []).append(f"{record.zone}:{record.name}")
        return found

    def alive(self) -> list[str]:
        """Whatever its labels are."""
        disks = self.server.cloud.compute.instances.disks
        return [each.key for each in self.server.cloud.alive()] + [f"disk {name}" for _, name in disks]


@contextmanager
def gcp_target() -> Iterator[GcpTarget]:
    """A cloud of its own."""
    with tempfile.TemporaryDirectory() as folder, gcp.gcp_cloud(PaperMachines()) as server:
        server.cloud.compute.instances.op_s = 0.01
        before = dict(os.environ)
        os.environ.update(server.environ(Path(folder)))
        try:
            settings = GcpSettings(project=gcp.PROJECT, regions=(REGION,), endpoint=server.url)
            yield GcpTarget(server, GcpProvisioner(settings))
        finally:
            os.environ.clear()
            os.environ.update(before)


def main() -> int:
    """Exit code 0 when nothing leaked, doubled or was lost."""
    parser = argparse.ArgumentParser(prog="python -m tests.clouds.gcp_storm", description=__doc__)
    parser.add_argument("--launches", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with gcp_target() as target:
        tally: Tally = run_storm(target, options.launches, seed=options.seed)
    for name, value in asdict(tally).items():
        sys.stdout.write(f"{name:<10} {value}\n")
    return 1 if tally.leaked or tally.doubled or tally.lost else 0


if __name__ == "__main__":
    sys.exit(main())
