"""A launcher's seat in its job's rendezvous: its own key, a live view of all keys, and the guarded writes. No torch."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from spotsup_trainer import mirror
from spotsup_trainer.etcd import Compare, Etcd, EtcdError, KeyValue, Put
from spotsup_trainer.membership import Close, Decision, Finish, Rules, View, next_round
from spotsup_trainer.mirror import Mirror
from spotsup_trainer.outbox import Outbox
from spotsup_trainer.wire import Hint, Keys, Member, Notice, Result, Round, Tombstone, WireError, decode, encode

# etcd takes 128 guards in a transaction. Beyond that, a member that vanished a moment ago is noticed in the round.
_MAX_GUARDED_MEMBERS = 100
# The member that will have rank 0 writes the round; the others only if it does not, one after another.
_TURN_S = 0.15
_NEXT_TURN_S = 0.01
_LAST_TURN_S = 1.0

log = logging.getLogger(__name__)
Word = TypeVar("Word")


@dataclass(frozen=True, slots=True)
class Place:
    """Whose seat it is, and where."""

    cluster: str
    job: str
    node: str
    incarnation: str
    addr: str
    endpoints: tuple[str, ...]
    lease_ttl_s: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The job's keys as words. While `live` is False etcd is away, and `view` is the last that was known."""

    view: View
    live: bool
    revisions: Mapping[str, int] = field(default_factory=dict)
    notice: Notice | None = None


