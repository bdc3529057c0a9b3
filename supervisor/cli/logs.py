"""The daemon's log: one line per fact on stderr; JSON where stderr is not a terminal and SPOTSUP_LOG=json."""

from __future__ import annotations

import os
import sys

import structlog


def set_up_logging() -> None:
    """Once, at start."""
    as_json = os.environ.get("SPOTSUP_LOG") == "json"
    last: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if as_json
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=0)
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info if as_json else _as_it_is,
            last,
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def _as_it_is(_logger: object, _name: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    return event
