"""`/v1/health`, `/v1/daemon`, `/v1/me`, `/v1/ca`, `/v1/adopt`: the daemon itself, and who asks it."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import FastAPI, Request
from pydantic import Field

from supervisor.access import Action
from supervisor.api.body import RequestBody
from supervisor.api.daemon.adoption import Adoption
from supervisor.api.daemon.daemons import Daemons
from supervisor.api.rows import AdoptedRow, CallerRow, CaRow, HealthRow
from supervisor.api.security.gate import caller_of_request
from supervisor.api.security.rules import may
from supervisor.errors import NotFoundError
from supervisor.runtime.loop import Status


class PauseBody(RequestBody):
    """Why, shown by `spotsupctl daemon status`."""

    reason: str = Field(default="", max_length=200)


class AdoptBody(RequestBody):
    """Names of jobs whose machines are terminated instead of adopted; and clouds whose present account is right,
    although the machines in the journal were in another one."""

    release: list[str] = Field(default=[], max_length=1000)
    accounts: list[str] = Field(default=[], max_length=10)


def add_daemons(app: FastAPI, daemons: Daemons, status: Callable[[], Status], version: str) -> None:
    """Add how the daemon is, and what an operator may do to all of them."""

    def row() -> HealthRow:
        now, pause = status(), daemons.paused
        return {
            "version": version,
            "at": now.at,
            "headline": now.headline,
            "leading": daemons.leads,
            "leader": daemons.other_leader or None,
            "paused": None if pause is None else {"at": pause.at, "reason": pause.reason},
            "counters": dict(now.counters),
            "etcd_away_since": now.etcd_away_since or None,
        }

    @app.get("/v1/health", openapi_extra=may(Action.READ))
    def health() -> HealthRow:
        return row()

    @app.get("/v1/me", openapi_extra=may(Action.READ))
    def me(request: Request) -> CallerRow:
        caller = caller_of_request(request)
        return {"name": caller.name, "role": caller.role, "token": caller.token or None}

    @app.post("/v1/daemon/pause", openapi_extra=may(Action.OPERATE))
    def pause_daemons(body: PauseBody) -> HealthRow:
        daemons.pause(body.reason)
        return row()

    @app.post("/v1/daemon/resume", openapi_extra=may(Action.OPERATE))
    def resume_daemons() -> HealthRow:
        daemons.resume()
        return row()


def add_ca(app: FastAPI, ca: Callable[[], str]) -> None:
    """Add the certificate by which the daemon's own one is trusted. `ca`: "" for none."""

    @app.get("/v1/ca", openapi_extra=may(Action.PUBLIC))
    def own_ca() -> CaRow:
        if not (text := ca()):
            raise NotFoundError(
                "the certificate of this API is not the daemon's own, so its CA is not known here; ask who made "
                "api.cert, and trust that (`spotsupctl login --ca FILE`)"
            )
        return {"ca": text}


def add_adoption(app: FastAPI, adoption: Adoption) -> None:
    """Add `POST /v1/adopt`."""

    @app.post("/v1/adopt", openapi_extra=may(Action.OPERATE))
    def adopt(body: AdoptBody) -> list[AdoptedRow]:
        return [
            {
                "job": each.job.name,
                "state": each.job.state,
                "text": each.event.text,
                "nodes": {node.id: node.state for node in each.nodes},
            }
            for each in adoption.adopt(body.release, body.accounts)
        ]
