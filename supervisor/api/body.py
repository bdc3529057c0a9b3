"""What a request's body may have."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Body(BaseModel):
    """Its fields, each of its own type, and nothing else."""

    model_config = ConfigDict(extra="forbid", strict=True)
