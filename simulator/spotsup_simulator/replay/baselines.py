"""What others would have done on the same recording. Pure.

restart-all: any lost node ends all of them; the whole set is asked for again, zone after zone, and everything starts
from the last checkpoint (the rule of SkyPilot's managed jobs and of dstack's retry). It knows of no notice.
"""

from __future__ import annotations

from spotsup_simulator.replay.costs import Costs
from spotsup_simulator.replay.ledger import HOUR_S, Rental, Result, moves_of, offered_node_h, usd_of
from spotsup_simulator.replay.recording import Recording

RESTART_ALL = "restart-all"
# From the set that was granted to the first step; from one zone that refused to the next one.
RESTART_S = 360.0
ZONE_S = 60.0


def restart_all(recording: Recording, nodes: int, costs: Costs, work_node_h: float | None = None) -> Result:
    """Exactly `nodes`, or none."""
    at, useful_s, lost_s, waited_s = 0.0, 0.0, 0.0, 0.0
    rentals: list[Rental] = []
    requests = refusals = 0
    zones: list[str] = []
    goal_s = float("inf") if work_node_h is None else work_node_h * HOUR_S
    while at < recording.end_s and useful_s < goal_s:
        zone = _granting(recording, at, nodes)
        requests += nodes
        if zone is None:
            tried = len(recording.zones)
            refusals += tried
            requests += (tried - 1) * nodes
            at, waited_s = at + ZONE_S * tried, waited_s + ZONE_S * tried
            continue
        number, tried = zone
        refusals, requests, at = refusals + tried, requests + tried * nodes, at + ZONE_S * tried
        waited_s += ZONE_S * tried
        end = _lost_at(recording, number, at, nodes)
        began = min(end, at + RESTART_S)
        trained_s = (end - began) * nodes * costs.useful_share
        if useful_s + trained_s >= goal_s:
            end = began + (goal_s - useful_s) / nodes / costs.useful_share
            useful_s, kept_s = goal_s, 0.0
        else:
            repeated_s = (end - began) % costs.checkpoint_every_s if end < recording.end_s else 0.0
            kept_s = (end - began - repeated_s) * nodes * costs.useful_share
            lost_s += repeated_s * nodes
        useful_s += kept_s
        waited_s += began - at
        rentals += [Rental(recording.zones[number], True, at, end)] * nodes
        zones.append(recording.zones[number])
        at = end
    hours = min(at, recording.end_s) / HOUR_S
    price = costs.on_demand_usd_per_hour
    return Result(
        policy=RESTART_ALL,
        hours=hours,
        finished=useful_s >= goal_s,
        useful_node_h=useful_s / HOUR_S,
        desired_node_h=nodes * hours,
        offered_node_h=offered_node_h(recording, nodes, nodes, hours * HOUR_S),
        paid_node_h=sum(each.end_s - each.start_s for each in rentals) / HOUR_S,
        on_demand_node_h=0.0,
        usd=usd_of(rentals, recording, costs),
        usd_at_on_demand=None if price is None else price * useful_s / HOUR_S,
        lost_node_h=lost_s / HOUR_S,
        paused_h=0.0,
        waited_h=waited_s / HOUR_S,
        pauses=max(0, len(zones) - 1),
        moves=moves_of(zones),
        requests=requests,
        refusals=refusals,
    )


def _granting(recording: Recording, at: float, nodes: int) -> tuple[int, int] | None:
    """Return the first zone that grants the whole set when it is its turn, cheapest first, and how many refused
    before."""
    prices = recording.prices.at(at) if recording.prices else (0.0,) * len(recording.zones)
    for tried, zone in enumerate(sorted(range(len(recording.zones)), key=lambda zone: prices[zone])):
        if recording.capacity.at(at + ZONE_S * tried)[zone] >= nodes:
            return zone, tried
    return None


def _lost_at(recording: Recording, zone: int, at: float, nodes: int) -> float:
    series = recording.capacity
    for i in range(series.index(at) + 1, len(series.seconds)):
        if series.rows[i][zone] < nodes:
            return series.seconds[i]
    return recording.end_s
