"""What moto answers for EFS, in the form that EFS has."""

from __future__ import annotations

import json
from typing import Any

from moto.core import DEFAULT_ACCOUNT_ID
from moto.efs.models import efs_backends

from tests.clouds.aws_wire import Call
from tests.clouds.base import Answer


def as_efs(call: Call, answer: Answer) -> Answer:
    """moto has null for what has no value, and its errors have no code in their body."""
    if not answer.payload:
        return answer
    raw = json.loads(answer.payload, object_hook=_without_nulls)
    if answer.status >= 300:
        code = answer.headers.get("x-amzn-ErrorType", "")
        raw = {"ErrorCode": code, "Message": raw.get("message", "")}
        if code == "FileSystemAlreadyExists":
            systems = efs_backends[DEFAULT_ACCOUNT_ID][call.region].file_systems_by_id
            token = call.form["CreationToken"]
            raw["FileSystemId"] = next(name for name, each in systems.items() if each.creation_token == token)
    return Answer(answer.status, raw, answer.headers)


def _without_nulls(raw: dict[str, Any]) -> dict[str, Any]:
    return {key: each for key, each in raw.items() if each is not None}
