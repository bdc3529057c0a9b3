"""A launcher's connection to its job's rendezvous: its own key, a live view of all keys, guarded writes. No torch."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from spotsup_trainer.etcd import Compare, EtcdError, KeyValue, Put, mirror
from spotsup_trainer.etcd.access import NO_ACCESS, EtcdAccess
from spotsup_trainer.etcd.mirror import Mirror
from spotsup_trainer.etcd.outbox import Outbox
from spotsup_trainer.etcd.trust import CaFollower
from spotsup_trainer.rendezvous.membership import Close, Decision, Finish, is_behind, next_round
from spotsup_trainer.rendezvous.view import Rules, View
from spotsup_trainer.timing import RETRY_S, LeaseTimes
from spotsup_trainer.wire import (
    CaBundle,
    Done,
    Hint,
    Keys,
    Member,
    Notice,
    Result,
    Round,
    Tombstone,
    WireError,
    decode,
    encode,
)

# etcd takes 128 guards in a transaction. A loss among the members beyond that is detected in the round.
_MAX_GUARDED_MEMBERS = 100
# The member that will have rank 0 writes the round; the others only if it does not, one after another.
_TURN_S = 0.5
_NEXT_TURN_S = 0.05
_LAST_TURN_S = 1.0
_RECHECK_S = 0.01
# Members of a new round write their keys this far apart.
_STAGGER_S = 0.005
_REST_FACTOR = 3.0
_MAX_REST_S = 0.05

log = logging.getLogger(__name__)
Message = TypeVar("Message")


@dataclass(frozen=True)
class RendezvousConfig:
    """Which node of which job this is, and where its etcd is."""

    cluster: str
    job: str
    node: str
    incarnation: str
    addr: str
    endpoints: tuple[str, ...]
    lease_ttl_s: float
    access: EtcdAccess = NO_ACCESS


@dataclass(frozen=True)
class Snapshot:
    """The job's keys, decoded."""

    view: View
    # False while etcd is away, and `view` is the last one known.
    live: bool
    # etcd is away, but has been there before.
    away: bool = False
    revisions: Mapping[str, int] = field(default_factory=dict)
    # For this node.
    notice: Notice | None = None

    def shows_losses(self, now: float) -> bool:
        """Return whether a peer that is lost is known to be: etcd answers, and after an outage every lease has had the
        time to be granted again, or to end."""
        return self.live and now >= self.view.grace_until


