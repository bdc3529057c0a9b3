"""Admission: how many nodes each job may have within the operator's limits, and what the others wait for. Pure.

The order: priority, then the user who has least, then the time of submission. The `min` of all comes before the
`desired` of any, and a job gets its `min` as a whole or nothing of it: none holds what another could use.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from supervisor.market.prices import is_within


@dataclass(frozen=True, slots=True)
class Amount:
    """What nodes take up. `usd_per_hour` is None where no price is known."""

    nodes: int = 0
    gpus: int = 0
    usd_per_hour: float | None = 0.0

    def times(self, count: int) -> Amount:
        """So many of it."""
        usd = None if self.usd_per_hour is None else self.usd_per_hour * count
        return Amount(self.nodes * count, self.gpus * count, usd)

    def plus(self, other: Amount) -> Amount:
        """Both. A price that is not known adds nothing."""
        usd = (self.usd_per_hour or 0.0) + (other.usd_per_hour or 0.0)
        return Amount(self.nodes + other.nodes, self.gpus + other.gpus, usd)


@dataclass(frozen=True, slots=True)
class Cap:
    """What may be in use at once; None: any number."""

    nodes: int | None = None
    gpus: int | None = None
    usd_per_hour: float | None = None

    @property
    def is_set(self) -> bool:
        """True if it limits anything."""
        return self != Cap()


@dataclass(frozen=True)
class QueueRules:
    """The operator's limits."""

    cluster: Cap = Cap()  # for all jobs together
    user: Cap = Cap()  # for the jobs of each user together
    users: Mapping[str, Cap] = field(default_factory=lambda: MappingProxyType({}))  # in place of `user`, by name
    job: Cap = Cap()  # for each job
    preempt: bool = False  # jobs are paused for others of a higher priority
    max_priority: int = 100

    @property
    def limits_anything(self) -> bool:
        """True if there is any limit."""
        return any(cap.is_set for cap in self._caps())

    @property
    def of_money(self) -> bool:
        """True if any of them needs prices to be kept."""
        return any(cap.usd_per_hour is not None for cap in self._caps())

    def scopes(self, owner: str, job: str) -> tuple[Scope, ...]:
        """Return all that limit a job of this user, the narrowest first: a job that waits for its user's limit keeps
        nothing from others."""
        of_user = self.users.get(owner, self.user)
        key = f"queue.users.{owner}" if owner in self.users else "queue.user"
        name = f"{owner}'s limit" if owner else "the limit of jobs without a user"
        return (
            Scope("job", job, "the limit of one job", "queue.job", self.job),
            Scope("user", owner, name, key, of_user),
            Scope("cluster", "", "the cluster's limit", "queue.cluster", self.cluster),
        )

    def _caps(self) -> tuple[Cap, ...]:
        return (self.cluster, self.user, *self.users.values(), self.job)


@dataclass(frozen=True, slots=True)
class Scope:
    """A limit, and whose it is."""

    kind: str  # cluster, user or job
    whose: str
    name: str  # for people
    key: str  # in the configuration
    cap: Cap

    @property
    def id(self) -> tuple[str, str]:
        """Return of whose jobs the use counts."""
        return self.kind, self.whose


@dataclass(frozen=True, slots=True)
class Claim:
    """What a job has, and what it wants."""

    job: str
    owner: str
    priority: int
    submitted_at: float
    waiting_since: float  # since when it lacks nodes to train
    min_nodes: int
    wanted: int  # nodes in all, spares included; 0 while it is to have none
    kept: Amount  # the nodes that it has and keeps; their dollars are those of all its machines that may cost money
    node: Amount  # one more
    others: tuple[Amount, ...] = ()  # the same of its other alternatives, while it has no node of any
    step: int = 1  # nodes are of use in so many at once
    kind: str = "GPU"  # for people
    reserved: bool = False  # it trains, lost nodes just now, or gets its first ones: its `min` is kept for it
    can_ask: bool = True  # some offer may be asked for now, as far as is known
    pausable: bool = False  # it has checkpoints, and was not paused for another just now
    # Of a job that moves: the nodes that it has beside `kept`, and how many more of which kind it asks for.
    moving: Amount = Amount()
    ahead: int = 0
    ahead_node: Amount = Amount()
    going: Amount = Amount()  # nodes that will leave, or end, and bill until then; their dollars are in `kept`
    leaving: bool = False  # it pauses: what it has will be free

    @property
    def missing(self) -> int:
        """Return how many nodes it lacks to train."""
        return max(0, min(self.min_nodes, self.wanted) - self.kept.nodes)


