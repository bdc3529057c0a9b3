"""Jobs with a deadline on a recorded market, begun at many points of it, beside what it would have cost at least."""

from __future__ import annotations

import time
from dataclasses import replace
from statistics import mean
from typing import Any

from spotsup_simulator.replay import oracle
from spotsup_simulator.replay.costs import Costs
from spotsup_simulator.replay.ledger import HOUR_S, Result
from spotsup_simulator.replay.recording import Recording, Series, made
from spotsup_simulator.replay.run import POLICY, Replay

from benchmarks.market.cases import MET, OF_ORACLE, ON_DEMAND_USD, STARTS, WORK_H
from supervisor.spec import parse_spec

COSTS = Costs(on_demand_usd_per_hour=ON_DEMAND_USD)
# Of training time that has checkpoints in it.
WORK_NODE_H = WORK_H * COSTS.useful_share
# What a useful hour may be worth, in dollars, so that it is bought; and how often that range is halved.
WORTH_USD, HALVED = (0.3, 20.0), 7
# Metrics, and their units.
UNITS = {
    MET: "jobs",
    OF_ORACLE: "1",
    "USD, of the oracle's, at most": "1",
    "cost, on average": "USD",
    "on demand, on average": "h",
    "on demand, at most": "h",
    "ended before the deadline, at least": "h",
    "pauses, on average": "1",
}


def play(recording: Recording, seed: int, hours: float) -> dict[str, Any]:
    """All starting points: the daemon, and the least that is possible."""
    began = time.process_time()
    parts = [recording.cut(start, start + hours * HOUR_S) for start in starts(recording, hours)]
    found = [_played(part, seed, hours) for part in parts]
    cpu_s = time.process_time() - began
    least = [least_usd(part) for part in parts]
    shares = [result.usd / usd for result, usd in zip(found, least, strict=True) if result.usd is not None]
    ours = {
        MET: float(sum(each.finished for each in found)),
        OF_ORACLE: mean(shares),
        "USD, of the oracle's, at most": max(shares),
        "cost, on average": mean(each.usd or 0.0 for each in found),
        "on demand, on average": mean(each.on_demand_node_h for each in found),
        "on demand, at most": max(each.on_demand_node_h for each in found),
        "ended before the deadline, at least": min(hours - each.hours for each in found),
        "pauses, on average": mean(each.pauses for each in found),
    }
    return {"deadlines": {POLICY: ours, oracle.POLICY: {"cost, on average": mean(least)}}, "cpu_s": cpu_s}


def starts(recording: Recording, hours: float) -> list[float]:
    """Seconds of the recording, evenly spaced, each with so many hours after it."""
    room_s = recording.end_s - hours * HOUR_S
    return [room_s * number / max(1, STARTS - 1) for number in range(STARTS)]


def _played(recording: Recording, seed: int, hours: float) -> Result:
    """A job that has not ended when the recording does has missed its deadline."""
    keys = {"market": "spot-then-on-demand", "finish_by": f"{hours:g}h", "work": f"{WORK_H:g}h"}
    spec = parse_spec({"name": "job", "nodes": 1, "run": "train.py", **keys})
    return Replay(recording, spec, COSTS, seed, WORK_NODE_H).run()


def least_usd(recording: Recording) -> float:
    """No way through the recording that does the work costs less: the bound of Lagrange, of the oracle's best ways for
    different worths of a useful hour."""
    markets = with_on_demand(recording)
    low, high = WORTH_USD
    bound = 0.0
    for _ in range(HALVED):
        worth = (low * high) ** 0.5
        found = oracle.best(markets, 1, 1, COSTS, worth)
        assert found.usd is not None
        bound = max(bound, found.usd + worth * (WORK_NODE_H - found.useful_node_h))
        low, high = (worth, high) if found.useful_node_h < WORK_NODE_H else (low, worth)
    return bound


def with_on_demand(recording: Recording) -> Recording:
    """With a place that always has a machine. Rows in which nothing changes are left out."""
    assert recording.prices is not None
    capacity, prices = recording.capacity, recording.prices
    rows = [(*row, 1.0) for row in capacity.rows]
    kept = [number for number, row in enumerate(rows) if number == 0 or row != rows[number - 1]]
    return made(
        recording.name,
        (*recording.zones, "on-demand"),
        Series(tuple(capacity.seconds[number] for number in kept), tuple(rows[number] for number in kept)),
        replace(prices, rows=tuple((*row, ON_DEMAND_USD) for row in prices.rows)),
        recording.end_s,
    )
