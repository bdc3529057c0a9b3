"""A job, as a user sees it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from spotsup.errors import JobFailedError, SpotsupError
from spotsup.transport import Transport

ENDED = frozenset({"succeeded", "failed", "cancelled"})
POLL_S = 2.0


@dataclass(frozen=True)
class Status:
    """How a job is. `raw` has all that the daemon says of it."""

    name: str
    state: str
    # What is done for it, and why, in one sentence.
    sentence: str
    owner: str
    # How many nodes train, and how many it wants.
    training: int
    desired: int
    step: int
    loss: float | None
    usd: float
    raw: Mapping[str, Any] = field(repr=False, compare=False)

    @property
    def ended(self) -> bool:
        """True if it has ended, in whatever way."""
        return self.state in ENDED

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Status:
        """Make a status from the API's row."""
        nodes = row["nodes"]
        return cls(
            row["name"],
            row["state"],
            row["sentence"] or row["reason"],
            row["owner"],
            nodes["training"],
            nodes["desired"],
            row["step"],
            row["loss"],
            row["usd"],
            row,
        )


@dataclass(frozen=True)
class Event:
    """What happened to a job."""

    id: str
    # UNIX seconds.
    at: float
    kind: str
    text: str


class Job:
    """A job of a daemon. Every method asks it anew, and raises SpotsupError."""

    def __init__(self, transport: Transport, name: str) -> None:
        self._transport = transport
        self.name = name

    def __repr__(self) -> str:
        return f"Job({self.name!r})"

    def status(self) -> Status:
        """Return how it is."""
        return Status.of(self._get(""))

    def wait(self, timeout_s: float | None = None, *, check: bool = True) -> Status:
        """Until it has ended. Raises JobFailedError if it has not succeeded, unless `check` is False; TimeoutError."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not (status := self.status()).ended:
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"{self.name} is {status.state} after {timeout_s:g} s: {status.sentence}")
            time.sleep(POLL_S)
        if check and status.state != "succeeded":
            raise JobFailedError(f"{self.name} {status.sentence}")
        return status

    def logs(self, node: str = "", *, follow: bool = False) -> Iterator[str]:
        """Yield what it has printed, in pieces; of all nodes, or of one. With `follow` until it has ended."""
        printed: dict[tuple[str, str], int] = {}
        after, over = 0, False
        while True:
            part = self._get("/logs", node=node, after=after or None)
            for chunk in part["chunks"]:
                # A chunk grows until the next one begins.
                key, text = (chunk["node"], chunk["chunk"]), chunk["text"]
                if len(text) > printed.get(key, 0):
                    yield text[printed.get(key, 0) :]
                    printed[key] = len(text)
            after = part["position"]
            if part["more"]:
                continue
            if over or not follow:
                return
            time.sleep(POLL_S)
            status = self.status()
            over = status.ended and not status.training

    def events(self, after: str = "") -> list[Event]:
        """Return what happened to it, the oldest first; after the event with an id."""
        return [Event(row["id"], row["at"], row["kind"], row["text"]) for row in self._get("/events", after=after)]

    def report(self) -> Mapping[str, Any]:
        """Return how it trained: speed, pauses, dollars, and `points` over time; as `spotsupctl report -o json`."""
        found: Mapping[str, Any] = self._get("/report")
        return found

    def scale(
        self,
        desired: int | None = None,
        *,
        min_nodes: int | None = None,
        max_nodes: int | None = None,
        spares: int | None = None,
    ) -> Status:
        """Change how many nodes it wants."""
        return self._post(
            "/scale", {"desired": desired, "min_nodes": min_nodes, "max_nodes": max_nodes, "spares": spares}
        )

    def limits(self, **limits: float) -> Status:
        """Change its limits, by their names in a job file, such as `hours` and `usd`: those of `spotsupctl limits`."""
        return self._post("/limits", limits)

    def cancel(self) -> Status:
        """End it. Repeating that is fine."""
        return self._post("/cancel")

    def delete(self) -> None:
        """Delete it with all that the daemon keeps of it, once it has ended; its checkpoints stay. Raises
        CommandRefusedError while it has machines, or may go on."""
        self._transport.post(self._path("/delete"), {})

    def pause(self) -> Status:
        """Checkpoint, and release its machines until it is resumed."""
        return self._post("/pause")

    def resume(self) -> Status:
        """Go on from its checkpoint."""
        return self._post("/resume")

    def _get(self, rest: str, **params: Any) -> Any:
        return self._transport.get(self._path(rest), **params)

    def _post(self, rest: str, body: Mapping[str, Any] | None = None) -> Status:
        return Status.of(self._transport.post(self._path(rest), body or {}))

    def _path(self, rest: str) -> str:
        if not self.name:
            raise SpotsupError("the name of the job is empty: give one")
        return f"/v1/jobs/{quote(self.name, safe='')}{rest}"
