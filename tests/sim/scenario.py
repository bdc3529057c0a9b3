"""What a seed stands for: rules, fault rates, jobs, and what happens to them. Plain data, so that it can be shrunk."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

from spotsup_simulator.faults import FaultRates

from supervisor.budget import Budgets
from supervisor.features.silence.record import SilenceRules
from supervisor.features.unhealthy.record import UnhealthyRules
from supervisor.features.waits.record import WaitsRules
from supervisor.market.admission import Cap, QueueRules
from supervisor.market.warm import WarmRules
from supervisor.planner.world import Rules

HOURS = 2.0
# How long launchers take to act on a message: a step may be long.
REACTIONS_S = (0.3, 0.3, 1.0, 2.0)
# Of a long scenario.
MIN_HOURS, MAX_HOURS = 24.0, 168.0
# What may be injected, with relative weights: faults, and users' commands.
INJECTION_WEIGHTS = {
    "notice": 10,
    "short notice": 3,
    "notice without kill": 2,
    "early kill": 2,
    "kill": 6,
    "stop": 2,
    "zone lost": 2,
    "silence": 4,
    "brief silence": 4,
    "nodes cut off": 5,
    "silence without listings": 2,
    "zone ended": 2,
    "agent stopped": 2,
    "launcher failed": 2,
    "program failed": 2,
    "program fails early": 2,
    "steps hang": 2,
    "workers outlive SIGKILL": 2,
    "GPU dies": 3,
    "GPU ails": 3,
    "GPU checks are wrong": 3,
    "zone full": 3,
    "capacity back": 3,
    "cloud unreachable": 3,
    "throttling": 2,
    "package index away": 2,
    "credentials expired": 2,
    "refused for good": 2,
    "early deaths": 3,
    "prices change": 2,
    "unjournaled machine": 3,
    "other installation": 4,
    "missing in a listing": 4,
    "leftover": 1,
    "daemon killed": 4,
    "daemon down": 2,
    "daemon frozen": 3,
    "daemon hangs": 4,
    "daemon cut off": 3,
    "second daemon": 2,
    "upgrade": 2,
    "handover": 10,
    "clock step": 3,
    "etcd down": 3,
    "etcd slow": 2,
    "watch lost": 3,
    "writes lost": 1,
    "backup restored": 1,
    "scale": 5,
    "cancel": 1,
    "submit": 2,
    "finish": 1,
    "finish but one": 1,
    "two commands": 3,
    "pause": 2,
    "resume": 3,
    "drain": 3,
}
# The same, of what strikes beside the others: half of the scenarios have some.
HARSH_WEIGHTS = {
    "slow checkpoints": 5,
    "broken messages": 5,
    "uneven zones": 3,
    "slow GPU": 3,
    "metadata away": 3,
    "thread ends": 3,
}
# What happens to etcd's users, and to who manages them: half of the scenarios have some.
ACCESS_WEIGHTS = {
    "user deleted": 3,
    "tokens expire": 2,
    "users change elsewhere": 3,
    "daemon dies among users": 4,
    "users' reply lost": 3,
    "writes about users lost": 2,
}
# What happens to etcd itself, and to leases: half of the scenarios have some.
ETCD_WEIGHTS = {
    "etcd elects": 4,
    "etcd full": 2,
    "agent's lease revoked": 4,
    "dead agent's lease renewed": 2,
    "daemon's lease revoked": 4,
    "dead leader's lease renewed": 3,
}
# Jobs end, and others begin, where machines wait between them.
WARM_WEIGHTS = {"cancel": 3, "finish": 3, "submit": 6, "daemon killed": 2}
# What happens to the kinds of machines that jobs name as alternatives: a quarter of the scenarios have such jobs.
KIND_WEIGHTS = {"kind sold out": 5, "kinds back": 4, "prices change": 1, "daemon killed": 2, "notice": 2}
# What happens where jobs say what they pay at most for a machine.
CAP_WEIGHTS = {"prices change": 6, "daemon killed": 2, "notice": 2}
# What happens where a month's money runs out.
BUDGET_WEIGHTS = {"budgets change": 5, "daemon killed": 3, "notice": 2, "submit": 1}
# What programs write in the name of their nodes: a third of the scenarios have some.
FORGERY_WEIGHTS = {"forged notice": 1}
# Ranks that end well while others work on, and nodes that are taken meanwhile: a third of the scenarios have some.
UNEVEN_WEIGHTS = {"ranks end": 6, "notice": 2, "kill": 2, "daemon killed": 1, "etcd down": 1, "drain": 1}
# Regions of which one does not answer, for minutes to hours: a third of the scenarios have two, and this.
REGION_WEIGHTS = {"region silent": 4, "notice": 2, "kill": 2, "daemon killed": 1, "cancel": 1}
# What happens to tunnels: a third of the scenarios have some, where nodes reach etcd through them alone.
TUNNEL_WEIGHTS = {
    "tunnels lost": 4,
    "tunnels lost unnoticed": 4,
    "tunnels half-open": 4,
    "sshd keeps the port": 3,
}
# The highest rate of each kind of fault.
MAX_RATES: dict[str, float] = {
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
    "unfiltered": 1.0,
    "reused": 0.5,
    "slow_boot": 0.3,
    "early_death": 0.1,
    "listing_lag_s": 8.0,
    "mirror_lag_s": 3.0,
    "skew_s": 3.0,
}


@dataclass(frozen=True)
class Injection:
    """One fault, or one command of a user."""

    # Seconds after the beginning.
    at: float
    kind: str
    # Selects the target.
    number: int
    # How severe it is, 0 to 1.
    size: float


@dataclass(frozen=True)
class Submission:
    """A job that a user submits at the beginning."""

    name: str
    low: int
    desired: int
    high: int
    spares: int
    usd_per_hour: float | None = None
    spread: str = "zone"
    kind: str = "training"
    hours: float | None = None  # its limit
    hang: str = "alert"
    owner: str = ""
    priority: int = 0
    usd_per_node_hour: float | None = None
    prefer: str = ""  # of its alternatives of machines; it names none where this is empty
    market: str = "spot"

    @property
    def multiple_of(self) -> int:
        """A job whose numbers are all even trains on pairs of nodes only."""
        return 1 if (self.low | self.desired | self.high) % 2 else 2


@dataclass(frozen=True)
class Scenario:
    """Everything that is drawn before the world starts."""

    # Of what is drawn in the world.
    seed: int
    hours: float
    fault_rates: FaultRates
    rules: Rules
    jobs: tuple[Submission, ...]
    injections: tuple[Injection, ...]
    # How long launchers take to act on a message.
    reaction_s: float = 0.3
    # How far each daemon's clock may be off, for as long as the daemon lives.
    max_clock_error_s: float = 0.0
    # Nodes reach etcd through the daemons' tunnels alone.
    by_ssh: bool = False
    # Each zone is in a region of its own.
    has_regions: bool = False
    # The types of machines that the cloud has, cheapest first.
    types: tuple[str, ...] = ("small",)
    # How long machines of the market flex last.
    flex_lasts_s: float = 7 * 86400.0


def draw(seed: int, hours: float = HOURS) -> Scenario:
    """The scenario of a seed: something happens all the time."""
    rng = random.Random(seed)
    rates, rules, jobs = _setting(rng)
    count = rng.randint(20, 40) * max(1, round(hours / 2))
    times = sorted(_time(rng, hours * 3600) for _ in range(count))
    return _with_extras(Scenario(seed, hours, rates, rules, jobs, _injections(rng, times), rng.choice(REACTIONS_S)))


def draw_long(seed: int) -> Scenario:
    """A scenario of one day to a week: bursts of injections, each with its own mix of kinds, separated by quiet times
    that mostly last some hours, seldom days. The fault rates hold throughout."""
    rng = random.Random(f"long {seed}")
    rates, rules, jobs = _setting(rng)
    hours = round(min(MAX_HOURS, MIN_HOURS * rng.paretovariate(1.0)), 1)
    injections: list[Injection] = []
    at = 60.0
    while at < hours * 3600:
        times = sorted(at + rng.expovariate(1 / 600.0) for _ in range(rng.randint(4, 20)))
        injections += _injections(rng, [round(time, 3) for time in times if time < hours * 3600])
        at = times[-1] + 3600.0 * min(72.0, rng.paretovariate(0.7))
    return _with_extras(Scenario(seed, hours, rates, rules, jobs, tuple(injections), rng.choice(REACTIONS_S)))


def _with_extras(scenario: Scenario) -> Scenario:
    scenario = _with_limits(scenario)
    scenario = _with_queue(scenario)
    scenario = _with_warm(scenario)
    scenario = _with_alternatives(scenario)
    scenario = _with_caps(scenario)
    scenario = _with_budgets(scenario)
    scenario = _with_markets(scenario)
    scenario = _with_some(scenario, "harsh", HARSH_WEIGHTS, [3, 6, 12])
    scenario = _with_some(scenario, "access", ACCESS_WEIGHTS, [4, 8])
    scenario = _with_some(scenario, "etcd", ETCD_WEIGHTS, [4, 8])
    scenario = _with_some(scenario, "forgeries", FORGERY_WEIGHTS, [4, 8], share=1 / 3)
    scenario = _with_some(scenario, "uneven", UNEVEN_WEIGHTS, [4, 8], share=1 / 3)
    if random.Random(f"regions {scenario.seed}").random() < 1 / 3:
        scenario = replace(_with_some(scenario, "region faults", REGION_WEIGHTS, [4, 8], share=1.0), has_regions=True)
    unreadable = random.Random(f"unreadable {scenario.seed}")
    if unreadable.random() < 1 / 3:
        rates = replace(scenario.fault_rates, unreadable=unreadable.choice([0.05, 0.5]))
        scenario = replace(scenario, fault_rates=rates)
    if random.Random(f"by ssh {scenario.seed}").random() < 1 / 3:
        scenario = with_tunnels(scenario)
    return scenario


def with_tunnels(scenario: Scenario) -> Scenario:
    """The same where nodes have no route to etcd, with faults of tunnels."""
    return replace(_with_some(scenario, "tunnels", TUNNEL_WEIGHTS, [2, 4], share=1.0), by_ssh=True)


def _with_some(
    scenario: Scenario, name: str, relative: Mapping[str, int], each: Sequence[int], share: float = 0.5
) -> Scenario:
    """Half of the scenarios have these faults, too, mostly soon after another fault. Drawn apart: the rest of a seed's
    scenario is as it was. `each`: one for so many others."""
    rng = random.Random(f"{name} {scenario.seed}")
    if rng.random() < 1.0 - share:
        return scenario
    count = max(2, len(scenario.injections) // rng.choice(each))
    near = [rng.choice(scenario.injections).at + rng.expovariate(1 / 60.0) for _ in range(count)]
    times = sorted(round(at, 3) for at in near if at < scenario.hours * 3600)
    injections = sorted([*scenario.injections, *_injections(rng, times, relative)], key=lambda each: each.at)
    return replace(scenario, injections=tuple(injections))


def _with_limits(scenario: Scenario) -> Scenario:
    """Some jobs have a limit of hours, which users raise. Drawn apart: the rest of a seed's scenario is as it was."""
    rng = random.Random(f"limits {scenario.seed}")
    limits = [rng.uniform(0.05, 0.6) * scenario.hours if rng.random() < 0.3 else None for _ in scenario.jobs]
    if not any(limits):
        return scenario
    jobs = tuple(replace(job, hours=limit) for job, limit in zip(scenario.jobs, limits, strict=True))
    times = [round(rng.uniform(60.0, scenario.hours * 3600), 3) for _ in range(rng.randint(1, 6))]
    raises = [Injection(at, "limit", rng.randrange(1000), rng.random()) for at in times]
    injections = sorted([*scenario.injections, *raises], key=lambda each: each.at)
    return replace(scenario, jobs=jobs, injections=tuple(injections))


