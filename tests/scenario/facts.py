"""What came of the day, as plain data: `build/scenario.json`, and all that the page shows."""

from __future__ import annotations

import itertools
import platform
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from spotsup_simulator.training import Training
from spotsup_trainer import __version__

from provisioners.base import EndCause, Market
from supervisor.billing import Purpose, by_purpose
from supervisor.cli.show import counted
from supervisor.events import EventKind
from supervisor.features.limits.rule import spent_usd
from supervisor.model import Event, JobState
from supervisor.planner.world import JobView
from supervisor.web.timeline import Timeline, Window, timeline
from tests.scenario.day import Day, lost_s, useful_s
from tests.scenario.story import HOUR_S, USERS
from tests.sim.promises import jobs_of

ROOT = Path(__file__).resolve().parent.parent.parent
MAX_PAUSE_S = 900.0  # a longer gap between two rounds is a wait, not a pause
# What each promise means here, and what checks it after every event.
PROMISES = (
    ("P1", "no leak", "Every machine with our tag is in the journal, or is ended within the grace."),
    ("P2", "no double", "One intent never yields two machines."),
    ("P3", "no overshoot", "No request goes beyond what is wanted, or beyond the limits of users and cluster."),
    ("P4", "no false kill", "No working machine is ended without a notice, evidence, or a user's command."),
    ("P5", "fair blame", "A job fails only by failures of its own program."),
    ("P6", "nothing acknowledged is lost", "What a daemon has acknowledged stays, whatever happens to daemons."),
    (
        "P7",
        "training outlives us",
        "While etcd, the leader or the clouds were away, rounds with all their machines went on.",
    ),
    ("P8", "one place", "The nodes of a round share one zone."),
    ("P9", "no step lost with notice", "No completed step is lost when a notice was longer than a checkpoint."),
    ("P10", "fenced", "A daemon that does not lead writes nothing."),
    ("P11", "nothing spreads", "No daemon had to contain a fault of its own."),
    ("P12", "progress is kept", "Jobs at a limit or a budget are paused with a checkpoint, not ended."),
    ("P13", "no money unseen", "All that was spent has a purpose; nothing is held below min for long."),
)
# Events that the day's story has, too.
TOLD = {
    EventKind.LIMIT_REACHED: "money",
    EventKind.BUDGET_REACHED: "money",
    EventKind.DEADLINE_MISSED: "money",
    EventKind.DISPLACED: "user",
    EventKind.MOVED: "good",
    EventKind.PLACE_CHANGED: "good",
    EventKind.SILENCE: "fault",
    EventKind.SILENCE_ENDED: "good",
    EventKind.JOB_DONE: "good",
    EventKind.JOB_FAILED: "fault",
    EventKind.WAITS_LONG: "fault",
}
TOGETHER = frozenset({EventKind.SILENCE, EventKind.SILENCE_ENDED})
NOT_HERE = "Training is simulated: that real processes keep P7 and P9, make demo, make chaos and tests/e2e try."


def facts(day: Day, command: str) -> dict[str, Any]:
    """Everything."""
    jobs = [_job(day, view) for view in sorted(_views(day).values(), key=lambda view: view.record.submitted_at)]
    return {
        "ok": True,
        "repeat": _repeat(day, command),
        "promises": {
            "violations": 0,
            "checks": day.promises.checked,
            "events": day.world.steps,
            "decisions": day.world.ticks,
            "trained_on": day.trained_on,
            "kept": [{"id": name, "name": title, "means": means} for name, title, means in PROMISES],
            "not_here": NOT_HERE,
        },
        "total": _total(day, jobs),
        "users": [_user(name, jobs) for name in sorted({job["owner"] for job in jobs})],
        "purposes": _purposes(jobs),
        "jobs": jobs,
        "sweep": day.sweep_row(),
        "limit_nodes": day.story.queue.cluster.nodes,
        "pools": [_pool(day, key) for key in sorted(day.world.clouds.pools)],
        "story": _story(day),
        "samples": [asdict(each) for each in day.samples],
        "takeovers": [asdict(each) for each in day.takeovers],
        "alerts": [
            {
                "second": round(each.at - day.world.started_at, 1),
                "job": each.job,
                "kind": str(each.kind),
                "text": each.text,
            }
            for each in day.world.sent
        ],
    }


