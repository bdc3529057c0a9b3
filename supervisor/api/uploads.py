"""The route that takes code."""

from __future__ import annotations

import asyncio

from fastapi import FastAPI, Request
from typing_extensions import TypedDict  # pydantic takes that of typing from Python 3.12 on

from supervisor.access import Action
from supervisor.api.gate import caller_of_request
from supervisor.api.rules import may
from supervisor.api.service import Service
from supervisor.api.throttle import Places

# Archives of code that are in memory at a time, each of up to MAX_BLOB_BYTES.
MAX_UPLOADS = 8


class StoredRow(TypedDict):
    """What is stored."""

    sha256: str


def add_uploads(app: FastAPI, service: Service) -> None:
    """Add `PUT /v1/blobs`."""
    archives = Places(MAX_UPLOADS, f"{MAX_UPLOADS} archives are being uploaded already: try again in a moment")

    @app.put("/v1/blobs", openapi_extra=may(Action.SUBMIT))
    async def put_blob(request: Request) -> StoredRow:
        with archives.one():  # before any of the body is read
            data = await request.body()
            return {"sha256": await asyncio.to_thread(service.put_blob, data, caller_of_request(request).name)}
