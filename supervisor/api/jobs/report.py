"""How a job went, as the plain JSON from which `spotsupctl report` makes its page. Times in UNIX seconds, money in US
dollars. Its totals are those of `status` and `cost`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from fastapi import FastAPI

from provisioners.base import Market, Offer, ProvisionerError
from supervisor.access import Action
from supervisor.api.jobs.presenter import Presenter
from supervisor.api.jobs.reading import Jobs
from supervisor.api.jobs.views import cost_row, job_row
from supervisor.api.quote import Quotes
from supervisor.api.security.rules import may
from supervisor.curve import Curve, Point, Speed
from supervisor.errors import SpotsupError
from supervisor.features.limits.rule import spent_usd
from supervisor.model import NodeRecord
from supervisor.planner.world import JobView


@dataclass(frozen=True, slots=True)
class OnDemand:
    """The prices of a job's kinds of machines on the on-demand market."""

    by_place: Mapping[tuple[str, str], float]  # (zone, instance type) -> US dollars per hour
    problem: str = ""  # why some, or all, are not known

    def price(self, offer: Offer) -> float | None:
        """Return the price of a machine as offered there; that of another zone of its region where its own lists
        none."""
        if offer.market is Market.ON_DEMAND and offer.usd_per_hour is not None:
            return offer.usd_per_hour
        own = self.by_place.get((offer.zone, offer.instance_type))
        return self.by_place.get((offer.region, offer.instance_type)) if own is None else own


Prices: TypeAlias = Callable[[JobView], OnDemand]


def add_report(app: FastAPI, jobs: Jobs, presenter: Presenter, prices: Prices) -> None:
    """Add the route. `prices`: asks a job's cloud for its on-demand prices."""

    @app.get("/v1/jobs/{name}/report", openapi_extra=may(Action.READ))
    def report(name: str) -> dict[str, Any]:
        view, curve = jobs.curve(name)
        return report_row(view, presenter.sentence(view), curve, prices(view), presenter.clock.now())


def on_demand_prices(quotes: Quotes, view: JobView) -> OnDemand:
    """Ask the job's cloud, now. One that does not answer leaves the prices unknown."""
    kinds = {(node.offer.cloud, node.offer.instance_type) for node in view.nodes.values() if node.launched_at}
    if not kinds:
        return OnDemand({}, "it has had no machine")
    spec = view.record.spec
    query = replace(
        spec.offer_queries[0], instance_types=tuple(sorted({kind for _, kind in kinds})), market=Market.ON_DEMAND
    )
    try:
        offers = quotes.offers(spec.placement.cloud, (replace(query, gpu="", gpus_per_node=0, file_servers=()),))
    except (ProvisionerError, SpotsupError, TimeoutError) as error:
        return OnDemand({}, f"{spec.placement.cloud} did not list its on-demand prices: {error or 'no answer'}")
    found: dict[tuple[str, str], float] = {}
    for each in offers:
        if each.usd_per_hour is not None:
            found.setdefault((each.region, each.instance_type), each.usd_per_hour)
            found[each.zone, each.instance_type] = each.usd_per_hour
    return OnDemand(found)


def report_row(view: JobView, sentence: str, curve: Curve | None, prices: OnDemand, now: float) -> dict[str, Any]:
    """Everything that the report shows."""
    job, cost = view.record, cost_row(view, now)
    until = job.ended_at or now
    points = _points(view, curve, cost["usd"], until)
    nodes = [node for node in view.nodes.values() if node.launched_at]
    on_demand = _on_demand(nodes, prices, cost, [each["at"] for each in points], now)
    speeds = _speed_rows(curve.speeds if curve else ())
    trained_s = sum(each["seconds"] for each in speeds)
    return {
        **job_row(view, sentence, now),
        "now": now,
        "cloud": job.spec.placement.cloud,
        "market": job.spec.market,
        "command": list(job.spec.command),
        "elapsed_s": round(until - job.submitted_at, 1),
        "epoch": view.progress.epoch if view.progress else 0,
        "samples": view.progress.samples if view.progress else 0,
        "speeds": speeds,
        "stepping_s": round(trained_s, 1),
        "usd_per_epoch": _usd_per_epoch(curve),
        "cost": cost,
        "on_demand": on_demand,
        "pauses": _pauses(curve),
        "points": points,
        "point_distance_s": curve.distance_s if curve else None,
    }


