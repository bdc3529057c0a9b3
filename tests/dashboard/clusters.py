"""Four made-up clusters for the dashboard: one job, 20 jobs of 64 nodes, none, and one that burns. Always the same."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType

from spotsup_trainer.wire import Progress, Round, RoundMember

from provisioners.base import Market, Offer
from supervisor.api.jobs.report import OnDemand
from supervisor.billing import Booking, NodeBilling, Purpose, RoundTimes
from supervisor.budget import Budgets
from supervisor.curve import Cause, Curve, Point, Seen, begun, extended
from supervisor.errors import NotFoundError
from supervisor.events import EventKind
from supervisor.features.billing.record import BillingRecord
from supervisor.features.bootstraps.record import BootstrapsRecord
from supervisor.features.checkpoints.record import CheckpointsRecord
from supervisor.features.hang.record import HangRecord
from supervisor.features.limits.record import LimitsRecord
from supervisor.features.pause.record import PauseRecord
from supervisor.journal.journal import DayKey
from supervisor.market.admission import Admission
from supervisor.model import Event, JobRecord, JobState, NodeRecord, NodeState, NoticeRecord, Transition
from supervisor.planner.world import JobView
from supervisor.pool_days import PoolDay, Row, pool_of
from supervisor.runtime.loop import Status
from supervisor.spec import parse_spec
from supervisor.web.source import Source

NOW = datetime(2026, 11, 24, 14, 2, 5, tzinfo=UTC).timestamp()
MONTH = "2026-11"
N, J = NodeState, JobState
SHORT = "the cluster's limit leaves 3 nodes, and it needs 12"
ZONES = [(f"us-east-1{zone}", "us-east-1") for zone in "abcdf"] + [(f"us-west-2{zone}", "us-west-2") for zone in "abc"]
NAMES = (
    "llama-8b-sft", "vit-l-imagenet", "wav2vec-large", "resnet50-sweep-3", "gpt2-medium", "clip-b32", "unet-cells",
    "t5-xl-translate", "bert-legal", "diffusion-xl", "moe-16e", "whisper-ft", "esm2-650m", "rt-detr", "mamba-790m",
    "dlrm-terabyte", "nerf-city", "alphafold-ft", "retnet-1b", "segment-2",
)  # fmt: skip
OWNERS = ("ann", "bob", "chioma", "dmitri")


@dataclass(frozen=True)
class Cluster:
    """All that the dashboard asks for."""

    views: Sequence[JobView] = ()
    curves: dict[str, Curve] = field(default_factory=dict)
    events: dict[str, list[Event]] = field(default_factory=dict)
    lines: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    days: dict[DayKey, PoolDay] = field(default_factory=dict)
    status: Status = field(default_factory=lambda: Status(NOW, "watching 0 jobs", {}, {}))
    budgets: Budgets = Budgets()  # noqa: RUF009 - frozen
    on_demand: float | None = 3.06

    def source(self) -> Source:
        """As the pages take it."""
        by_name = {view.name: view for view in self.views}

        def job(name: str) -> JobView:
            if name not in by_name:
                raise NotFoundError(f"no job is named {name!r}")
            return by_name[name]

        def prices(view: JobView) -> OnDemand | None:
            if self.on_demand is None:
                return None
            kinds = {(node.offer.zone, node.offer.instance_type) for node in view.nodes.values()}
            return OnDemand(dict.fromkeys(kinds, self.on_demand))

        return Source(
            version="0.1.0",
            cluster="default",
            now=lambda: NOW,
            status=lambda: self.status,
            other_leader=lambda: "",
            paused=lambda: None,
            jobs=lambda: self.views,
            job=job,
            curve=lambda name: (job(name), self.curves.get(name)),
            events=lambda name: self.events.get(name, []),
            lines=lambda name, node, most: [each for each in self.lines.get(name, []) if not node or each[0] == node][
                -most:
            ],
            pool_days=lambda: self.days,
            on_demand=prices,
            budgets=self.budgets,
            deleted=lambda _: (),
        )


class Maker:
    """Makes one job after another."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.views: list[JobView] = []
        self.curves: dict[str, Curve] = {}
        self.events: dict[str, list[Event]] = {}
        self.lines: dict[str, list[tuple[str, str]]] = {}
        self.sentences: dict[str, str] = {}

    def job(
        self,
        name: str,
        nodes: int,
        *,
        age_s: float,
        owner: str = "ann",
        state: JobState = J.RUNNING,
        churn: int = 3,
        missing: int = 0,
        at: int = 0,
        **more: object,
    ) -> None:
        """A job that has trained for most of `age_s`, with `churn` nodes replaced; `missing` are on their way."""
        begin = NOW - age_s
        zone, region = ZONES[at % len(ZONES)]
        offer = Offer("aws", region, zone, "p3.2xlarge", Market.SPOT, 0.918 + 0.05 * (at % 4), gpu="V100", gpus=1)
        spec = parse_spec(
            {
                "name": name,
                "nodes": {"min": max(1, nodes // 2), "desired": max(1, nodes), "max": max(1, nodes)},
                "resources": {"gpu": "V100", "gpus_per_node": 1},
                "placement": {"cloud": "aws"},
                "checkpoints": "s3://bucket/jobs",
                "run": "train.py --data /mnt/data --lr 0.1",
                "limits": {"usd": 4000},
            }
        )
        record = JobRecord(
            name, "k3f9a", spec, "0" * 64, begin, max(1, nodes // 2), nodes, nodes, owner, state=state,
            state_since=NOW - min(age_s / 3, 5400), limits=LimitsRecord(trained_s=age_s * 0.93),
            billing=BillingRecord(rounds=RoundTimes(age_s * 0.9, age_s * 0.02, since=NOW)),
        )  # fmt: skip
        record = replace(record, **more)  # type: ignore[arg-type]  # fields of the record
        changes = sorted(begin + age_s * (0.15 + 0.8 * self.rng.random()) for _ in range(churn))
        found = self._nodes(record, offer, nodes, missing, changes)
        inside = [node.id for node in found if node.state is N.MEMBER]
        curve = self._curve(record, nodes, changes, offer.usd_per_hour or 0.0) if age_s > 120 and nodes else None
        progress = None
        if curve is not None:
            newest = curve.newest
            progress = Progress(
                len(changes) + 1, newest.step, NOW - 1.0, begin, 3, newest.samples, newest.loss, newest.step - 120
            )
            self.curves[name] = curve
        current = Round(len(changes) + 1, tuple(RoundMember(each, each, "10.0.0.1", 1) for each in inside), NOW - 60)
        view = JobView(
            record, 7, {node.id: node for node in found}, {}, progress=progress, round=current if inside else None
        )
        self.views.append(view)
        self.events[name] = self._events(record, found, changes)
        self.lines[name] = self._printed(found, curve)
        arriving = f"; {missing} replacements are being prepared" if missing else ""
        self.sentences[name] = f"{len(inside)} of {nodes} nodes train{arriving}"

    def _nodes(
        self, record: JobRecord, offer: Offer, count: int, missing: int, changes: Sequence[float]
    ) -> list[NodeRecord]:
        numbers = range(1, count + 1 - missing)
        found = [self._node(record, offer, n, record.submitted_at + 1 + self.rng.random(), None) for n in numbers]
        for number, at in enumerate(changes):
            living = [n for n, node in enumerate(found) if node.state is N.MEMBER and node.created_at < at - 300]
            if not living:
                continue
            old = self.rng.choice(living)
            noticed = self.rng.random() < 0.75
            found[old] = self._ended(found[old], at, noticed=noticed)
            found.append(self._node(record, offer, count + 1 + number, at - (100 if noticed else -8), found[old].id))
        for number in range(missing):
            at = NOW - 30 - 25 * number
            state = (N.BOOTING, N.BOOTSTRAPPING, N.PENDING, N.REQUESTED)[number % 4]
            found.append(self._node(record, offer, count + 40 + number, at, "", state))
        return found

    def _node(
        self,
        record: JobRecord,
        offer: Offer,
        number: int,
        at: float,
        replaces: str | None,
        state: NodeState = N.MEMBER,
    ) -> NodeRecord:
        steps = [
            (2, N.REQUESTED, N.PENDING),
            (14 + 20 * self.rng.random(), N.PENDING, N.BOOTING),
            (20 + 15 * self.rng.random(), N.BOOTING, N.BOOTSTRAPPING),
            (40 + 60 * self.rng.random(), N.BOOTSTRAPPING, N.READY),
            (3, N.READY, N.MEMBER),
        ]
        history, since = [], at
        for took, before, after in steps:
            if since + took > NOW or (state is not N.MEMBER and before is state):
                break
            since += took
            history.append(Transition(since, str(before), str(after), ""))
        state = NodeState(history[-1].after) if history else N.REQUESTED
        launched = state is not N.REQUESTED
        usd = offer.usd_per_hour or 0.0
        paid_s = max(0.0, NOW - at - 2) if launched else 0.0
        boot_s = min(paid_s, 120.0)
        parts = {Purpose.BOOT: boot_s, Purpose.PAUSE: 0.03 * (paid_s - boot_s), Purpose.IDLE: 0.01 * (paid_s - boot_s)}
        if state is N.MEMBER:
            parts[Purpose.LOST] = 0.004 * paid_s
            parts[Purpose.USEFUL] = paid_s - sum(parts.values())
        bookings = tuple(Booking(MONTH, what, s, s / 3600 * usd) for what, s in parts.items() if s > 0)
        billing = NodeBilling(Purpose.IDLE, booked_to=NOW, bookings=bookings)
        node_id = f"{record.name}-{record.uid}-{number}"
        return NodeRecord(
            node_id, record.name, node_id, offer, at, state, since, replaces or "", instance_id=f"i-{number:08x}",
            launched_at=at + 2 if launched else 0.0, has_joined=state is N.MEMBER, billing=billing,
            history=tuple(history), ssh_host=f"10.0.{number // 250}.{number % 250}",
        )  # fmt: skip

    def _ended(self, node: NodeRecord, at: float, *, noticed: bool) -> NodeRecord:
        notice = NoticeRecord(at + 10, at - 110, "metadata") if noticed else None
        steps = [(at, N.DRAINING), (at + 6, N.TERMINATING), (at + 20, N.GONE)]
        if not noticed:
            steps = [(at, N.SUSPECT), (at + 8, N.LOST), (at + 10, N.TERMINATING), (at + 20, N.GONE)]
        history, before = list(node.history), N.MEMBER
        for when, after in steps:
            history.append(Transition(when, str(before), str(after), "the provider takes it"))
            before = after
        share = max(0.05, (at - node.created_at) / max(NOW - node.created_at, 1))
        bookings = tuple(replace_booking(each, share) for each in node.billing.bookings)
        return replace(
            node, state=N.GONE, state_since=at + 20, ended_at=at + 10, notice=notice, history=tuple(history),
            billing=replace(node.billing, booked_to=at + 10, bookings=bookings),
        )  # fmt: skip

    def _curve(self, record: JobRecord, nodes: int, changes: Sequence[float], usd: float) -> Curve:
        begin, at, step, number = record.submitted_at + 150, record.submitted_at + 150, 0.0, 1
        pending, curve, spacing = list(changes), None, max(10.0, (NOW - begin) / 220)
        cause: Cause = "preempted"
        speed = 3.1 + self.rng.random() * 2
        while at < NOW:
            inside = nodes
            first = at
            if pending and at > pending[0] and curve is not None:
                last = curve.newest._replace(at=max(pending.pop(0), curve.newest.at + 1), step=int(step) + 1)
                curve = extended(curve, Seen(last, number, begin, cause), watched=True)
                number, step = number + 1, step + 1
                first = last.at + 4 + 20 * self.rng.random()
                at = max(at, first)
                cause = "preempted" if self.rng.random() < 0.75 else "lost"
            for change in changes:
                if change < at < change + 200:
                    inside -= 1
            step += spacing * speed * inside / nodes * (0.97 + 0.06 * self.rng.random())
            share = (at - begin) / max(NOW - begin, 1)
            busy = 94 - 6 * self.rng.random()
            loss = 1.7 + 2.6 * math.exp(-4 * share) + 0.06 * self.rng.gauss(0, 1) * math.exp(-share)
            point = Point(
                at, int(step), int(step) * 256, int(step) // 4000, loss, inside, usd * nodes * (at - begin) / 3600, busy
            )
            seen = Seen(point, number, first, cause)
            curve = begun(seen) if curve is None else extended(curve, seen, watched=True)
            at += spacing
        assert curve is not None
        return curve

    def _events(self, record: JobRecord, nodes: Sequence[NodeRecord], changes: Sequence[float]) -> list[Event]:
        found: list[tuple[float, EventKind, str, str]] = [
            (record.submitted_at, EventKind.SUBMITTED, "", f"{record.name} submitted"),
            (record.submitted_at + 140, EventKind.ROUND, "", f"round 1: {record.desired_nodes} nodes train"),
        ]
        for number, at in enumerate(changes, 2):
            found.append((at + 30, EventKind.ROUND, "", f"round {number}: {record.desired_nodes} nodes train"))
        for node in nodes:
            if node.notice is not None:
                found.append((node.notice.seen_at, EventKind.NOTICE, node.id, f"{node.id} will be preempted in 120 s"))
            if node.replaces:
                text = f"{node.id} is requested in place of {node.replaces}"
                found.append((node.created_at, EventKind.REPLACEMENT_REQUESTED, node.id, text))
                joined = f"{node.id} has joined in place of {node.replaces}"
                found.append((node.created_at + 130, EventKind.REPLACEMENT_JOINED, node.id, joined))
        found = sorted(each for each in found if each[0] <= NOW)
        return [
            Event(f"{record.task_id}-{n:06d}", at, record.name, kind, text, node)
            for n, (at, kind, node, text) in enumerate(found)
        ]

    def _printed(self, nodes: Sequence[NodeRecord], curve: Curve | None) -> list[tuple[str, str]]:
        inside = [node.id for node in nodes if node.state is N.MEMBER]
        if curve is None or not inside:
            return []
        step = curve.newest.step
        return [
            (
                inside[0],
                f"step {step - 10 * (40 - n):>7,}  loss {1.7 + 0.04 * self.rng.random():.4f}  {250 + n % 7} samples/s",
            )
            for n in range(40)
        ]

    def days(self, hard: float = 0.15) -> dict[DayKey, PoolDay]:
        """What the pools of all jobs, and two more, granted and refused since yesterday."""
        found: dict[DayKey, PoolDay] = {}
        held: dict[Offer, int] = {}
        for view in self.views:
            for node in view.nodes.values():
                if node.state is not N.GONE:
                    held[node.offer] = held.get(node.offer, 0) + 1
        for offer, count in held.items():
            pool = pool_of(offer)
            for day, until in (("2026-11-23", 1440), ("2026-11-24", 14 * 60)):
                rows, level = [], count
                for minute in range(0, until, 30):
                    full = math.sin(minute / 160 + len(found)) > 1 - 2 * hard  # the zone is full for hours
                    granted = 0 if full else self.rng.randrange(3)
                    refused = self.rng.randrange(2, 9) if full and self.rng.random() < 0.8 else 0
                    level = max(0, min(count, level + granted * count // 16 - (full and count // 10)))
                    rows.append(Row(minute, level, granted, refused, round(0.9 + 0.1 * self.rng.random(), 3)))
                found[day, pool.key] = PoolDay(pool, tuple(rows), until)
        return found

    def cluster(self, headline: str = "", **more: object) -> Cluster:
        """All jobs so far."""
        open_jobs = sum(not view.record.ended for view in self.views)
        status = Status(NOW - 0.4, headline or f"watching {open_jobs} jobs", self.sentences, {})
        found = Cluster(self.views, self.curves, self.events, self.lines, self.days(), status)
        return replace(found, **more)  # type: ignore[arg-type]  # fields of the cluster


def replace_booking(booking: Booking, share: float) -> Booking:
    """A part of it."""
    return booking._replace(seconds=booking.seconds * share, usd=booking.usd * share)


def one() -> Cluster:
    """One job of eight nodes."""
    made = Maker(1)
    made.job("llama-8b-sft", 8, age_s=4.2 * 3600, churn=5, at=1)
    return made.cluster("watching 1 job", budgets=Budgets(500.0))


def many(nodes: int = 64) -> Cluster:
    """Twenty jobs of 64 nodes."""
    made = Maker(2)
    for at, name in enumerate(NAMES):
        state = J.DEGRADED if at in {3, 11} else J.RUNNING
        made.job(
            name, nodes, age_s=3600 * (2 + 3.7 * at), owner=OWNERS[at % 4], state=state, churn=6 + at,
            missing=3 if state is J.DEGRADED else 0, at=at,
        )  # fmt: skip
    return made.cluster(budgets=Budgets(120_000.0, 40_000.0))


def empty() -> Cluster:
    """Nothing at all."""
    return Cluster()


def burning() -> Cluster:
    """Everything at once goes wrong."""
    made = Maker(3)
    made.job("llama-8b-sft", 16, age_s=7 * 3600, state=J.WAITING, churn=14, missing=11, bootstraps=BootstrapsRecord(4))
    made.sentences["llama-8b-sft"] = (
        "waiting for 3 nodes: us-east-1a refuses p3.2xlarge (InsufficientInstanceCapacity), us-east-1b is asked next"
    )
    made.job(
        "moe-16e", 32, age_s=26 * 3600, owner="bob", state=J.DEGRADED, churn=22, missing=9, at=2,
        checkpoints=CheckpointsRecord(
            "OSError: [Errno 28] No space left on device: '/mnt/out/jobs/moe-16e-k3f9a/step-81200'"
        ),
    )  # fmt: skip
    made.job("wav2vec-large", 8, age_s=9 * 3600, owner="chioma", churn=4, at=1, hang=HangRecord(NOW - 420))
    made.job(
        "vit-l-imagenet", 0, age_s=30 * 3600, owner="bob", state=J.PAUSED, at=3,
        reason="the budget of user bob for 2026-11 is spent ($2104.11 of $2000)", desired_nodes=16, max_nodes=16,
        pause=PauseRecord(by="user_budget"),
    )  # fmt: skip
    made.job(
        "unet-cells", 0, age_s=900, owner="ann", state=J.QUEUED, at=4, desired_nodes=24, min_nodes=12, max_nodes=24
    )
    made.job(
        "bert-legal", 0, age_s=700, owner="dmitri", state=J.QUEUED, at=4, desired_nodes=4, min_nodes=4, max_nodes=4
    )
    made.job(
        "gpt2-medium", 0, age_s=5 * 3600, owner="ann", state=J.FAILED, at=5, ended_at=NOW - 1500, desired_nodes=4,
        reason="the program failed 3 times: RuntimeError: CUDA error: an illegal memory access was encountered",
    )  # fmt: skip
    made.sentences |= {
        "moe-16e": "23 of 32 nodes train; 9 replacements are being prepared; checkpoints are not being written",
        "wav2vec-large": "8 of 8 nodes train; no rank has shown life for 7 min",
        "vit-l-imagenet": "paused: the budget of user bob for 2026-11 is spent ($2104.11 of $2000)",
        "unet-cells": f"number 1 in the queue: {SHORT}",
        "bert-legal": "number 2 in the queue: unet-cells is before it",
        "gpt2-medium": "failed: the program failed 3 times: RuntimeError: CUDA error",
    }
    admissions = {
        "unet-cells": Admission(0, place=1, reason=SHORT, starts_when="moe-16e has ended, or needs less"),
        "bert-legal": Admission(0, place=2, reason="unet-cells is before it", starts_when="unet-cells has started"),
    }  # fmt: skip
    denied = "aws denies spotsup's requests in us-west-2: the token has expired. Jobs wait, and go on by themselves"
    status = Status(
        NOW - 0.4, f"watching 6 jobs; {denied}", made.sentences, {}, 0.0, MappingProxyType(admissions)
    )  # fmt: skip
    budgets = Budgets(3_000.0, 2_000.0, MappingProxyType({"bob": 900.0}))
    return made.cluster(status=status, budgets=budgets, days=made.days(0.6))


CLUSTERS: dict[str, Callable[[], Cluster]] = {"one": one, "many": many, "empty": empty, "burning": burning}
