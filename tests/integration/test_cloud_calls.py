"""What holds for the calls of every cloud alike: the real SDKs against the test clouds, with machines on paper."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import pytest

from provisioners.base import (
    DeniedError,
    Fatal,
    Instance,
    Launched,
    LaunchRequest,
    Market,
    NoCapacity,
    Offer,
    OfferQuery,
    Provisioner,
    ProvisionerError,
    Transient,
    Unknown,
    UnreachableError,
)
from tests.clouds import azure
from tests.support.machines import CLUSTER, TIMEOUT_S, found_by, launched_by, request_at

T4 = OfferQuery(gpu="T4", gpus_per_node=1)


@dataclass(frozen=True, slots=True)
class Names:
    """What one cloud calls things."""

    region: str
    zone: str
    instance_type: str
    # A zone of a region that is not configured.
    elsewhere: tuple[str, str]
    launch: str
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
        elsewhere=("eu-west-1", "eu-west-1a"),
        launch="RunInstances",
        listing="DescribeInstances",
        passing=("throttled", "internal", "garbage"),
        throttled="RequestLimitExceeded",
        unreadable=("drop-reply", "garbage"),
        unknown={"unheard-of": "SomethingNew"},
        denied=frozenset({"ec2:DescribeInstances", "ec2:RunInstances"}),
        denial=r"ec2:DescribeInstances.*docs/permissions/aws-iam-policy\.json",
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
        elsewhere=("us-west1", "us-west1-a"),
        launch="instances.insert",
        listing="instances.aggregatedList",
        passing=("throttled", "internal", "garbage", "proxy", "drop-reply"),
        throttled="rateLimitExceeded",
        unreadable=("drop-reply", "garbage"),
        unknown={"unheard-of": "SOMETHING_NEW", "unheard-of-at-once": "somethingNew"},
        denied=frozenset({"compute.instances.list", "compute.instances.create"}),
        denial=r"compute\.instances\.list.*docs/permissions/gcp-role\.yaml",
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
        elsewhere=("westus2", "westus2-1"),
        launch=azure.LAUNCH,
        listing=azure.LISTING,
        passing=("transient", "internal", "garbage", "empty"),
        throttled="TooManyRequests",
        unreadable=("drop-reply", "garbage", "empty"),
        unknown={"unheard-of": "SomethingNew"},
        denied=frozenset({azure.LISTING, azure.LAUNCH}),
        denial="virtualMachines/read.*docs/permissions/azure-",
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
    names: Names
    server: Any
    provisioner: Provisioner

    def request(self, node: str, *, region: str = "", zone: str = "") -> LaunchRequest:
        """One spot machine with a T4."""
        names = self.names
        place = Offer(
            self.name, region or names.region, zone or names.zone, names.instance_type, Market.SPOT, None, "T4", 1
        )
        return request_at(place, node)

    def launched(self, node: str) -> Instance:
        """A machine."""
        return launched_by(self.provisioner, self.request(node))

    def changed(self, **settings: Any) -> Provisioner:
        """The provisioner of another daemon, with other settings."""
        old: Any = self.provisioner
        made: Provisioner = type(old)(old._settings.model_copy(update=settings))
        return made

    def complaints(self) -> dict[str, str]:
        """What `check` finds wrong."""
        return {each.what: each.message for each in self.provisioner.check(30.0) if not each.ok}


@contextmanager
def opened(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    module = import_module(f"tests.contract.{name}_harness")
    with module.opened(folder, monkeypatch, light=True) as harness:
        yield Api(name, NAMES[name], harness.server, harness.provisioner)


@pytest.fixture(params=NAMES)
def api(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    """Each cloud in turn."""
    with opened(request.param, tmp_path, monkeypatch) as found:
        yield found


# -- launches ------------------------------------------------------------------------------------------------


def test_an_unreadable_answer_is_unknown_and_the_machine_is_found(api: Api) -> None:
    for how in api.names.unreadable:
        api.server.cloud.fail_next(api.names.launch, how)
        outcome = api.provisioner.launch(api.request(how), TIMEOUT_S)
        assert isinstance(outcome, Unknown), outcome
        machine = found_by(api.provisioner, how)
        assert api.launched(how).id == machine.id
    assert len(api.provisioner.instances(CLUSTER, TIMEOUT_S)) == len(api.names.unreadable)


def test_an_unknown_code_is_reported(api: Api) -> None:
    for how, code in api.names.unknown.items():
        api.server.cloud.fail_next(api.names.launch, how)
        outcome = api.provisioner.launch(api.request("n1"), TIMEOUT_S)
        assert isinstance(outcome, Transient)
        assert outcome.unknown_code == code


def test_a_region_that_is_not_configured_is_not_called(api: Api) -> None:
    region, zone = api.names.elsewhere
    outcome = api.provisioner.launch(api.request("n1", region=region, zone=zone), TIMEOUT_S)
    assert isinstance(outcome, Fatal)
    assert f"{api.name}.regions ({api.names.region})" in outcome.message
    assert not api.server.cloud.calls


def test_a_changed_retry_finds_the_machine_of_its_node(api: Api) -> None:
    machine = api.launched("n1")
    changed = api.changed(disk_gb=200)
    assert launched_by(changed, api.request("n1")).id == machine.id
    stolen = changed.launch(replace(api.request("n1"), node="n2"), TIMEOUT_S)
    assert isinstance(stolen, Fatal)
    assert "one request" in stolen.message
    assert len(api.provisioner.instances(CLUSTER, TIMEOUT_S)) == 1


# -- calls that change nothing -------------------------------------------------------------------------------


def test_reading_is_tried_again_and_then_given_up(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    api.launched("n1")
    for how in api.names.passing:
        api.server.cloud.fail_next(api.names.listing, how)
        assert len(api.provisioner.instances(CLUSTER, TIMEOUT_S)) == 1
    api.server.cloud.calls.clear()
    monkeypatch.setattr("provisioners.azure.client._MAX_RETRY_AFTER_S", 0.1)
    api.server.cloud.fail_next(api.names.listing, "throttled", times=50)
    with pytest.raises(UnreachableError, match=api.names.throttled):
        api.provisioner.instances(CLUSTER, TIMEOUT_S)
    assert list(api.server.cloud.counted().values()) == [4]


@pytest.mark.parametrize("timeout_s", [0.3, 1.0, pytest.param(3.0, marks=pytest.mark.long)])
def test_every_call_ends_in_time(api: Api, timeout_s: float) -> None:
    machine, cloud = api.launched("n1"), api.provisioner
    asks: list[Callable[[], object]] = [
        lambda: cloud.instances(CLUSTER, timeout_s),
        lambda: cloud.terminate(machine.id, timeout_s),
        lambda: cloud.leftovers(CLUSTER, timeout_s),
        lambda: cloud.offers(T4, timeout_s),
        lambda: cloud.console(machine.id, timeout_s),
    ]

    def took(ask: Callable[[], object]) -> float:
        began = time.monotonic()
        with pytest.raises(UnreachableError):
            ask()
        return time.monotonic() - began

    for action in api.names.hanging:
        api.server.cloud.fail_next(action, "hang", times=20)
    with ThreadPoolExecutor(len(asks)) as pool:
        assert max(pool.map(took, asks)) < timeout_s + 3.0  # the SDKs themselves would wait for a minute and more


def test_a_missing_permission_is_named(api: Api) -> None:
    api.server.cloud.denied |= api.names.denied
    with pytest.raises(DeniedError, match=api.names.denial):
        api.provisioner.instances(CLUSTER, TIMEOUT_S)
    outcome = api.provisioner.launch(api.request("n1"), TIMEOUT_S)
    assert isinstance(outcome, Fatal)
    assert "docs/permissions" in outcome.message


@pytest.mark.parametrize("machines", [10, 100, pytest.param(1000, marks=pytest.mark.long)])
def test_a_listing_costs_few_calls_whatever_the_number_of_machines(api: Api, machines: int) -> None:
    if api.name == "azure":
        api.server.cloud.arm.page = 1000
    api.server.cloud.multiply(api.launched("n1").id.rpartition(":")[2], machines - 1)
    api.server.cloud.calls.clear()
    assert len(api.provisioner.instances(CLUSTER, 60.0)) == machines
    assert api.server.cloud.counted() == api.names.cost(machines)


# -- offers and check ----------------------------------------------------------------------------------------


def test_an_empty_result_is_explained(api: Api) -> None:
    for query, message in api.names.absent:
        with pytest.raises(ProvisionerError, match=message):
            api.provisioner.offers(query, TIMEOUT_S)


def test_wrong_credentials_are_the_only_complaint(api: Api) -> None:
    api.server.cloud.credentials = "wrong"
    assert list(api.complaints()) == ["credentials"]


# -- the test clouds -----------------------------------------------------------------------------------------


def test_the_test_clouds_controls_work_over_http(api: Api) -> None:
    context = ssl.create_default_context(cafile=getattr(api.server, "ca", None))
    body = json.dumps({"zone": api.names.zone}).encode()
    assert httpx.post(f"{api.server.url}/_test/exhaust", content=body, verify=context).json() == {"result": None}
    assert isinstance(api.provisioner.launch(api.request("n1"), TIMEOUT_S), NoCapacity)
    calls = httpx.get(f"{api.server.url}/_test/calls", verify=context).json()["calls"]
    assert any(api.names.launch in call for call in calls)


@pytest.mark.parametrize("name", ["aws", "azure"])  # in Google's API a token is part of a name that all clusters share
def test_a_token_of_another_cluster_is_another_token(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(name, tmp_path, monkeypatch) as api:
        machine = api.launched("n1")
        other = api.provisioner.launch(replace(api.request("n1"), cluster="other"), TIMEOUT_S)
        assert isinstance(other, Launched)
        assert other.instance.id != machine.id