class RendezvousClient:
    """`open` it, `announce` this node's state, read `snapshot()`. For one thread, except `announce`."""

    def __init__(self, config: RendezvousConfig, rules: Rules) -> None:
        self.config = config
        self.rules = rules
        self.keys = Keys(config.cluster)
        self.member = Member(config.node, config.incarnation, config.addr, 0, "waiting")
        self.times = LeaseTimes(config.lease_ttl_s, len(config.endpoints))
        self._etcd = config.access.connect(config.endpoints, self.times.call_s)
        self._mirror = Mirror(self._etcd, self.keys.run(config.job), pulse_s=self.times.pulse_s)
        self._outbox = Outbox(self._etcd, ttl_s=config.lease_ttl_s, name="membership")
        self._ca = CaFollower(config.access, config.endpoints)
        self._raw: mirror.MirrorView | None = None
        self._decoded: dict[str, tuple[bytes, object | None]] = {}
        self._snapshot = Snapshot(View(rules, {}), live=False)
        self._turn: tuple[object, float] = (None, 0.0)
        self._restored: object = None
        self._evaluated_s = 0.0
        self._outages = 0

    def open(self) -> None:
        """Start to mirror and to write. etcd may still be away."""
        self._mirror.start()
        self._outbox.start()

    def close(self, *, linger: bool = False) -> None:
        """Leave: this node's key vanishes at once, or with its lease if etcd is away, or with `linger`."""
        self._ca.close()
        self._outbox.close(revoke=not linger)
        self._mirror.close()
        self._etcd.close()

    def announce(self, *, after_s: float = 0.0, **changes: object) -> None:
        """Change fields of this node's key, soon, or in `after_s` seconds."""
        self.member = replace(self.member, **changes)  # type: ignore[arg-type]  # checked by the dataclass's own types
        self._outbox.put(self._own_key, encode(self.member), leased=True, after_s=after_s)

    def announce_running(self, formed: Round) -> None:
        """Announce that this node runs in a round; delayed by its rank, because every member receives every change.

        Until then its key says `waiting`, with the round before; the round itself already names it. If all members
        announced it at once, there would be n² changes at the moment when some still look for the round.
        """
        turn = len(formed.members) + formed.nodes().index(self.config.node)
        after_s = turn * _STAGGER_S
        fresh = {
            "failure": None,
            "parked": False,
            "stalled_since": 0.0,
            "problem": "",
            "unhealthy": "",
            "checkpoints": 0,
        }
        self.announce(after_s=after_s, state="running", round=formed.number, **fresh)

    def announce_done(self, number: int) -> None:
        """Announce that this node's workers have ended well in a round, also for when this node is gone."""
        config = self.config
        done = Done(config.node, config.incarnation, number, time.time())
        self._outbox.put(self.keys.done(config.job, config.node), encode(done))
        self.announce(state="done")

    def flush(self, timeout_s: float) -> bool:
        """Wait until this node's key is written."""
        return self._outbox.flush(timeout_s)

    def wait_change(self, timeout_s: float, *, patient: bool = False) -> None:
        """Return when a key has changed since the last `snapshot()`, at the latest after `timeout_s`.

        `patient`: changes of members alone are left until then.

        After an evaluation that took long it rests for a few times as long: when n nodes change at once, each would
        otherwise evaluate n times, n² in all.
        """
        seen, began = self._raw, time.monotonic()

        def is_worth_a_look(view: mirror.MirrorView) -> bool:
            return view is not seen and not (patient and seen is not None and self._only_members(seen, view))

        if self._mirror.wait(is_worth_a_look, timeout_s):
            rested_s = time.monotonic() - began
            time.sleep(max(0.0, min(_REST_FACTOR * self._evaluated_s, _MAX_REST_S) - rested_s))
        self._evaluated_s = 0.0

    def snapshot(self) -> Snapshot:
        """Return the keys as they are now."""
        raw = self._mirror.view()
        if raw is not self._raw:
            self._raw = raw
            with self._timed():
                self._snapshot = self._read(raw)
        return self._snapshot

    def decide(self, heard: frozenset[str] = frozenset()) -> Decision:
        """Return whether a round can be formed now. `heard`: as in View."""
        view = replace(self.snapshot().view, heard=heard)
        with self._timed():
            return next_round(view, time.monotonic(), time.time())

    def try_write(self, decision: Close | Finish) -> float:
        """Write what was decided, if it is this member's turn; later snapshots show whether it worked.

        Returns in how many seconds its turn comes if nothing changes until then.
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
        return _RECHECK_S

    def finish(self, result: Result) -> None:
        """Write the job's result, unless it has one. Raises EtcdError."""
        key = self.keys.result(self.config.job)
        self._etcd.txn([Compare(key, "create", 0)], [Put(key, encode(result))])

    def restore_round(self, current: Round, *, running: bool) -> bool:
        """True if etcd has lost the newest round that this node was in; if so, write it again, in turn.

        Members that are `running` in it go first: others may have been in later rounds since.
        """
        now = self.snapshot()
        if not (now.live and is_behind(now.view, current)):
            return False
        over = now.revisions.get(self._round_key, 0)
        attempt = (self._outages, over, current.number)
        turn_s = self._turn_s(current.nodes()) + (0.0 if running else _LAST_TURN_S)
        if self._restored != attempt and self._until_turn_s(attempt, turn_s) <= 0:
            self._restored = attempt
            log.warning("etcd has lost round %d (data lost, or an older backup); writing it again", current.number)
            self._outbox.put(self._round_key, encode(current), over=over)
        return True

    # -- inside --------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._evaluated_s += time.monotonic() - began

    @property
    def _own_key(self) -> str:
        return self.keys.member(self.config.job, self.config.node)

    @property
    def _round_key(self) -> str:
        return self.keys.round(self.config.job)

    def _only_members(self, one: mirror.MirrorView, other: mirror.MirrorView) -> bool:
        """True if nothing but members' keys differs."""
        changed = other.changed_since(one)
        members = self.keys.member(self.config.job, "")
        return one.live == other.live and changed is not None and all(key.startswith(members) for key in changed)

    def _until_turn_s(self, decision: object, turn_s: float) -> float:
        """In how many seconds `decision` will have been the same for `turn_s`; 0 or less if it has."""
        now = time.monotonic()
        if self._turn[0] != decision:
            self._turn = (decision, now)
        return self._turn[1] + turn_s - now

    def _turn_s(self, nodes: tuple[str, ...]) -> float:
        if self.config.node not in nodes:
            return _LAST_TURN_S
        rank = nodes.index(self.config.node)
        return _TURN_S + rank * _NEXT_TURN_S if rank else 0.0

    def _write_round(self, formed: Round) -> None:
        job, revisions = self.config.job, self._snapshot.revisions
        guards = [
            Compare(self._round_key, "mod", revisions.get(self._round_key, 0)),
            Compare(self.keys.result(job), "create", 0),
        ]
        for node in formed.nodes()[:_MAX_GUARDED_MEMBERS]:
            key = self.keys.member(job, node)
            guards.append(Compare(key, "mod", revisions.get(key, 0)))
        self._etcd.txn(guards, [Put(self._round_key, encode(formed))])

    def _read(self, raw: mirror.MirrorView) -> Snapshot:
        """Decode the keys. An outage of etcd starts a grace period, long enough for every lease to be granted again."""
        now = time.monotonic()
        old = self._snapshot.view
        grace_until = old.grace_until
        is_back = raw.live and raw.outages != self._outages
        if is_back:
            self._outages = raw.outages
            grace_until = now + self.times.grace_s
            self._repair_own_key(raw)
        keys, job = self.keys, self.config.job
        if bundle := self._message(raw, keys.ca(job), CaBundle):
            self._ca.follow(bundle.ca)
        found = self._message(raw, keys.round(job), Round)
        # An etcd that lost its data lacks what nodes wrote that are gone.
        known = {node: done for node, done in old.done.items() if found is None or done.round >= found.number}
        fresh = View(
            rules=self.rules,
            members=self._below(raw, keys.member(job, ""), Member),
            round=found,
            hint=self._message(raw, keys.hint(job), Hint),
            tombstones=frozenset(self._below(raw, keys.tombstone(job, ""), Tombstone)),
            result=self._message(raw, keys.result(job), Result),
            changed_at=old.changed_at,
            grace_until=old.grace_until,
            since=old.since,
            done=known | self._below(raw, keys.done(job, ""), Done),
        )
        changed_at = now if (raw.live and not self._snapshot.live) or fresh != old else old.changed_at
        self._decoded = {key: known for key, known in self._decoded.items() if key in raw.keys}
        return Snapshot(
            view=replace(fresh, changed_at=changed_at, grace_until=grace_until, since=_since(old, fresh.members, now)),
            live=raw.live,
            away=not raw.live and raw.revision > 0,
            revisions={key: kv.mod_revision for key, kv in raw.keys.items()},
            notice=self._message(raw, keys.notice(job, self.config.node), Notice),
        )

    def _repair_own_key(self, raw: mirror.MirrorView) -> None:
        """Repair it: a store that lost its data lacks our key; one from a backup may have an old value, under a valid
        lease."""
        own = raw.keys.get(self._own_key)
        if own is None or own.value != encode(self.member):
            self._outbox.repeat()

    def _below(self, raw: mirror.MirrorView, prefix: str, kind: type[Message]) -> dict[str, Message]:
        found = {key[len(prefix) :]: self._message(raw, key, kind) for key in raw.keys if key.startswith(prefix)}
        return {name: message for name, message in found.items() if message is not None}

    def _message(self, raw: mirror.MirrorView, key: str, kind: type[Message]) -> Message | None:
        kv = raw.keys.get(key)
        if kv is None:
            return None
        known = self._decoded.get(key)
        if known is None or known[0] != kv.value:  # not by revision: an etcd that lost its data reuses them
            known = self._decoded[key] = (kv.value, _decode_or_none(kv, kind))
        return known[1]  # type: ignore[return-value]  # each key has one kind of message


def _decode_or_none(kv: KeyValue, kind: type[Message]) -> Message | None:
    """None for a broken value: it must not stop training."""
    try:
        return decode(kind, kv.value)
    except WireError as error:
        log.warning("%s is ignored: %s", kv.key, error)
        return None


def _since(old: View, members: Mapping[str, Member], now: float) -> dict[str, float]:
    """Return when each of `members` appeared; a new incarnation counts as a new member."""
    known = {node: old.since[node] for node, m in members.items() if _incarnation(old.members, node) == m.incarnation}
    return {node: known.get(node, now) for node in members}


def _incarnation(members: Mapping[str, Member], node: str) -> str:
    return members[node].incarnation if node in members else ""


def _timeless(decision: Close | Finish) -> Decision:
    """Return the decision without the time at which it was made (which its losses and hangs have, too)."""
    if isinstance(decision, Finish):
        return decision
    return Close(replace(decision.round, formed_at=0.0, recent_losses=(), recent_hangs=()))
