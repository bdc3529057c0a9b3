"""What is journaled of the capacity memory: another daemon asks no pool again whose answer is still believed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from supervisor.market.capacity import (
    LATE_DECAY_S,
    MAX_LATE_S,
    MAX_TOO_FEW_S,
    CapacityMemory,
    CapacityRefusal,
    JobsPool,
    LateRefusal,
    Pool,
    TooFew,
    is_remembered,
)
from supervisor.market.hazard import HOUR_S, Exposure

# Between two writes: what was learned since the last one is lost with the daemon, and asked again.
EVERY_S = 30.0
# Refusals, and late refusals: the newest. One takes about 400 bytes.
MAX_JOURNALED = 200
_MESSAGE_CHARACTERS = 200
# The longest that a cloud's answer is believed. The clock of the daemon that wrote it may have been wrong.
MAX_BELIEVED_S = 3600.0
# What was counted of a pool's preemptions is journaled for so long after the last one: then it has halved many times.
MAX_EXPOSURE_S = 48 * HOUR_S


@dataclass(frozen=True, slots=True)
class CapacityRecord:
    """The capacity memory at a time; one per cluster."""

    at: float
    refusals: tuple[CapacityRefusal, ...] = ()
    late: tuple[tuple[Pool, LateRefusal], ...] = ()
    # How many machines in a row of a (cloud, instance type, owner) were unhealthy.
    unhealthy: tuple[tuple[tuple[str, str, str], int], ...] = ()
    # Pools that had too few machines for a job to train.
    too_few: tuple[tuple[JobsPool, TooFew], ...] = ()
    # How often pools took their machines.
    exposures: tuple[tuple[Pool, Exposure], ...] = ()


def due_record(memory: CapacityMemory, before: CapacityRecord | None, now: float) -> CapacityRecord | None:
    """Return what to write now; None if the journal has it, or was written just now. `before`: what the journal has."""
    if before is not None and before.at <= now < before.at + EVERY_S:
        return None
    record = _record(memory, now)
    known = _record(memory_of(before, now), now)
    return None if record == known else record


def _record(memory: CapacityMemory, now: float) -> CapacityRecord:
    """Refusals that are believed go before those that only make wary."""
    refusals = [_cut(r) for r in memory.refusals]
    wary = [r for r in refusals if r.until <= now and is_remembered(r, now)]
    believed = [r for r in refusals if r.until > now]
    late = [(pool, each) for pool, each in memory.late.items() if now < each.at + each.count * LATE_DECAY_S]
    too_few = [(key, each) for key, each in memory.too_few.items() if now < each.until + LATE_DECAY_S]
    exposures = [(pool, each) for pool, each in memory.exposures.items() if now < each.at + MAX_EXPOSURE_S]
    return CapacityRecord(
        now,
        tuple([*wary, *believed][-MAX_JOURNALED:]),
        tuple(late[-MAX_JOURNALED:]),
        tuple(list(memory.unhealthy_streaks.items())[-MAX_JOURNALED:]),
        tuple(too_few[-MAX_JOURNALED:]),
        tuple(exposures[-MAX_JOURNALED:]),
    )


def _cut(refusal: CapacityRefusal) -> CapacityRefusal:
    message = refusal.message[:_MESSAGE_CHARACTERS]
    return refusal if message == refusal.message else replace(refusal, message=message)


def memory_of(record: CapacityRecord | None, now: float) -> CapacityMemory:
    """Return what a new leader believes of the journal's record. Nothing is believed for longer than if it were new."""
    if record is None:
        return CapacityMemory()
    latest = now + MAX_BELIEVED_S
    refusals = (r if r.until <= latest else replace(r, until=latest) for r in record.refusals)
    exposures = {pool: each if each.at <= now else replace(each, at=now) for pool, each in record.exposures}
    too_few = {key: replace(each, until=min(each.until, now + MAX_TOO_FEW_S)) for key, each in record.too_few}
    return CapacityMemory(
        tuple(r for r in refusals if is_remembered(r, now)),
        MappingProxyType(dict(record.unhealthy)),
        _bounded(record.late, now),
        MappingProxyType(too_few),
        MappingProxyType(exposures),
    )


def _bounded(late: Iterable[tuple[Pool, LateRefusal]], now: float) -> Mapping[Pool, LateRefusal]:
    def bounded(each: LateRefusal) -> LateRefusal:
        at, until = min(each.at, now), min(each.until, now + MAX_LATE_S)
        return each if (at, until) == (each.at, each.until) else replace(each, at=at, until=until)

    return MappingProxyType({pool: bounded(each) for pool, each in late})
