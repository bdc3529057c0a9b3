"""What the local cloud decides: pure functions over its records."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from provisioners.base import BY_THE_HOUR, EndCause, InstanceState, Market, Scope
from provisioners.localcloud.machine import qemu
from provisioners.localcloud.models import (
    REGION,
    Fault,
    LaunchBody,
    Machine,
    OfferView,
    Refusal,
    RefusedError,
    Settings,
    View,
)

# 127.64.0.0/10: far from 127.0.0.1 and from the 127.0.x.y that others use.
ADDRESSES = ipaddress.IPv4Network("127.64.0.0/10")


def address_of(first: int, index: int) -> str:
    """Return the address of machine `index` of a cloud that began at number `first` of ADDRESSES; none ends in .0 or
    .255."""
    usable = ADDRESSES.num_addresses // 256 * 254
    block, host = divmod((first + index) % usable, 254)
    return str(ADDRESSES[block * 256 + host + 1])


def address_for(settings: Settings, machines: Collection[Machine], first: int, index: int) -> str:
    """Return the address of a new machine: its own, or, where the settings say so, that of a machine that ended."""
    taken = {machine.address for machine in machines if machine.ended_at is None}
    free = [machine.address for machine in machines if machine.address not in taken]
    return free[0] if settings.reuse_addresses and free else address_of(first, index)


def fault_refusal(fault: Fault) -> Refusal | None:
    """Return the answer that a fault makes of a launch, None where the fault lies in the connection."""
    message = f"the fault {fault.value!r} was asked for"
    match fault:
        case Fault.THROTTLED:
            return Refusal(kind="throttled", message=message, after_s=1.0)
        case Fault.QUOTA:
            return Refusal(kind="quota", message=message, scope=Scope.REGION.value, after_s=60.0)
        case Fault.TRANSIENT | Fault.FATAL:
            return Refusal(kind=fault.value, message=message)
        case Fault.DROP_REPLY | Fault.DONE_BUT_ERROR | Fault.TWICE | Fault.HANG:
            return None


def admit(settings: Settings, machines: Collection[Machine], body: LaunchBody) -> None:
    """Raise RefusedError unless the request makes sense and its zone has room."""
    types = [each.name for each in settings.instance_types]
    for what, value, known in (
        ("region", body.region, [REGION]),
        ("zone", body.zone, list(settings.capacity)),
        ("instance type", body.instance_type, types),
    ):
        if value not in known:
            raise RefusedError(
                Refusal(kind="fatal", message=f"no {what} {value!r} here; there are: {', '.join(known)}")
            )
    taken = sum(1 for machine in machines if machine.zone == body.zone and machine.ended_at is None)
    room = settings.capacity[body.zone]
    if taken >= room:
        raise RefusedError(
            Refusal(
                kind="no-capacity",
                message=f"zone {body.zone} has room for {room} machines and holds {taken}",
                scope=Scope.ZONE.value,
                after_s=settings.no_capacity_memory_s,
            )
        )


def view(machine: Machine, as_of: float) -> View | None:
    """Return the machine as it was at `as_of`; None before its launch. A lagging listing is a view of the past."""
    if as_of < machine.launched_at:
        return None
    state = InstanceState.PENDING
    if machine.running_at is not None and machine.running_at <= as_of:
        state = InstanceState.RUNNING
    reachable = state is InstanceState.RUNNING
    ending = machine.ending_at is not None and machine.ending_at <= as_of
    if ending and machine.end_cause is EndCause.USER:
        state = InstanceState.STOPPING
    if machine.ended_at is not None and machine.ended_at <= as_of:
        state, reachable = InstanceState.TERMINATED, False
    over = state in {InstanceState.STOPPING, InstanceState.TERMINATED}
    announced = machine.preempt_announced_at is not None and machine.preempt_announced_at <= as_of
    return View(
        id=machine.id,
        cluster=machine.cluster,
        key_mark=machine.key_mark,
        node=machine.node,
        token=machine.token,
        region=REGION,
        zone=machine.zone,
        instance_type=machine.instance_type,
        market=machine.market,
        state=state,
        launched_at=machine.launched_at,
        ssh_host=machine.address if reachable else "",
        ssh_port=machine.ssh_port if reachable else 22,
        private_address=(qemu.inner_address(machine.address) if machine.virtual else machine.address)
        if reachable
        else "",
        metadata_url=f"http://{qemu.HOST if machine.virtual else machine.address}:{machine.metadata_port}"
        if reachable
        else "",
        end_cause=machine.end_cause if over else None,
        preempt_at=machine.preempt_at if announced and not over else None,
        frozen=machine.frozen_at is not None and machine.frozen_at <= as_of and not over,
        message=machine.message if over else "",
    )


def owned(machines: Iterable[Machine], cluster: str, key_mark: str) -> list[Machine]:
    """Return the machines of one owner; "" stands for any."""
    return [each for each in machines if cluster in {"", each.cluster} and key_mark in {"", each.key_mark}]


def listing(settings: Settings, machines: Collection[Machine], now: float) -> list[View]:
    """Return what a listing shows at `now`: the machines as they were `listing_lag_s` ago."""
    as_of = now - settings.listing_lag_s
    wanted = (
        machine
        for machine in machines
        if machine.ended_at is None or as_of < machine.ended_at + settings.ended_listed_s
    )
    return [as_listed(settings, seen) for machine in wanted if (seen := view(machine, as_of)) is not None]


def tokened(settings: Settings, machines: Collection[Machine], token: str, now: float) -> list[View]:
    """Return the machine of a token, if it was there `listing_lag_s` ago; however long ago it ended."""
    found = (view(machine, now - settings.listing_lag_s) for machine in machines if machine.token == token)
    return [as_listed(settings, seen) for seen in found if seen is not None]


def as_listed(settings: Settings, seen: View) -> View:
    """Return a view by the cloud's own clock. Deadlines are given by hand, in seconds from now: they are by ours."""
    return seen.model_copy(update={"launched_at": seen.launched_at + settings.clock_ahead_s})


