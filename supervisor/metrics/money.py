"""What jobs cost and what for, their goodput, and the budgets. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from supervisor.billing import Booking, Purpose, month_of
from supervisor.features.billing.bookings import bookings_of
from supervisor.features.budgets.rule import budget_uses, by_deleted, spending
from supervisor.metrics.picture import JOB_LABEL, Picture
from supervisor.planner.boundary import Boundary
from supervisor.planner.world import JobView, Rules, VolatileState, World

MAX_BUDGETS = 200


def money_families(picture: Picture) -> Iterator[Metric]:
    """Dollars and node-seconds by purpose of live jobs; what the cluster spends; budgets."""
    bookings = {view.name: bookings_of(view.record, view.nodes.values(), picture.now) for view in picture.live_jobs}
    usd = GaugeMetricFamily(
        "spotsup_job_usd", "US dollars that a job has cost, by purpose.", labels=[JOB_LABEL, "purpose"]
    )
    seconds = GaugeMetricFamily(
        "spotsup_job_node_seconds", "Paid node-seconds of a job, by purpose.", labels=[JOB_LABEL, "purpose"]
    )
    goodput = GaugeMetricFamily(
        "spotsup_job_goodput_ratio", "Share of paid time whose steps were made and kept.", labels=[JOB_LABEL]
    )
    for name, found in bookings.items():
        for purpose in Purpose:
            of_purpose = [each for each in found if each.purpose is purpose]
            usd.add_metric([name, str(purpose)], sum(each.usd for each in of_purpose))
            seconds.add_metric([name, str(purpose)], sum(each.seconds for each in of_purpose))
        share = goodput_of(found)
        if share is not None:
            goodput.add_metric([name], share)
    yield from (usd, seconds, goodput)
    rates = GaugeMetricFamily(
        "spotsup_job_usd_per_hour", "US dollars per hour that a job costs now.", labels=[JOB_LABEL]
    )
    for view in picture.live_jobs:
        rates.add_metric([view.name], _usd_per_hour(view))
    yield rates
    limits = GaugeMetricFamily("spotsup_job_limit_usd", "`limits.usd` of a job that has it.", labels=[JOB_LABEL])
    for view in picture.live_jobs:
        if view.record.spec.limits.usd is not None:
            limits.add_metric([view.name], view.record.spec.limits.usd)
    yield limits
    yield from _cluster(picture)


def goodput_of(bookings: tuple[Booking, ...]) -> float | None:
    """Return the share of paid time that was useful; None before any."""
    paid_s = sum(each.seconds for each in bookings)
    useful_s = sum(each.seconds for each in bookings if each.purpose is Purpose.USEFUL)
    return useful_s / paid_s if paid_s > 0 else None


def _usd_per_hour(view: JobView) -> float:
    billed = (node for node in view.nodes.values() if node.launched_at and not node.ended_at)
    return sum(node.offer.usd_per_hour or 0.0 for node in billed)


def _cluster(picture: Picture) -> Iterator[Metric]:
    views, month = picture.reading.jobs.values(), month_of(picture.now)
    now_usd = sum(map(_usd_per_hour, views))
    yield GaugeMetricFamily("spotsup_usd_per_hour", "US dollars per hour that all machines cost now.", value=now_usd)
    spent = sum(each.usd for view in views for each in spending(view, month, picture.now))
    spent += sum(each.usd for each in by_deleted(picture.reading.budgets, month))
    yield GaugeMetricFamily("spotsup_month_usd", "US dollars spent in this month (UTC).", value=spent)
    unpriced = sum(
        node.offer.usd_per_hour is None
        for view in views
        for node in view.nodes.values()
        if node.launched_at and not node.ended_at
    )
    text = "Machines that bill at a price that is not known."
    yield GaugeMetricFamily("spotsup_nodes_unpriced", text, value=unpriced)
    limit = GaugeMetricFamily("spotsup_budget_usd", "A budget per month, by whose it is.", labels=["scope"])
    used = GaugeMetricFamily("spotsup_budget_spent_usd", "What is spent of it this month.", labels=["scope"])
    world = World(
        picture.reading.jobs,
        VolatileState(),
        Rules(budgets=picture.budgets),
        (),
        budget_record=picture.reading.budgets,
    )
    uses = budget_uses(world, Boundary(), picture.now)
    for scope, use in sorted(uses.items())[:MAX_BUDGETS]:
        limit.add_metric([scope], use.limit)
        used.add_metric([scope], use.usd)
    yield limit
    yield used