def _with_queue(scenario: Scenario) -> Scenario:
    """A third of the scenarios have further jobs, of several users and priorities, and limits for all of them. Drawn
    apart: the rest of a seed's scenario is as it was."""
    rng = random.Random(f"queue {scenario.seed}")
    if rng.random() < 2 / 3:
        return scenario
    more = tuple(_job(rng, f"queued-{number}") for number in range(rng.randint(1, 3)))
    jobs = tuple(
        replace(job, owner=rng.choice(["", "ann", "bob"]), priority=rng.choice([0, 0, -10, 10]))
        for job in (*scenario.jobs, *more)
    )
    wanted = sum(job.desired + job.spares for job in jobs)
    lowest = max(job.low for job in jobs)
    cluster = Cap(nodes=rng.randint(lowest, wanted) if rng.random() < 0.8 else None)
    if rng.random() < 0.4:
        cluster = replace(cluster, usd_per_hour=round(rng.uniform(lowest, wanted) * 0.12, 3))
    user = Cap(nodes=rng.randint(lowest, wanted)) if rng.random() < 0.4 else Cap()
    queue = QueueRules(cluster, user, preempt=rng.random() < 0.5)
    return replace(scenario, jobs=jobs, rules=replace(scenario.rules, queue=queue))


def _with_warm(scenario: Scenario) -> Scenario:
    """In a third of the scenarios machines of ended jobs wait for the next one. Drawn apart, as above."""
    rng = random.Random(f"warm {scenario.seed}")
    if rng.random() < 2 / 3:
        return scenario
    usd = rng.choice([None, None, 0.25])
    warm = WarmRules(rng.choice([30.0, 120.0, 600.0]), rng.choice([None, None, 2]), usd, rng.random() < 0.3)
    scenario = replace(scenario, rules=replace(scenario.rules, warm=warm))
    return _with_some(scenario, "warm", WARM_WEIGHTS, [6, 12], share=1.0)


