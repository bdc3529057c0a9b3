"""A job's own file, as it was submitted: what `spotsupctl runs A B` compares."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI

from supervisor.access import Action
from supervisor.api.rows import JobRow, SpecRow
from supervisor.api.rules import may
from supervisor.api.service import Service
from supervisor.planner.world import JobView
from supervisor.spec import JobSpec

HIDDEN = "(hidden)"
_SECRET = re.compile(r"key|token|secret|passw|credential|auth", re.IGNORECASE)


def spec_row(spec: JobSpec) -> dict[str, Any]:
    """What its job file says, without defaults, and without values of variables that look like secrets."""
    found = spec.model_dump(mode="json", exclude_defaults=True)
    if len(spec.resources) == 1 and "resources" in found:
        found["resources"] = found["resources"][0]
    if "env" in found:
        found["env"] = {name: HIDDEN if _SECRET.search(name) else value for name, value in found["env"].items()}
    return found


def add_runs(app: FastAPI, service: Service, row: Callable[[JobView], JobRow]) -> None:
    """`row`: how a job is described."""

    @app.get("/v1/jobs/{name}/spec", openapi_extra=may(Action.READ))
    def spec_of_job(name: str) -> SpecRow:
        view = service.job(name)
        return {"spec": spec_row(view.record.spec), "code_sha256": view.record.code_sha256, "row": row(view)}
