"""`spotsupd check --from-node`: what only a machine of the cloud can tell.

Whether a node reaches etcd, its package index, file servers and object store depends on its own network and role. The
running daemon is asked for a small job like the user's: bootstrap tries each of these and says what is wrong in one
sentence. As a job, the machine is journaled, counted and ended by the daemon whatever becomes of this command.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from spotsup.transport import Transport
from spotsup.upload import upload

from provisioners.base import Finding
from supervisor.cli.common import ENDED, FOLLOW_S, job_path
from supervisor.cli.submission import Prepared, prepare
from supervisor.errors import DaemonUnreachableError, SpotsupError

# From the request to the end of the program; a stock image that builds an environment with torch needs minutes.
LIMIT_S = 1800.0
RELEASE_LIMIT_S = 180.0
MAX_NAME = 40
SUFFIX = "-check"
# What of a job decides on a node's way to what it needs.
_KEPT = ("placement", "storage", "environment", "env", "market", "checkpoints")
# Starts, prints a line, and ends well: the launcher and the rendezvous are part of what is tried.
_PROGRAM = "-m platform"
# Events of a node that did not get ready.
_FAILED = frozenset({"node-failed", "foreign-host"})


def probe_spec(job: Mapping[str, Any] | None, instance_type: str) -> dict[str, Any]:
    """Return a job of one machine of that type, which tries what `job` needs; without one, what every job needs."""
    job = {"kind": "data"} if job is None else job
    trains = job.get("kind", "training") == "training"
    name = str(job.get("name", "node"))[: MAX_NAME - len(SUFFIX)].rstrip("-") + SUFFIX
    return {
        **({"nodes": 1, "checkpoints": "none", "run": _PROGRAM} if trains else {"kind": "data", "run": "true"}),
        **{key: job[key] for key in _KEPT if job.get(key)},
        "name": name,
        "resources": {"instance_types": [instance_type]},
        # In case this command dies: the program ends by itself, and bootstraps that fail end the job.
        "limits": {"hours": 0.5, "app_failures": 0},
    }


def check_from_node(
    socket: Path, job: Path | None, instance_type: str, say: Callable[[str], None], limit_s: float = LIMIT_S
) -> Finding:
    """Boot one machine and end it again. `say`: what happens meanwhile, for a person who waits."""
    try:
        daemon = Transport(socket)
        try:
            return _finding(*_tried(daemon, job, instance_type, say, limit_s))
        finally:
            daemon.close()
    except DaemonUnreachableError as error:
        return _finding("", f"{error}; the running daemon boots the machine")
    except SpotsupError as error:
        return _finding("", str(error))


def _finding(works: str, problem: str) -> Finding:
    return Finding("from a node", ok=not problem, message=problem or works)


def _tried(
    daemon: Transport, job: Path | None, instance_type: str, say: Callable[[str], None], limit_s: float
) -> tuple[str, str]:
    """Return what works, and what does not. Raises SpotsupError."""
    with TemporaryDirectory(prefix="spotsup-") as empty:
        found = _prepared(job, instance_type, Path(empty))
        quote = daemon.post("/v1/plan", {"spec": found.spec})
        if not quote["offers"]:
            return "", "; ".join(quote["warnings"])
        digest = upload(found.pack(), daemon)
    body = {"spec": found.spec, "code_sha256": digest, "submission": found.submission}
    name = str(daemon.post("/v1/jobs", body)["name"])
    price = quote["offers"][0]["usd_per_hour"]
    costs = "at an unknown price" if price is None else f"at ${price:g} an hour"
    say(f"job {name} boots one {instance_type} {costs}")
    try:
        return _outcome(daemon, name, time.monotonic() + limit_s, say)
    finally:
        _release(daemon, name)


def _prepared(job: Path | None, instance_type: str, empty: Path) -> Prepared:
    """Return what is submitted: with the job's code only if its environment is built from that."""
    found = prepare((str(job),) if job else ("-m", "platform"), {})
    spec = probe_spec(found.spec if job else None, instance_type)
    needs_code = spec.get("environment", "image") != "image"
    return Prepared(spec, found.folder if needs_code else empty, found.submission)


def _outcome(daemon: Transport, name: str, until: float, say: Callable[[str], None]) -> tuple[str, str]:
    begun, said = time.monotonic(), ""
    while True:
        job = daemon.get(job_path(name))
        if job["state"] == "succeeded":
            seconds = time.monotonic() - begun
            return f"a node reached all that it needs, and ran a program, after {seconds:.0f} s", ""
        wrong = [each["text"] for each in daemon.get(job_path(name, "/events")) if each["kind"] in _FAILED]
        if wrong:
            return "", wrong[0]
        if job["state"] in ENDED | {"paused"}:
            return "", f"job {name} {job['state']}: {job['reason']}"
        if time.monotonic() > until:
            return "", f"no node was ready in time: {job['sentence']}"
        if job["sentence"] != said:
            said = job["sentence"]
            say(said)
        time.sleep(FOLLOW_S)


def _release(daemon: Transport, name: str) -> None:
    """End the job, and see its machine end. The daemon goes on with that if this command does not wait for it."""
    if daemon.get(job_path(name))["state"] not in ENDED:
        daemon.post(job_path(name, "/cancel"))
    until = time.monotonic() + RELEASE_LIMIT_S
    while time.monotonic() < until:
        if all(node["state"] == "gone" for node in daemon.get(job_path(name))["node_list"]):
            return
        time.sleep(FOLLOW_S)