def _with_alternatives(scenario: Scenario) -> Scenario:
    """In a quarter of the scenarios jobs name two kinds of machines, in order of wish or by price, and those run out.
    Drawn apart, as above. Not where money is limited: a job keeps a kind of which its money buys too few to be
    complete, as long as it trains."""
    rng = random.Random(f"alternatives {scenario.seed}")
    limits = [scenario.rules.queue.cluster.usd_per_hour, *(job.usd_per_hour for job in scenario.jobs)]
    if rng.random() < 3 / 4 or any(limit is not None for limit in limits):
        return scenario
    jobs = tuple(
        replace(job, prefer=rng.choice(["listed", "cheapest"])) if job.kind == "training" else job
        for job in scenario.jobs
    )
    scenario = replace(scenario, jobs=jobs, types=("small", "large"))
    return _with_some(scenario, "kinds", KIND_WEIGHTS, [3, 6], share=1.0)


def _with_caps(scenario: Scenario) -> Scenario:
    """In a quarter of the scenarios jobs say what they pay at most for a machine, and prices change often. Drawn apart,
    as above. At its first prices each machine is within them."""
    rng = random.Random(f"caps {scenario.seed}")
    if rng.random() < 3 / 4:
        return scenario
    caps = [rng.choice([None, 0.115, 0.125, 0.145]) for _ in scenario.jobs]
    dearest = len(scenario.types)
    jobs = tuple(
        replace(job, usd_per_node_hour=None if cap is None else cap * dearest)
        for job, cap in zip(scenario.jobs, caps, strict=True)
    )
    return _with_some(replace(scenario, jobs=jobs), "caps", CAP_WEIGHTS, [3, 6], share=1.0)


