"""Pauses of training, as nodes measured them: an event for each, and the words for people."""

from __future__ import annotations

from spotsup_trainer.wire import Pause

from supervisor.model import EventKind
from supervisor.planner.draft import Draft
from supervisor.planner.world import JobView

MAX_PAUSES = 10  # newest ones that are believed of one message, and shown
MAX_PAUSE_S = 30 * 24 * 3600.0  # a longer one is a mistake, or a lie


def pauses_of(view: JobView) -> tuple[Pause, ...]:
    """The last pauses of a job, the oldest first; none of rounds that it does not have, or with impossible times."""
    newest = view.round.number if view.round else 0
    found = view.pauses.pauses[-MAX_PAUSES:] if view.pauses else ()
    return tuple(sorted((each for each in found if _is_possible(each, newest)), key=lambda each: each.round))


def _is_possible(pause: Pause, newest: int) -> bool:
    known = [value for value in (pause.pause_s, *pause.parts().values()) if value is not None]
    return 1 < pause.round <= newest and all(0 <= value <= MAX_PAUSE_S for value in known)


def report_pauses(draft: Draft) -> None:
    """An event for each pause that has none yet, of the node that measured it. What is not known is left out of its
    data."""
    said_by = draft.view.pauses.node if draft.view.pauses else ""
    node = said_by if said_by in draft.nodes else ""
    for pause in pauses_of(draft.view):
        if draft.full:
            return
        if pause.round <= draft.job.last_reported_pause:
            continue
        draft.set_job(last_reported_pause=pause.round)
        measured = {"pause_s": pause.pause_s} | {f"{name}_s": value for name, value in pause.parts().items()}
        known: dict[str, float | str] = {name: value for name, value in measured.items() if value is not None}
        known |= {"round": pause.round, "ended_at": pause.at}
        draft.add_event(EventKind.TRAINING_PAUSED, in_words(pause), node, **known)


def in_words(pause: Pause) -> str:
    """`training paused for 0.31 s before round 5: detect 0.02 s, checkpoint 0 s, …`."""
    how_long = "a time that is not known" if pause.pause_s is None else seconds(pause.pause_s)
    parts = ", ".join(f"{name.replace('_', ' ')} {seconds(value)}" for name, value in pause.parts().items())
    return f"training paused for {how_long} before round {pause.round}: {parts}"


def seconds(value: float | None) -> str:
    """In seconds, to about three digits."""
    if value is None:
        return "unknown"
    return f"{value:.3g} s" if value < 100 else f"{value:.0f} s"
