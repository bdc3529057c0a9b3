"""What most requests' bodies may have."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class RequestBody(BaseModel):
    """Its fields, each of its own type, and nothing else."""

    model_config = ConfigDict(extra="forbid", strict=True)
