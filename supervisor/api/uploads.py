"""The routes that take code: whole, or in chunks by their SHA-256, so that an upload goes on where it was cut off.

Everyone has chunks of their own: nobody learns which ones others have.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import FastAPI, Path, Request
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict  # pydantic takes that of typing from Python 3.12 on

from supervisor.api.gate import caller_of_request
from supervisor.api.service import Service
from supervisor.api.throttle import Places
from supervisor.uploads import MAX_CHUNKS

# Archives of code that are in memory at a time, each of up to MAX_BLOB_BYTES; and chunks.
MAX_UPLOADS = 8
MAX_CHUNK_UPLOADS = 64

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
InPath = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]


class ChunksBody(BaseModel):
    """The SHA-256 of each chunk, in the archive's order."""

    model_config = ConfigDict(extra="forbid", strict=True)
    chunks: list[Sha256] = Field(min_length=1, max_length=MAX_CHUNKS)


class StoredRow(TypedDict):
    """What is stored."""

    sha256: str


class UploadRow(TypedDict):
    """An archive that is uploaded in chunks."""

    sha256: str
    # Chunks to send. Without any, the archive is stored.
    missing: list[str]


def add_uploads(app: FastAPI, service: Service) -> None:
    """`PUT /v1/blobs`, `POST /v1/blobs/{sha256}`, `PUT /v1/chunks/{sha256}`."""
    archives = Places(MAX_UPLOADS, f"{MAX_UPLOADS} archives are being uploaded already: try again in a moment")
    chunks = Places(MAX_CHUNK_UPLOADS, f"{MAX_CHUNK_UPLOADS} chunks are being uploaded already: try again in a moment")

    @app.put("/v1/blobs")
    async def put_blob(request: Request) -> StoredRow:
        with archives.one():  # before any of the body is read
            data = await request.body()
            return {"sha256": await asyncio.to_thread(service.put_blob, data)}

    @app.post("/v1/blobs/{sha256}")
    def complete(sha256: InPath, body: ChunksBody, request: Request) -> UploadRow:
        with archives.one():
            missing = service.missing_chunks(caller_of_request(request).name, sha256, body.chunks)
        return {"sha256": sha256, "missing": missing}

    @app.put("/v1/chunks/{sha256}")
    async def put_chunk(sha256: InPath, request: Request) -> StoredRow:
        with chunks.one():
            data = await request.body()
            await asyncio.to_thread(service.put_chunk, caller_of_request(request).name, sha256, data)
        return {"sha256": sha256}
