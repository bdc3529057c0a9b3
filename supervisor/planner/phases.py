"""What is decided about one job, in which order, and why in that order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from supervisor.features.billing.prices import drive_prices
from supervisor.features.billing.rule import drive_billing
from supervisor.features.checkpoints.rule import drive_checkpoints
from supervisor.features.deadline.rule import drive_deadline
from supervisor.features.flood.rule import drive_flood
from supervisor.features.hang.rule import drive_worker_alerts
from supervisor.features.limits.rule import drive_limits
from supervisor.features.moves.rule import drive_moves
from supervisor.features.places.rule import drive_places
from supervisor.features.queue.rule import drive_queue
from supervisor.features.silence.rule import drive_silence
from supervisor.features.slow.rule import drive_slow
from supervisor.features.waits.rule import drive_wait_alerts
from supervisor.planner.draft import Draft
from supervisor.planner.fleet import drive_fleet
from supervisor.planner.jobs import drive_end, drive_state
from supervisor.planner.pauses import report_pauses
from supervisor.planner.records import clamp_future_times, delete_old
from supervisor.planner.rounds import drive_rounds
from supervisor.planner.sync import sync_nodes


@dataclass(frozen=True, slots=True)
class Phase:
    """A step of a plan."""

    drive: Callable[[Draft], None]
    why: str  # why it stands where it stands


# Neither decides about nodes or machines, nor reads what another one writes: in any order.
REPORTS = (report_pauses, drive_silence, drive_checkpoints, drive_worker_alerts, drive_wait_alerts)
_REPORTED = "people are told of what is decided above"

PHASES = (
    Phase(clamp_future_times, "nothing is compared with a time that only a wrong clock has seen"),
    Phase(sync_nodes, "what has happened to nodes is known before anything is decided"),
    Phase(drive_prices, "limits count what machines cost now, and a job's end says it"),
    Phase(drive_end, "a job that has ended pauses, moves and asks for nothing"),
    Phase(drive_flood, "a job that floods etcd pauses, whatever its limits say"),
    Phase(drive_limits, "a job that pauses for a limit or a budget moves nowhere and asks for nothing"),
    Phase(drive_deadline, "the pace of steps decides whether moves and requests may pay for on-demand machines"),
    Phase(drive_queue, "nor does one that makes room for another job move"),
    Phase(drive_slow, "a slow node is replaced only where nothing above stops the job, and no move is under way"),
    Phase(drive_moves, "a round is chosen without the nodes that a move leaves behind"),
    Phase(drive_rounds, "no hint has a node any more when it is released"),
    Phase(drive_fleet, "what is asked for is what rounds and moves leave missing"),
    Phase(drive_places, "only a job for which nothing was asked here goes to another place"),
    Phase(drive_state, "a job's state follows from its nodes as they are now decided"),
    *(Phase(report, _REPORTED) for report in REPORTS),
    Phase(drive_billing, "cost is booked by the states that nodes now have"),
    Phase(delete_old, "nothing is asked of a record that is deleted"),
)


def plan_job(draft: Draft, phases: Sequence[Phase] = PHASES) -> None:
    """Take all phases, one after the other."""
    for phase in phases:
        phase.drive(draft)
