"""The best that could have been done by somebody who knew the whole recording. Pure.

All nodes are in one zone at a time, as the job's are. The oracle knows when a zone will be lost and what others will
have, so it asks in time: a move costs one pause, and the new machines' arrival in money, not in time, unless the zone
had nothing before. It takes all that a zone grants, up to `desired`.
"""

from __future__ import annotations

from dataclasses import dataclass

from spotsup_simulator.replay.costs import Costs
from spotsup_simulator.replay.ledger import HOUR_S, Result, integral, offered_node_h
from spotsup_simulator.replay.recording import Recording

POLICY = "oracle"
NOWHERE = -1


@dataclass(frozen=True, slots=True)
class _Way:
    """The best way to be in a zone at the end of an interval."""

    score: float
    useful_s: float = 0.0  # node-seconds
    paid_s: float = 0.0  # node-seconds
    usd: float = 0.0
    paused_s: float = 0.0
    waited_s: float = 0.0
    pauses: int = 0
    moves: int = 0
    requests: int = 0
    last_zone: int = NOWHERE
    came_from: int = NOWHERE  # where it was in the interval before


@dataclass(frozen=True, slots=True)
class _Interval:
    start_s: float
    end_s: float
    nodes: tuple[int, ...]  # of the job that each zone could have now
    before: tuple[int, ...]  # as of the interval before
    usd_s: tuple[float, ...]  # per machine and second, on average; 0 where no price is known


@dataclass(frozen=True, slots=True)
class Leg:
    """A row of the recording, and what the oracle does in it."""

    start_s: float
    end_s: float
    zone: int  # its number, or NOWHERE
    nodes: int
    useful_s: float  # node-seconds


def best(
    recording: Recording,
    min_nodes: int,
    desired: int,
    costs: Costs,
    usd_per_node_h: float,
    work_node_h: float | None = None,
) -> Result:
    """Return what knowledge of the future is worth at most. A useful node-hour counts as `usd_per_node_h`: high, so
    that time comes first, and the cheaper of two ways to the same hours is taken."""
    return course(recording, min_nodes, desired, costs, usd_per_node_h, work_node_h)[0]


def course(
    recording: Recording,
    min_nodes: int,
    desired: int,
    costs: Costs,
    usd_per_node_h: float,
    work_node_h: float | None = None,
) -> tuple[Result, list[Leg]]:
    """Return the same, and where it is at each time."""
    worth_s = usd_per_node_h / HOUR_S
    ways: dict[int, _Way] = {NOWHERE: _Way(0.0)}
    end_s = 0.0
    passed: list[tuple[_Interval, dict[int, _Way]]] = []
    for interval in _intervals(recording, desired):
        ways = _next(ways, interval, min_nodes, costs, worth_s)
        passed.append((interval, ways))
        end_s = interval.end_s
        if work_node_h is not None and max(way.useful_s for way in ways.values()) >= work_node_h * HOUR_S:
            break
    zone = max(ways, key=lambda zone: ways[zone].score)
    return _result(ways[zone], recording, min_nodes, desired, costs, end_s, work_node_h), _legs(passed, zone)


def _legs(passed: list[tuple[_Interval, dict[int, _Way]]], zone: int) -> list[Leg]:
    """Return the legs from the end back to the beginning."""
    found: list[Leg] = []
    for number in range(len(passed) - 1, -1, -1):
        interval, ways = passed[number]
        way = ways[zone]
        before_s = passed[number - 1][1][way.came_from].useful_s if number else 0.0
        nodes = 0 if zone == NOWHERE else interval.nodes[zone]
        found.append(Leg(interval.start_s, interval.end_s, zone, nodes, way.useful_s - before_s))
        zone = way.came_from
    return found[::-1]


