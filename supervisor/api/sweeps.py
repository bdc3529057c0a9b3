"""Sweeps: what `spotsupctl submit --sweep` brings, how they are, and their end."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from operator import itemgetter
from typing import Any, Literal

from fastapi import FastAPI, Request, Response
from pydantic import ConfigDict, Field

from supervisor.access import Action, Caller, refusal
from supervisor.api.body import RequestBody
from supervisor.api.pages import After, Limit, page
from supervisor.api.quote import check_admissible
from supervisor.api.rows import SweepRow
from supervisor.api.security.gate import caller_of_request, name_target
from supervisor.api.security.rules import may
from supervisor.api.service import Service
from supervisor.errors import CommandRefusedError, ForbiddenError, NotFoundError, UsageError
from supervisor.job_keys import set_key
from supervisor.journal.journal import Journal
from supervisor.market.admission import QueueRules
from supervisor.new_job import uid_of
from supervisor.runtime.clock import Clock
from supervisor.runtime.sweeps import seen_of
from supervisor.sweep import MAX_NAME, METRIC, Member, SweepRecord, Value, expand, member_spec

MAX_TRIES = 20
NOTHING_YET: Mapping[str, Any] = {"step": 0, "loss": None, "usd": 0.0, "trained_s": 0.0, "value": None}


class AxisBody(RequestBody):
    """A parameter and its values."""

    model_config = ConfigDict(allow_inf_nan=False)

    name: str = Field(max_length=200)
    values: list[Value] = Field(max_length=1000)


class SweepBody(RequestBody):
    """A job file's content, and the values of its parameters in order."""

    spec: dict[str, Any] = Field(repr=False)
    code_sha256: str = Field(pattern="^[0-9a-f]{64}$")
    submission: str = Field(min_length=8, max_length=64)
    axes: list[AxisBody] = Field(min_length=1, max_length=16)
    parallel: int = Field(ge=1, le=1000)
    metric: str = Field(default="", pattern=f"^({METRIC})?$")
    mode: Literal["min", "max"] = "min"