def on_demand_row(view: JobView, prices: OnDemand, now: float) -> dict[str, Any]:
    """Return what the same machine hours would have cost on demand; `usd` is None where that is not known."""
    nodes = [node for node in view.nodes.values() if node.launched_at]
    job = view.record
    cost = {"usd": spent_usd(job, view.nodes.values(), now), "dropped_nodes_usd": job.billing.dropped_usd}
    found = _on_demand(nodes, prices, cost, (), now)
    return {name: found[name] for name in ("usd", "saved", "estimated", "problem")}


def _points(view: JobView, curve: Curve | None, usd: float, until: float) -> list[dict[str, Any]]:
    """Return the points of the curve, the start, and how it is now: what it costs now is what `cost` shows."""
    job = view.record
    found = list(curve.points) if curve else []
    if curve and curve.newest.at > found[-1].at:
        found.append(curve.newest)
    if found and until > found[-1].at:
        last = found[-1]
        found.append(last._replace(at=until, usd=usd, nodes=0 if job.ended else last.nodes))
    if found:
        first = found[0]
        found.insert(0, Point(min(job.submitted_at, first.at), 0, 0, first.epoch, None, 0, 0.0))
    return [each._asdict() for each in found]


def _speed_rows(speeds: Sequence[Speed]) -> list[dict[str, Any]]:
    """Return the speeds by number of nodes. Efficiency: the speed per node, relative to that of the fewest nodes."""
    rows = []
    useful = [each for each in speeds if each.seconds > 0 and each.steps > 0 and each.nodes > 0]
    sampled = all(each.samples for each in useful)
    base = 0.0
    for each in useful:
        per_s = (each.samples if sampled else each.steps) / each.seconds
        base = base or per_s / each.nodes
        rows.append(
            {
                "nodes": each.nodes,
                "seconds": each.seconds,
                "steps": each.steps,
                "samples": each.samples,
                "steps_per_s": round(each.steps / each.seconds, 4),
                "samples_per_s": round(each.samples / each.seconds, 2) if each.samples else None,
                "efficiency": round(per_s / each.nodes / base, 4),
            }
        )
    return rows


def _usd_per_epoch(curve: Curve | None) -> float | None:
    """Return what an epoch has cost, with machines that booted or waited. None before the first is complete."""
    if curve is None or curve.last_epoch is None:
        return None
    return round(curve.last_epoch.usd / (curve.last_epoch.epochs - curve.first_epoch), 4)


def _pauses(curve: Curve | None) -> dict[str, Any]:
    totals = curve.totals if curve else ()
    return {
        "count": sum(each.pauses for each in totals),
        "seconds": round(sum(each.seconds for each in totals), 2),
        "by_cause": [each._asdict() for each in totals],
        "newest": [each._asdict() for each in (curve.pauses if curve else ())],
    }


def _on_demand(
    nodes: Sequence[NodeRecord], prices: OnDemand, cost: Mapping[str, Any], times: Iterable[float], now: float
) -> dict[str, Any]:
    """Return the same machine hours at on-demand prices: in all, and until each of these times."""
    unknown = sorted({node.offer.instance_type for node in nodes if prices.price(node.offer) is None})
    problem = prices.problem or (f"no on-demand price is known for {', '.join(unknown)}" if unknown else "")
    unpriced = [node for node in nodes if node.offer.usd_per_hour is None]
    if unpriced and not problem:
        problem = f"the price of {len(unpriced)} of its machines is not known"
    if problem or not nodes:
        return {"usd": None, "saved": None, "by_point": [], "estimated": False, "problem": problem}
    dropped_usd = float(cost["dropped_nodes_usd"])
    kept_usd = float(cost["usd"]) - dropped_usd
    total = _hours_usd(nodes, prices, now)
    # Of older nodes only their cost is kept: their share is taken to be that of the others.
    factor = (kept_usd + dropped_usd) / kept_usd if kept_usd > 0 else 1.0
    usd = total * factor
    return {
        "usd": round(usd, 4),
        "saved": round(1 - float(cost["usd"]) / usd, 4) if usd > 0 else None,
        "by_point": [round(_hours_usd(nodes, prices, at) * factor, 4) for at in times],
        "estimated": dropped_usd > 0,
        "problem": "",
    }


def _hours_usd(nodes: Iterable[NodeRecord], prices: OnDemand, at: float) -> float:
    total = 0.0
    for node in nodes:
        hours = max(0.0, min(at, node.ended_at or at) - node.launched_at) / 3600
        total += hours * (prices.price(node.offer) or 0.0)
    return total
