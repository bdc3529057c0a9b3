"""Many launches in a failing cloud, by a daemon that is killed now and then: none may leak or double.

    python -m tests.clouds.storm CLOUD --launches 1000 --seed 1

The daemon's rules in small: an intent is stored before its call; an unclear answer is looked up by token, and retried
under the same token; an intent of a killed daemon is resumed; in the end everything that the
cluster's tag shows is terminated, as the sweep does. For each test cloud alike.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from provisioners.base import (
    BY_THE_HOUR,
    InstanceState,
    Launched,
    LaunchRequest,
    NoCapacity,
    Offer,
    Provisioner,
    ProvisionerError,
    Quota,
    Throttled,
    Transient,
    Unknown,
)
from tests.clouds.base import wire_cloud
from tests.support.machines import OWNER, request_at

# Azure accepts these launches, and fails them so many seconds later: the last after the launch has stopped watching.
ALLOCATION_FAULTS: Mapping[str, tuple[str, float]] = {
    "no-room": ("AllocationFailed", 0.0),
    "failing": ("NobodyKnowsThis", 0.0),
    "no-room-late": ("ZonalAllocationFailed", 3.0),
}
MAX_TRIES = 60
THREADS = 4
LAUNCH_TIMEOUT_S = 10.0
TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Storm:
    """What is launched on a cloud, and the faults that a launch can have: all except slow ones."""

    region: str
    zones: tuple[str, ...]
    instance_type: str
    faults: tuple[str, ...]


STORMS = {
    "aws": Storm(
        "us-east-1",
        ("us-east-1a", "us-east-1b", "us-east-1c"),
        "g4dn.xlarge",
        (
            *("throttled", "transient", "internal", "quota", "unheard-of", "full"),
            *("drop-reply", "done-but-error", "twice", "garbage", "lag"),
        ),
    ),
    "gcp": Storm(
        "us-central1",
        ("us-central1-a", "us-central1-b", "us-central1-f"),
        "n1-standard-8+t4x1",
        (
            *("throttled", "internal", "quota-at-once", "unheard-of-at-once", "drop-reply", "garbage", "proxy"),
            *("transient", "quota", "unheard-of", "full", "done-but-failed"),  # later, in the operation
            *("done-but-error", "twice", "lag"),
        ),
    ),
    "azure": Storm(
        "eastus",
        ("eastus-1", "eastus-2", "eastus-3"),
        "Standard_NC4as_T4_v3",
        (
            *("throttled", "transient", "internal", "quota", "unheard-of", "drop-reply", "garbage", "full"),
            *("done-but-error", "twice", "lag", *ALLOCATION_FAULTS),
        ),
    ),
}


@dataclass(frozen=True, slots=True)
class Target:
    """A test cloud with machines on paper."""

    name: str
    cloud: Any
    provisioner: Provisioner

    def request(self, token: str, rng: random.Random) -> LaunchRequest:
        """A T4, spot or not, in some zone."""
        storm, market = STORMS[self.name], rng.choice(BY_THE_HOUR)
        offer = Offer(self.name, storm.region, rng.choice(storm.zones), storm.instance_type, market, None, "T4", 1)
        return replace(request_at(offer, f"node-{token}", token=token), dead_man_s=3600.0)

    def inject(self, fault: str) -> None:
        """Inject a fault into the next launch. A lag of listings ends with the next fault of another kind."""
        self.cloud.fleet.lag_s = 0.2 if fault == "lag" else 0.0
        if fault in ALLOCATION_FAULTS:
            self.cloud.fail_allocation(*ALLOCATION_FAULTS[fault])
        elif fault != "lag":
            self.cloud.fail_next(self.cloud.launch, fault)


@contextmanager
def storm_target(name: str) -> Iterator[Target]:
    """A cloud of its own."""
    with wire_cloud(name) as server:
        if name == "gcp":
            server.cloud.fleet.op_s = 0.01
        yield Target(name, server.cloud, server.provisioner())


@dataclass(frozen=True, slots=True)
class Tally:
    """The results."""

    launches: int
    launched: int
    refused: int
    unclear: int
    deaths: int
    faults: dict[str, int]
    doubled: list[str]  # tokens with more than one machine
    lost: list[str]  # launched, by the daemon, and unknown to the cloud
    leaked: list[str]  # what costs money after the sweep
    wall_s: float


@dataclass(slots=True)
class _Count:
    launched: dict[str, str] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)


def run_storm(target: Target, launches: int, *, seed: int, share: float = 0.2) -> Tally:
    """Pursue so many intents; a `share` of all calls gets a fault."""
    began = time.monotonic()
    count = _Count()
    with ThreadPoolExecutor(THREADS) as pool:
        tokens = [f"token-{seed}-{number}" for number in range(launches)]
        list(pool.map(lambda token: _pursue(target, token, random.Random(token), share, count), tokens))
    born = target.cloud.fleet.born()
    _sweep(target)
    return Tally(
        launches=launches,
        launched=len(count.launched),
        refused=count.seen["refused"],
        unclear=count.seen["unclear"],
        deaths=count.seen["death"],
        faults=dict(sorted(count.faults.items())),
        doubled=[token for token, machines in born.items() if len(machines) > 1],
        lost=[token for token, machine in count.launched.items() if machine not in born.get(token, [])],
        leaked=target.cloud.fleet.left(),
        wall_s=time.monotonic() - began,
    )


def _pursue(target: Target, token: str, rng: random.Random, share: float, count: _Count) -> None:
    """Pursue one intent until it has a machine or a refusal."""
    request = target.request(token, rng)
    for _ in range(MAX_TRIES):
        with count.lock:
            if rng.random() < share:
                fault = rng.choice(STORMS[target.name].faults)
                count.faults[fault] += 1
                target.inject(fault)
        outcome = target.provisioner.launch(request, LAUNCH_TIMEOUT_S)
        if rng.random() < share / 4:
            count.seen["death"] += 1
            continue  # killed before the outcome was stored: the intent is resumed
        match outcome:
            case Launched(instance):
                count.launched[token] = instance.id
                return
            case NoCapacity() | Quota():
                count.seen["refused"] += 1
                return
            case Unknown():
                count.seen["unclear"] += 1
                if (found := _looked_up(target, token)) is not None:
                    count.launched[token] = found
                    return
            case Throttled() | Transient():
                continue
            case other:
                raise AssertionError(f"{token}: {other}")
    raise AssertionError(f"{token}: no clear answer in {MAX_TRIES} tries")


def _looked_up(target: Target, token: str) -> str | None:
    try:
        found = target.provisioner.find(OWNER, token, TIMEOUT_S)
    except ProvisionerError:
        return None
    return found.id if found else None


def _sweep(target: Target) -> None:
    """Terminate everything with the tag until listings show nothing alive."""
    for _ in range(MAX_TRIES):
        listed = target.provisioner.instances(OWNER, TIMEOUT_S)
        alive = [each for each in listed if each.state is not InstanceState.TERMINATED]
        if not alive:
            return
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda each: target.provisioner.terminate(each.id, TIMEOUT_S), alive))
    raise AssertionError(f"{len(alive)} machines do not end")


def main() -> int:
    """Exit code 0 when nothing leaked, doubled or was lost."""
    parser = argparse.ArgumentParser(prog="python -m tests.clouds.storm", description=__doc__)
    parser.add_argument("cloud", choices=STORMS)
    parser.add_argument("--launches", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with storm_target(options.cloud) as target:
        tally = run_storm(target, options.launches, seed=options.seed)
    for name, value in asdict(tally).items():
        sys.stdout.write(f"{name:<10} {value}\n")
    return 1 if tally.leaked or tally.doubled or tally.lost else 0


if __name__ == "__main__":
    sys.exit(main())
