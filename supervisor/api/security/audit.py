"""Who did what through the API: written to the journal, and shown by `spotsupctl audit`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any

import structlog
from fastapi import FastAPI, Query

from supervisor.access import Action, AuditEntry
from supervisor.api.rows import AuditRow
from supervisor.api.security.rules import may
from supervisor.errors import SpotsupError
from supervisor.journal.journal import Journal
from supervisor.runtime.housekeeping import AUDIT_KEPT

log = structlog.get_logger("spotsupd")


def writer(journal: Journal) -> Callable[[AuditEntry], None]:
    """Store an entry. Where etcd does not answer it is in the log only: the command has failed then, too."""

    def write(entry: AuditEntry) -> None:
        try:
            journal.add_audit(entry)
        except SpotsupError as error:
            log.warning("an entry of the audit log is not stored", **asdict(entry), error=str(error))

    return write


def add_audit(app: FastAPI, read: Callable[[], list[AuditEntry]]) -> None:
    """Add the route."""

    @app.get("/v1/audit", openapi_extra=may(Action.OPERATE))
    def audit(
        job: str = "", user: str = "", limit: Annotated[int, Query(ge=1, le=AUDIT_KEPT)] = 1000
    ) -> list[AuditRow]:
        rows: list[Any] = [asdict(each) for each in read() if job in {"", each.target} and user in {"", each.user}]
        return rows[-limit:]
