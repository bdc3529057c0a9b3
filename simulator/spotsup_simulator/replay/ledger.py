"""What a replayed job did with its time and money. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from spotsup_simulator.replay.costs import Costs
from spotsup_simulator.replay.recording import Recording, Series

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Rental:
    """A machine that was paid for, in seconds of the recording."""

    zone: str
    spot: bool
    start_s: float
    end_s: float
    taken_s: float | None = None  # when its preemption was announced for, if it was


@dataclass(frozen=True, slots=True)
class Result:
    """A policy on a recording. Hours of nodes count each node; all money is USD."""

    policy: str
    hours: float  # from the submission to the job's end, or to the recording's
    finished: bool
    useful_node_h: float  # trained, without what was repeated or spent on checkpoints
    desired_node_h: float  # if all desired nodes had trained all the time
    offered_node_h: float  # of the place that had most at each time
    paid_node_h: float
    on_demand_node_h: float  # of those that were paid for
    usd: float | None
    usd_at_on_demand: float | None  # for as many useful node-hours, on machines that nobody takes
    lost_node_h: float  # repeated after machines were lost without a checkpoint
    paused_h: float  # stood still after it had begun, with or without machines
    waited_h: float  # had too few machines to train
    pauses: int  # its nodes changed
    moves: int  # to another zone
    requests: int
    refusals: int

    @property
    def goodput_of_offered(self) -> float:
        """Useful node-hours, of those that the recording offers."""
        return self.useful_node_h / self.offered_node_h if self.offered_node_h else 0.0

    @property
    def goodput_of_desired(self) -> float:
        """Useful node-hours, of those that were desired."""
        return self.useful_node_h / self.desired_node_h if self.desired_node_h else 0.0

    @property
    def usd_per_useful_node_h(self) -> float | None:
        """None without a price, or without anything useful."""
        return self.usd / self.useful_node_h if self.usd is not None and self.useful_node_h else None


@dataclass(frozen=True, slots=True)
class Part:
    """One of several jobs on one recording."""

    job: str
    submitted_h: float
    first_step_h: float | None  # from its submission; None if it never trained
    result: Result

    @property
    def ended_h(self) -> float | None:
        """None if it has not."""
        return self.submitted_h + self.result.hours if self.result.finished else None


@dataclass(frozen=True, slots=True)
class Total:
    """Several jobs together."""

    policy: str
    jobs: int
    finished: int
    makespan_h: float | None  # from the first submission to the last end; None if one has not ended
    first_step_h: float | None  # the longest; None if one never trained
    useful_node_h: float
    paid_node_h: float
    usd: float | None
    usd_per_useful_node_h: float | None
    pauses: int
    moves: int
    requests: int


def total_of(policy: str, parts: Sequence[Part]) -> Total:
    """Return the sum of at least one."""
    results, ends = [part.result for part in parts], [part.ended_h for part in parts]
    costs, firsts = [result.usd for result in results], [part.first_step_h for part in parts]
    usd = None if None in costs else sum(each or 0.0 for each in costs)
    useful = sum(result.useful_node_h for result in results)
    begin = min(part.submitted_h for part in parts)
    return Total(
        policy=policy,
        jobs=len(parts),
        finished=sum(result.finished for result in results),
        makespan_h=None if None in ends else max(each or 0.0 for each in ends) - begin,
        first_step_h=None if None in firsts else max(each or 0.0 for each in firsts),
        useful_node_h=useful,
        paid_node_h=sum(result.paid_node_h for result in results),
        usd=usd,
        usd_per_useful_node_h=usd / useful if usd is not None and useful else None,
        pauses=sum(result.pauses for result in results),
        moves=sum(result.moves for result in results),
        requests=sum(result.requests for result in results),
    )


def usd_of(rentals: Iterable[Rental], recording: Recording, costs: Costs) -> float | None:
    """Return what machines cost; None where a price is not known."""
    total = 0.0
    for rental in rentals:
        price = _price_h(rental, recording, costs)
        if price is None:
            return None
        total += price
    return total


def _price_h(rental: Rental, recording: Recording, costs: Costs) -> float | None:
    hours = (rental.end_s - rental.start_s) / HOUR_S
    if not rental.spot:
        return None if costs.on_demand_usd_per_hour is None else hours * costs.on_demand_usd_per_hour
    if recording.prices is None:
        return None if costs.spot_usd_per_hour is None else hours * costs.spot_usd_per_hour
    return integral(recording.prices, recording.zones.index(rental.zone), rental.start_s, rental.end_s) / HOUR_S


def integral(series: Series, column: int, start_s: float, end_s: float) -> float:
    """Return the integral of one column over time, in its unit times seconds."""
    total, at, row = 0.0, start_s, series.at(start_s)
    for i in range(series.index(start_s) + 1, len(series.seconds)):
        if series.seconds[i] >= end_s:
            break
        total += row[column] * (series.seconds[i] - at)
        at, row = series.seconds[i], series.rows[i]
    return total + row[column] * (end_s - at)


def offered_node_h(recording: Recording, min_nodes: int, max_nodes: int, end_s: float) -> float:
    """Return the hours of nodes in the zone that had most at each time: up to `max_nodes`, and none where it had fewer
    than `min_nodes`."""
    series, total = recording.capacity, 0.0
    ends = (*series.seconds[1:], recording.end_s)
    for start, end, row in zip(series.seconds, ends, series.rows, strict=True):
        nodes = min(max_nodes, int(max(row)))
        if nodes >= min_nodes and start < end_s:
            total += nodes * (min(end, end_s) - start)
    return total / HOUR_S


def moves_of(zones: Sequence[str]) -> int:
    """Return how often one differs from the one before."""
    return sum(a != b for a, b in pairwise(zones))