@dataclass(frozen=True, slots=True)
class Admission:
    """What was decided about a job."""

    nodes: int  # it may have so many
    usd_per_hour: float | None = None  # and they may cost so much together; None: any amount
    needs_price: bool = False  # a machine without a known price could not be counted
    gpus_per_node: int | None = None  # of each new one; None: any number
    place: int = 0  # in the queue; 0: it has, or may ask for, all that it needs to train
    reason: str = ""  # why it gets no more, or waits
    starts_when: str = ""  # what would let it start, or grow
    pause_for: str = ""  # it is to pause for this job
    ahead: int = 0  # so many more may be requested ahead of a move


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why a job gets no more."""

    scope: Scope
    reason: str
    starts_when: str
    possible: bool = True  # it would fit if it were alone
    behind: bool = False  # another job waits first for what is left


def admit(claims: Sequence[Claim], rules: QueueRules, now: float, hold_s: float) -> dict[str, Admission]:
    """Return what is admitted, by job. A job that has waited for `hold_s` is not overtaken any more by others that need
    less.

    Jobs that no cloud lets ask now come after those that may: what they cannot use keeps nobody waiting.
    """
    queue = _Queue(claims, rules, now - hold_s)
    for claim in queue.in_order(lambda each: each.reserved and queue.lacks_min(each)):
        queue.grant_min(claim)
    for claim in queue.in_order(lambda each: each.can_ask and queue.lacks_min(each)):
        queue.grant_min(claim)
    for claim in queue.in_order(queue.lacks_min):
        queue.grant_min(claim)
    queue.grant_more()
    queue.grant_moves()
    return queue.decided()


def why_never(owner: str, job: str, amount: Amount, rules: QueueRules) -> str:
    """Return why a job that needs so much at least could never start, or ""."""
    for scope in rules.scopes(owner, job):
        if found := _lacking(scope, Amount(), amount, "GPU"):
            return f"it {found[0]}; {scope.key} of spotsupd.toml sets it"
    return ""


class _Queue:
    """One call of `admit`."""

    def __init__(self, claims: Sequence[Claim], rules: QueueRules, held_since: float) -> None:
        self._claims = {each.job: each for each in claims}
        self._rules = rules
        self._held_since = held_since
        self._granted = {each.job: each.kept.nodes for each in claims}
        self._refused: dict[str, _Refusal] = {}  # in the order of the queue
        self._closed: dict[tuple[str, str], str] = {}  # scope -> the job that waits first
        self._pause_for: dict[str, str] = {}
        self._use: dict[tuple[str, str], Amount] = {}
        self._holders: dict[str, None] = {}  # jobs that have, or were granted, anything: few, however many wait
        self._shares: dict[str, int] = {}
        self._ahead: dict[str, int] = {}
        for each in claims:
            self._add(each, each.kept.plus(each.moving).plus(each.going))

    def in_order(self, which: Callable[[Claim], bool]) -> Iterator[Claim]:
        """Claim by priority, then of the user who has least, then by time; what is granted meanwhile counts. Each
        comes again as long as `which` says so."""
        waiting: dict[int, dict[str, list[Claim]]] = {}
        for claim in filter(which, self._claims.values()):
            waiting.setdefault(claim.priority, {}).setdefault(claim.owner, []).append(claim)
        for priority in sorted(waiting, reverse=True):
            by_user = {user: sorted(each, key=_age, reverse=True) for user, each in waiting[priority].items()}
            heads = [(self._share(user), _age(each[-1]), user) for user, each in by_user.items()]
            heapq.heapify(heads)
            while heads:
                _, _, user = heapq.heappop(heads)
                yield by_user[user][-1]
                while by_user[user] and not which(by_user[user][-1]):
                    by_user[user].pop()
                if by_user[user]:
                    heapq.heappush(heads, (self._share(user), _age(by_user[user][-1]), user))

    def lacks_min(self, claim: Claim) -> bool:
        """True if it needs more to train, and nothing was decided about that yet."""
        return self._granted[claim.job] < claim.kept.nodes + claim.missing and claim.job not in self._refused

    def grant_min(self, claim: Claim) -> None:
        """Grant all that it needs to train, or nothing, of the first alternative that fits. What it has waited for
        long, or others pause for, is left for it."""
        refusal = self._refusal(claim, claim.node.times(claim.missing))
        for node in claim.others if refusal else ():
            if self._refusal(claim, node.times(claim.missing)) is None:
                claim, refusal = replace(claim, node=node, others=()), None
                self._claims[claim.job] = claim
                break
        if refusal is None:
            self._grant(claim, claim.missing)
            return
        self._refused[claim.job] = refusal
        if not (claim.can_ask and refusal.possible) or refusal.behind:
            return
        if claim.waiting_since <= self._held_since or (self._rules.preempt and self._make_room(claim)):
            self._closed[refusal.scope.id] = claim.job

    def _make_room(self, claim: Claim) -> bool:
        """Pause jobs of lower priorities for one that waits, the newest of the lowest first, and no more than needed.
        False where that would not make enough room. What will leave by itself makes room without a pause."""
        before = dict(self._use)
        holders = [self._claims[job] for job in self._holders]
        for each in holders:
            self._count(each, each.going.times(-1))
            if each.leaving or each.job in self._pause_for:
                self._take(each, -1)
        lower = [each for each in holders if self._may_pause(each, claim)]
        chosen: list[Claim] = []
        for victim in sorted(lower, key=lambda each: (each.priority, -each.submitted_at, each.job)):
            if self._fits(claim):
                break
            self._take(victim, -1)
            chosen.append(victim)
        fits = self._fits(claim)
        for victim in reversed(chosen) if fits else ():
            self._take(victim, 1)
            if self._fits(claim):  # without its room: it may be in the use of another user
                chosen.remove(victim)
            else:
                self._take(victim, -1)
        self._use = before
        if fits:
            self._pause_for |= dict.fromkeys((each.job for each in chosen), claim.job)
        return fits

    def grant_more(self) -> None:
        """Towards `desired`, a step at a time: what a job waits for that has too few is left for it."""
        for job, refusal in self._refused.items():
            if refusal.possible:
                self._closed.setdefault(refusal.scope.id, job)
        for claim in self.in_order(lambda each: self._lacks(each) > 0 and each.job not in self._refused):
            count = min(claim.step, self._lacks(claim))
            found = self._refusal(claim, claim.node.times(count))
            if found is None:
                self._grant(claim, count)
            else:
                self._refused[claim.job] = found

    def grant_moves(self) -> None:
        """Grant what is left after all that: a job that moves has its old nodes beside the new ones for a while."""
        for claim in sorted(self._claims.values(), key=lambda each: (-each.priority, *_age(each))):
            counts = range(claim.ahead, 0, -1)
            count = next((n for n in counts if self._refusal(claim, claim.ahead_node.times(n)) is None), 0)
            self._ahead[claim.job] = count
            self._add(claim, claim.ahead_node.times(count))

    def decided(self) -> dict[str, Admission]:
        """Return what came of it."""
        waiting = [job for job in self._refused if self._granted[job] < self._claims[job].min_nodes]
        places = {job: number for number, job in enumerate(waiting, 1)}
        return {job: self._decided(claim, places.get(job, 0)) for job, claim in self._claims.items()}

    def _decided(self, claim: Claim, place: int) -> Admission:
        scopes = self._rules.scopes(claim.owner, claim.job)
        of_money = any(scope.cap.usd_per_hour is not None for scope in scopes)
        of_gpus = any(scope.cap.gpus is not None for scope in scopes)
        nodes = self._granted[claim.job]
        new = claim.node.times(nodes - claim.kept.nodes).usd_per_hour or 0.0
        refusal = self._refused.get(claim.job)
        ahead = self._ahead.get(claim.job, 0)
        new += claim.ahead_node.times(ahead).usd_per_hour or 0.0
        return Admission(
            nodes,
            (claim.kept.usd_per_hour or 0.0) + new if of_money else None,
            of_money,
            _gpus_of_new(claim, nodes) if of_gpus else None,
            place,
            refusal.reason if refusal else "",
            refusal.starts_when if refusal else "",
            self._pause_for.get(claim.job, ""),
            ahead,
        )

    # -- the ledger ----------------------------------------------------------------------------------------

    def _share(self, user: str) -> int:
        return self._shares.get(user, 0)

    def _lacks(self, claim: Claim) -> int:
        return claim.wanted - self._granted[claim.job]

    def _grant(self, claim: Claim, count: int) -> None:
        self._granted[claim.job] += count
        self._add(claim, claim.node.times(count))

    def _add(self, claim: Claim, amount: Amount) -> None:
        self._shares[claim.owner] = self._share(claim.owner) + max(amount.nodes, amount.gpus)
        self._count(claim, amount)

    def _take(self, claim: Claim, times: int) -> None:
        """Count all that a job may have once more, or with -1 no more."""
        granted = claim.kept.plus(claim.moving).plus(claim.node.times(self._granted[claim.job] - claim.kept.nodes))
        self._count(claim, granted.times(times))

    def _count(self, claim: Claim, amount: Amount) -> None:
        if amount == Amount():
            return
        self._holders[claim.job] = None
        for scope in self._rules.scopes(claim.owner, claim.job):
            self._use[scope.id] = self._use.get(scope.id, Amount()).plus(amount)

    def _may_pause(self, victim: Claim, claim: Claim) -> bool:
        has = self._granted[victim.job] > 0
        free = victim.pausable and not victim.leaving and victim.job not in self._pause_for
        return has and free and victim.priority < claim.priority

    def _fits(self, claim: Claim) -> bool:
        need = claim.node.times(claim.missing)
        scopes = self._rules.scopes(claim.owner, claim.job)
        return not any(_lacking(scope, self._use.get(scope.id, Amount()), need, claim.kind) for scope in scopes)

    def _refusal(self, claim: Claim, need: Amount) -> _Refusal | None:
        for scope in self._rules.scopes(claim.owner, claim.job):
            if not scope.cap.is_set:
                continue
            first = self._closed.get(scope.id)
            if first is not None and first != claim.job:
                reason = f"job {first} waits first for what is left in {scope.name}"
                return _Refusal(scope, reason, f"{first} has started", behind=True)
            found = _lacking(scope, self._use.get(scope.id, Amount()), need, claim.kind)
            if found is not None:
                priced = need.usd_per_hour is not None or scope.cap.usd_per_hour is None
                possible = priced and _lacking(scope, Amount(), need, claim.kind) is None
                return _Refusal(scope, *found, possible)
        return None


def _age(claim: Claim) -> tuple[float, str]:
    return claim.submitted_at, claim.job


def _lacking(scope: Scope, use: Amount, need: Amount, kind: str) -> tuple[str, str] | None:
    """Return what a need goes beyond in a limit, and what would help; None if it fits."""
    cap = scope.cap
    others = {"cluster": "other jobs release", "user": f"other jobs of {scope.whose or 'nobody'} release"}
    free = others.get(scope.kind, "")
    for key, limit, used, wants in (
        ("gpus", cap.gpus, use.gpus, need.gpus),
        ("nodes", cap.nodes, use.nodes, need.nodes),
    ):
        if limit is None or used + wants <= limit or not wants:
            continue
        left = max(0, limit - used)
        needs = f"{wants} × {kind}" if key == "gpus" else _counted(wants, "node")
        reason = f"needs {needs}; {left} of {limit} {'is' if left == 1 else 'are'} left in {scope.name}"
        lacks = _counted(wants - left, "GPU" if key == "gpus" else "node")
        return reason, _remedy(f"{free} {lacks}" if free and wants <= limit else "", f"{scope.key} {key}")
    if cap.usd_per_hour is None or not need.nodes:
        return None
    if need.usd_per_hour is None:
        return (
            f"no price is known for its machines, and {scope.name} is in dollars",
            "a price is known: add one to [prices] in spotsupd.toml",
        )
    used_usd = use.usd_per_hour or 0.0
    if is_within(used_usd + need.usd_per_hour, cap.usd_per_hour):
        return None
    left_usd = max(0.0, cap.usd_per_hour - used_usd)
    lacks_usd = need.usd_per_hour - left_usd
    reason = (
        f"needs ${need.usd_per_hour:.2f} per hour; ${left_usd:.2f} of ${cap.usd_per_hour:.2f} is left in {scope.name}"
    )
    fits = free and need.usd_per_hour <= cap.usd_per_hour
    return reason, _remedy(f"{free} ${lacks_usd:.2f} per hour" if fits else "", f"{scope.key} usd_per_hour")


def _gpus_of_new(claim: Claim, nodes: int) -> int:
    """Return how many GPUs were counted for each node that it may ask for."""
    kinds = ([claim.node] if nodes > claim.kept.nodes or not claim.ahead else []) + [claim.ahead_node] * bool(
        claim.ahead
    )
    return min(kind.gpus for kind in kinds)


def _counted(count: int, unit: str) -> str:
    return f"{count} {unit}{'' if count == 1 else 's'}"


def _remedy(release: str, key: str) -> str:
    raised = f"the operator raises {key}"
    return f"{release}, or {raised}" if release else raised
