"""`Client`: a daemon."""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from spotsup.archive import pack_directory
from spotsup.contexts import Context, checked_url, default_daemon
from spotsup.errors import UsageError
from spotsup.job import Event, Job, Status
from spotsup.sweep import Sweep
from spotsup.transport import TIMEOUT_S, Transport
from spotsup.upload import upload

CODE_LIMIT_BYTES = 32 * 1024 * 1024


class Client:
    """A daemon. For any number of threads."""

    def __init__(
        self, url: str = "", *, token: str = "", ca: str = "", context: str = "", timeout_s: float = TIMEOUT_S
    ) -> None:
        """Without `url`: the one that `spotsupctl` uses here, or its `context`.

        `token`: as `spotsupd user add` prints it. `ca`: PEM text, where the system does not trust the daemon's
        certificate. `timeout_s`: until more of a request or its answer has moved. Raises SpotsupError.
        """
        where = Context(url, checked_url(url), "", token, ca) if url else default_daemon(context or None)
        self._transport = Transport(where, timeout_s)

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
        made, folder = _made(run, name, nodes, code, spec, more)
        asked = {"spec": made, "resume_from": resume_from}
        submission = uuid.uuid4().hex
        self._transport.post("/v1/check", asked)
        row = self._transport.post("/v1/jobs", {**asked, "code_sha256": self._stored(folder), "submission": submission})
        return Job(self._transport, row["name"])

    def sweep(  # noqa: PLR0913 - all but two by name, with defaults
        self,
        run: str = "",
        parameters: Mapping[str, Sequence[Any]] | None = None,
        *,
        name: str = "",
        nodes: int | Mapping[str, int] | None = None,
        code: str | Path = ".",
        parallel: int | None = None,
        metric: str = "loss",
        mode: str = "min",
        spec: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Sweep:
        """Submit a job for each combination of `parameters`, `parallel` at a time, by default all.

        `parameters`: `{"lr": [0.1, 0.01]}` adds `--lr 0.1` to `run`; a name with a dot is a key of the job file.
        `metric`, `mode`: what `Session.report` has under that name, and whether its "min" or "max" is the best.
        The rest is as for `submit`. To end the worst early, see `spotsup.optuna`. Raises SpotsupError.
        """
        made, folder = _made(run, name, nodes, code, spec, more)
        axes = [{"name": key, "values": _values(key, given)} for key, given in (parameters or {}).items()]
        if not axes:
            raise UsageError('the sweep has no parameters: give them as {"lr": [0.1, 0.01]}')
        submission, count = uuid.uuid4().hex, math.prod(len(given) for given in (parameters or {}).values())
        row = self._transport.post(
            "/v1/sweeps",
            {
                "spec": made,
                "code_sha256": self._stored(folder),
                "submission": submission,
                "axes": axes,
                "parallel": max(1, min(parallel or count, count)),
                "metric": "" if metric == "loss" else metric,
                "mode": mode,
            },
        )
        return Sweep(self._transport, row["name"])

    def sweep_named(self, name: str) -> Sweep:
        """Return a sweep by its name. Raises NotFoundError."""
        found = Sweep(self._transport, name)
        found.status()
        return found

    def _stored(self, folder: Path) -> str:
        """Return the digest of a folder that the daemon has now."""
        return upload(pack_directory(folder, limit_bytes=CODE_LIMIT_BYTES), self._transport)

    def job(self, name: str) -> Job:
        """Return a job by its name. Raises NotFoundError."""
        found = Job(self._transport, name)
        found.status()
        return found

    def jobs(self, *, past: bool = False) -> list[Status]:
        """Return all jobs, the newest first; with `past` also those whose names were used again."""
        rows = self._transport.get("/v1/jobs", past="true" if past else None)
        return [Status.of(row) for row in rows]

    def events(self, *, jobs: bool = False) -> list[Event]:
        """Return what happened to the cluster as a whole, the oldest first; with `jobs`, also to all jobs."""
        rows = self._transport.get("/v1/events", jobs="true" if jobs else None)
        return [Event(row["id"], row["at"], row["kind"], row["text"]) for row in rows]

    def set_secret(self, name: str, value: str) -> None:
        """Store a secret of yours, which jobs name in `secrets`; one that is there gets this value."""
        self._transport.post(_secret(name), {"value": value})

    def secrets(self) -> list[Mapping[str, Any]]:
        """Return your secrets, without values: `name`, `owner`, `changed_at`, `jobs`. As an admin those of all."""
        found: list[Mapping[str, Any]] = self._transport.get("/v1/secrets")
        return found

    def delete_secret(self, name: str) -> None:
        """Delete a secret of yours. Raises NotFoundError."""
        self._transport.post(_secret(name, "/delete"), {})

    def me(self) -> Mapping[str, Any]:
        """Whom the daemon takes this client for: `name`, `role`."""
        found: Mapping[str, Any] = self._transport.get("/v1/me")
        return found


def _secret(name: str, rest: str = "") -> str:
    if not name:
        raise UsageError("the name of the secret is empty: give one")
    return f"/v1/secrets/{quote(name, safe='')}{rest}"


def _made(
    run: str,
    name: str,
    nodes: int | Mapping[str, int] | None,
    code: str | Path,
    spec: Mapping[str, Any] | None,
    more: Mapping[str, Any],
) -> tuple[dict[str, Any], Path]:
    """Return a job file's content, and the folder with its code. Raises UsageError."""
    made: dict[str, Any] = {**(spec or {}), **more}
    made.update({key: value for key, value in (("run", run), ("name", name), ("nodes", nodes)) if value})
    made.setdefault("nodes", 1)
    if not made.get("name"):
        raise UsageError("the job has no name: give `name`")
    return made, Path(made.pop("code", None) or code) if spec and code == "." else Path(code)


def _values(name: str, given: Sequence[Any]) -> list[Any]:
    """Return an axis's values; arguments are texts as Python writes them. Raises UsageError."""
    if isinstance(given, str) or not given:
        raise UsageError(f"the parameter {name!r} needs a list of values: write [{given!r}]")
    return list(given)