def _with_markets(scenario: Scenario) -> Scenario:
    """In a quarter of the scenarios jobs take machines of other markets, too, some of which last for a limited time.
    Drawn apart, as above. Not where money is limited: what a job's money buys of a dear market is too little for it."""
    rng = random.Random(f"markets {scenario.seed}")
    limits = [scenario.rules.queue.cluster.usd_per_hour, *(job.usd_per_hour for job in scenario.jobs)]
    limits += [job.usd_per_node_hour for job in scenario.jobs]
    if rng.random() < 3 / 4 or scenario.rules.budgets.any or any(limit is not None for limit in limits):
        return scenario
    wishes = ["flex", "spot-then-flex", "flex-then-spot", "spot-then-on-demand", "spot-then-flex-then-on-demand"]
    jobs = tuple(replace(job, market=rng.choice(wishes)) if job.kind == "training" else job for job in scenario.jobs)
    return replace(scenario, jobs=jobs, flex_lasts_s=rng.choice([600.0, 1200.0, 3600.0]))


def _with_budgets(scenario: Scenario) -> Scenario:
    """In a quarter of the scenarios the cluster, each user, or both may spend so much that it is gone before the end,
    or soon; operators change that. Drawn apart, as above."""
    rng = random.Random(f"budgets {scenario.seed}")
    if rng.random() < 3 / 4:
        return scenario
    usd = 0.11 * scenario.hours * sum(job.desired + job.spares for job in scenario.jobs)
    cluster, user = (round(usd * rng.uniform(0.05, 0.9), 3) if rng.random() < 0.7 else None for _ in range(2))
    budgets = Budgets(cluster, user if cluster is not None else round(usd * 0.4, 3))
    scenario = replace(scenario, rules=replace(scenario.rules, budgets=budgets))
    return _with_some(scenario, "budgets' faults", BUDGET_WEIGHTS, [3, 6], share=1.0)


