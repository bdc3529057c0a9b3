"""The record of a job that was just submitted. Pure."""

from __future__ import annotations

import hashlib

from supervisor.model import JobRecord, Transition
from supervisor.spec import JobSpec

_UID_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"


def uid_of(submission: str) -> str:
    """5 characters derived from the submission's id, so that a repeated request means the same job."""
    digest = hashlib.sha256(submission.encode()).digest()
    return "".join(_UID_ALPHABET[byte % len(_UID_ALPHABET)] for byte in digest[:5])


def new_job(spec: JobSpec, code_sha256: str, submission: str, now: float) -> JobRecord:
    """Return the record of a job that was just submitted."""
    return JobRecord(
        name=spec.name,
        uid=uid_of(submission),
        spec=spec.at(spec.all_places[0]),
        code_sha256=code_sha256,
        submitted_at=now,
        state_since=now,
        min_nodes=spec.nodes.min,
        desired_nodes=spec.nodes.desired,
        max_nodes=spec.nodes.max,
        spare_nodes=spec.nodes.spares,
        history=(Transition(now, "", "queued", "submitted"),),
    )
