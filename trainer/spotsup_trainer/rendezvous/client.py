"""A launcher's seat in its job's rendezvous: its own key, a live view of all keys, and the guarded writes. No torch."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from spotsup_trainer.etcd import Compare, Etcd, EtcdError, KeyValue, Put, mirror
from spotsup_trainer.etcd.mirror import Mirror
from spotsup_trainer.etcd.outbox import Outbox
from spotsup_trainer.rendezvous.membership import Close, Decision, Finish, Rules, View, is_behind, next_round
from spotsup_trainer.timing import RETRY_S, LeaseTimes
from spotsup_trainer.wire import Hint, Keys, Member, Notice, Result, Round, Tombstone, WireError, decode, encode

# etcd takes 128 guards in a transaction. Beyond that, a member that vanished a moment ago is noticed in the round.
_MAX_GUARDED_MEMBERS = 100
# The member that will have rank 0 writes the round; the others only if it does not, one after another.
_TURN_S = 0.5
_NEXT_TURN_S = 0.05
_LAST_TURN_S = 1.0
_AGAIN_S = 0.01
_TAKING_UP_S = 0.005
_RESTS = 3.0
_MAX_REST_S = 0.05

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
    """The job's keys as words. While `live` is False etcd is away, and `view` is the last that was known.

    `away`: etcd has been there before.
    """

    view: View
    live: bool
    away: bool = False
    revisions: Mapping[str, int] = field(default_factory=dict)
    notice: Notice | None = None


class RendezvousClient:
    """Open it, `announce` what this node does, look at `snapshot()`. For one thread, except `announce`."""

    def __init__(self, place: Place, rules: Rules) -> None:
        self.place = place
        self.rules = rules
        self.keys = Keys(place.cluster)
        self.member = Member(place.node, place.incarnation, place.addr, 0, "waiting")
        self._times = LeaseTimes(place.lease_ttl_s, len(place.endpoints))
        self._etcd = Etcd(place.endpoints, timeout_s=self._times.call_s)
        self._mirror = Mirror(self._etcd, self.keys.run(place.job), pulse_s=self._times.pulse_s)
        self._outbox = Outbox(self._etcd, ttl_s=place.lease_ttl_s, name="membership")
        self._raw: mirror.View | None = None
        self._words: dict[str, tuple[bytes, object | None]] = {}
        self._snapshot = Snapshot(View(rules, {}), live=False)
        self._turn: tuple[object, float] = (None, 0.0)
        self._put_back: object = None
        self._looked_s = 0.0
        self._outages = 0

    def open(self) -> None:
        """Start to mirror and to write. etcd need not be there yet."""
        self._mirror.start()
        self._outbox.start()

    def close(self, *, linger: bool = False) -> None:
        """Leave: the own key vanishes at once if etcd is there, else with its lease; so it does with `linger`."""
        self._outbox.close(revoke=not linger)
        self._mirror.close()
        self._etcd.close()

    def announce(self, *, after_s: float = 0.0, **changes: object) -> None:
        """Change what the own key says, soon, or in `after_s` seconds."""
        self.member = replace(self.member, **changes)  # type: ignore[arg-type]  # checked by the dataclass's own types
        self._outbox.put(self._own_key, encode(self.member), leased=True, after_s=after_s)

    def take_up(self, formed: Round) -> None:
        """Say that this node is in a round; not at once where there are many, who all have to hear it.

        Until then its key says that it waits since the round before, and whoever sees that the round names it knows
        as much. Said by all at once it would be n² news, in the moment in which some still look for the round.
        """
        turn = len(formed.members) + formed.nodes().index(self.place.node)
        after_s = turn * _TAKING_UP_S
        self.announce(after_s=after_s, state="running", round=formed.number, failure=None, parked=False)

    def flush(self, timeout_s: float) -> bool:
        """Wait until the own key is written."""
        return self._outbox.flush(timeout_s)

    def wait_change(self, timeout_s: float) -> None:
        """Return when a key changed since the last `snapshot()`, at the latest after `timeout_s`.

        Whoever needed long to look at the last change rests for a few times as long: where many nodes change at once,
        each would otherwise look as often as there are nodes, and all of them together that often squared.
        """
        seen, began = self._raw, time.monotonic()
        if self._mirror.wait(lambda view: view is not seen, timeout_s):
            rested_s = time.monotonic() - began
            time.sleep(max(0.0, min(_RESTS * self._looked_s, _MAX_REST_S) - rested_s))
        self._looked_s = 0.0

    def snapshot(self) -> Snapshot:
        """The keys as they are now."""
        raw = self._mirror.view()
        if raw is not self._raw:
            self._raw = raw
            with self._look():
                self._snapshot = self._read(raw)
        return self._snapshot

    def decide(self) -> Decision:
        """Whether a round can be formed now."""
        view = self.snapshot().view
        with self._look():
            return next_round(view, time.monotonic(), time.time())

    def try_write(self, decision: Close | Finish) -> float:
        """Write what was decided, if it is this member's turn; whether it worked, the next snapshots show.

        Returns in how many seconds its turn comes, if nothing changes until then.
        """
        nodes = decision.round.nodes() if isinstance(decision, Close) else ()
        left_s = self._until_turn_s(_timeless(decision), self._turn_s(nodes) if nodes else 0.0)
        if left_s > 0:
            return left_s
        try:
            if isinstance(decision, Finish):
                self.finish(decision.result)
            else:
                self._write_round(decision.round)
        except EtcdError as error:
            log.warning("round not written: %s", error)
            self._turn = (self._turn[0], time.monotonic() + RETRY_S[-1])
        return _AGAIN_S

    def finish(self, result: Result) -> None:
        """Write the job's result, unless there is one. Raises EtcdError."""
        key = self.keys.result(self.place.job)
        self._etcd.txn([Compare(key, "create", 0)], [Put(key, encode(result))])

    def put_back(self, current: Round, *, running: bool) -> bool:
        """Whether etcd lost the newest round that this node was in; then have it written again, in turn.

        Those go first who are `running` in it: others may have been in later rounds since.
        """
        now = self.snapshot()
        if not (now.live and is_behind(now.view, current)):
            return False
        over = now.revisions.get(self._round_key, 0)
        attempt = (self._outages, over, current.number)
        turn_s = self._turn_s(current.nodes()) + (0.0 if running else _LAST_TURN_S)
        if self._put_back != attempt and self._until_turn_s(attempt, turn_s) <= 0:
            self._put_back = attempt
            log.warning("etcd has lost round %d: data are gone, or those of a backup; writing it again", current.number)
            self._outbox.put(self._round_key, encode(current), over=over)
        return True

    # -- inside --------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _look(self) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._looked_s += time.monotonic() - began

    @property
    def _own_key(self) -> str:
        return self.keys.member(self.place.job, self.place.node)

    @property
    def _round_key(self) -> str:
        return self.keys.round(self.place.job)

    def _until_turn_s(self, matter: object, turn_s: float) -> float:
        """In how many seconds `matter` will have been the same for so long; 0 or less where it has."""
        now = time.monotonic()
        if self._turn[0] != matter:
            self._turn = (matter, now)
        return self._turn[1] + turn_s - now

    def _turn_s(self, nodes: tuple[str, ...]) -> float:
        if self.place.node not in nodes:
            return _LAST_TURN_S
        rank = nodes.index(self.place.node)
        return _TURN_S + rank * _NEXT_TURN_S if rank else 0.0

    def _write_round(self, formed: Round) -> None:
        job, revisions = self.place.job, self._snapshot.revisions
        guards = [
            Compare(self._round_key, "mod", revisions.get(self._round_key, 0)),
            Compare(self.keys.result(job), "create", 0),
        ]
        for node in formed.nodes()[:_MAX_GUARDED_MEMBERS]:
            key = self.keys.member(job, node)
            guards.append(Compare(key, "mod", revisions.get(key, 0)))
        self._etcd.txn(guards, [Put(self._round_key, encode(formed))])

    def _read(self, raw: mirror.View) -> Snapshot:
        """The keys as words. An outage of etcd starts an amnesty, long enough for every lease to be granted anew."""
        now = time.monotonic()
        old = self._snapshot.view
        grace_until = old.grace_until
        is_back = raw.live and raw.outages != self._outages
        if is_back:
            self._outages = raw.outages
            grace_until = now + self._times.grace_s
            self._assert_own_word(raw)
        keys, job = self.keys, self.place.job
        fresh = View(
            rules=self.rules,
            members=self._below(raw, keys.member(job, ""), Member),
            round=self._word(raw, keys.round(job), Round),
            hint=self._word(raw, keys.hint(job), Hint),
            tombstones=frozenset(self._below(raw, keys.tombstone(job, ""), Tombstone)),
            result=self._word(raw, keys.result(job), Result),
            changed_at=old.changed_at,
            grace_until=old.grace_until,
            since=old.since,
        )
        changed_at = now if (raw.live and not self._snapshot.live) or fresh != old else old.changed_at
        self._words = {key: word for key, word in self._words.items() if key in raw.keys}
        return Snapshot(
            view=replace(fresh, changed_at=changed_at, grace_until=grace_until, since=_since(old, fresh.members, now)),
            live=raw.live,
            away=not raw.live and raw.revision > 0,
            revisions={key: kv.mod_revision for key, kv in raw.keys.items()},
            notice=self._word(raw, keys.notice(job, self.place.node), Notice),
        )

    def _assert_own_word(self, raw: mirror.View) -> None:
        """A store that lost its data lacks our key; one from a backup may have an old one, under a lease that lives."""
        own = raw.keys.get(self._own_key)
        if own is None or own.value != encode(self.member):
            self._outbox.repeat()

    def _below(self, raw: mirror.View, prefix: str, kind: type[Word]) -> dict[str, Word]:
        found = {key[len(prefix) :]: self._word(raw, key, kind) for key in raw.keys if key.startswith(prefix)}
        return {name: word for name, word in found.items() if word is not None}

    def _word(self, raw: mirror.View, key: str, kind: type[Word]) -> Word | None:
        kv = raw.keys.get(key)
        if kv is None:
            return None
        known = self._words.get(key)
        if known is None or known[0] != kv.value:  # a revision says nothing: etcd may count anew
            known = self._words[key] = (kv.value, _decoded(kv, kind))
        return known[1]  # type: ignore[return-value]  # each key has one kind of word


def _decoded(kv: KeyValue, kind: type[Word]) -> Word | None:
    """None for what is not a word: whoever wrote it is at fault, but must not stop training."""
    try:
        return decode(kind, kv.value)
    except WireError as error:
        log.warning("%s is ignored: %s", kv.key, error)
        return None


def _since(old: View, members: Mapping[str, Member], now: float) -> dict[str, float]:
    """When each of `members` appeared: as another incarnation it is another one."""
    known = {node: old.since[node] for node, m in members.items() if _incarnation(old.members, node) == m.incarnation}
    return {node: known.get(node, now) for node in members}


def _incarnation(members: Mapping[str, Member], node: str) -> str:
    return members[node].incarnation if node in members else ""


def _timeless(decision: Close | Finish) -> Decision:
    """The decision without the time at which it was made, which losses have, too."""
    return Close(replace(decision.round, formed_at=0.0, recent_losses=())) if isinstance(decision, Close) else decision
