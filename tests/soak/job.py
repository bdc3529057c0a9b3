"""The soak's job: its keys and audit lines, and the messages that daemon and agents would write."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from spotsup_trainer.etcd import Etcd
from spotsup_trainer.etcd.mirror import Mirror
from spotsup_trainer.wire import Hint, Keys, Member, Notice, Result, Round, Tombstone, decode, encode

from tests.soak.nodes import CLUSTER, JOB, MAX_NODES, SoakError

LOOK_S = 0.01
KEYS = Keys(CLUSTER)
_LIVE_TIMEOUT_S = 30.0
Found = TypeVar("Found")
Message = TypeVar("Message")


def eventually(what: str, look: Callable[[], Found | None], timeout_s: float) -> Found:
    """Poll until the result is true, and return it. Raises SoakError."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise SoakError(f"waited {timeout_s:g} s for {what}")
        time.sleep(LOOK_S)


class Job:
    """`rounds`: all formed rounds, by number. Any method may raise EtcdError."""

    def __init__(self, endpoints: Sequence[str], audit: Path) -> None:
        self.etcd = Etcd(endpoints, timeout_s=2.0)
        self.audit = audit
        self.rounds: dict[int, Round] = {}
        self._mirror = Mirror(self.etcd, KEYS.run(JOB), self._note)

    def open(self) -> None:
        """Start to watch."""
        self._mirror.start()
        if not self._mirror.wait_live(_LIVE_TIMEOUT_S):
            raise SoakError("etcd does not answer")

    def close(self) -> None:
        """Stop watching."""
        self._mirror.close()
        self.etcd.close()

    # -- reading -----------------------------------------------------------------------------------------------

    def round(self) -> Round | None:
        """The current round."""
        return self._message(KEYS.round(JOB), Round)

    def member(self, node: str) -> Member | None:
        """A launcher's own message."""
        return self._message(KEYS.member(JOB, node), Member)

    def has_tombstone(self, node: str) -> bool:
        """Whether the daemon has given up a node."""
        return self._message(KEYS.tombstone(JOB, node), Tombstone) is not None

    def result(self) -> Result | None:
        """The job's result."""
        return self._message(KEYS.result(JOB), Result)

    def keys(self) -> list[str]:
        """All keys of the job."""
        return [kv.key for kv in self.etcd.range(KEYS.root, keys_only=True).kvs]

    def stepping(self, number: int) -> set[str]:
        """The nodes that have completed a step of a round."""
        return {path.name.split(".")[0] for path in (self.audit / str(number)).glob("*") if path.stat().st_size}

    def steps(self, number: int) -> int:
        """The last step of a round that some node has completed; 0 for none."""
        return max((_last_step(path) for path in (self.audit / str(number)).glob("*")), default=0)

    def waits(self, *nodes: str, timeout_s: float) -> None:
        """Wait until these launchers wait for a round: their workers are warm."""
        for node in nodes:
            eventually(f"{node} to wait for a round", lambda node=node: self._is_waiting(node), timeout_s)  # type: ignore[misc]

    def settled(self, members: Sequence[str], after: int, timeout_s: float) -> Round:
        """Wait until each of exactly these members steps in a round later than `after`. Raises SoakError."""

        def look() -> Round | None:
            found = self.round()
            if found is None or found.number <= after or set(found.nodes()) != set(members):
                return None
            return found if self.stepping(found.number) == set(members) else None

        return eventually(f"a round of {', '.join(sorted(members))} after round {after}", look, timeout_s)

    def _is_waiting(self, node: str) -> bool:
        found = self.member(node)
        return found is not None and found.state == "waiting"

    def _message(self, key: str, kind: type[Message]) -> Message | None:
        found = self.etcd.get(key)
        return decode(kind, found.value) if found else None

    def _note(self) -> None:
        found = self._mirror.view().keys.get(KEYS.round(JOB))
        if found is not None:
            formed = decode(Round, found.value)
            self.rounds[formed.number] = formed

    # -- messages of daemon and agents ------------------------------------------------------------------------

    def hint(self, members: Sequence[str], spares: Sequence[str] = (), reason: str = "") -> None:
        """Write who should be in the round."""
        self.etcd.put(KEYS.hint(JOB), encode(Hint(tuple(members), 1, MAX_NODES, reason, tuple(spares))))

    def write_tombstone(self, node: str, reason: str) -> None:
        """Write that a node is gone."""
        self.etcd.put(KEYS.tombstone(JOB, node), encode(Tombstone(node, reason, time.time())))

    def notice(self, node: str, after_s: float) -> None:
        """Write a preemption notice, as the node's agent does."""
        now = time.time()
        self.etcd.put(KEYS.notice(JOB, node), encode(Notice(node, now + after_s, now, "soak")))


def _last_step(path: Path) -> int:
    """The step of the last whole line."""
    import json

    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 2000))
        lines = file.read().split(b"\n")[:-1]
    return int(json.loads(lines[-1])["step"]) if lines else 0
