"""Azure's faults for the storm of launches; and `python -m tests.clouds.azure_storm` for a long one."""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from provisioners.azure.provisioner import AzureProvisioner
from provisioners.base import HostKey, LaunchRequest, Market, Offer
from tests.clouds import azure
from tests.clouds.machines import PaperMachines
from tests.clouds.storm import Tally, run_storm
from tests.support.machines import CLIENT_KEY, CLUSTER, HOST_KEY

REGION = "eastus"
ZONES = ("eastus-1", "eastus-2", "eastus-3")


@dataclass(slots=True)
class AzureTarget:
    """Azure's test cloud with machines on paper."""

    server: azure.AzureServer
    provisioner: AzureProvisioner

    def request(self, token: str, rng: random.Random) -> LaunchRequest:
        """A T4, spot or not."""
        market = rng.choice(list(Market))
        offer = Offer("azure", REGION, rng.choice(ZONES), "Standard_NC4as_T4_v3", market, None, "T4", 1)
        key = HostKey(HOST_KEY.public, HOST_KEY.private_openssh)
        return LaunchRequest(token, CLUSTER, f"node-{token}", offer, key, CLIENT_KEY.public, dead_man_s=3600.0)

    def faults(self) -> Sequence[str]:
        """All faults of a launch, at once or after its acceptance, except slow ones."""
        at_once = ("throttled", "transient", "internal", "quota", "unheard-of", "drop-reply", "garbage", "full")
        return (*at_once, "done-but-error", "twice", "lag", "no-room", "no-room-late", "failing")

    def inject(self, fault: str) -> None:
        """A lag of listings ends with the next fault of another kind."""
        cloud = self.server.cloud
        cloud.lag(0.2 if fault == "lag" else 0.0)
        match fault:
            case "lag":
                return
            case "no-room":
                cloud.fail_allocation("AllocationFailed")
            case "no-room-late":
                cloud.fail_allocation("ZonalAllocationFailed", 3.0)  # after the launch has stopped watching
            case "failing":
                cloud.fail_allocation("NobodyKnowsThis")
            case _:
                cloud.fail_next(azure.LAUNCH, fault)

    def born(self) -> dict[str, list[str]]:
        """Also deleted ones; one that was never allocated does not count."""
        fleet = self.server.cloud.arm.fleet
        found: dict[str, list[str]] = {}
        for record in [*fleet.records.values(), *fleet.ended]:
            if record.fails is None:
                found.setdefault(record.body["tags"]["spotsup-token"], []).append(record.name)
        # An accepted launch may fail later: its caller has its name, and finds the failure in a listing.
        for record in [*fleet.records.values(), *fleet.ended]:
            found.setdefault(record.body["tags"]["spotsup-token"], [record.name])
        return found

    def alive(self) -> list[str]:
        """Machines, including failed ones, with their resources; and resources without a machine."""
        fleet = self.server.cloud.arm.fleet
        for record in list(fleet.records.values()):
            fleet.sync(record)
        return [each.id for each in fleet.records.values()] + list(fleet.loose)


@contextmanager
def azure_target() -> Iterator[AzureTarget]:
    """A cloud of its own."""
    with azure.azure_cloud(PaperMachines()) as server:
        before = dict(os.environ)
        os.environ.update(server.environ)
        try:
            yield AzureTarget(server, AzureProvisioner(server.settings()))
        finally:
            os.environ.clear()
            os.environ.update(before)


def main() -> int:
    """Exit code 0 when nothing leaked, doubled or was lost."""
    parser = argparse.ArgumentParser(prog="python -m tests.clouds.azure_storm", description=__doc__)
    parser.add_argument("--launches", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with azure_target() as target:
        tally: Tally = run_storm(target, options.launches, seed=options.seed)
    for name, value in asdict(tally).items():
        sys.stdout.write(f"{name:<10} {value}\n")
    return 1 if tally.leaked or tally.doubled or tally.lost else 0


if __name__ == "__main__":
    sys.exit(main())
