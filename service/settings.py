"""What an operator may set, each by one environment variable: `RUL_` and the field's name.

The only module that reads the environment. Settings are read once, frozen, and handed down.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, PositiveFloat, PositiveInt, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from export.bundle import BUNDLED
from model.domain import RulError

PREFIX: Final = "RUL_"
MOST_WORKERS: Final = 8
"""By default: on more cores each has several for its batches, and memory goes into fewer copies."""
NVIDIA_DRIVER: Final = Path("/dev/nvidiactl")


class ProviderChoice(StrEnum):
    """Where inference is to run."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"
    TENSORRT = "tensorrt"


class FrontEnd(StrEnum):
    """What stands between the network and the service."""

    AUTO = "auto"
    ENVOY = "envoy"
    UVICORN = "uvicorn"


class Scheduling(StrEnum):
    """Which threads the kernel lets wait for a core."""

    BATCH = "batch"
    NORMAL = "normal"


class LogLevel(StrEnum):
    """The least level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """How a line of the log looks."""

    JSON = "json"
    CONSOLE = "console"


FrontEndChoice = FrontEnd


class InvalidSettings(RulError):
    """An environment variable with a value that cannot be used."""


class Settings(BaseSettings):
    """Everything that can be set, with its default, its unit and what it does when set wrong."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_file=".env",
        env_file_encoding="utf-8",
        env_ignore_empty=True,
        frozen=True,
        extra="ignore",
    )

    bundles: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="Bundles to load: names of shipped ones or folders, separated by commas. Empty: every "
        "shipped bundle. Each one more costs memory and start-up time; one left out answers 404.",
    )
    host: str = Field(
        default="0.0.0.0",  # noqa: S104 - a container is reached from outside
        description="Address to listen on. 127.0.0.1 admits this machine alone; 0.0.0.0 admits everyone who "
        "can reach it.",
    )
    port: int = Field(
        default=3000, ge=0, le=65535, description="TCP port of HTTP and gRPC. 0 takes any that is free."
    )
    grpc_port: int = Field(
        default=3001,
        ge=0,
        le=65535,
        description="TCP port of gRPC under `bentoml serve`, whose HTTP server cannot speak it. `rul serve` "
        "speaks both on RUL_PORT and does not use it.",
    )
    front_end: FrontEnd = Field(
        default=FrontEnd.AUTO,
        description="What `rul serve` listens with. auto takes Envoy where it can run, for HTTP and gRPC on "
        "one port, else BentoML's own server. envoy refuses to start where it cannot run.",
    )
    workers: int = Field(
        default=0,
        ge=0,
        le=64,
        description="Processes that answer on RUL_PORT behind Envoy, each with every bundle in memory. 0: "
        "one a core, 8 at most, and one for a GPU. Too high: memory, some 270 MB each; too low: parsing "
        "holds back the cores.",
    )
    scheduling: Scheduling = Field(
        default=Scheduling.BATCH,
        description="How Linux deals the cores. batch: a thread that wakes lets the one that runs go on, for "
        "a tenth more throughput and quicker answers on cores of its own. normal: where other programs "
        "keep the same cores busy and a lone answer must not wait milliseconds for them.",
    )
    provider: ProviderChoice = Field(
        default=ProviderChoice.AUTO,
        description="Where inference runs. auto takes a GPU where there is one; cuda refuses to start "
        "without one. tensorrt does too, and runs on cuda what it cannot.",
    )
    inference_threads: int = Field(
        default=0,
        ge=0,
        le=1024,
        description="Batches that a worker runs at once, each on one core. 0: as many as it may use cores. "
        "Too high: threads take turns and latency grows; too low: cores idle.",
    )
    max_batch_windows: PositiveInt = Field(
        default=32,
        description="Most windows a batch. Too high: a small request waits behind a long batch; too low: "
        "more overhead a window. On a CPU nothing is gained above 16, on a GPU up to some hundreds.",
    )
    max_pending_windows: PositiveInt = Field(
        default=4096,
        description="Most windows that may wait in a worker, for each model; above it callers get 429 at "
        "once. Too high: callers wait past their deadline and memory grows; too low: short bursts are "
        "refused.",
    )
    max_request_windows: PositiveInt = Field(
        default=1024,
        description="Most windows a request; more get 413. Too high: one caller can fill the queue; too low: "
        "clients split what could go at once.",
    )
    max_body_bytes: PositiveInt = Field(
        default=16 * 1024 * 1024,
        description="Largest request body in bytes; larger ones get 413. Too high: memory for the asking; "
        "too low: requests within the other limits are refused.",
    )
    max_window_cycles: PositiveInt = Field(
        default=10_000,
        description="Most cycles a window may hold, although the model reads only its last ones; more get "
        "422. Too high: long histories cost parsing for nothing; too low: clients must cut them.",
    )
    request_timeout_seconds: PositiveFloat = Field(
        default=5.0,
        description="Longest wait for an answer in seconds; then 504. Too high: callers that nobody waits "
        "for hold places in the queue; too low: bursts that could be answered are not.",
    )
    max_streams: PositiveInt = Field(
        default=10_000,
        description="Most streams of readings that a worker keeps open; one more gets RESOURCE_EXHAUSTED. "
        "Each costs some 50 kB. Too high: memory for the asking; too low: units are refused that could be "
        "watched.",
    )
    stream_idle_seconds: PositiveFloat = Field(
        default=600.0,
        description="Longest silence on a stream in seconds; then it ends with ABORTED. Too high: callers "
        "that vanished hold places; too low: units that seldom report lose their window.",
    )
    drain_seconds: float = Field(
        default=10.0,
        ge=0,
        description="How long requests in flight may still take at shutdown, in seconds. Too high: an "
        "orchestrator kills the process first; too low: callers lose answers they were about to get.",
    )
    api_keys: SecretStr = Field(
        default=SecretStr(""),
        description="Keys that callers must show, separated by commas. Empty: everyone who reaches the port "
        "may ask.",
    )
    store: bool = Field(
        default=True,
        description="Whether predictions are kept, to be met with real outcomes and listed under /v1/units. "
        "false: those routes answer 404.",
    )
    store_url: SecretStr = Field(
        default=SecretStr(""),
        description="Where predictions and outcomes are: sqlite:///FILE, or postgresql://USER@HOST/DATABASE "
        "with the extra `postgresql`. Empty: rulserve/rulserve.db under XDG_STATE_HOME or ~/.local/state. A "
        "file serves one machine; services on several need PostgreSQL.",
    )
    store_retention_days: PositiveFloat = Field(
        default=365.0,
        description="How long predictions and outcomes are kept, in days. Too high: the database grows, by "
        "some 100 bytes a prediction; too low: outcomes that are known late meet nothing.",
    )
    store_queue_rows: PositiveInt = Field(
        default=100_000,
        description="Most predictions of a worker that may wait to be written; more are dropped and counted. "
        "Too high: memory, some 400 bytes each, while the database is away; too low: bursts are dropped.",
    )
    control: Path | None = Field(
        default=None,
        description="Socket on which `rul serve` asks a worker whether it is ready, and tells it to drain. "
        "It makes one at each start; empty: nobody can.",
    )
    worker: int = Field(
        default=0,
        ge=0,
        description="Which of the workers a process is, from 0. `rul serve` says so to each that it starts.",
    )
    board: Path | None = Field(
        default=None,
        description="File in which workers add up their metrics. `rul serve` makes one at each start; empty: "
        "the process is the only worker.",
    )
    log_level: LogLevel = Field(
        default=LogLevel.INFO,
        description="Least level to log: debug, info, warning or error. debug is for one caller.",
    )
    log_format: LogFormat = Field(
        default=LogFormat.JSON,
        description="json: one object a line, for machines. console: coloured, for people.",
    )
    log_sample: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="Share of answered requests that are logged; refused and failed ones always are. Too "
        "high: logging costs more than inference; 0: a quiet log of errors.",
    )
    tracing: bool = Field(
        default=False,
        description="true: requests are traced and sent to RUL_OTLP_ENDPOINT. What else OpenTelemetry's SDK "
        "reads (OTEL_EXPORTER_OTLP_HEADERS, OTEL_RESOURCE_ATTRIBUTES, OTEL_BSP_...) holds too.",
    )
    otlp_endpoint: str = Field(
        default="http://localhost:4318",
        pattern=r"^https?://[^/\s]+",
        description="Base URL of a collector that takes OTLP by HTTP. Where nobody answers there, spans are "
        "dropped and requests go on.",
    )
    trace_sample: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="Share of requests that are traced; those whose caller sends a traceparent follow the "
        "caller. Too high: tracing costs more than inference; too low: what was slow was not traced.",
    )

    @field_validator("bundles", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return _parts(value) if isinstance(value, str) else value

    @classmethod
    def read(cls) -> Settings:
        """The settings of this process.

        Raises:
            InvalidSettings: a variable has a value that cannot be used; names it.
        """
        try:
            return cls()
        except ValidationError as error:
            wrong = "; ".join(
                f"{PREFIX}{'_'.join(str(part) for part in item['loc']).upper()}: {item['msg']}"
                for item in error.errors(include_input=False, include_url=False)
            )
            raise InvalidSettings(wrong) from None

    def bundle_names(self) -> tuple[str, ...]:
        """What to load: what was named, or every shipped bundle."""
        if self.bundles or not BUNDLED.is_dir():
            return self.bundles
        return tuple(sorted(folder.name for folder in BUNDLED.iterdir() if (folder / "model.onnx").is_file()))

    def as_environment(self) -> dict[str, str]:
        """The variables from which another process reads these same settings, secrets included."""
        return {_variable(name): _as_text(getattr(self, name)) for name in type(self).model_fields}

    def threads(self) -> int:
        """Batches that run at once."""
        return self.inference_threads or usable_cores()

    def worker_count(self) -> int:
        """Processes that answer behind Envoy; a GPU is fed by one, whose batches are the largest."""
        if self.workers:
            return self.workers
        on_gpu = self.provider in {ProviderChoice.CUDA, ProviderChoice.TENSORRT} or (
            self.provider is ProviderChoice.AUTO and NVIDIA_DRIVER.exists()
        )
        return 1 if on_gpu else min(usable_cores(), MOST_WORKERS)

    def keys(self) -> frozenset[str]:
        """The accepted API keys; none means that the service is open."""
        return frozenset(_parts(self.api_keys.get_secret_value()))


def usable_cores(cpu_max: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Cores that this process may use: its affinity, or its container's quota where that is less."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = cpu_max.read_text(encoding="ascii").split()
        return max(1, min(cores, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no such file, or the quota is "max"
        return cores


def unknown_variables(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Variables that look like ours and are not: most likely misspelt."""
    known = {_variable(name) for name in Settings.model_fields}
    return sorted(name for name in environ if name.upper().startswith(PREFIX) and name.upper() not in known)


def env_example() -> str:
    """The text of `.env.example`: every variable, with its default and what it does."""
    parts = ["# Every setting with its default. Copy to .env and change what you need.\n"]
    for name, field in Settings.model_fields.items():
        kind = field.annotation
        choices = list(kind) if isinstance(kind, type) and issubclass(kind, StrEnum) else []
        comment = "\n".join(f"# {line}" for line in _wrapped(field.description or ""))
        suffix = f"\n# One of: {', '.join(choices)}." if choices else ""
        parts.append(f"{comment}{suffix}\n{_variable(name)}={_as_text(field.default)}\n")
    return "\n".join(parts)


def _variable(name: str) -> str:
    return f"{PREFIX}{name}".upper()


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part for part in (piece.strip() for piece in text.split(",")) if part)


def _as_text(value: Any) -> str:  # noqa: ANN401 - a default of any field
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return ""
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _wrapped(text: str, width: int = 98) -> list[str]:
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
