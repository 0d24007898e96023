"""What the service writes to its log: events with fields, under the id of their request.

Never readings: they are the client's, and a log is read by others.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Final, TextIO

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

from service.settings import LogFormat, LogLevel

request_id: Final[ContextVar[str | None]] = ContextVar("request_id", default=None)
"""The id of the request that is being answered; None outside of one."""

trace_fields: Final[ContextVar[Mapping[str, str] | None]] = ContextVar("trace_fields", default=None)
"""The ids of its trace, as OpenTelemetry names them in JSON logs; None where it has none."""

WITHHELD: Final = frozenset({"readings", "columns", "body", "api_key", "authorization"})
"""Fields that hold what a client sent in confidence: their values are never written."""

SAFE_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
"""A request id that is fit to log."""
_LEVELS: Final = {
    LogLevel.DEBUG: logging.DEBUG,
    LogLevel.INFO: logging.INFO,
    LogLevel.WARNING: logging.WARNING,
    LogLevel.ERROR: logging.ERROR,
}


def configure(
    *,
    level: LogLevel = LogLevel.INFO,
    log_format: LogFormat = LogFormat.JSON,
    stream: TextIO | None = None,
) -> None:
    """Send our log and that of our libraries to one stream, in one format."""
    renderer: Processor = (
        structlog.processors.JSONRenderer()
        if log_format == LogFormat.JSON
        else structlog.dev.ConsoleRenderer()
    )
    shared: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _with_request_id,
        _withhold,
    ]
    if log_format == LogFormat.JSON:
        shared.append(structlog.processors.format_exc_info)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(_LEVELS[level])
    # One access log is enough, and ours is sampled. Without a handler uvicorn does not even word its own.
    theirs = logging.getLogger("uvicorn.access")
    theirs.handlers[:], theirs.propagate = [], False


def logger(name: str = "rulserve") -> FilteringBoundLogger:
    """A logger for one part of the service."""
    return structlog.get_logger(name)


def new_request_id() -> str:
    """An id for a request whose caller gives none: random bits as in a UUID, without the object."""
    return os.urandom(16).hex()


def _with_request_id(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    current = request_id.get()
    if current is None:
        return event
    return {**event, "request_id": current, **(trace_fields.get() or {})}


def _withhold(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    if WITHHELD.isdisjoint(event):
        return event
    return {**event, **dict.fromkeys(WITHHELD & event.keys(), "withheld")}
