"""Many launches in a cloud that fails all the time, by a daemon that is killed now and then: what leaks, what doubles.

The daemon's rules in small: an intent is kept before its call; an unclear answer is looked up by token, and asked for
again under the same token; an intent that a killed daemon left behind is taken up again; in the end everything that the
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


class Weather(Protocol):
    """A hand on the cloud, and an eye on what it really has."""

    @property
    def provisioner(self) -> Provisioner:
        """The provider under test, made anew after each death of the daemon."""
        ...

    def request(self, token: str, rng: random.Random) -> LaunchRequest:
        """One machine, in some zone."""
        ...

    def faults(self) -> Sequence[str]:
        """The names of what a launch may meet."""
        ...

    def strike(self, fault: str) -> None:
        """The next launch meets this."""
        ...

    def born(self) -> dict[str, list[str]]:
        """Token -> the ids of all machines that it ever had."""
        ...

    def alive(self) -> list[str]:
        """What the account still pays for: machines, disks, interfaces, addresses, requests."""
        ...


@dataclass(frozen=True, slots=True)
class Tally:
    """What came of it. `doubled`: tokens with more than one machine; `lost`: launched by the daemon's word, and unknown
    to the cloud; `leaked`: what is paid for after the sweep.
    """

    launches: int
    launched: int
    refused: int
    unclear: int
    deaths: int
    faults: dict[str, int]
    doubled: list[str]
    lost: list[str]
    leaked: list[str]
    wall_s: float


@dataclass(slots=True)
class _Count:
    launched: dict[str, str] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)


def run_storm(weather: Weather, launches: int, *, seed: int, share: float = 0.2) -> Tally:
    """So many intents; a `share` of all calls meets a fault."""
    began = time.monotonic()
    count = _Count()
    with ThreadPoolExecutor(THREADS) as pool:
        tokens = [f"token-{seed}-{number}" for number in range(launches)]
        list(pool.map(lambda token: _pursue(weather, token, random.Random(token), share, count), tokens))
    born = weather.born()
    _sweep(weather)
    return Tally(
        launches=launches,
        launched=len(count.launched),
        refused=count.seen["refused"],
        unclear=count.seen["unclear"],
        deaths=count.seen["death"],
        faults=dict(sorted(count.faults.items())),
        doubled=[token for token, machines in born.items() if len(machines) > 1],
        lost=[token for token, machine in count.launched.items() if machine not in born.get(token, [])],
        leaked=weather.alive(),
        wall_s=time.monotonic() - began,
    )


def _pursue(weather: Weather, token: str, rng: random.Random, share: float, count: _Count) -> None:
    """One intent, to its machine or to a refusal."""
    request = weather.request(token, rng)
    for _ in range(MAX_TRIES):
        with count.lock:
            if rng.random() < share:
                fault = rng.choice(weather.faults())
                count.faults[fault] += 1
                weather.strike(fault)
        outcome = weather.provisioner.launch(request, LAUNCH_TIMEOUT_S)
        if rng.random() < share / 4:
            count.seen["death"] += 1
            continue  # killed before the outcome was kept: the intent is taken up again
        match outcome:
            case Launched(instance):
                count.launched[token] = instance.id
                return
            case NoCapacity() | Quota():
                count.seen["refused"] += 1
                return
            case Unknown():
                count.seen["unclear"] += 1
                if (found := _looked_up(weather, token)) is not None:
                    count.launched[token] = found
                    return
            case Throttled() | Transient():
                continue
            case other:
                raise AssertionError(f"{token}: {other}")
    raise AssertionError(f"{token}: no clear answer in {MAX_TRIES} tries")


def _looked_up(weather: Weather, token: str) -> str | None:
    try:
        found = weather.provisioner.find(token, TIMEOUT_S)
    except ProvisionerError:
        return None
    return found.id if found else None


def _sweep(weather: Weather) -> None:
    """End all that carries the tag, until listings show nothing alive."""
    cluster = weather.request("sweep", random.Random(0)).cluster
    for _ in range(MAX_TRIES):
        listed = weather.provisioner.instances(cluster, TIMEOUT_S)
        alive = [each for each in listed if each.state is not InstanceState.TERMINATED]
        if not alive:
            return
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda each: weather.provisioner.terminate(each.id, TIMEOUT_S), alive))
    raise AssertionError(f"{len(alive)} machines do not end")
