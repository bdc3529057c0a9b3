"""A cloud that tells the truth late, loses answers, contradicts itself, runs out, and takes machines away."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from provisioners.base import (
    EndCause,
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
    Scope,
    Throttled,
    Transient,
    Unknown,
    UnreachableError,
)
from tests.sim.chance import Dice, Faults
from tests.sim.store import SimClock

ZONES = ("zone-a", "zone-b")
# For how long an ended machine is still listed, and its token still known.
KNOWN_S = 900.0
# By then a machine that speaks again has been heard.
HEARD_S = 5.0
NEVER = float("inf")


@dataclass
class Machine:
    """A simulated VM. `silent`: it runs, but nobody hears of it any more. `noticed_at`: when its end was announced.

    `ends_at`: when the cloud takes it; `stops`: by stopping it, so that its disks go on to bill. `silences`: since when
    and until when it was silent, the last time. `hidden`: how many listings to come lack it; `missed`: how many in a
    row did not have it; `unanswered`: nobody was told that it was launched.
    """

    instance: Instance
    runs_at: float
    ends_at: float | None = None
    stops: bool = False
    silent: bool = False
    silences: tuple[float, float] = (NEVER, NEVER)
    hidden: int = 0
    missed: int = 0
    unanswered: bool = False
    noticed_at: float | None = None
    ended_at: float | None = None
    history: list[tuple[float, Instance]] = field(default_factory=list)

    @property
    def alive(self) -> bool:
        return self.instance.state in {InstanceState.PENDING, InstanceState.RUNNING}

    @property
    def billed(self) -> bool:
        """It costs money: stopped ones do, too."""
        return self.instance.state is not InstanceState.TERMINATED


class SimCloud:
    """As provisioners.base.Provisioner; `step` lets its time go on."""

    name = "local"

    def __init__(self, clock: SimClock, dice: Dice) -> None:
        self.machines: dict[str, Machine] = {}
        self.by_token: dict[str, str] = {}
        self.left: dict[str, Leftover] = {}
        self.removals = 0
        self.keeps_leftovers = False
        self.leaves_disks = 0.0
        self.strange_code = ""
        self.sold_out: frozenset[Market] = frozenset()
        self.capacity = dict.fromkeys(ZONES, 16)
        self.faults = Faults()
        self.on_terminate: Callable[[Machine], None] = lambda _: None
        self.on_launch: Callable[[Machine], None] = lambda _: None
        self.launched = self.changes = 0
        self._clock = clock
        self._dice = dice

    # -- what daemons call ---------------------------------------------------------------------------------

    def offers(self, query: OfferQuery, timeout_s: float) -> Sequence[Offer]:
        self._maybe_unreachable()
        times = 3 if query.market is Market.ON_DEMAND else 1
        prices = [times * (0.1 + 0.01 * index) for index in range(len(ZONES))]
        return [
            Offer("local", "local", zone, "small", query.market, price)
            for zone, price in zip(ZONES, prices, strict=True)
        ]

    def launch(self, request: LaunchRequest, timeout_s: float) -> LaunchOutcome:
        if request.token in self.by_token:
            known = self.machines.get(self.by_token[request.token])
            return Launched(known.instance) if known else Transient("the token was used long ago")
        if self.strange_code:
            code, self.strange_code = self.strange_code, ""
            return Transient(f"{request.offer.zone} says {code}", unknown_code=code)
        if self._dice.hits("throttled", self.faults.transient / 2):
            return Throttled(1.0, "slow down")
        if self._dice.hits("transient error", self.faults.transient / 2):
            return Transient("internal error")
        zone = request.offer.zone
        if request.offer.market in self.sold_out:
            return NoCapacity(Scope.TYPE_IN_ZONE, 10.0, f"{zone} has no {request.offer.market} machine")
        if sum(m.alive and m.instance.zone == zone for m in self.machines.values()) >= self.capacity[zone]:
            self._dice.injected["no capacity"] += 1
            return NoCapacity(Scope.ZONE, 10.0, f"{zone} is full")
        machine = self._create(request)
        if self._dice.hits("lost reply", self.faults.lost_reply):
            machine.unanswered = True
            return Unknown("no answer")
        if self._dice.hits("error although launched", self.faults.false_error):
            return Transient("internal error")
        return Launched(machine.instance)

    def _create(self, request: LaunchRequest) -> Machine:
        now = self._clock.now()
        skew_s = self._dice.between(-self.faults.skew_s, self.faults.skew_s)
        instance = Instance(
            id=f"i-{self.launched}",
            cluster=request.cluster,
            node=request.node,
            token=request.token,
            region="local",
            zone=request.offer.zone,
            instance_type="small",
            state=InstanceState.PENDING,
            launched_at=now + skew_s,
        )
        self.launched += 1
        slow = self._dice.hits("slow boot", self.faults.slow_boot)
        machine = Machine(instance, now + self._dice.between(*((20.0, 60.0) if slow else (0.5, 3.0))))
        machine.history.append((now, instance))
        self.machines[instance.id] = machine
        self.by_token[request.token] = instance.id
        self.on_launch(machine)
        return machine

    def find(self, token: str, timeout_s: float) -> Instance | None:
        self._maybe_unreachable()
        found = self.machines.get(self.by_token.get(token, ""))
        return found.instance if found else None

    def instances(self, cluster: str, timeout_s: float) -> Sequence[Instance]:
        self._maybe_unreachable()
        lag_s = self.faults.listing_lag_s
        if self._dice.hits("reordered listing", self.faults.reordered):
            lag_s *= self._dice.between(1.0, 2.0)
        listed = self._as_of(self._clock.now() - lag_s)
        if self._dice.hits("incomplete listing", self.faults.dropped):
            listed = [each for each in listed if self._dice.rng.random() < 0.7]
        if self._dice.hits("doubled listing", self.faults.doubled):
            listed += self._as_of(self._clock.now() - 2 * lag_s)
            self._dice.rng.shuffle(listed)
        hidden = {machine.instance.id for machine in self.machines.values() if machine.hidden}
        for machine in self.machines.values():
            machine.hidden = max(0, machine.hidden - 1)
        return [instance for instance in listed if instance.id not in hidden]

    def heard(self, listed: Sequence[Instance]) -> None:
        """A daemon got this for an answer."""
        there = {instance.id for instance in listed}
        for machine in self.machines.values():
            machine.missed = 0 if machine.instance.id in there else machine.missed + 1

    def _as_of(self, then: float) -> list[Instance]:
        found = []
        for machine in self.machines.values():
            known = next((instance for at, instance in reversed(machine.history) if at <= then), None)
            if known is not None:
                found.append(known)
        return found

    def terminate(self, instance_id: str, timeout_s: float) -> None:
        self._maybe_unreachable()
        if self._dice.hits("success without effect", self.faults.false_success):
            return
        machine = self.machines.get(instance_id)
        if machine is not None and machine.billed:
            self.on_terminate(machine)
            self.end(machine, machine.instance.end_cause or EndCause.USER)
        if self._dice.hits("error although ended", self.faults.false_error):
            raise UnreachableError("the connection broke")

    def leftovers(self, cluster: str, timeout_s: float) -> Sequence[Leftover]:
        self._maybe_unreachable()
        return list(self.left.values())

    def remove(self, leftover: Leftover, timeout_s: float) -> None:
        self._maybe_unreachable()
        self.removals += 1
        if not self.keeps_leftovers:
            self.left.pop(leftover.id, None)

    def console(self, instance_id: str, timeout_s: float) -> str:
        self._maybe_unreachable()
        return f"boot\n{instance_id}: no network\n"

    def check(self, timeout_s: float) -> Sequence[Finding]:
        return ()

    def _maybe_unreachable(self) -> None:
        if self._dice.hits("unreachable", self.faults.unreachable):
            raise UnreachableError("no answer within the time limit")

    # -- what happens to machines --------------------------------------------------------------------------

    def end(self, machine: Machine, cause: EndCause) -> None:
        """It is gone, and may leave its disk behind."""
        node = machine.instance.node
        if self._dice.hits("disk left behind", self.leaves_disks):
            self.left[f"disk-{node}"] = Leftover(f"disk-{node}", LeftoverKind.DISK, "sim", node, "local")
        self._change(machine, state=InstanceState.TERMINATED, end_cause=cause)

    def stop(self, machine: Machine) -> None:
        """It is stopped instead of deleted."""
        self._change(machine, state=InstanceState.STOPPED, end_cause=EndCause.PREEMPTED)

    def vanish(self, machine: Machine) -> None:
        """It is taken without a notice, or before its time."""
        if machine.alive:
            machine.noticed_at = None
            self.end(machine, EndCause.PREEMPTED)

    def preempt(self, machine: Machine, notice_s: float, *, stops: bool = False, comes_true: bool = True) -> None:
        """It will be taken, and its cloud says so."""
        if not machine.alive:
            return
        deadline = self._clock.now() + notice_s
        machine.noticed_at, machine.stops = self._clock.now(), stops
        machine.ends_at = deadline if comes_true else None
        self._change(machine, preempt_at=deadline)

    def add_stranger(self, node: str, *, stopped: bool = False) -> None:
        """A machine with our tag that nobody here has asked for."""
        now = self._clock.now()
        number, self.launched = self.launched, self.launched + 1
        state = InstanceState.STOPPED if stopped else InstanceState.RUNNING
        stranger = Instance(f"i-{number}", "sim", node, node, "local", ZONES[0], "small", state, now, "10.9.9.9")
        self.machines[stranger.id] = Machine(stranger, now, history=[(now, stranger)])

    def step(self) -> None:
        """What is due now."""
        now = self._clock.now()
        for machine in list(self.machines.values()):
            if not machine.history or machine.history[-1][1] is not machine.instance:
                machine.history.append((now, machine.instance))
            if machine.ended_at is not None:
                if now >= machine.ended_at + KNOWN_S:
                    del self.machines[machine.instance.id]
                continue
            machine.silences = _silences(machine, now)
            if machine.instance.state is InstanceState.PENDING and now >= machine.runs_at:
                self._change(machine, state=InstanceState.RUNNING, ssh_host=self._address(machine))
            if machine.alive and machine.ends_at is not None and now >= machine.ends_at:
                if machine.stops:
                    self.stop(machine)
                else:
                    self.end(machine, EndCause.PREEMPTED)

    def next_at(self) -> float:
        """When the next thing is due."""
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
        if gone and self._dice.hits("address reused", self.faults.reused):
            return self._dice.rng.choice(gone)
        return f"10.0.0.{machine.instance.id[2:]}"


def _silences(machine: Machine, now: float) -> tuple[float, float]:
    """A word in between that nobody can have heard is none."""
    since, until = machine.silences
    if machine.silent:
        goes_on = since != NEVER and (until == NEVER or now - until < HEARD_S)
        return (since if goes_on else now), NEVER
    return since, (now if since != NEVER and until == NEVER else until)
