"""`/v1/check`, `/v1/plan`, `/v1/blobs` and `POST /v1/jobs`: what a job would cost, its code, and its beginning."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import FastAPI, Header, Request
from pydantic import Field
from typing_extensions import TypedDict  # pydantic takes that of typing from Python 3.12 on

from supervisor.access import Action
from supervisor.api.body import RequestBody
from supervisor.api.jobs.changes import Terms
from supervisor.api.jobs.presenter import Presenter
from supervisor.api.quote import Quote, quote_row
from supervisor.api.rows import CheckedRow, JobRow, PlanRow
from supervisor.api.security.gate import caller_of_request, name_target
from supervisor.api.security.rules import may
from supervisor.api.security.throttle import Places
from supervisor.api.submit.job_files import JobFiles
from supervisor.api.submit.submissions import Submissions
from supervisor.errors import UsageError
from supervisor.spec import JobSpec

# Archives of code that are in memory at a time, each of up to MAX_BLOB_BYTES.
MAX_UPLOADS = 8
MIN_SUBMISSION = 8  # characters

# The client's own id of a submission: one that is sent again is the same job. An alias of `submission` in the body.
IdempotencyKey = Annotated[str, Header(max_length=64)]


class CheckBody(RequestBody):
    """A job file's content, and the job that it resumes from."""

    spec: dict[str, Any] = Field(repr=False)
    resume_from: str = Field(default="", max_length=64)


class SubmitBody(RequestBody):
    """A job file's content, the archive it runs, and the client's id of this request."""

    spec: dict[str, Any] = Field(repr=False)
    code_sha256: str = Field(pattern="^[0-9a-f]{64}$")
    # Or as the header Idempotency-Key.
    submission: str = Field(default="", pattern="^(.{8,64})?$")
    resume_from: str = Field(default="", max_length=64)


class StoredRow(TypedDict):
    """What is stored."""

    sha256: str


def add_submissions(app: FastAPI, submissions: Submissions, job_files: JobFiles, presenter: Presenter) -> None:
    """Add the routes."""
    archives = Places(MAX_UPLOADS, f"{MAX_UPLOADS} archives are being uploaded already: try again in a moment")

    def planned(spec: JobSpec, quote: Quote) -> PlanRow:
        return {**quote_row(quote), "rented": job_files.is_rented(spec)}

    @app.post("/v1/check", openapi_extra=may(Action.PLAN))
    def check(body: CheckBody, request: Request) -> CheckedRow:
        caller = caller_of_request(request)
        found = submissions.under(Terms(caller)).check(body.spec, body.resume_from, caller.name)
        quoted = planned(found.spec, found.quote) if found.quote else None
        return {"name": found.spec.name, "warnings": quoted["warnings"] if quoted else [], "plan": quoted}

    @app.post("/v1/plan", openapi_extra=may(Action.PLAN))
    def plan(body: CheckBody) -> PlanRow:
        return planned(*job_files.plan(body.spec))

    @app.put("/v1/blobs", openapi_extra=may(Action.SUBMIT))
    async def put_blob(request: Request) -> StoredRow:
        with archives.one():  # before any of the body is read
            data = await request.body()
            return {"sha256": await asyncio.to_thread(submissions.put_blob, data, caller_of_request(request).name)}

    @app.post("/v1/jobs", openapi_extra=may(Action.SUBMIT))
    def submit(body: SubmitBody, request: Request, idempotency_key: IdempotencyKey = "") -> JobRow:
        caller, submission = caller_of_request(request), submission_of(body.submission, idempotency_key)
        name_target(request, str(body.spec.get("name", "")))
        bound = submissions.under(Terms(caller))
        return presenter.job(bound.submit(body.spec, body.code_sha256, submission, body.resume_from, caller.name))


def submission_of(body: str, header: str) -> str:
    """Return the client's id of a submission. Raises UsageError without one, or with two."""
    if body and header and body != header:
        raise UsageError("`submission` and the header Idempotency-Key differ: send one of them, or the same twice")
    if len(found := body or header) < MIN_SUBMISSION:
        raise UsageError(
            f"the submission has no id of the client's own: send `submission`, or the header Idempotency-Key, with "
            f"{MIN_SUBMISSION} to 64 characters, and the same ones when you send it again"
        )
    return found