def _result(
    found: _Way,
    recording: Recording,
    min_nodes: int,
    desired: int,
    costs: Costs,
    end_s: float,
    work_node_h: float | None,
) -> Result:
    priced = recording.prices is not None or costs.spot_usd_per_hour is not None
    on_demand = costs.on_demand_usd_per_hour
    useful_h = found.useful_s / HOUR_S
    return Result(
        policy=POLICY,
        hours=end_s / HOUR_S,
        finished=work_node_h is not None and useful_h >= work_node_h,
        useful_node_h=useful_h,
        desired_node_h=desired * end_s / HOUR_S,
        offered_node_h=offered_node_h(recording, min_nodes, desired, end_s),
        paid_node_h=found.paid_s / HOUR_S,
        on_demand_node_h=0.0,
        usd=found.usd if priced else None,
        usd_at_on_demand=None if on_demand is None else on_demand * useful_h,
        lost_node_h=0.0,
        paused_h=found.paused_s / HOUR_S,
        waited_h=found.waited_s / HOUR_S,
        pauses=found.pauses,
        moves=found.moves,
        requests=found.requests,
        refusals=0,
    )


def _intervals(recording: Recording, desired: int) -> list[_Interval]:
    series = recording.capacity
    ends = (*series.seconds[1:], recording.end_s)
    found: list[_Interval] = []
    before = (0,) * len(recording.zones)
    for start, end, row in zip(series.seconds, ends, series.rows, strict=True):
        nodes = tuple(min(desired, int(each)) for each in row)
        usd = tuple(
            integral(recording.prices, zone, start, end) / (end - start) / HOUR_S if recording.prices else 0.0
            for zone in range(len(row))
        )
        found.append(_Interval(start, end, nodes, before, usd))
        before = nodes
    return found


def _next(ways: dict[int, _Way], now: _Interval, min_nodes: int, costs: Costs, worth_s: float) -> dict[int, _Way]:
    """Return the best way to be nowhere, or in each zone that has enough."""
    after: dict[int, _Way] = {}
    for zone in (NOWHERE, *(zone for zone, nodes in enumerate(now.nodes) if nodes >= min_nodes)):
        steps = (_step(way, came_from, zone, now, min_nodes, costs, worth_s) for came_from, way in ways.items())
        after[zone] = max(steps, key=lambda way: way.score)
    return after


def _step(way: _Way, came_from: int, zone: int, now: _Interval, min_nodes: int, costs: Costs, worth_s: float) -> _Way:
    length_s = now.end_s - now.start_s
    if zone == NOWHERE:
        return _Way(
            way.score, way.useful_s, way.paid_s, way.usd, way.paused_s, way.waited_s + length_s,
            way.pauses, way.moves, way.requests, way.last_zone, came_from,
        )  # fmt: skip
    nodes = now.nodes[zone]
    had = now.before[zone] if came_from == zone else 0
    new = max(0, nodes - had)
    late = max(0, nodes - now.before[zone])  # could not be asked for in time
    changed = came_from != zone or nodes != had
    trains_at_first = nodes - late
    arrival_s = min(costs.arrival_s, length_s) if late else 0.0
    enough = trains_at_first >= min_nodes
    waited_s = 0.0 if enough else arrival_s
    starts = came_from == NOWHERE and way.last_zone == NOWHERE and way.useful_s == 0.0
    # Late nodes join a round that trains already: one pause for those that were there, one more with the newcomers.
    pauses = 0 if starts or not changed else 1 + (1 if late and enough and trains_at_first and came_from != zone else 0)
    paused_s = min(costs.pause_s * pauses, length_s - waited_s)
    useful = nodes * (length_s - arrival_s) + (trains_at_first * arrival_s if enough else 0.0)
    useful = max(0.0, useful - paused_s * nodes) * costs.useful_share
    paid_s = nodes * length_s + (new - late) * costs.arrival_s
    usd_s = now.usd_s[zone] or (costs.spot_usd_per_hour or 0.0) / HOUR_S
    usd = paid_s * usd_s
    return _Way(
        score=way.score + useful * worth_s - usd,
        useful_s=way.useful_s + useful,
        paid_s=way.paid_s + paid_s,
        usd=way.usd + usd,
        paused_s=way.paused_s + paused_s,
        waited_s=way.waited_s + waited_s,
        pauses=way.pauses + pauses,
        moves=way.moves + (way.last_zone not in {NOWHERE, zone}),
        requests=way.requests + new,
        last_zone=zone,
        came_from=came_from,
    )