def offers(settings: Settings) -> list[OfferView]:
    """Return all that can be asked for."""
    return [
        OfferView(
            region=REGION,
            zone=zone,
            instance_type=each.name,
            market=market,
            usd_per_hour=each.spot_usd_per_hour if market is Market.SPOT else each.on_demand_usd_per_hour,
            gpu=each.gpu,
            gpus=each.gpus,
            lasts_s=settings.flex_lasts_s if market is Market.FLEX else 0.0,
        )
        for each in settings.instance_types
        for zone in settings.capacity
        for market in (*BY_THE_HOUR, *([Market.FLEX] if settings.flex_lasts_s else []))
    ]


def announce(machine: Machine, notice_s: float, now: float, *, false_alarm: bool = False) -> dict[str, object]:
    """Return the change that announces a preemption; the earliest deadline holds. Raises RefusedError."""
    if machine.market is not Market.SPOT:
        raise refused(machine, "only a spot machine can be preempted; `kill` makes it vanish")
    if machine.ending_at is not None:
        raise refused(machine, "it has ended or is about to")
    deadline = now + notice_s
    if machine.preempt_at is not None and machine.preempt_at <= deadline and not machine.spared:
        return {}
    announced_at = machine.preempt_announced_at or now
    return {"preempt_announced_at": announced_at, "preempt_at": deadline, "spared": false_alarm}


def withdraw(machine: Machine) -> dict[str, object]:
    """Return the change that takes an announcement back. Raises RefusedError."""
    if machine.ending_at is not None:
        raise refused(machine, "it has ended or is about to")
    return {"preempt_announced_at": None, "preempt_at": None, "spared": False}


def expect_running(machine: Machine) -> None:
    """Raise RefusedError unless the machine runs, and goes on to."""
    if machine.ending_at is not None:
        raise refused(machine, "it has ended or is about to")
    if machine.running_at is None:
        raise refused(machine, "it does not run yet")


def refused(machine: Machine, why: str) -> RefusedError:
    """Return the refusal of a call that makes no sense for this machine as it is."""
    return RefusedError(Refusal(kind="refused", message=f"machine {machine.id} (node {machine.node}): {why}"))


@dataclass(frozen=True, slots=True)
class Due:
    """What the cloud has to do now, by machine id, and when it must look again (None: when something happens).

    start: its launch delay is over. boot: it was started; look whether its sshd answers. preempt: its deadline is here.
    end: its end was decided; kill what is left of it. wipe: no listing shows it any more; its disk can go.
    """

    start: tuple[str, ...]
    boot: tuple[str, ...]
    preempt: tuple[str, ...]
    end: tuple[str, ...]
    wipe: tuple[str, ...]
    next_at: float | None


def due(settings: Settings, machines: Mapping[str, Machine], started: Collection[str], now: float) -> Due:
    """Return what is to do at `now`. `started`: the machines whose init was started by this server."""
    alive = [each for each in machines.values() if each.ended_at is None]
    going = [each for each in alive if each.ending_at is None]
    doomed = {each.id: each.preempt_at for each in going if each.preempt_at is not None and not each.spared}
    preempt = [machine for machine, at in doomed.items() if at <= now]
    fresh = [each for each in going if each.running_at is None and each.id not in preempt]
    waiting = [each for each in fresh if each.id not in started and each.due_at > now]
    kept = {
        each.id: each.ended_at + settings.ended_listed_s
        for each in machines.values()
        if each.ended_at is not None and not each.wiped
    }
    times = [each.due_at for each in waiting]
    times += [until for until in kept.values() if until > now]
    times += [at for at in doomed.values() if at > now]
    return Due(
        start=tuple(each.id for each in fresh if each.id not in started and each.due_at <= now),
        boot=tuple(each.id for each in fresh if each.id in started),
        preempt=tuple(preempt),
        end=tuple(each.id for each in alive if each.ending_at is not None),
        wipe=tuple(machine for machine, until in kept.items() if until <= now),
        next_at=min(times, default=None),
    )
