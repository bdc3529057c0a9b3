"""What is recorded of the pools that a job may use, as plain JSON: `spotsupctl plan --simulate` plays the job on it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from fastapi import FastAPI
from pydantic import Field

from provisioners.base import Market
from supervisor.access import Action
from supervisor.api.body import RequestBody
from supervisor.api.quote import Quote
from supervisor.api.security.rules import may
from supervisor.api.submit.job_files import JobFiles
from supervisor.journal.journal import DayKey
from supervisor.pool_days import MAX_DAYS, MAX_POOLS, PoolDay, as_json, pool_of
from supervisor.runtime.clock import Clock
from supervisor.spec import JobSpec


class RecordedBody(RequestBody):
    """A job file's content."""

    spec: dict[str, Any] = Field(repr=False)


def add_recorded(app: FastAPI, job_files: JobFiles, clock: Clock) -> None:
    """Add the route."""

    @app.post("/v1/recorded", openapi_extra=may(Action.PLAN))
    def recorded(body: RecordedBody) -> dict[str, Any]:
        return recorded_row(*job_files.recorded(body.spec), clock.now())


def recorded_row(spec: JobSpec, quote: Quote, found: Mapping[DayKey, PoolDay | None], now: float) -> dict[str, Any]:
    """Return the records of a job's pools on the spot market, of the last days and the oldest first."""
    today = datetime.fromtimestamp(now, UTC)
    days = {(today - timedelta(days=back)).strftime("%Y-%m-%d") for back in range(MAX_DAYS)}
    spot = [each for each in quote.offers if each.market is Market.SPOT]
    pools = {pool_of(offer).key for offer in spot}
    records = [(day, pool, record) for (day, pool), record in sorted(found.items()) if day in days and pool in pools]
    on_demand = [each.usd_per_hour for each in quote.offers if each.market is Market.ON_DEMAND]
    return {
        "cloud": spec.placement.cloud,
        "offers_known": quote.known,
        "warnings": list(quote.warnings),
        "days": [
            {"day": day, **as_json(record)} for day, _, record in records[: MAX_DAYS * MAX_POOLS] if record is not None
        ],
        "unreadable": sum(record is None for _, _, record in records),
        "usd_per_hour": {each.zone: each.usd_per_hour for each in reversed(spot) if each.usd_per_hour is not None},
        "on_demand_usd_per_hour": min((usd for usd in on_demand if usd is not None), default=None),
    }
