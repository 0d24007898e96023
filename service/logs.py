"""The service's log: structured events, each with the id of its request.

The log never contains readings: they belong to the client, and others read logs.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Final, TextIO

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

from model.domain import printable
from service.choices import LogFormat, LogLevel

request_id: Final[ContextVar[str | None]] = ContextVar("request_id", default=None)
"""Id of the current request; None outside of a request."""

trace_fields: Final[ContextVar[Mapping[str, str] | None]] = ContextVar("trace_fields", default=None)
"""Ids of the current trace, named as OpenTelemetry names them in JSON logs."""

WITHHELD: Final = frozenset({"readings", "columns", "body", "api_key", "authorization"})
"""Fields with confidential data of clients; their values are never written."""

SAFE_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
"""Matches a request id that may be logged."""


def configure(
    *, level: LogLevel = LogLevel.INFO, log_format: LogFormat = LogFormat.AUTO, stream: TextIO | None = None
) -> None:
    """Send our log and those of our libraries to standard error, in one format."""
    out, number = stream or sys.stderr, logging.getLevelNamesMapping()[level.upper()]
    if log_format is LogFormat.AUTO:
        log_format = LogFormat.CONSOLE if out.isatty() else LogFormat.JSON
    shared: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _with_request_id,
        _withhold,
    ]
    # The default shows values of local variables: clients' readings and keys.
    renderer: Processor = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    if log_format is LogFormat.CONSOLE:
        shared.append(_printable)
    else:
        renderer = structlog.processors.JSONRenderer()
        shared.append(structlog.processors.format_exc_info)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)
    # Our access log is sampled; without a handler uvicorn does not even format its own.
    theirs = logging.getLogger("uvicorn.access")
    theirs.handlers[:], theirs.propagate = [], False
    logging.getLogger("alembic").setLevel(logging.WARNING)  # one line per migration step


def logger() -> FilteringBoundLogger:
    """Return the logger of the service."""
    return structlog.get_logger("rulserve")


def _with_request_id(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    current = request_id.get()
    if current is None:
        return event
    return {**event, "request_id": current, **(trace_fields.get() or {})}


def _printable(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    return {name: printable(value) if isinstance(value, str) else value for name, value in event.items()}


def _withhold(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    if WITHHELD.isdisjoint(event):
        return event
    return {**event, **dict.fromkeys(WITHHELD & event.keys(), "withheld")}
