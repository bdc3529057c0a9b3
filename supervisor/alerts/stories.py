"""How a job is, for the first message of its thread: noticed → replacing → back at N nodes, pause, cost. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from math import isfinite


@dataclass(frozen=True, slots=True)
class Story:
    """A job as its thread tells it."""

    job: str
    task_id: str
    state: str
    nodes: int  # in its round
    desired: int
    leaving: int = 0  # nodes that were announced to be taken, or are lost, and whose place is not taken yet
    noticed_at: float = 0.0  # when the first of them was; 0 while there is none
    replacing: int = 0  # nodes that are requested or being prepared
    pauses: int = 0  # how many were measured
    pause_s: float | None = None  # the last one; None: not known
    usd: float = 0.0
    reason: str = ""  # why it ended, waits or is paused

    def sentence(self) -> str:
        """Return the story in one line, without the cost, which changes all the time."""
        return " → ".join(self._steps()) + self._pause()

    def with_cost(self) -> str:
        """Return the sentence, and what the job has cost so far."""
        return f"{self.sentence()}; ${self.usd:.2f} so far"

    def _steps(self) -> list[str]:
        if self.state in {"succeeded", "failed", "cancelled", "paused", "queued"}:
            return [f"{self.state}: {self.reason}" if self.reason else self.state]
        steps = []
        if self.leaving:
            at = datetime.fromtimestamp(self.noticed_at, UTC).strftime("%H:%M:%S UTC")
            steps.append(f"{self.leaving} {_nodes(self.leaving)} going, noticed {at}")
        if self.replacing:
            steps.append(f"replacing: {self.replacing} on the way")
        if steps:
            return [*steps, f"at {self.nodes} of {self.desired}"]
        back = "back at" if self.pauses and self.nodes >= self.desired else "at"
        of = "" if self.nodes == self.desired else f" of {self.desired}"
        return [f"{self.state}, {back} {self.nodes}{of} {_nodes(self.desired)}"]

    def _pause(self) -> str:
        if self.pause_s is None:
            return ""
        shown = f"{self.pause_s:.3g}" if self.pause_s < 100 else f"{self.pause_s:.0f}"
        return f"; last pause {shown} s"


@dataclass(frozen=True, slots=True)
class Thread:
    """The first message of a job in a channel of Slack, as the journal holds it: a takeover goes on with it."""

    channel: str  # Slack's id
    ts: str  # of the message, which is its id in the channel
    shown: str = ""  # the sentence that it shows
    at: float = 0.0  # when that was

    def encode(self) -> bytes:
        """Return bytes for the journal."""
        return json.dumps(asdict(self)).encode()


def decode_thread(raw: bytes) -> Thread | None:
    """Return a thread from the journal; None for what is none: a new one is begun then."""
    try:
        parsed = json.loads(raw)
        thread = Thread(**parsed)
    except (ValueError, TypeError, RecursionError):
        return None
    texts = all(isinstance(each, str) for each in (thread.channel, thread.ts, thread.shown))
    return thread if texts and isinstance(thread.at, int | float) and isfinite(thread.at) else None


def _nodes(count: int) -> str:
    return "node" if count == 1 else "nodes"
