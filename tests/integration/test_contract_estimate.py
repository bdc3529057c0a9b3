"""What `make contract-real` may cost, from a cloud's prices and a person's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from provisioners.base import Market
from provisioners.catalog import MachineType
from tests.clouds.base import CloudServer, wire_cloud
from tests.contract.account import estimated
from tests.contract.errors import UnusableError


@pytest.fixture
def gcp() -> Iterator[CloudServer]:
    """Google says no price on demand."""
    with wire_cloud("gcp") as server:
        server.cloud.compute.new_types["e2-medium"] = MachineType(name="e2-medium", vcpus=2, memory_gib=4)
        yield server


def test_a_price_that_nobody_knows_is_refused_and_a_persons_own_counts(gcp: CloudServer) -> None:
    provisioner = gcp.provisioner()
    with pytest.raises(UnusableError, match=r"no price of a small spot machine is known here, .*: name prices in"):
        estimated(provisioner, {}, 1.0)
    own = {"gcp/us-central1/e2-medium/spot": 0.02}
    cost, offer = estimated(provisioner, own, 1.0)
    assert (offer.instance_type, offer.market, offer.usd_per_hour) == ("e2-medium", Market.SPOT, 0.02)
    assert cost.usd_per_hour == pytest.approx(0.04 + 0.05)
    cost, _ = estimated(provisioner, {**own, "gcp/*/e2-medium/on-demand": 0.03}, 1.0)
    assert cost.usd_per_hour == pytest.approx(0.03 + 0.05)
    with pytest.raises(UnusableError, match=r"and the budget is \$0.10"):
        estimated(provisioner, own, 0.1)


def test_the_clouds_price_is_taken_where_there_is_one(gcp: CloudServer) -> None:
    gcp.cloud.compute.spot_prices["us-central1", "e2-medium"] = 0.01
    assert estimated(gcp.provisioner(), {}, 1.0)[0].usd_per_hour == pytest.approx(0.02 + 0.05)