class Seat:
    """Open it, `announce` what this node does, look at `snapshot()`. For one thread, except `announce`."""

    def __init__(self, place: Place, rules: Rules) -> None:
        self.place = place
        self.rules = rules
        self.keys = Keys(place.cluster)
        self.member = Member(place.node, place.incarnation, place.addr, 0, "waiting")
        self._etcd = Etcd(place.endpoints, timeout_s=3.0)
        self._mirror = Mirror(self._etcd, self.keys.run(place.job))
        self._own_etcd = Etcd(place.endpoints, timeout_s=max(0.5, place.lease_ttl_s / 3))
        self._outbox = Outbox(self._own_etcd, ttl_s=place.lease_ttl_s, name="membership")
        self._raw: mirror.View | None = None
        self._words: dict[str, tuple[int, object | None]] = {}
        self._snapshot = Snapshot(View(rules, {}), live=False)
        self._was_live = False
        self._closable: tuple[Decision, float] | None = None

    def open(self) -> None:
        """Start to mirror and to write. etcd need not be there yet."""
        self._mirror.start()
        self._outbox.start()

    def close(self, *, linger: bool = False) -> None:
        """Leave: the own key vanishes at once if etcd is there, else with its lease; so it does with `linger`."""
        self._outbox.close(revoke=not linger)
        self._mirror.close()
        self._own_etcd.close()
        self._etcd.close()

    def announce(self, **changes: object) -> None:
        """Change what the own key says, soon."""
        self.member = replace(self.member, **changes)  # type: ignore[arg-type]  # checked by the dataclass's own types
        key = self.keys.member(self.place.job, self.place.node)
        self._outbox.put(key, encode(self.member), leased=True)

    def flush(self, timeout_s: float) -> bool:
        """Wait until the own key is written."""
        return self._outbox.flush(timeout_s)

    def wait_change(self, timeout_s: float) -> None:
        """Return when a key changed since the last `snapshot()`, at the latest after `timeout_s`."""
        seen = self._raw
        self._mirror.wait(lambda view: view is not seen, timeout_s)

    def snapshot(self) -> Snapshot:
        """The keys as they are now."""
        raw = self._mirror.view()
        if raw is not self._raw:
            self._raw = raw
            self._snapshot = self._read(raw)
        return self._snapshot

    def decide(self) -> Decision:
        """Whether a round can be formed now."""
        return next_round(self.snapshot().view, time.monotonic(), time.time())

    def try_write(self, decision: Close | Finish) -> None:
        """Write what was decided, if it is this member's turn; whether it worked, the next snapshots show."""
        now = time.monotonic()
        if self._closable is None or not _same(self._closable[0], decision):
            self._closable = (decision, now)
        if now - self._closable[1] < self._turn_s(decision):
            return
        try:
            if isinstance(decision, Finish):
                self.finish(decision.result)
            else:
                self._write_round(decision.round)
        except EtcdError as error:
            log.warning("round not written: %s", error)

    def finish(self, result: Result) -> None:
        """Write the job's result, unless there is one. Raises EtcdError."""
        key = self.keys.result(self.place.job)
        self._etcd.txn([Compare(key, "create", 0)], [Put(key, encode(result))])

    # -- inside --------------------------------------------------------------------------------------------

    def _turn_s(self, decision: Decision) -> float:
        nodes = decision.round.nodes() if isinstance(decision, Close) else ()
        if self.place.node not in nodes:
            return _LAST_TURN_S if nodes else 0.0
        rank = nodes.index(self.place.node)
        return _TURN_S + rank * _NEXT_TURN_S if rank else 0.0

    def _write_round(self, formed: Round) -> None:
        job, revisions = self.place.job, self._snapshot.revisions
        round_key, result_key = self.keys.round(job), self.keys.result(job)
        guards = [
            Compare(round_key, "mod", revisions.get(round_key, 0)),
            Compare(result_key, "create", 0),
        ]
        for node in formed.nodes()[:_MAX_GUARDED_MEMBERS]:
            key = self.keys.member(job, node)
            guards.append(Compare(key, "mod", revisions.get(key, 0)))
        self._etcd.txn(guards, [Put(round_key, encode(formed))])

    def _read(self, raw: mirror.View) -> Snapshot:
        """The keys as words. An outage of etcd starts an amnesty, long enough for every lease to be granted anew."""
        now = time.monotonic()
        old = self._snapshot.view
        amnesty_until = old.amnesty_until
        changed = False
        if raw.live and not self._snapshot.live:
            changed = True
            amnesty_until = now + self.place.lease_ttl_s if self._was_live else -math.inf
            self._was_live = True
        keys, job = self.keys, self.place.job
        fresh = View(
            rules=self.rules,
            members=self._below(raw, keys.member(job, ""), Member),
            round=self._word(raw, keys.round(job), Round),
            hint=self._word(raw, keys.hint(job), Hint),
            gone=frozenset(self._below(raw, keys.gone(job, ""), Tombstone)),
            result=self._word(raw, keys.result(job), Result),
            changed_at=old.changed_at,
            amnesty_until=old.amnesty_until,
        )
        changed_at = now if changed or fresh != old else old.changed_at
        self._words = {key: word for key, word in self._words.items() if key in raw.keys}
        return Snapshot(
            view=replace(fresh, changed_at=changed_at, amnesty_until=amnesty_until),
            live=raw.live,
            revisions={key: kv.mod_revision for key, kv in raw.keys.items()},
            notice=self._word(raw, keys.notice(job, self.place.node), Notice),
        )

    def _below(self, raw: mirror.View, prefix: str, kind: type[Word]) -> dict[str, Word]:
        found = {key[len(prefix) :]: self._word(raw, key, kind) for key in raw.keys if key.startswith(prefix)}
        return {name: word for name, word in found.items() if word is not None}

    def _word(self, raw: mirror.View, key: str, kind: type[Word]) -> Word | None:
        kv = raw.keys.get(key)
        if kv is None:
            return None
        known = self._words.get(key)
        if known is None or known[0] != kv.mod_revision:
            known = self._words[key] = (kv.mod_revision, _decoded(kv, kind))
        return known[1]  # type: ignore[return-value]  # each key has one kind of word


def _decoded(kv: KeyValue, kind: type[Word]) -> Word | None:
    """None for what is not a word: whoever wrote it is at fault, but must not stop training."""
    try:
        return decode(kind, kv.value)
    except WireError as error:
        log.warning("%s is ignored: %s", kv.key, error)
        return None


def _same(one: Decision, other: Decision) -> bool:
    """Whether two decisions are the same but for the time at which they were made."""
    if isinstance(one, Close) and isinstance(other, Close):
        return replace(one.round, formed_at=other.round.formed_at) == other.round
    return one == other
