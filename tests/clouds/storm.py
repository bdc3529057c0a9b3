"""Many launches in a failing cloud, by a daemon that is killed now and then: none may leak or double.

The daemon's rules in small: an intent is stored before its call; an unclear answer is looked up by token, and retried
under the same token; an intent of a killed daemon is resumed; in the end everything that the
cluster's tag shows is terminated, as the sweep does. Shared by all clouds.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from provisioners.base import (
    InstanceState,
    Launched,
    LaunchRequest,
    NoCapacity,
    Provisioner,
    ProvisionerError,
    Quota,
    Throttled,
    Transient,
    Unknown,
)

MAX_TRIES = 60
THREADS = 4
LAUNCH_TIMEOUT_S = 10.0
TIMEOUT_S = 20.0


class Target(Protocol):
    """Controls of a test cloud, and the truth about what it has."""

    @property
    def provisioner(self) -> Provisioner:
        """The provider under test; a new one after each death of the daemon."""
        ...

    def request(self, token: str, rng: random.Random) -> LaunchRequest:
        """One machine, in some zone."""
        ...

    def faults(self) -> Sequence[str]:
        """The names of the faults that a launch can have."""
        ...

    def inject(self, fault: str) -> None:
        """Inject a fault into the next launch."""
        ...

    def born(self) -> dict[str, list[str]]:
        """Token -> the ids of all machines that it ever had."""
        ...

    def alive(self) -> list[str]:
        """What still costs money: machines, disks, interfaces, addresses, requests."""
        ...


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
    born = target.born()
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
        leaked=target.alive(),
        wall_s=time.monotonic() - began,
    )


def _pursue(target: Target, token: str, rng: random.Random, share: float, count: _Count) -> None:
    """Pursue one intent until it has a machine or a refusal."""
    request = target.request(token, rng)
    for _ in range(MAX_TRIES):
        with count.lock:
            if rng.random() < share:
                fault = rng.choice(target.faults())
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
        found = target.provisioner.find(token, TIMEOUT_S)
    except ProvisionerError:
        return None
    return found.id if found else None


def _sweep(target: Target) -> None:
    """Terminate everything with the tag until listings show nothing alive."""
    cluster = target.request("sweep", random.Random(0)).cluster
    for _ in range(MAX_TRIES):
        listed = target.provisioner.instances(cluster, TIMEOUT_S)
        alive = [each for each in listed if each.state is not InstanceState.TERMINATED]
        if not alive:
            return
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda each: target.provisioner.terminate(each.id, TIMEOUT_S), alive))
    raise AssertionError(f"{len(alive)} machines do not end")