def _setting(rng: random.Random) -> tuple[FaultRates, Rules, tuple[Submission, ...]]:
    rates = {name: rng.choice([0.0, 0.0, 0.3, 1.0]) * worst for name, worst in MAX_RATES.items()}
    rules = Rules(
        listing_s=rng.choice([5.0, 10.0, 20.0]),
        consistency_s=rng.choice([60.0, 300.0]),
        orphan_grace_s=60.0,
        bootstrap_timeout_s=180.0,
        prices_s=300.0,
        launch_attempts=rng.choice([3, 5]),
        gone_kept=8,
        events_kept=200,
        alerts=True,
        silence=SilenceRules(suspect_s=rng.choice([20.0, 40.0])),
        unhealthy=UnhealthyRules(memory_s=300.0),
        waits=WaitsRules(alert_s=900.0, lacks_s=600.0),
    )
    jobs = tuple(_job(rng, f"job-{number}") for number in range(rng.choice([1, 1, 1, 2, 3])))
    return FaultRates(**rates), rules, jobs


def _injections(
    rng: random.Random, times: Sequence[float], relative: Mapping[str, int] = INJECTION_WEIGHTS
) -> tuple[Injection, ...]:
    weights = {kind: weight * rng.choice([0, 1, 1, 3]) for kind, weight in relative.items()}
    kinds = [kind for kind, weight in weights.items() if weight]
    if not kinds:
        kinds, weights = list(relative)[:1], dict(relative)
    chosen = rng.choices(kinds, [weights[kind] for kind in kinds], k=len(times))
    return tuple(Injection(at, kind, rng.randrange(1000), rng.random()) for at, kind in zip(times, chosen, strict=True))


def _time(rng: random.Random, most_s: float) -> float:
    """Half of them alone, half in clusters: coincidences are what breaks things."""
    if rng.random() < 0.5:
        return round(rng.uniform(60.0, most_s), 3)
    cluster = rng.randrange(6) * most_s / 6 + 60.0
    return round(min(most_s, cluster + rng.expovariate(1 / 30.0)), 3)


def _job(rng: random.Random, name: str) -> Submission:
    if rng.random() < 0.1:
        return Submission(name, 1, 1, 1, 0, kind="data")
    low = rng.randint(1, 2)
    desired = low + rng.randint(0, 2)
    high, spares = desired + rng.randint(0, 2), rng.choice([0, 0, 1, 2])
    limit = None
    if rng.random() < 0.3:  # too little to replace a machine before the old one has ended
        high, spares = desired, 2
        limit = round((high + spares) * 0.11 + 0.01, 3)
    spread, hang = rng.choice(["zone", "zone", "region"]), rng.choice(["alert", "restart"])
    return Submission(name, low, desired, high, spares, limit, spread, hang=hang)


def alternatives(job: Submission) -> dict[str, object]:
    """What a job file says of its alternatives: large machines do three times as much at twice the price."""
    if not job.prefer:
        return {}
    kinds = [{"instance_types": ["large"], "speed": 3.0}, {"instance_types": ["small"]}]
    return {"resources": kinds, "prefer": job.prefer}


def kinds_of(scenario: Scenario) -> list[str]:
    """The kinds of its injections, sorted."""
    return sorted({injection.kind for injection in scenario.injections})


def without_kind(scenario: Scenario, kind: str) -> Scenario:
    """The same without one kind of injection."""
    return replace(scenario, injections=tuple(injection for injection in scenario.injections if injection.kind != kind))


def without_fault_rate(scenario: Scenario, name: str) -> Scenario:
    """The same with one fault rate at zero."""
    return replace(scenario, fault_rates=replace(scenario.fault_rates, **{name: 0.0}))


def fault_rates_of(scenario: Scenario) -> list[str]:
    """The fault rates above zero."""
    return [each.name for each in fields(FaultRates) if getattr(scenario.fault_rates, each.name) > 0]
