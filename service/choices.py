"""The values that settings take, and how they are written."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import SecretStr


class ProviderChoice(StrEnum):
    """Where inference runs."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"
    TENSORRT = "tensorrt"


class FrontEnd(StrEnum):
    """The server between the network and the service."""

    AUTO = "auto"
    ENVOY = "envoy"
    UVICORN = "uvicorn"


class Scheduling(StrEnum):
    """The scheduling policy of the service's threads."""

    BATCH = "batch"
    NORMAL = "normal"


class LogLevel(StrEnum):
    """The minimum level of a log event."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """The format of a log event."""

    AUTO = "auto"
    JSON = "json"
    CONSOLE = "console"


def parts(text: str) -> tuple[str, ...]:
    """Split a list that commas separate."""
    return tuple(part for part in (piece.strip() for piece in text.split(",")) if part)


def as_text(value: Any) -> str:  # noqa: ANN401 - a default of any field
    """Word a value as a variable has it."""
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, tuple) else str(value)
