"""`Client`: a daemon."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spotsup.archive import pack_directory
from spotsup.errors import UsageError
from spotsup.job import Job, Status
from spotsup.transport import TIMEOUT_S, Transport, found_target, target_of

CODE_LIMIT_BYTES = 32 * 1024 * 1024


class Client:
    """A daemon. For any number of threads."""

    def __init__(
        self, url: str = "", *, token: str = "", ca: str = "", context: str = "", timeout_s: float = TIMEOUT_S
    ) -> None:
        """Without `url`: the one that `spotsupctl` uses here, or its `context`.

        `token`: as `spotsupd user add` prints it. `ca`: PEM text, where the system does not trust the daemon's
        certificate. `timeout_s`: of each request. Raises UsageError.
        """
        self._transport = Transport(target_of(url, token, ca) if url else found_target(context), timeout_s)

    def submit(
        self,
        run: str = "",
        *,
        name: str = "",
        nodes: int | Mapping[str, int] | None = None,
        code: str | Path = ".",
        resume_from: str = "",
        spec: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Job:
        """Submit a job: `run`, a script with its arguments, in the folder `code`.

        `more`: any other key of a job file (docs/reference/job-file.md), `spec`: all of them at once. Raises
        SpotsupError.
        """
        made: dict[str, Any] = {**(spec or {}), **more}
        made.update({key: value for key, value in (("run", run), ("name", name), ("nodes", nodes)) if value})
        made.setdefault("nodes", 1)
        if not made.get("name"):
            raise UsageError("the job has no name")
        folder = Path(made.pop("code", None) or code) if spec and code == "." else Path(code)
        asked = {"spec": made, "resume_from": resume_from}
        submission = uuid.uuid4().hex
        self._transport.json("POST", "/v1/check", asked)
        stored = self._transport.json(
            "PUT", "/v1/blobs", data=pack_directory(folder, limit_bytes=CODE_LIMIT_BYTES).data
        )
        row = self._transport.json(
            "POST", "/v1/jobs", {**asked, "code_sha256": stored["sha256"], "submission": submission}
        )
        return Job(self._transport, row["name"])

    def job(self, name: str) -> Job:
        """A job by its name. Raises NotFoundError."""
        found = Job(self._transport, name)
        found.status()
        return found

    def jobs(self, *, past: bool = False) -> list[Status]:
        """All jobs, the newest first; with `past` also those whose names were used again."""
        rows = self._transport.json("GET", "/v1/jobs", past="true" if past else None)
        return [Status.of(row) for row in rows]

    def me(self) -> Mapping[str, Any]:
        """Whom the daemon takes this client for: `name`, `role`."""
        found: Mapping[str, Any] = self._transport.json("GET", "/v1/me")
        return found
