"""The log agent that a configuration asks for. Pure data."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

_LOG_GROUP = re.compile(r"[A-Za-z0-9._/#-]{1,512}")


@dataclass(frozen=True, slots=True)
class LogAgent:
    """The cloud's own agent, which ships a node's logs. Raises ValueError."""

    kind: Literal["cloudwatch", "ops"]
    group: str = ""
    """CloudWatch's log group."""

    def __post_init__(self) -> None:
        if self.kind == "cloudwatch" and not _LOG_GROUP.fullmatch(self.group):
            raise ValueError(
                f"{self.group!r} is not a log group; use letters, digits and . _ - / #, such as spotsup/nodes"
            )
