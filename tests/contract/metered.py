"""A provider on somebody's account: a launch reserves what it may cost, and all carries tags of this run alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import pytest

from provisioners.base import (
    Coverage,
    Finding,
    Instance,
    InstanceState,
    Launched,
    LaunchOutcome,
    LaunchRequest,
    Leftover,
    Offer,
    OfferQuery,
    Owner,
    Provisioner,
    ProvisionerError,
    Unknown,
)
from tests.support.console import write_result
from tests.support.machines import LOOK_S, OWNER, PATIENCE_S, TIMEOUT_S

# A test is ended after 900 s (real.py); its machines have had another 300 s for their end, whatever happens then.
TEST_LIMIT_S = 900.0
RESERVED_S = TEST_LIMIT_S + 300.0
# Clouds bill a minute at least, and some go on until the machine is off.
MIN_BILLED_S = 60.0
ENDING_S = 120.0
# Disk of 100 GB, public address, a little traffic: $0.02 at each of the three, and as much again to be sure.
EXTRAS_USD_PER_HOUR = 0.05
_GOING = {InstanceState.PENDING, InstanceState.RUNNING, InstanceState.STOPPED}


@dataclass(slots=True)
class Bill:
    """One token. `usd` is the most that it may have cost."""

    usd_per_hour: float
    usd: float
    began: float
    exists: bool = False


@dataclass(slots=True)
class Ledger:
    """What was spent at most. A launch reserves its price for RESERVED_S; when its test is over, and its end has been
    asked for, what it can really have cost takes the place of that."""

    budget_usd: float
    bills: dict[str, Bill] = field(default_factory=dict)
    refusal: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def spent_usd(self) -> float:
        """At most."""
        return sum(each.usd for each in self.bills.values())

    def reserve(self, token: str, usd_per_hour: float | None) -> None:
        """Before the call. Fails the test where it could exceed the budget; no launch comes after that."""
        with self._lock:
            if token not in self.bills and not self.refusal:
                rate = (usd_per_hour or 0.0) + EXTRAS_USD_PER_HOUR
                usd = rate * RESERVED_S / 3600
                if usd_per_hour is None:
                    self.refusal = "no price of this machine is known, so no budget can be kept"
                elif self.spent_usd + usd > self.budget_usd:
                    self.refusal = (
                        f"the budget is used up: ${self.spent_usd:.2f} of ${self.budget_usd:.2f} may have been spent, "
                        f"and one more machine may cost ${usd:.2f}"
                    )
                else:
                    self.bills[token] = Bill(rate, usd, time.monotonic())
            if self.refusal:
                pytest.fail(self.refusal, pytrace=False)

    def exists(self, token: str) -> None:
        """A launch was not refused for certain."""
        self.bills[token].exists = True

    def settle(self, prefix: str) -> None:
        """All machines of these tokens have been asked to end."""
        with self._lock:
            for token, bill in self.bills.items():
                if token.startswith(prefix):
                    lived_s = max(MIN_BILLED_S, time.monotonic() - bill.began + ENDING_S)
                    bill.usd = min(bill.usd, bill.usd_per_hour * lived_s / 3600) if bill.exists else 0.0


@dataclass(slots=True)
class Run:
    """One run of the suite. The owners that it used are in `file` before anything is launched under their tags."""

    name: str
    provisioner: Provisioner
    ledger: Ledger
    file: Path
    price: Callable[[Offer], float | None]
    dead_man_s: float = 0.0
    owners: list[Owner] = field(default_factory=list)
    _tests: int = 0

    def remember(self, owner: Owner) -> None:
        """Before its first launch."""
        if owner not in self.owners:
            self.owners.append(owner)
            write_result(self.file, {"cloud": self.provisioner.name, "owners": [asdict(each) for each in self.owners]})

    @contextmanager
    def test(self) -> Iterator[Metered]:
        """A provider for one test, with an owner of its own; after it, all of its machines are asked to end."""
        self._tests += 1
        metered = Metered(self, f"{self.name}-{self._tests:02d}")
        try:
            yield metered
        finally:
            metered.end()


class Metered:
    """The Provisioner as one test sees it. Owners and tokens are the test's own outside, and unique inside: the same
    token would mean the same machine in every test and every run."""

    def __init__(self, run: Run, prefix: str) -> None:
        self._run = run
        self._inner = run.provisioner
        self._prefix = prefix
        self._theirs: dict[Owner, Owner] = {}
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return self._inner.name

    def offers(self, query: OfferQuery, timeout_s: float) -> Sequence[Offer]:
        return self._inner.offers(query, timeout_s)

    def launch(self, request: LaunchRequest, timeout_s: float) -> LaunchOutcome:
        """Returns once the machine is listed: a harness's listings do not lag."""
        token = f"{self._prefix}-{request.token}"
        with self._lock:
            own = self._own(request.owner)
            self._run.remember(own)
        bill = f"{token}-{own.digest}"
        self._run.ledger.reserve(bill, self._run.price(request.offer))
        ours = replace(request, token=token, owner=own, dead_man_s=self._run.dead_man_s)
        outcome = self._inner.launch(ours, timeout_s)
        if isinstance(outcome, Launched | Unknown):
            self._run.ledger.exists(bill)
        if isinstance(outcome, Launched):
            self._wait_until_listed(own, token)
            return Launched(self._back(outcome.instance))
        return outcome

    def find(self, owner: Owner, token: str, timeout_s: float) -> Instance | None:
        found = self._inner.find(self._own(owner), f"{self._prefix}-{token}", timeout_s)
        return self._back(found) if found else None

    def instances(self, owner: Owner | None, timeout_s: float) -> Sequence[Instance]:
        found = self._inner.instances(self._own(owner) if owner else None, timeout_s)
        return [self._back(each) for each in found if each.owner in self._theirs]

    def coverage(self, timeout_s: float) -> Coverage:
        return self._inner.coverage(timeout_s)

    def terminate(self, instance_id: str, timeout_s: float) -> None:
        self._inner.terminate(instance_id, timeout_s)

    def leftovers(self, owner: Owner, timeout_s: float) -> Sequence[Leftover]:
        return [replace(each, owner=owner) for each in self._inner.leftovers(self._own(owner), timeout_s)]

    def remove(self, leftover: Leftover, timeout_s: float) -> None:
        self._inner.remove(replace(leftover, owner=self._own(leftover.owner)), timeout_s)

    def console(self, instance_id: str, timeout_s: float) -> str:
        return self._inner.console(instance_id, timeout_s)

    def check(self, timeout_s: float) -> Sequence[Finding]:
        return self._inner.check(timeout_s)

    def end(self) -> None:
        """Ask all of this test's machines to end. A machine that cannot be asked stays reserved, for the sweep."""
        try:
            for owner in list(self._theirs):
                for each in self._inner.instances(owner, TIMEOUT_S):
                    if each.state in _GOING:
                        self._inner.terminate(each.id, TIMEOUT_S)
        except ProvisionerError as error:
            print(f"not ended yet, the sweep will: {error}")
        else:
            self._run.ledger.settle(f"{self._prefix}-")

    def _own(self, owner: Owner) -> Owner:
        cluster = self._prefix if owner.cluster == OWNER.cluster else f"{self._prefix}-{owner.cluster}"
        own = Owner(cluster, owner.key_mark)
        self._theirs[own] = owner
        return own

    def _back(self, instance: Instance) -> Instance:
        token = instance.token.removeprefix(f"{self._prefix}-")
        return replace(instance, owner=self._theirs.get(instance.owner, instance.owner), token=token)

    def _wait_until_listed(self, owner: Owner, token: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while token not in {each.token for each in self._inner.instances(owner, TIMEOUT_S)}:
            assert time.monotonic() < deadline, f"{self.name} does not list {token} within {PATIENCE_S:g} s"
            time.sleep(LOOK_S)


def sweep(provisioner: Provisioner, owners: Sequence[Owner], *, quiet_s: float, timeout_s: float) -> list[str]:
    """End all that carries these tags, until for `quiet_s` nothing is left. Returns what is left after `timeout_s`."""
    deadline, quiet_since = time.monotonic() + timeout_s, None
    while True:
        left = [each for owner in owners for each in _swept(provisioner, owner)]
        now = time.monotonic()
        quiet_since = None if left else (quiet_since or now)
        if quiet_since is not None and now - quiet_since >= quiet_s:
            return []
        if now > deadline:
            return left or ["something, perhaps: the listings have not been empty for long enough"]
        time.sleep(max(LOOK_S, 0.05))


def _swept(provisioner: Provisioner, owner: Owner) -> list[str]:
    """What was still there; it has been asked to end."""
    left = []
    try:
        for machine in provisioner.instances(owner, TIMEOUT_S):
            if machine.state is not InstanceState.TERMINATED:
                left.append(f"machine {machine.id} ({machine.state})")
            if machine.state in _GOING:
                provisioner.terminate(machine.id, TIMEOUT_S)
        for leftover in provisioner.leftovers(owner, TIMEOUT_S):
            left.append(f"{leftover.kind} {leftover.id}")
            provisioner.remove(leftover, TIMEOUT_S)
    except ProvisionerError as error:
        left.append(f"{owner.cluster}: {error}")
    return left
