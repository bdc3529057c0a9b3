"""Pauses of training, as nodes measured them: an event for each, and the words for people."""

from __future__ import annotations

from dataclasses import replace

from spotsup_trainer.wire import Pause

from supervisor.events import EventKind
from supervisor.planner.draft import Draft
from supervisor.planner.world import JobView

_SOURCES = {"own": "own memory", "peers": "other ranks", "storage": "storage"}
MAX_PAUSES = 10  # newest ones that are believed of one message, and shown
MAX_PAUSE_S = 30 * 24 * 3600.0  # a longer one is a mistake, or a lie
MAX_RESTORED_BYTES = 2**50  # the same
MAX_STEPS_AGAIN = 10**12


def pauses_of(view: JobView) -> tuple[Pause, ...]:
    """Return the last pauses of a job, the oldest first; none of rounds that it does not have, or with impossible
    times."""
    newest = view.round.number if view.round else 0
    found = view.pauses.pauses[-MAX_PAUSES:] if view.pauses else ()
    return tuple(sorted((each for each in found if _is_possible(each, newest)), key=lambda each: each.round))


def _is_possible(pause: Pause, newest: int) -> bool:
    known = [value for value in (pause.pause_s, *pause.parts().values()) if value is not None]
    if pause.steps_again is not None and not 0 <= pause.steps_again <= MAX_STEPS_AGAIN:
        return False
    sizes = [size for size in pause.sources().values() if size is not None]
    if not all(0 <= value <= MAX_PAUSE_S for value in known) or not all(0 <= s <= MAX_RESTORED_BYTES for s in sizes):
        return False
    return 1 < pause.round <= newest


def report_pauses(draft: Draft) -> None:
    """Add an event for each pause that has none yet, of the node that measured it. What is not known is left out of its
    data."""
    said_by = draft.view.pauses.node if draft.view.pauses else ""
    node = said_by if said_by in draft.nodes else ""
    for pause in pauses_of(draft.view):
        if draft.full:
            return
        if pause.round <= draft.job.rounds.downtime_reported:
            continue
        draft.set_part(replace(draft.job.rounds, downtime_reported=pause.round))
        measured = {"pause_s": pause.pause_s} | {f"{name}_s": value for name, value in pause.parts().items()}
        measured |= {f"{name}_bytes": size for name, size in pause.sources().items()}
        measured |= {"steps_again": pause.steps_again, "usd": _usd(draft, pause)}
        known: dict[str, float | str] = {name: value for name, value in measured.items() if value is not None}
        known |= {"round": pause.round, "ended_at": pause.at}
        draft.add_event(EventKind.TRAINING_PAUSED, as_text(pause), node, **known)


def _usd(draft: Draft, pause: Pause) -> float | None:
    """Return what the machines of the present round cost meanwhile; None where that is not known."""
    current = draft.view.round
    nodes = [draft.nodes.get(name) for name in (current.nodes() if current else ())]
    prices = [node.offer.usd_per_hour for node in nodes if node is not None]
    known = [price for price in prices if price is not None]
    if pause.pause_s is None or not known or len(known) < len(nodes):
        return None
    return round(pause.pause_s / 3600 * sum(known), 6)


def as_text(pause: Pause) -> str:
    """`training paused for 0.31 s before round 5: detect 0.02 s, …; restored from own memory 12.00 GiB, …`.

    Agents of an earlier version do not say what was read.
    """
    how_long = "a time that is not known" if pause.pause_s is None else seconds(pause.pause_s)
    parts = ", ".join(f"{name.replace('_', ' ')} {seconds(value)}" for name, value in pause.parts().items())
    whole = f"training paused for {how_long} before round {pause.round}: {parts}"
    read = ", ".join(f"{_SOURCES[name]} {size_of(size)}" for name, size in pause.sources().items() if size is not None)
    whole = f"{whole}; restored from {read}" if read else whole
    return whole if pause.steps_again is None else f"{whole}; {steps_as_text(pause.steps_again)}"


def steps_as_text(again: int) -> str:
    """`no step lost`, `1 step made again`."""
    return f"{again} step{'' if again == 1 else 's'} made again" if again else "no step lost"


def size_of(size: int) -> str:
    """Return a size in MiB or GiB."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.3g} MiB" if size else "0"


def seconds(value: float | None) -> str:
    """Return a time in seconds, to about three digits."""
    if value is None:
        return "unknown"
    return f"{value:.3g} s" if value < 100 else f"{value:.0f} s"
