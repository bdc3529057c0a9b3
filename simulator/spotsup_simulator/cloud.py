"""A cloud whose listings lag, whose replies get lost, whose zones run out, and which preempts machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from provisioners.base import (
    Coverage,
    Denied,
    DeniedError,
    EndCause,
    Fatal,
    Finding,
    Instance,
    InstanceState,
    Launched,
    LaunchOutcome,
    LaunchRequest,
    Leftover,
    LeftoverKind,
    Market,
    NoCapacity,
    Offer,
    OfferQuery,
    Owner,
    PartialListingError,
    Quota,
    Scope,
    Throttled,
    Transient,
    Unknown,
    UnreachableError,
)
from provisioners.readings import NO_OWNER
from spotsup_simulator.clock import NEVER, VirtualClock
from spotsup_simulator.etcd import CLUSTER
from spotsup_simulator.faults import FaultRates, FaultRng
from spotsup_simulator.hooks import Hooks
from spotsup_simulator.machine import Machine
from supervisor.identity import Identity
from supervisor.model import parts_of

ZONES = ("zone-a", "zone-b")
# How long an ended machine is still listed, and its token still known.
RETENTION_S = 900.0
CAPACITY = 16
IDENTITY = Identity(b"s" * 32)
OWNER = IDENTITY.owner(CLUSTER)
# Other installations in the account: two with the same cluster name, and one that had a copy of our key.
OTHERS = (Identity(b"t" * 32).owner(CLUSTER), Identity(b"u" * 32).owner(CLUSTER), IDENTITY.owner("other"))
DENIED = "the credentials have expired: renew them"


class SimCloud:
    """The cloud as provisioners.base.Provisioner, and what happens to its machines. `step` handles what is due."""

    name = "local"

    def __init__(self, clock: VirtualClock, rng: FaultRng, hooks: Hooks) -> None:
        self.machines: dict[str, Machine] = {}
        self.by_token: dict[str, str] = {}
        self.fault_rates = FaultRates()
        # How many machines each zone holds, and the markets that refuse every launch.
        self.capacity = dict.fromkeys(ZONES, CAPACITY)
        self.sold_out: frozenset[Market] = frozenset()
        # The zones of which all that is left is on demand.
        self.without_spot: set[str] = set()
        # For how long it says that a retry is pointless.
        self.no_capacity_s = 10.0
        # The types that it offers, cheapest first, each with a quota of its own; the quotas that are used up.
        self.types: tuple[str, ...] = ("small",)
        self.used_up: frozenset[str] = frozenset()
        # The types of which no zone has a machine left; how many GPUs machines of a type have, where they have any.
        self.sold_out_types: frozenset[str] = frozenset()
        self.gpus: dict[str, int] = {}
        # How its prices are now, compared to those at first; the types of which it says no price.
        self.price_factor = 1.0
        self.unpriced: frozenset[str] = frozenset()
        # How long machines of the market flex last.
        self.flex_lasts_s = 7 * 86400.0
        # Its machines have no route to etcd.
        self.by_ssh = False
        # Zones that grant machines, and take them before they are of use.
        self.early_deaths: set[str] = set()
        # Jobs whose requests it will never grant; types of which it will never grant one.
        self.refused_jobs: set[str] = set()
        self.impossible: frozenset[str] = frozenset()
        # The next launch is refused with this code.
        self.unknown_code_once = ""
        # Disks and the like that remain without a machine: how often an end leaves one, and whether removal works.
        self.leftover_by_id: dict[str, Leftover] = {}
        self.disk_leak_rate = 0.0
        self.ignores_removal = False
        self.removals = 0
        # What belongs to other installations, and which of it our daemons ended or removed.
        self.others: dict[str, Machine] = {}
        self.others_leftovers: dict[str, Leftover] = {}
        self.wronged: list[str] = []
        # Whether a launch at a time is refused as one request too many; how many calls came so far.
        self.is_too_many: Callable[[float], bool] = lambda _: False
        self.launch_calls = 0
        # Of which account our credentials are, and which regions are configured; empty: all.
        self.account, self.says_account = "account-1", True
        self.regions: tuple[str, ...] = ()
        # The region of each zone; those that do not answer.
        self.region_of = dict.fromkeys(ZONES, "local")
        self.silent_regions: set[str] = set()
        # Machines in regions that are not configured: neither listed nor ended.
        self.unlisted: set[str] = set()
        # Machines launched, and changes of any machine, so far.
        self.launched = self.changes = 0
        self._clock = clock
        self._rng = rng
        self._hooks = hooks

    # -- the provider's API --------------------------------------------------------------------------------

    def offers(self, query: OfferQuery, timeout_s: float) -> Sequence[Offer]:
        self._maybe_unreachable()
        return [
            Offer(
                "local",
                self.region_of[zone],
                zone,
                name,
                query.market,
                None if name in self.unpriced else self.price_of(zone, name, query.market),
                gpus=self.gpus.get(name, 0),
                quota=name,
                lasts_s=self.flex_lasts_s if query.market is Market.FLEX else 0.0,
            )
            for name in self.types
            for zone in ZONES
            if self.region_of[zone] not in self.silent_regions
            if not query.instance_types or name in query.instance_types
        ]

    def price_of(self, zone: str, name: str, market: Market) -> float:
        """US dollars per hour now."""
        times = {Market.ON_DEMAND: 3, Market.FLEX: 2}.get(market, 1)
        return times * (0.1 + 0.01 * ZONES.index(zone)) * self.price_factor * (1 + self.types.index(name))

    def cost_usd(self, machine: Machine) -> float:
        """US dollars that a spot machine has cost so far, at the price of now."""
        until = self._clock.now() if machine.ended_at is None else machine.ended_at
        price = self.price_of(machine.instance.zone, machine.instance.instance_type, Market.SPOT)
        return price * (until - machine.history[0][0]) / 3600.0

    def _is_above(self, request: LaunchRequest) -> bool:
        """True if the machine costs more now than the request pays."""
        offer, cap = request.offer, request.max_usd_per_hour
        spot = offer.market is Market.SPOT
        return spot and cap is not None and self.price_of(offer.zone, offer.instance_type, offer.market) > cap

    def launch(self, request: LaunchRequest, timeout_s: float) -> LaunchOutcome:
        if self._rng.inject("denied", self.fault_rates.denied):
            return Denied(Scope.GLOBAL, 60.0, DENIED)
        if request.token in self.by_token and self._is_ours(self.by_token[request.token]):
            known = self.machines.get(self.by_token[request.token])
            return Launched(known.instance) if known else Transient("the token belongs to a machine that has ended")
        if self.unknown_code_once:
            code, self.unknown_code_once = self.unknown_code_once, ""
            return Transient(f"{request.offer.zone} answers {code}", unknown_code=code)
        self.launch_calls += 1
        if self.is_too_many(self._clock.now()):
            self._rng.injected["too many requests"] += 1
            return Throttled(5.0, "RequestLimitExceeded")
        if self._rng.inject("throttled", self.fault_rates.transient / 2):
            return Throttled(1.0, "slow down")
        if self._rng.inject("transient error", self.fault_rates.transient / 2):
            return Transient("internal error")
        if refusal := self._refusal(request):
            return refusal
        machine = self._create(request)
        if self._rng.inject("lost reply", self.fault_rates.lost_reply):
            machine.reply_lost = True
            return Unknown("no answer")
        if self._rng.inject("error although launched", self.fault_rates.false_error):
            return Transient("internal error")
        return Launched(machine.instance)

    def _refusal(self, request: LaunchRequest) -> LaunchOutcome | None:
        if request.offer.region in self.silent_regions:
            return Transient(f"{request.offer.region} cannot be reached")
        zone, wanted = request.offer.zone, request.offer.instance_type
        if parts_of(request.node).job in self.refused_jobs:
            self._rng.injected["refused for good"] += 1
            return Fatal("the key pair does not exist")
        if wanted in self.impossible:
            return Fatal(f"the image does not fit {wanted}")
        if self._is_above(request):
            self._rng.injected["price above the cap"] += 1
            message = f"{wanted} costs more in {zone}"
            return NoCapacity(Scope.TYPE_IN_ZONE, self.no_capacity_s, message, above_cap=True)
        if wanted in self.used_up:
            return Quota(Scope.QUOTA, 60.0, f"the quota of {wanted} is used up")
        if wanted in self.sold_out_types:
            self._rng.injected["no capacity"] += 1
            return NoCapacity(Scope.TYPE_IN_ZONE, self.no_capacity_s, f"{zone} is out of {wanted}")
        if request.offer.market in self.sold_out or (request.offer.market is Market.SPOT and zone in self.without_spot):
            return NoCapacity(
                Scope.TYPE_IN_ZONE, self.no_capacity_s, f"{zone} is out of {request.offer.market} capacity"
            )
        if sum(m.alive and m.instance.zone == zone for m in self.machines.values()) >= self.capacity[zone]:
            self._rng.injected["no capacity"] += 1
            return NoCapacity(Scope.ZONE, self.no_capacity_s, f"{zone} is full")
        return None

    def _create(self, request: LaunchRequest) -> Machine:
        now = self._clock.now()
        skew_s = self._rng.uniform(-self.fault_rates.skew_s, self.fault_rates.skew_s)
        instance = Instance(
            id=f"i-{self.launched}",
            owner=request.owner,
            node=request.node,
            token=request.token,
            region=request.offer.region,
            zone=request.offer.zone,
            instance_type=request.offer.instance_type,
            state=InstanceState.PENDING,
            launched_at=now + skew_s,
        )
        self.launched += 1
        slow = self._rng.inject("slow boot", self.fault_rates.slow_boot)
        runs_at = now + self._rng.uniform(*((20.0, 60.0) if slow else (0.5, 3.0)))
        cap = request.max_usd_per_hour if request.offer.market is Market.SPOT else None
        machine = Machine(instance, runs_at, by_ssh=self.by_ssh, max_usd_per_hour=cap, account=self.account)
        if self._rng.inject("early death", 1.0 if instance.zone in self.early_deaths else self.fault_rates.early_death):
            machine.ends_at = self._rng.uniform(now, machine.runs_at + 0.3)
        elif request.offer.lasts_s:
            machine.ends_at, machine.lasts_s = now + request.offer.lasts_s, request.offer.lasts_s
        machine.history.append((now, instance))
        self.machines[instance.id] = machine
        self.by_token[request.token] = instance.id
        for hook in self._hooks.launch:
            hook(machine)
        return machine

    def find(self, owner: Owner, token: str, timeout_s: float) -> Instance | None:
        self._maybe_unreachable()
        if self.others and self._rng.inject("another's machine found", self.fault_rates.unfiltered):
            return replace(next(iter(self.others.values())).instance, token=token)  # they may use our tokens, too
        found = self.machines.get(self.by_token.get(token, ""))
        if self.silent_regions and (found is None or self._is_silent(found.instance)):
            raise PartialListingError([], dict.fromkeys(self.silent_regions, "no answer"))
        return found.instance if found and self._is_ours(found.instance.id) else None

    def instances(self, owner: Owner | None, timeout_s: float) -> Sequence[Instance]:
        self._maybe_unreachable()
        lag_s = self.fault_rates.listing_lag_s
        if self._rng.inject("reordered listing", self.fault_rates.reordered):
            lag_s *= self._rng.uniform(1.0, 2.0)
        listed = self._as_of(self._clock.now() - lag_s)
        if self._rng.inject("incomplete listing", self.fault_rates.dropped):
            listed = [each for each in listed if self._rng.random.random() < 0.7]
        if self._rng.inject("doubled listing", self.fault_rates.doubled):
            listed += self._as_of(self._clock.now() - 2 * lag_s)
            self._rng.random.shuffle(listed)
        hidden = {machine.instance.id for machine in self.machines.values() if machine.hidden}
        for machine in self.machines.values():
            machine.hidden = max(0, machine.hidden - 1)
        listed = [each for each in listed if owner in {None, each.owner} and each.id not in hidden]
        if owner is None or self._rng.inject("unfiltered listing", self.fault_rates.unfiltered):
            listed += [each.instance for each in self.others.values()]
        if self.is_silent:
            raise UnreachableError("no region answers")
        heard = [self._described(each) for each in listed if not self._is_silent(each)]
        if self.silent_regions:
            raise PartialListingError(heard, dict.fromkeys(self.silent_regions, "no answer"))
        return heard

    def _described(self, instance: Instance) -> Instance:
        """Return a machine as `provisioners.readings` has it, of which at times nothing but the id can be read."""
        if not self._rng.inject("unreadable machine", self.fault_rates.unreadable):
            return instance
        return Instance(instance.id, NO_OWNER, "", "", "", "", "", InstanceState.UNREADABLE, 0.0)

    @property
    def is_silent(self) -> bool:
        """True if none of its regions answers."""
        return self.silent_regions >= set(self.region_of.values())

    def _is_silent(self, instance: Instance) -> bool:
        return instance.region in self.silent_regions

    def _is_ours(self, instance_id: str) -> bool:
        machine = self.machines.get(instance_id)
        return machine is None or (machine.account in {"", self.account} and instance_id not in self.unlisted)

    def _as_of(self, then: float) -> list[Instance]:
        found = []
        for machine in [each for each in self.machines.values() if self._is_ours(each.instance.id)]:
            known = next((instance for at, instance in reversed(machine.history) if at <= then), None)
            if known is not None:
                found.append(known)
        return found

    def coverage(self, timeout_s: float) -> Coverage:
        return Coverage(self.account if self.says_account else "", self.regions)

    def terminate(self, instance_id: str, timeout_s: float) -> None:
        self._maybe_unreachable()
        if self._rng.inject("success without effect", self.fault_rates.false_success):
            return
        if instance_id in self.others:
            self.wronged.append(instance_id)
        machine = self.machines.get(instance_id)
        if machine is not None and self._is_silent(machine.instance):
            raise UnreachableError(f"{machine.instance.region} does not answer")
        if machine is not None and machine.billed and self._is_ours(instance_id):
            for hook in self._hooks.terminate:
                hook(machine)
            self.end(machine, machine.instance.end_cause or EndCause.USER)
        if self._rng.inject("error although ended", self.fault_rates.false_error):
            raise UnreachableError("the connection broke")

    def leftovers(self, owner: Owner, timeout_s: float) -> Sequence[Leftover]:
        self._maybe_unreachable()
        if self.silent_regions:
            raise UnreachableError(f"{min(self.silent_regions)} does not answer")
        listed = [each for each in self.leftover_by_id.values() if each.owner == owner]
        if self._rng.inject("unfiltered listing", self.fault_rates.unfiltered):
            listed += self.others_leftovers.values()
        return listed

    def remove(self, leftover: Leftover, timeout_s: float) -> None:
        self._maybe_unreachable()
        self.removals += 1
        if leftover.id in self.others_leftovers:
            self.wronged.append(leftover.id)
        if not self.ignores_removal:
            self.leftover_by_id.pop(leftover.id, None)

    def console(self, instance_id: str, timeout_s: float) -> str:
        self._maybe_unreachable()
        return f"boot\n{instance_id}: no network\n"

    def check(self, timeout_s: float) -> Sequence[Finding]:
        return ()

    def _maybe_unreachable(self) -> None:
        if self._rng.inject("denied", self.fault_rates.denied):
            raise DeniedError(DENIED)
        if self._rng.inject("unreachable", self.fault_rates.unreachable):
            raise UnreachableError("no answer within the time limit")

    # -- what happens to machines --------------------------------------------------------------------------

    def end(self, machine: Machine, cause: EndCause) -> None:
        """Terminate it; its disk may remain."""
        node = machine.instance.node
        if self._rng.inject("disk left behind", self.disk_leak_rate):
            self.add_leftover(f"disk-{node}", node)
        self._change(machine, state=InstanceState.TERMINATED, end_cause=cause)

    def stop(self, machine: Machine) -> None:
        """Stop it instead of terminating it."""
        self._change(machine, state=InstanceState.STOPPED, end_cause=EndCause.PREEMPTED)

    def vanish(self, machine: Machine) -> None:
        """Preempt it without a notice, or before its deadline."""
        if machine.alive:
            machine.noticed_at = None
            self.end(machine, EndCause.PREEMPTED)

    def preempt(self, machine: Machine, notice_s: float, *, stops: bool = False, comes_true: bool = True) -> None:
        """Announce its preemption, and preempt it at the deadline unless the notice is a false alarm."""
        if not machine.alive:
            return
        deadline = self._clock.now() + notice_s
        machine.noticed_at, machine.stops = self._clock.now(), stops
        machine.ends_at = deadline if comes_true else None
        self._change(machine, preempt_at=deadline)

    def set_prices(self, factor: float) -> None:
        """Change all prices. What costs more than its request pays is taken, after a notice."""
        self.price_factor = factor
        for machine in self.machines.values():
            cap, found = machine.max_usd_per_hour, machine.instance
            if cap is not None and self.price_of(found.zone, found.instance_type, Market.SPOT) > cap:
                self.preempt(machine, 30.0)

    def add_unjournaled(self, node: str, *, stopped: bool = False) -> None:
        """Add a machine with our tags that no daemon has requested."""
        machine = self._machine(OWNER, node, stopped=stopped)
        self.machines[machine.instance.id] = machine

    def add_other(self, number: int, node: str, *, stopped: bool = False) -> None:
        """Add a machine, and what another one left behind, of another installation. `node`: it may have our names."""
        machine = self._machine(OTHERS[number % len(OTHERS)], node, stopped=stopped)
        self.others[machine.instance.id] = machine
        left = Leftover(f"disk-other-{number}", LeftoverKind.DISK, machine.instance.owner, "", "local")
        self.others_leftovers[left.id] = left

    def add_leftover(self, name: str, node: str, kind: LeftoverKind = LeftoverKind.DISK) -> None:
        """Add a resource with our tags that belongs to no machine."""
        self.leftover_by_id[name] = Leftover(name, kind, OWNER, node, "local")

    def _machine(self, owner: Owner, node: str, *, stopped: bool) -> Machine:
        now = self._clock.now()
        number, self.launched = self.launched, self.launched + 1
        state = InstanceState.STOPPED if stopped else InstanceState.RUNNING
        added = Instance(
            f"i-{number}", owner, node, node, self.region_of[ZONES[0]], ZONES[0], "small", state, now, "10.9.9.9"
        )
        return Machine(added, now, history=[(now, added)])

    def step(self) -> None:
        """Handle what is due now."""
        now = self._clock.now()
        for machine in list(self.machines.values()):
            if not machine.history or machine.history[-1][1] is not machine.instance:
                machine.history.append((now, machine.instance))
            if machine.ended_at is not None:
                if now >= machine.ended_at + RETENTION_S:
                    del self.machines[machine.instance.id]
                continue
            if machine.instance.state is InstanceState.PENDING and now >= machine.runs_at:
                self._change(machine, state=InstanceState.RUNNING, ssh_host=self._address(machine))
            if machine.alive and machine.ends_at is not None and now >= machine.ends_at:
                if machine.stops:
                    self.stop(machine)
                else:
                    self.end(machine, EndCause.PREEMPTED)

    def next_at(self) -> float:
        """Return when the next thing is due."""
        due = NEVER
        for machine in self.machines.values():
            if machine.ended_at is None and machine.alive:
                if machine.instance.state is InstanceState.PENDING:
                    due = min(due, machine.runs_at)
                if machine.ends_at is not None:
                    due = min(due, machine.ends_at)
        return due

    def _change(self, machine: Machine, **changes: object) -> None:
        now = self._clock.now()
        machine.instance = replace(machine.instance, **changes)  # type: ignore[arg-type]
        machine.history.append((now, machine.instance))
        self.changes += 1
        if not machine.billed:
            machine.ended_at = now

    def _address(self, machine: Machine) -> str:
        used = {m.instance.ssh_host for m in self.machines.values() if m.alive}
        known = {m.instance.ssh_host for m in self.machines.values()} - {""}
        gone = sorted(known - used)
        if gone and self._rng.inject("address reused", self.fault_rates.reused):
            return self._rng.random.choice(gone)
        return f"10.0.0.{machine.instance.id[2:]}"
