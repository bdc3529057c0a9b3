"""Silent nodes of a job that are kept. As the journal holds it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SilenceRecord:
    """Silent nodes of a job that are kept."""

    since: float = 0.0  # since when; 0 while none are
    reported_at: float = 0.0  # when that was last reported


@dataclass(frozen=True, slots=True)
class SilenceRules:
    """How silence is told from death, in seconds."""

    # A silent node whose cloud reports it running, and whose steps do not advance, is lost after.
    suspect_s: float = 20.0
    window_s: float = 60.0  # nodes that fall silent within so long of each other fall silent together
    share: float = 0.1  # more than one, and more than this share of a job's nodes or of all: it is the network
    ask_again_s: float = 60.0  # between two questions to a silent node whose steps advance
    quiet_s: float = 600.0  # between two alerts of silent nodes that are kept
    reminder_s: float = 3600.0  # people are reminded of such nodes this often
