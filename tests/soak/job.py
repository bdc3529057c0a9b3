"""The job of a soak: what its keys and its audit lines tell, and the words that daemon and agents would write."""

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
Word = TypeVar("Word")


def eventually(what: str, look: Callable[[], Found | None], timeout_s: float) -> Found:
    """Look until there is something true, and return it. Raises SoakError."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise SoakError(f"waited {timeout_s:g} s in vain for {what}")
        time.sleep(LOOK_S)


class Job:
    """`rounds`: all that were formed, by number. Any method raises EtcdError while etcd is away."""

    def __init__(self, endpoints: Sequence[str], audit: Path) -> None:
        self.etcd = Etcd(endpoints, timeout_s=2.0)
        self.audit = audit
        self.rounds: dict[int, Round] = {}
        self._mirror = Mirror(self.etcd, KEYS.run(JOB), self._note)

    def open(self) -> None:
        """Begin to look."""
        self._mirror.start()
        if not self._mirror.wait_live(_LIVE_TIMEOUT_S):
            raise SoakError("etcd does not answer")

    def close(self) -> None:
        """Stop looking."""
        self._mirror.close()
        self.etcd.close()

    # -- looking -----------------------------------------------------------------------------------------------

    def round(self) -> Round | None:
        """The current one."""
        return self._word(KEYS.round(JOB), Round)

    def member(self, node: str) -> Member | None:
        """What a launcher says of itself."""
        return self._word(KEYS.member(JOB, node), Member)

    def is_buried(self, node: str) -> bool:
        """Whether the daemon has given a node up."""
        return self._word(KEYS.tombstone(JOB, node), Tombstone) is not None

    def result(self) -> Result | None:
        """The job's end."""
        return self._word(KEYS.result(JOB), Result)

    def keys(self) -> list[str]:
        """Every key of the job, as etcd has it now."""
        return [kv.key for kv in self.etcd.range(KEYS.root, keys_only=True).kvs]

    def stepping(self, number: int) -> set[str]:
        """The nodes that have completed a step in a round."""
        return {path.name.split(".")[0] for path in (self.audit / str(number)).glob("*") if path.stat().st_size}

    def steps(self, number: int) -> int:
        """The last step that a round has completed so far on some node, 0 for none."""
        return max((_last_step(path) for path in (self.audit / str(number)).glob("*")), default=0)

    def waits(self, *nodes: str, timeout_s: float) -> None:
        """Wait until these launchers wait to be in a round: their workers are warm."""
        for node in nodes:
            eventually(f"{node} to wait for a round", lambda node=node: self._is_waiting(node), timeout_s)  # type: ignore[misc]

    def settled(self, members: Sequence[str], after: int, timeout_s: float) -> Round:
        """Wait until a round later than `after`, of exactly these members, steps on each. Raises SoakError."""

        def look() -> Round | None:
            found = self.round()
            if found is None or found.number <= after or set(found.nodes()) != set(members):
                return None
            return found if self.stepping(found.number) == set(members) else None

        return eventually(f"a round of {', '.join(sorted(members))} after round {after}", look, timeout_s)

    def _is_waiting(self, node: str) -> bool:
        found = self.member(node)
        return found is not None and found.state == "waiting"

    def _word(self, key: str, kind: type[Word]) -> Word | None:
        found = self.etcd.get(key)
        return decode(kind, found.value) if found else None

    def _note(self) -> None:
        found = self._mirror.view().keys.get(KEYS.round(JOB))
        if found is not None:
            formed = decode(Round, found.value)
            self.rounds[formed.number] = formed

    # -- the daemon's and the agents' words ------------------------------------------------------------------------

    def hint(self, members: Sequence[str], spares: Sequence[str] = (), reason: str = "") -> None:
        """Who should be in the round."""
        self.etcd.put(KEYS.hint(JOB), encode(Hint(tuple(members), 1, MAX_NODES, reason, tuple(spares))))

    def bury(self, node: str, reason: str) -> None:
        """A node is gone."""
        self.etcd.put(KEYS.tombstone(JOB, node), encode(Tombstone(node, reason, time.time())))

    def notice(self, node: str, after_s: float) -> None:
        """The provider takes a node, as its agent has read it."""
        now = time.time()
        self.etcd.put(KEYS.notice(JOB, node), encode(Notice(node, now + after_s, now, "soak")))


def _last_step(path: Path) -> int:
    """From the last whole line."""
    import json

    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 2000))
        lines = file.read().split(b"\n")[:-1]
    return int(json.loads(lines[-1])["step"]) if lines else 0
