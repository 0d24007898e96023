"""Values of settings that are one of a few; apart from the settings, which take longer to load."""

from __future__ import annotations

from enum import StrEnum


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