class Sweeps:
    """The verbs of sweeps, over the journal. Each change is stored before it is acknowledged (P6)."""

    def __init__(self, service: Service, journal: Journal, clock: Clock, queue: QueueRules) -> None:
        self._job_files, self._submissions = service.job_files, service.submissions
        self._journal = journal
        self._clock = clock
        self._queue = queue

    def check(self, body: SweepBody, owner: str) -> SweepRecord:
        """Return the sweep that is asked for. Raises UsageError and CommandRefusedError, as for each of its jobs."""
        points = expand([(each.name, tuple(each.values)) for each in body.axes])
        name = body.spec.get("name", "")
        if not isinstance(name, str) or len(name) > MAX_NAME:
            raise UsageError(
                f"the name of a sweep has at most {MAX_NAME} characters, since its jobs are NAME-1, "
                "NAME-2, …: choose a shorter one"
            )
        members = tuple(Member(number, point) for number, point in enumerate(points, 1))
        now, uid = self._clock.now(), uid_of(body.submission)
        sweep = SweepRecord(
            name,
            uid,
            owner,
            body.spec,
            body.code_sha256,
            now,
            body.parallel,
            members,
            metric=body.metric,
            mode=body.mode,
        )
        for member in members:
            spec = self._job_files.parse(member_spec(sweep.base, sweep.job_name(member), member.point))
            check_admissible(spec, owner, self._queue)
            if spec.schedule:
                raise UsageError("a sweep has no `schedule`: leave it out, and submit the sweep when it is to begin")
        # Of a daemon's only cloud, which a job file need not name.
        base = dict(sweep.base)
        if not spec.places:
            set_key(base, "placement.cloud", spec.placement.cloud)
        return replace(sweep, base=base)

    def submit(self, body: SweepBody, caller: Caller) -> SweepRecord:
        """Store a new sweep. `body.submission` sent again means the same one."""
        sweep = self.check(body, caller.name)
        first = sweep.members[0]
        for _ in range(MAX_TRIES):
            present = self._journal.sweep(sweep.name)
            if present is not None and present[0].uid == sweep.uid:
                return present[0]
            if present is not None:
                if not present[0].over:
                    remedy = f"choose another name, or `spotsupctl sweep cancel {sweep.name}`"
                    raise CommandRefusedError(f"the sweep {sweep.name} still runs: {remedy}")
                _check(caller, present[0])
            # The first one's name, price and offers stand for all: they differ in their parameters only.
            self._submissions.check(member_spec(sweep.base, sweep.job_name(first), first.point), "", caller.name)
            code = self._journal.find_blob(sweep.code_sha256)
            if code is None:
                raise UsageError("the job's code was not uploaded first: PUT /v1/blobs, as `spotsupctl submit` does")
            if self._journal.put_sweep(sweep, present[1] if present else 0, code=code):
                return sweep
        raise CommandRefusedError(f"the sweep {sweep.name} changes too fast to be stored; try again")

    def cancel(self, name: str, caller: Caller) -> SweepRecord:
        """Ask for the end of all its jobs. Repeating that is fine."""
        for _ in range(MAX_TRIES):
            sweep, revision = self._find(name)
            _check(caller, sweep)
            if sweep.cancel_requested:
                return sweep
            if sweep.over:
                raise CommandRefusedError(
                    f"the sweep {name} has ended: nothing was changed; submit it again under its name"
                )
            cancelled = replace(sweep, cancel_requested=True)
            if self._journal.put_sweep(cancelled, revision):
                return cancelled
        raise CommandRefusedError(f"the sweep {name} changes too fast to be stored; try again")

    def all(self) -> list[SweepRecord]:
        """Return all sweeps, the newest first."""
        return sorted((sweep for sweep, _ in self._journal.sweeps()), key=lambda each: -each.submitted_at)

    def one(self, name: str) -> SweepRecord:
        """Raise NotFoundError."""
        return self._find(name)[0]

    def row(self, sweep: SweepRecord) -> SweepRow:
        """Return a sweep with its members, as they are now."""
        reading, now = self._journal.read(), self._clock.now()
        rows: list[Any] = []
        for member in sweep.members:
            seen = seen_of(sweep, member, reading, now)
            result = seen.result if seen else member.result
            state = result.state if result else "cancelled" if sweep.cancel_requested else "waiting for its turn"
            known = asdict(result) if result else dict(NOTHING_YET)
            rows.append(
                {
                    **known,
                    "name": sweep.job_name(member),
                    "state": state,
                    "parameters": dict(member.point),
                }
            )
        best = sweep.best
        return {
            "name": sweep.name,
            "owner": sweep.owner,
            "submitted_at": sweep.submitted_at,
            "state": _state(sweep),
            "parallel": sweep.parallel,
            "metric": sweep.metric or "loss",
            "mode": sweep.mode,
            "problem": sweep.problem or None,
            "usd": round(sum(row["usd"] for row in rows), 4),
            "best": sweep.job_name(best) if best else None,
            "members": rows,
        }

    def _find(self, name: str) -> tuple[SweepRecord, int]:
        found = self._journal.sweep(name)
        if found is None:
            known = [each.name for each in self.all()]
            raise NotFoundError(f"no sweep is named {name!r}; {_alternatives(name, known)}")
        return found


def _alternatives(name: str, known: Sequence[str]) -> str:
    if close := difflib.get_close_matches(name, known):
        return f"did you mean {' or '.join(close)}?"
    return f"sweeps: {', '.join(known[:8]) or 'none'}"


def _state(sweep: SweepRecord) -> str:
    if sweep.cancel_requested:
        return "cancelled" if sweep.over else "cancelling"
    return "finished" if sweep.over else "running"


def _check(caller: Caller, sweep: SweepRecord) -> None:
    if why := refusal(caller, Action.CHANGE, sweep.owner):
        raise ForbiddenError(why)


def add_sweeps(app: FastAPI, sweeps: Sweeps) -> None:
    """Add the routes."""

    @app.post("/v1/sweeps", openapi_extra=may(Action.SUBMIT))
    def submit_sweep(body: SweepBody, request: Request) -> SweepRow:
        name_target(request, str(body.spec.get("name", "")))
        return sweeps.row(sweeps.submit(body, caller_of_request(request)))

    @app.get("/v1/sweeps", openapi_extra=may(Action.READ))
    def all_sweeps(request: Request, response: Response, *, after: After = "", limit: Limit = None) -> list[SweepRow]:
        return page([sweeps.row(each) for each in sweeps.all()], itemgetter("name"), after, limit, request, response)

    @app.get("/v1/sweeps/{sweep}", openapi_extra=may(Action.READ))
    def one_sweep(sweep: str) -> SweepRow:
        return sweeps.row(sweeps.one(sweep))

    @app.post("/v1/sweeps/{sweep}/cancel", openapi_extra=may(Action.CHANGE))
    def cancel_sweep(sweep: str, request: Request) -> SweepRow:
        return sweeps.row(sweeps.cancel(sweep, caller_of_request(request)))
