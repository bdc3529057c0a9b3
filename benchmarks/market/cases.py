"""What `make bench-market` plays: recordings, the jobs on them, their variants, and the goals. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from spotsup_simulator.replay.ledger import HOUR_S
from spotsup_simulator.replay.recording import Recording, Series, made
from spotsup_simulator.replay.world import MISSING_S

from supervisor.planner.world import Rules

# Of the oracle's, on the same recording with the same costs.
USEFUL, USD = "useful, of the oracle's", "USD per useful hour, of the oracle's"
REQUESTS, CPU = "requests", "CPU"
# Of several jobs.
MET, OF_ORACLE = "deadlines that are met", "USD, of the oracle's, on average"
UNFAIR, BEYOND = "worst wait, of its fair share's", "requests beyond a limit"
UNFINISHED = "jobs that did not finish"
FEW, FEW_AND_NONE_ADDED = "longest below min", "longest below min, none added"
# Variants: so long are the pieces that change places; so much of each zone's time grants nothing; and so fast it goes.
PIECE_S, THINNED, PACE = 6 * HOUR_S, 0.2, 2.0


@dataclass(frozen=True, slots=True)
class Case:
    """A job of `low` to `desired` nodes on a recording, or on its first `hours`. Or `jobs` of several users, within
    limits."""

    name: str
    file: str
    low: int
    desired: int
    prices: str = ""  # a file
    hours: float | None = None
    baselines: bool = True  # whether the baselines are played, too
    variant: str = ""
    jobs: int = 0
    begin_h: float = 0.0  # where in the recording `hours` begin
    knobs: str = ""  # a group of the policy's numbers, each of which is halved and doubled
    deadline_h: float = 0.0  # WORK_H of work have to be done within so long, from STARTS points of the recording


@dataclass(frozen=True, slots=True)
class Goal:
    """What a metric of a case has to be: at most `limit`, or at least."""

    case: str
    metric: str
    limit: float
    at_least: bool = False

    def met(self, value: float) -> bool:
        """Whether this value does."""
        return value >= self.limit if self.at_least else value <= self.limit


ZONES_9 = Case("v100-9zones", "v100-9zones-availability.csv", 1, 1, "v100-9zones-price.csv")
NODES_16 = Case("v100-16nodes", "v100-16nodes.csv", 4, 16)
NODES_32 = Case("p3-32nodes", "p3-32nodes.csv", 1, 32)
DAYS_3 = replace(NODES_16, name="v100-16nodes, 72 h", hours=72.0)
DAYS_10 = replace(ZONES_9, name="v100-9zones, 240 h", hours=240.0)
WORK_H, STARTS, ON_DEMAND_USD = 48.0, 100, 3.06
DUE_52, DUE_70 = (
    replace(ZONES_9, name=f"48 h of work within {hours:g} h", baselines=False, deadline_h=hours)
    for hours in (52.0, 70.0)
)
# So long a set below `min` is kept to which nothing is added, and until the daemon looks again.
HELD_S = Rules().gang.timeout_s + MISSING_S
JOBS_20 = Case("20 jobs, 36 h", "v100-16nodes.csv", 1, 64, hours=36.0, jobs=20)
# Hours in which the zones change most, as 45 plays take long.
KNOBS = replace(NODES_16, name="numbers of the policy", begin_h=27.0, hours=4.0, baselines=False)
WHOLE = (ZONES_9, NODES_16, NODES_32, replace(DAYS_3, baselines=False), JOBS_20, DUE_52, DUE_70)
QUICK = (DAYS_10, DAYS_3, NODES_32)
VARIED = tuple(replace(case, baselines=False) for case in QUICK)
LEAST_VARIED = 0.98

GOALS = (
    Goal(ZONES_9.name, USD, 1.003),
    Goal(ZONES_9.name, USEFUL, 0.997, at_least=True),
    Goal(NODES_16.name, USEFUL, 0.995, at_least=True),
    Goal(NODES_32.name, USEFUL, 0.99, at_least=True),
    Goal(DAYS_3.name, REQUESTS, 2000),
    Goal(ZONES_9.name, CPU, 20.0),
    Goal(NODES_16.name, CPU, 60.0),
    *(Goal(case.name, MET, STARTS, at_least=True) for case in (DUE_52, DUE_70)),
    *(Goal(case.name, OF_ORACLE, 1.10) for case in (DUE_52, DUE_70)),
    Goal(JOBS_20.name, UNFAIR, 3.0),
    Goal(JOBS_20.name, BEYOND, 0.0),
    Goal(JOBS_20.name, UNFINISHED, 0.0),
    Goal(JOBS_20.name, FEW_AND_NONE_ADDED, HELD_S),
)


def chosen(*, quick: bool, variants: bool, only: str = "") -> list[Case]:
    """The cases to play. `only`: parts of their names, with commas between."""
    cases = [*(QUICK if quick else WHOLE)]
    if variants:
        cases += [
            replace(case, name=f"{case.name.partition(',')[0]}, {variant}", variant=variant)
            for case in VARIED
            for variant in VARIANTS
        ]
    return [case for case in cases if not only or any(part in case.name for part in only.split(","))]


def goals_of(case: Case) -> list[Goal]:
    """Those by which it is judged."""
    if case.variant:
        return [Goal(case.name, USEFUL, LEAST_VARIED, at_least=True)]
    return [goal for goal in GOALS if goal.case == case.name]


# -- variants of a recording ----------------------------------------------------------------------------------


def shuffled(recording: Recording, seed: int) -> Recording:
    """Its pieces of six hours, of a short one its eighths, in another order; prices stay with them."""
    piece_s = PIECE_S if recording.end_s >= 4 * PIECE_S else recording.end_s / 8
    count = int(recording.end_s // piece_s)
    order = list(range(count))
    random.Random(f"shuffled {seed}").shuffle(order)
    pieces = [(number * piece_s, (number + 1) * piece_s) for number in order]
    if recording.end_s > count * piece_s:
        pieces.append((count * piece_s, recording.end_s))
    return _joined(recording, pieces)


def shifted(recording: Recording, seed: int) -> Recording:
    """Each zone begins at another time and goes on from its end to its begin: what zones had in common is gone."""
    draw = random.Random(f"shifted {seed}")
    offsets = [draw.uniform(0.0, recording.end_s) for _ in recording.zones]

    def turned(series: Series) -> Series:
        columns = [_turned(series, zone, offset, recording.end_s) for zone, offset in enumerate(offsets)]
        times = sorted({second for column in columns for second in column})
        rows, now = [], [column[0.0] for column in columns]
        for second in times:
            now = [column.get(second, value) for column, value in zip(columns, now, strict=True)]
            rows.append(tuple(now))
        return Series(tuple(times), tuple(rows))

    return _with(recording, turned)


def thinned(recording: Recording, seed: int) -> Recording:
    """In a fifth of the hours of each zone, drawn, it grants nothing."""
    draw = random.Random(f"thinned {seed}")
    hours = int(recording.end_s // HOUR_S) + 1
    empty = [{hour for hour in range(hours) if draw.random() < THINNED} for _ in recording.zones]
    series = recording.capacity
    times = sorted({*series.seconds, *(hour * HOUR_S for hour in range(hours) if hour * HOUR_S < recording.end_s)})
    rows = tuple(
        tuple(
            0 if int(second // HOUR_S) in empty[zone] else machines for zone, machines in enumerate(series.at(second))
        )
        for second in times
    )
    return made(recording.name, recording.zones, Series(tuple(times), rows), recording.prices, recording.end_s)


def scaled(recording: Recording, _seed: int) -> Recording:
    """All of it happens in half the time."""

    def faster(series: Series) -> Series:
        return replace(series, seconds=tuple(second / PACE for second in series.seconds))

    prices = faster(recording.prices) if recording.prices else None
    return made(recording.name, recording.zones, faster(recording.capacity), prices, recording.end_s / PACE)


VARIANTS: Mapping[str, Callable[[Recording, int], Recording]] = MappingProxyType(
    {"shuffled": shuffled, "shifted": shifted, "thinned": thinned, "scaled": scaled}
)


def _with(recording: Recording, change: Callable[[Series], Series]) -> Recording:
    prices = change(recording.prices) if recording.prices else None
    return made(recording.name, recording.zones, change(recording.capacity), prices, recording.end_s)


def _joined(recording: Recording, pieces: list[tuple[float, float]]) -> Recording:
    def change(series: Series) -> Series:
        seconds: list[float] = []
        rows: list[tuple[float, ...]] = []
        at = 0.0
        for start, end in pieces:
            inside = [i for i, second in enumerate(series.seconds) if start < second < end]
            seconds += [at, *(at + series.seconds[i] - start for i in inside)]
            rows += [series.at(start), *(series.rows[i] for i in inside)]
            at += end - start
        return Series(tuple(seconds), tuple(rows))

    return _with(recording, change)


def _turned(series: Series, zone: int, offset_s: float, end_s: float) -> dict[float, float]:
    """By second: a zone's number, `offset_s` later."""
    pairs = zip(series.seconds, series.rows, strict=True)
    found = {(second + offset_s) % end_s: row[zone] for second, row in pairs if 0.0 <= second < end_s}
    return {0.0: series.at(end_s - offset_s)[zone]} | found
