"""Where a replay lost node-hours that the oracle had, row by row of the recording. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from spotsup_simulator.replay.ledger import HOUR_S

if TYPE_CHECKING:
    from spotsup_simulator.replay.oracle import Leg
    from spotsup_simulator.replay.run import Replay

# In this order each takes what it explains of a row's difference.
REPEATED, PAUSED, ARRIVING, LEFT_EARLY = "repeated", "pauses", "boot and bootstrap", "left before the loss"
IDLE, NOWHERE, ELSEWHERE, NOT_ASKED = "held, not training", "nothing held", "fuller zone elsewhere", "zone had more"
CAUSES = (REPEATED, PAUSED, ARRIVING, LEFT_EARLY, IDLE, NOWHERE, ELSEWHERE, NOT_ASKED)
# Rows in which the replay had more than the oracle: it had chosen another zone.
AHEAD = "ahead of it"

# From, to, and how many nodes.
Span: TypeAlias = tuple[float, float, float]


def losses(replay: Replay, course: Sequence[Leg]) -> dict[str, float]:
    """Node-hours by cause; with the sign of AHEAD turned they add up to what the oracle's were more."""
    edges = [leg.start_s for leg in course]
    share = replay.costs.useful_share
    trained = spread([(start, end, nodes) for start, end, _, nodes in replay.stretches()], edges)
    repeated = spread(replay.repeated(), edges)
    machines = replay.machines()
    arrival_s, pause_s = replay.costs.arrival_s, replay.costs.pause_s
    held = spread([(each.start_s, each.end_s, 1.0) for each in machines], edges)
    explained = {
        REPEATED: [each / share for each in repeated],
        PAUSED: spread([(at, at + pause_s, nodes) for at, nodes in replay.rounds], edges),
        ARRIVING: spread([(m.start_s, min(m.end_s, m.start_s + arrival_s), 1.0) for m in machines], edges),
        LEFT_EARLY: spread([(m.end_s, m.taken_s, 1.0) for m in machines if m.taken_s is not None], edges),
    }
    where = _zones(replay, edges)
    found = dict.fromkeys((*CAUSES, AHEAD), 0.0)
    for row, leg in enumerate(course):
        left_s = leg.useful_s - (trained[row] * share - repeated[row])
        if left_s <= 0:
            found[AHEAD] -= left_s / HOUR_S
            continue
        length_s = leg.end_s - leg.start_s
        used_s = trained[row] + explained[PAUSED][row] + explained[ARRIVING][row]
        rest = {cause: seconds[row] for cause, seconds in explained.items()}
        rest[IDLE] = max(0.0, held[row] - used_s)
        zone = where[row]
        had = 0.0 if zone is None else replay.recording.capacity.rows[row][zone]
        rest[NOWHERE] = length_s * leg.nodes if zone is None else 0.0
        rest[ELSEWHERE] = 0.0 if zone is None else length_s * max(0.0, leg.nodes - had)
        for cause, seconds in rest.items():
            taken_s = min(left_s, seconds * share)
            found[cause] += taken_s / HOUR_S
            left_s -= taken_s
        found[NOT_ASKED] += left_s / HOUR_S
    return found


def spread(spans: Iterable[Span], edges: Sequence[float]) -> list[float]:
    """Node-seconds of the spans in each row: a row begins at its edge, and the last has no end."""
    found = [0.0] * len(edges)
    for start, end, nodes in spans:
        start = max(start, edges[0])  # noqa: PLW2901
        row = bisect_right(edges, start) - 1
        while start < end and row < len(edges):
            until = min(end, edges[row + 1]) if row + 1 < len(edges) else end
            found[row] += nodes * max(0.0, until - start)
            start, row = max(start, until), row + 1  # noqa: PLW2901
    return found


def _zones(replay: Replay, edges: Sequence[float]) -> list[int | None]:
    """Return the zone in which the replay held most in each row; None where it held nothing."""
    zones = replay.recording.zones
    held = [spread([(m.start_s, m.end_s, 1.0) for m in replay.machines() if m.zone == zone], edges) for zone in zones]
    found: list[int | None] = []
    for row in range(len(edges)):
        largest = max(range(len(zones)), key=lambda zone: held[zone][row])
        found.append(largest if held[largest][row] > 0 else None)
    return found