def broken(day: Day, command: str, violation: str) -> dict[str, Any]:
    """Where a promise was broken: what is needed to look at it."""
    return {
        "ok": False,
        "violation": violation,
        "second": day.second(),
        "repeat": _repeat(day, command),
        "story": [asdict(each) for each in day.told],
        "log": day.world.log[-200:],
    }


def _story(day: Day) -> list[dict[str, Any]]:
    """What was told, what daemons did about it, and how many machines were taken in each hour."""
    began = day.world.started_at
    found = [asdict(each) for each in day.told]
    found += _of_events([each for each in day.events if each.kind in TOLD], began)
    taken: dict[int, Counter[str]] = defaultdict(Counter)
    for machine, pool, _, _ in day.world.clouds.bought:
        if machine.noticed_at is not None and machine.instance.end_cause is EndCause.PREEMPTED:
            taken[int((machine.noticed_at - began) // HOUR_S)][pool.zone] += 1
    for hour, zones in taken.items():
        where = ", ".join(f"{count} in {zone}" for zone, count in zones.most_common())
        count = counted(sum(zones.values()), "machine")
        text = f"From now to {hour + 1:02d}:00 clouds take {count} with a notice: {where}."
        found.append({"second": hour * HOUR_S, "kind": "fault", "text": text})
    return sorted(found, key=lambda each: each["second"])


def _of_events(events: Sequence[Event], began: float) -> Iterator[dict[str, Any]]:
    """Each once; what is said of several jobs within a minute by the same network fault is one sentence."""
    together: dict[EventKind, tuple[float, dict[str, Any]]] = {}
    for each in sorted(events, key=lambda event: event.at):
        first_at, first = together.get(each.kind, (0.0, {}))
        if each.kind in TOGETHER and first and each.at <= first_at + 60.0:
            first["text"] += f" Likewise {each.job}."
            continue
        found = {"second": each.at - began, "kind": TOLD[each.kind], "text": each.text.rstrip(".") + "."}
        together[each.kind] = (each.at, found)
        yield found


def _views(day: Day) -> Mapping[str, JobView]:
    return jobs_of(day.world)


def _repeat(day: Day, command: str) -> dict[str, Any]:
    asked = ["git", "rev-parse", "--short=12", "HEAD"]
    commit = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    return {
        "seed": day.seed,
        "command": command,
        "digest": day.world.digest(),
        "hours": day.story.hours,
        "recording": day.recording.name if day.recording else None,
        "version": __version__,
        "commit": commit.stdout.strip() or "unknown",
        "python": platform.python_version(),
        "wall_s": round(day.wall_s, 1),
        "cpu_s": round(day.cpu_s, 1),
    }


def _on_demand_usd(day: Day, job: str) -> float:
    """What the same machine hours would have cost on demand."""
    now = day.world.clock.now()
    return sum(
        ((machine.ended_at or now) - since) / HOUR_S * pool.kind.on_demand_usd_per_h
        for machine, pool, _, since in day.world.clouds.bought
        if machine.node.rsplit("-", 2)[0] == job
    )


def _job(day: Day, view: JobView) -> dict[str, Any]:
    job, now, began = view.record, day.world.clock.now(), day.world.started_at
    training, track = day.world.nodes.trainings.get(job.name), day.tracks[job.name]
    until = job.ended_at or now
    events = [each for each in day.events if each.job == job.name]
    usd = spent_usd(job, view.nodes.values(), now)
    bought = [each for each in day.world.clouds.bought if each[0].node.rsplit("-", 2)[0] == job.name]
    held_h = sum(((machine.ended_at or now) - since) / HOUR_S for machine, _, _, since in bought)
    paid_on_demand = sum(market is Market.ON_DEMAND for _, _, market, _ in bought)
    useful_h = useful_s(training, until) / HOUR_S if training else 0.0
    preempted = [machine for machine, *_ in bought if machine.instance.end_cause is EndCause.PREEMPTED]
    noticed = [machine for machine in preempted if machine.noticed_at is not None]
    planned = next((each for each in day.story.jobs if each.name == job.name), None)
    first = track.first_step_s
    return {
        "name": job.name,
        "owner": job.owner,
        "why": planned.why if planned else "",
        "cloud": job.spec.placement.cloud,
        "gpu": " or ".join(each.gpu for each in job.spec.resources),
        "nodes": {"min": job.min_nodes, "desired": job.desired_nodes, "max": job.max_nodes},
        "market": job.spec.market,
        "priority": job.spec.priority,
        "state": str(job.state),
        "reason": job.reason,
        "submitted_s": round(job.submitted_at - began, 1),
        "may_begin_s": round(max(job.submitted_at, job.starts_at) - began, 1),
        "first_step_s": None if first is None else round(first, 1),
        "ended_s": round(job.ended_at - began, 1) if job.ended_at else None,
        "finish_by_s": round(job.deadline.finish_by - began, 1) if job.deadline.finish_by else None,
        "waited_first_s": None
        if first is None
        else round(max(0.0, first - (max(job.submitted_at, job.starts_at) - began)), 1),
        "waited_s": round(track.waiting_s, 1),
        "usd": round(usd, 4),
        "on_demand_usd": round(_on_demand_usd(day, job.name), 4),
        "purposes": {str(name): round(value, 4) for name, value in _purposes_of(view, now).items()},
        "useful_node_h": round(useful_h, 3),
        "held_node_h": round(held_h, 3),
        "machines": len(bought),
        "on_demand_machines": paid_on_demand,
        "preempted": len(preempted),
        "noticed": len(noticed),
        "lost_node_h": round(lost_s(training) / HOUR_S, 3) if training else 0.0,
        "steps_lost": training.steps.lost if training else 0,
        "rounds": training.round_number if training else 0,
        "pauses_s": _pauses(training, until),
        "events": [
            {"second": round(each.at - began, 1), "kind": str(each.kind), "node": each.node, "text": each.text}
            for each in events
        ],
        "timeline": _timeline(replace(view, nodes=day.nodes.get(job.name, {})), Window(began, now)),
    }


def _purposes_of(view: JobView, now: float) -> dict[Purpose, float]:
    """What its dollars were for; what is not booked yet belongs to the present purpose of each node."""
    sums = by_purpose(view.record.billing.dropped)
    for node in view.nodes.values():
        for name, usd in by_purpose(node.billing.bookings).items():
            sums[name] += usd
        sums[node.billing.purpose or Purpose.UNKNOWN] += max(0.0, node.usd(now) - node.billing.usd)
    return sums


def _pauses(training: Training | None, until: float) -> list[float]:
    """Seconds between two spans of training."""
    spans = training.steps.spans_until(until) if training else []
    gaps = [later.start - earlier.end for earlier, later in itertools.pairwise(spans)]
    return [round(gap, 1) for gap in gaps if 0 < gap <= MAX_PAUSE_S]


def _timeline(view: JobView, window: Window) -> dict[str, Any]:
    """As the dashboard has it; places are in percent of the day."""
    found: Timeline = timeline(view, None, (), window)
    return {
        "left_out": found.left_out,
        "lanes": [
            {
                "name": lane.name,
                "nodes": lane.nodes,
                "bars": [[bar.kind, bar.left, bar.width, bar.text] for bar in lane.bars],
                "notices": [[mark.left, mark.text] for mark in lane.notices],
            }
            for lane in found.lanes
        ],
    }


def _pool(day: Day, key: tuple[str, str]) -> dict[str, Any]:
    pool = day.world.clouds.pools[key]
    hours = range(int(day.story.hours))
    bought = [each for each in day.world.clouds.bought if each[1] is pool]
    now = day.world.clock.now()
    return {
        "cloud": pool.kind.cloud,
        "zone": pool.zone,
        "type": pool.kind.name,
        "gpu": pool.kind.gpu,
        "capacity": [int(pool.capacity.at(hour * HOUR_S + 1800)) for hour in hours],
        "usd_per_h": [pool.prices.at(hour * HOUR_S) for hour in hours],
        "on_demand_usd_per_h": pool.kind.on_demand_usd_per_h,
        "machines": len(bought),
        "node_h": round(sum(((machine.ended_at or now) - since) / HOUR_S for machine, _, _, since in bought), 2),
        "preempted": sum(machine.instance.end_cause is EndCause.PREEMPTED for machine, *_ in bought),
    }


def _purposes(jobs: list[dict[str, Any]]) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for job in jobs:
        for name, usd in job["purposes"].items():
            sums[name] += usd
    return {name: round(usd, 4) for name, usd in sums.items()}


def _user(name: str, jobs: list[dict[str, Any]]) -> dict[str, Any]:
    mine = [job for job in jobs if job["owner"] == name]
    waits = [job["waited_first_s"] for job in mine if job["waited_first_s"] is not None]
    return {
        "name": name,
        "does": USERS.get(name, ""),
        "jobs": len(mine),
        "states": dict(Counter(job["state"] for job in mine)),
        "usd": round(sum(job["usd"] for job in mine), 4),
        "on_demand_usd": round(sum(job["on_demand_usd"] for job in mine), 4),
        "useful_node_h": round(sum(job["useful_node_h"] for job in mine), 3),
        "held_node_h": round(sum(job["held_node_h"] for job in mine), 3),
        "first_wait_s": {"mean": sum(waits) / len(waits), "max": max(waits)} if waits else None,
        "waited_s": round(sum(job["waited_s"] for job in mine), 1),
    }


def _total(day: Day, jobs: list[dict[str, Any]]) -> dict[str, Any]:
    pauses = sorted(pause for job in jobs for pause in job["pauses_s"])
    usd, on_demand = sum(job["usd"] for job in jobs), sum(job["on_demand_usd"] for job in jobs)
    useful, held = sum(job["useful_node_h"] for job in jobs), sum(job["held_node_h"] for job in jobs)
    kinds = Counter(each.kind for each in day.events)
    return {
        "jobs": len(jobs),
        "states": dict(Counter(job["state"] for job in jobs)),
        "running": sum(job["state"] in {str(JobState.RUNNING), str(JobState.DEGRADED)} for job in jobs),
        "usd": round(usd, 2),
        "on_demand_usd": round(on_demand, 2),
        "saved": round(1 - usd / on_demand, 4) if on_demand else None,
        "useful_node_h": round(useful, 2),
        "held_node_h": round(held, 2),
        "goodput": round(useful / held, 4) if held else None,
        "most_nodes": max((sample.held for sample in day.samples), default=0),
        "machines": len(day.world.clouds.bought),
        "refusals": day.world.clouds.refusals,
        "preempted": sum(job["preempted"] for job in jobs),
        "noticed": sum(job["noticed"] for job in jobs),
        "lost_node_h": round(sum(job["lost_node_h"] for job in jobs), 3),
        "steps_lost": sum(job["steps_lost"] for job in jobs),
        "rounds": sum(job["rounds"] for job in jobs),
        "pauses": len(pauses),
        "pause_median_s": pauses[len(pauses) // 2] if pauses else None,
        "pause_p95_s": pauses[int(len(pauses) * 0.95)] if pauses else None,
        "machines_left": sum(machine.billed for machine in day.world.cloud.machines.values()),
        "decisions": dict(day.decisions.most_common()),
        "displaced": kinds[EventKind.DISPLACED],
        "events": len(day.events),
        "commands": day.users.acknowledged,
        "refused_commands": day.users.refused,
    }
