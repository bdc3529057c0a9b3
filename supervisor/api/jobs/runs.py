"""A job's own file, as it was submitted: what `spotsupctl runs A B` compares."""

from __future__ import annotations

import hmac
import re
import secrets
from typing import Any

from fastapi import FastAPI, Request

from supervisor.access import Action, refusal
from supervisor.api.jobs.presenter import Presenter
from supervisor.api.jobs.reading import Jobs
from supervisor.api.rows import SpecRow
from supervisor.api.security.gate import caller_of_request
from supervisor.api.security.rules import may
from supervisor.spec import JobSpec

_SECRET = re.compile(r"key|token|secret|passw|credential|auth", re.IGNORECASE)


def spec_row(spec: JobSpec, key: bytes, *, show_env: bool) -> dict[str, Any]:
    """Return what a job file says, without defaults. Values of `env` are hidden from who may not change the job, and
    those of variables that look like secrets from everyone. `key`: makes equal hidden values look equal."""
    found = spec.model_dump(mode="json", exclude_defaults=True)
    if len(spec.resources) == 1 and "resources" in found:
        found["resources"] = found["resources"][0]
    if "env" in found:
        found["env"] = {
            name: value if show_env and not _SECRET.search(name) else hidden(value, key)
            for name, value in found["env"].items()
        }
    return found


def hidden(value: str, key: bytes) -> str:
    """Return what stands in place of a value: the same for the same value, as `runs A B` compares them."""
    return f"(hidden, {hmac.digest(key, value.encode(errors='surrogatepass'), 'sha256').hex()[:8]})"


def add_runs(app: FastAPI, jobs: Jobs, presenter: Presenter) -> None:
    """Add `GET /v1/jobs/JOB/spec`."""
    key = secrets.token_bytes(32)  # of this process: nobody can find out a short value by trying

    @app.get("/v1/jobs/{name}/spec", openapi_extra=may(Action.READ))
    def spec_of_job(name: str, request: Request) -> SpecRow:
        view = jobs.one(name)
        may_change = not refusal(caller_of_request(request), Action.CHANGE, view.record.owner)
        spec = spec_row(view.record.spec, key, show_env=may_change)
        return {"spec": spec, "code_sha256": view.record.code_sha256, "row": presenter.job(view)}
