"""What a seed stands for: rules, faults, jobs, and what happens to them. Plain data, so that it can be shrunk."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from supervisor.planner.world import Rules
from tests.sim.chance import Faults

HOURS = 2.0
# How long launchers take to do what a word asks for: a step may be long.
REACTIONS_S = (0.3, 0.3, 1.0, 2.0)
# Of a long story.
MIN_HOURS, MAX_HOURS = 24.0, 168.0
# What may happen, and how often one beside the other.
STRIKES = {
    "notice": 10,
    "short notice": 3,
    "notice without kill": 2,
    "early kill": 2,
    "kill": 6,
    "stop": 2,
    "zone lost": 2,
    "silence": 4,
    "blink": 4,
    "agent stopped": 2,
    "launcher broke": 2,
    "program failed": 2,
    "full": 3,
    "room": 3,
    "cloud away": 3,
    "throttling": 2,
    "stranger": 3,
    "hidden": 4,
    "leftover": 1,
    "daemon killed": 4,
    "daemon away": 2,
    "daemon stopped": 3,
    "daemon hangs": 4,
    "daemon cut off": 3,
    "second daemon": 2,
    "upgrade": 2,
    "handover": 10,
    "clock set": 3,
    "etcd away": 3,
    "etcd slow": 2,
    "watch lost": 3,
    "writes lost": 1,
    "backup restored": 1,
    "scale": 5,
    "cancel": 1,
    "submit": 2,
    "finish": 1,
    "two commands": 3,
    "pause": 2,
    "resume": 3,
    "drain": 3,
}
# How nasty each kind of fault is where it is drawn at all.
WORST: dict[str, float] = {
    "transient": 0.3,
    "lost_reply": 0.4,
    "unreachable": 0.2,
    "bootstrap": 0.2,
    "unanswered_commit": 0.05,
    "slow_call": 0.2,
    "hung_call": 0.05,
    "false_error": 0.1,
    "false_success": 0.1,
    "dropped": 0.2,
    "doubled": 0.2,
    "reordered": 0.3,
    "reused": 0.5,
    "slow_boot": 0.3,
    "listing_lag_s": 8.0,
    "mirror_lag_s": 3.0,
    "skew_s": 3.0,
}


@dataclass(frozen=True)
class Strike:
    """One thing that happens, `at` seconds after the beginning. `number` and `size` (0 to 1) say to whom, and how."""

    at: float
    kind: str
    number: int
    size: float


@dataclass(frozen=True)
class Job:
    """What a user submits at the beginning."""

    name: str
    low: int
    desired: int
    high: int
    spares: int
    usd_per_hour: float | None = None
    spread: str = "zone"
    kind: str = "training"


@dataclass(frozen=True)
class Story:
    """Everything that is drawn before the world begins; `seed` is for what is drawn in it. `clocks_off_s`: how far each
    daemon's clock may be off, from its start to its end."""

    seed: int
    hours: float
    faults: Faults
    rules: Rules
    jobs: tuple[Job, ...]
    strikes: tuple[Strike, ...]
    reaction_s: float = 0.3
    clocks_off_s: float = 0.0


def draw(seed: int, hours: float = HOURS) -> Story:
    """The story of a seed: something happens all the time."""
    rng = random.Random(seed)
    faults, rules, jobs = _setting(rng)
    count = rng.randint(20, 40) * max(1, round(hours / 2))
    times = sorted(_time(rng, hours * 3600) for _ in range(count))
    return Story(seed, hours, faults, rules, jobs, _strikes(rng, times), rng.choice(REACTIONS_S))


def draw_long(seed: int) -> Story:
    """A story of one day to a week: storms, each with a weather of its own, and between them calm that is mostly of
    an hour or a few, and seldom of days. The fault rates hold throughout."""
    rng = random.Random(f"long {seed}")
    faults, rules, jobs = _setting(rng)
    hours = round(min(MAX_HOURS, MIN_HOURS * rng.paretovariate(1.0)), 1)
    strikes: list[Strike] = []
    at = 60.0
    while at < hours * 3600:
        times = sorted(at + rng.expovariate(1 / 600.0) for _ in range(rng.randint(4, 20)))
        strikes += _strikes(rng, [round(time, 3) for time in times if time < hours * 3600])
        at = times[-1] + 3600.0 * min(72.0, rng.paretovariate(0.7))
    return Story(seed, hours, faults, rules, jobs, tuple(strikes), rng.choice(REACTIONS_S))


def _setting(rng: random.Random) -> tuple[Faults, Rules, tuple[Job, ...]]:
    faults = {name: rng.choice([0.0, 0.0, 0.3, 1.0]) * worst for name, worst in WORST.items()}
    rules = Rules(
        listing_s=rng.choice([5.0, 10.0, 20.0]),
        suspect_s=rng.choice([20.0, 40.0]),
        consistency_s=rng.choice([60.0, 300.0]),
        orphan_grace_s=60.0,
        bootstrap_timeout_s=180.0,
        bootstrap_failures=10**6,
        launch_attempts=rng.choice([3, 5]),
        gone_kept=8,
        events_kept=200,
        alerts=True,
    )
    jobs = tuple(_job(rng, f"job-{number}") for number in range(rng.choice([1, 1, 1, 2, 3])))
    return Faults(**faults), rules, jobs


def _strikes(rng: random.Random, times: Sequence[float]) -> tuple[Strike, ...]:
    weights = {kind: weight * rng.choice([0, 1, 1, 3]) for kind, weight in STRIKES.items()}
    kinds = [kind for kind, weight in weights.items() if weight] or ["kill"]
    chosen = rng.choices(kinds, [weights[kind] for kind in kinds], k=len(times))
    return tuple(Strike(at, kind, rng.randrange(1000), rng.random()) for at, kind in zip(times, chosen, strict=True))


def _time(rng: random.Random, most_s: float) -> float:
    """Often alone, often in clusters: what comes together is what breaks things."""
    if rng.random() < 0.5:
        return round(rng.uniform(60.0, most_s), 3)
    cluster = rng.randrange(6) * most_s / 6 + 60.0
    return round(min(most_s, cluster + rng.expovariate(1 / 30.0)), 3)


def _job(rng: random.Random, name: str) -> Job:
    if rng.random() < 0.1:
        return Job(name, 1, 1, 1, 0, kind="data")
    low = rng.randint(1, 2)
    desired = low + rng.randint(0, 2)
    high, spares = desired + rng.randint(0, 2), rng.choice([0, 0, 1, 2])
    limit = None
    if rng.random() < 0.3:  # so little that no machine can be replaced before the old one is gone
        high, spares = desired, 2
        limit = round((high + spares) * 0.11 + 0.01, 3)
    return Job(name, low, desired, high, spares, limit, rng.choice(["zone", "zone", "region"]))


def kinds_of(story: Story) -> list[str]:
    """The kinds of strikes that it has, in order of name."""
    return sorted({strike.kind for strike in story.strikes})


def without_kind(story: Story, kind: str) -> Story:
    """The same without one kind of strike."""
    return replace(story, strikes=tuple(strike for strike in story.strikes if strike.kind != kind))


def without_fault(story: Story, name: str) -> Story:
    """The same without one kind of fault."""
    return replace(story, faults=replace(story.faults, **{name: 0.0}))


def faults_of(story: Story) -> list[str]:
    """The kinds of faults that it has."""
    return [each.name for each in fields(Faults) if getattr(story.faults, each.name) > 0]
