"""Settings of the service: one environment variable each, `RUL_` and the field's name.

This is the only module that reads these variables. Settings are read once, frozen, and passed on.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, PositiveInt, SecretStr, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    DotEnvSettingsSource,
    EnvSettingsSource,
    NoDecode,
    SettingsConfigDict,
)

from export.bundle import BUNDLED
from model.decision import read_costs
from model.domain import RulError, printable
from service.choices import FrontEnd, LogFormat, LogLevel, ProviderChoice, Scheduling
from service.machine import usable_cores, usable_gpu

PREFIX: Final = "RUL_"
OF_CLIENTS: Final = "RUL_API_KEY"
"""Variable for commands that call a service."""
MOST_WORKERS: Final = 8
"""Maximum workers by default. On more cores each worker has several, to save memory for bundles."""
DAY_SECONDS: Final = 86_400
"""Maximum of times in seconds; a larger value is a mistake."""
MOST_DAYS: Final = 100_000
HOST_NAME: Final = re.compile(r"[\w.-]+|[\da-f]*:[\da-f]*:[\da-f:.]*", re.ASCII)
"""A name, an IPv4 address or an IPv6 address, in lower case."""


class InvalidSettings(RulError):
    """An environment variable has a value that cannot be used."""


class Settings(BaseSettings):
    """Everything that an operator can set: its default, its unit, and the cost of a wrong value."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_file=".env",
        env_file_encoding="utf-8",
        env_ignore_empty=True,
        frozen=True,
        allow_inf_nan=False,
        extra="ignore",
    )

    bundles: Annotated[tuple[str, ...], NoDecode] = ()
    """Bundles to load: names of shipped bundles or folders, separated by commas. Empty: every shipped bundle.
    Too many: more memory and a slower start. Bundles that are not listed get 404."""
    bundles_watch: Path | None = None
    """Folder to watch, with a bundle in each subfolder, named as its model. A bundle that appears is loaded,
    one that changes is swapped in; a bad one is logged and refused. Empty: none."""
    bundle_public_key: Path | None = None
    """File of an Ed25519 public key in PEM. Bundles without a signature by its private key (rul export
    --sign) are refused. Empty: no signature is required."""
    host: str = "127.0.0.1"
    """Address to listen on. 127.0.0.1: only this machine can connect. 0.0.0.0, or :: with
    IPv6: every machine that reaches this one can connect; set RUL_API_KEYS too."""
    allowed_hosts: str = ""
    """Names under which the service is reached, and sites whose pages reach it through their own proxy,
    without scheme and port, separated by commas. Without API keys, other names (if RUL_HOST is this machine
    alone, or if this is set) and pages of other sites get 403. IP addresses and localhost are always
    accepted. There are no CORS headers: a browser lets pages call their own origin only."""
    port: int = Field(default=3000, ge=0, le=65535)
    """TCP port of HTTP and gRPC. 0: any free port."""
    grpc_port: int = Field(default=3001, ge=0, le=65535)
    """TCP port of gRPC under `bentoml serve`, whose server has no HTTP/2. `rul serve` behind Envoy has both
    protocols on RUL_PORT and ignores this setting."""
    tls_cert: str = ""
    """Certificate chain of the port, a PEM file. Empty: no TLS. A file that is renamed into its place is used
    at once, without a restart (docs/tls.md)."""
    tls_key: str = ""
    """Private key of RUL_TLS_CERT, a PEM file without password."""
    tls_client_ca: str = ""
    """Certificates of the authorities whose clients may connect, a PEM file (mTLS). Empty: clients need no
    certificate. Health probes need one too."""
    front_end: FrontEnd = FrontEnd.AUTO
    """Server of `rul serve`. envoy: HTTP and gRPC on one port; the start fails where Envoy cannot run.
    uvicorn: BentoML's own server, gRPC on RUL_GRPC_PORT. auto: envoy where it can run, else uvicorn."""
    workers: int = Field(default=0, ge=0, le=64)
    """Worker processes behind Envoy; each loads every bundle. 0: one per core, at most 8, and one for a GPU.
    Too high: each takes some 240 MB, with a GPU 1.2 GiB. Too low: cores idle during parsing."""
    scheduling: Scheduling = Scheduling.BATCH
    """Linux scheduling policy. batch (SCHED_BATCH): woken threads do not preempt running ones; throughput is
    some 10 % higher when the service has its cores to itself. normal: for cores shared with other busy
    programs, where batch adds milliseconds to a single request."""
    provider: ProviderChoice = ProviderChoice.AUTO
    """Where inference runs. auto: a GPU if there is one, else the CPU. cuda and tensorrt: the start fails
    without a GPU. tensorrt runs on cuda the operators that it does not support."""
    inference_threads: int = Field(default=0, ge=0, le=1024)
    """Cores for the batches of all workers together. 0: all usable cores. A worker always runs one batch, and
    more while fewer than this run in all. A GPU runs one. Too high: batches compete for cores and latency
    grows. Too low: cores idle."""
    max_batch_windows: PositiveInt = 32
    """Maximum windows in a batch. Too high: small requests wait behind long batches. Too low: more overhead
    per window. Throughput stops growing at 16 on a CPU; on a GPU 256 is right (docs/gpu.md)."""
    max_pending_windows: PositiveInt = 4096
    """Maximum windows in a worker's queue, per model; beyond it requests get 429 at once. Too high: requests
    wait past their deadlines and memory grows. Too low: short bursts are refused, and always a request of
    more windows than this: keep it at RUL_MAX_REQUEST_WINDOWS or above."""
    max_request_windows: PositiveInt = 1024
    """Maximum windows in a request; beyond it the request gets 413. Too high: one client fills the queue. Too
    low: clients must split their requests."""
    max_body_bytes: PositiveInt = 16 * 1024 * 1024
    """Maximum size of a request body, in bytes; beyond it the request gets 413. Too high: large bodies
    exhaust memory. Too low: requests within the other limits are refused."""
    max_reading_bytes: PositiveInt = 128 * 1024 * 1024
    """Maximum bytes of all unfinished request bodies in a worker; beyond it a body gets 429. Too high: slow
    clients exhaust memory. Too low: large requests that arrive together are refused, and always one above
    this."""
    body_timeout_seconds: float = Field(default=10.0, gt=0, le=DAY_SECONDS)
    """Maximum time for a request's body to arrive, in seconds; beyond it the request gets 408. Too high: slow
    clients hold memory. Too low: large bodies over slow links are refused."""
    max_connections: PositiveInt = 10_000
    """Maximum open connections to a worker; more are closed at once, and from half of it on idle ones close
    sooner. The limit of open files (ulimit -n) lowers it. Too high: idle connections take memory. Too low:
    connections of clients are closed."""
    max_window_cycles: PositiveInt = 10_000
    """Maximum cycles in a window; beyond it the request gets 422. The model reads only the last ones. Too
    high: parsing long histories wastes CPU. Too low: clients must cut their histories."""
    request_timeout_seconds: float = Field(default=5.0, gt=0, le=DAY_SECONDS)
    """Maximum time to answer a request, in seconds; beyond it the request gets 504. Too high: abandoned
    requests hold places in the queue. Too low: requests fail in bursts that could have been answered."""
    max_streams: PositiveInt = 10_000
    """Maximum open streams in a worker; beyond it a stream gets RESOURCE_EXHAUSTED. Each stream takes some 30
    kB. Too high: idle streams exhaust memory. Too low: units are refused."""
    stream_idle_seconds: float = Field(default=600.0, gt=0, le=DAY_SECONDS)
    """Maximum silence on a stream, in seconds; beyond it the stream ends with ABORTED. Too high: streams of
    vanished clients stay open. Too low: units that report rarely lose their window."""
    lame_duck_seconds: float = Field(default=5.0, ge=0, le=DAY_SECONDS)
    """Time between SIGTERM and the drain, in seconds: /readyz answers 503 and clients are asked to close
    connections, while requests are still answered. Ctrl+C and a second SIGTERM skip it; uvicorn ignores it.
    Too high: shutdowns take long. Too low: load balancers that have not noticed the 503 yet lose requests."""
    drain_seconds: float = Field(default=10.0, ge=0, le=DAY_SECONDS)
    """Maximum time for requests in flight to finish at shutdown, in seconds. Too high: the orchestrator kills
    the process first. Too low: clients lose their answers."""
    hang_seconds: float = Field(default=2.0, gt=0, le=DAY_SECONDS)
    """Maximum silence of a worker whose event loop is blocked or stopped, in seconds; then it is killed and
    restarted. A loop that computes or waits for a core has ten times as long. Too high: callers of a hung
    worker wait longer. Too low: pauses of the machine cause restarts."""
    api_keys: SecretStr = SecretStr("")
    """API keys that requests must carry, separated by commas; each has every scope but admin. Empty: no key
    is required, unless RUL_KEYS_FILE is set."""
    keys_file: str = ""
    """File of API keys with scopes and tenants, made by `rul keys` (docs/keys.md)."""
    open_pages: bool = False
    """Answer metrics, pages and gRPC reflection without a key even if keys are set."""
    store: bool = True
    """Store predictions, compare them with outcomes, list them at /v1/units. false: 404."""
    store_url: SecretStr = SecretStr("")
    """Database of predictions, readings and outcomes: sqlite:///FILE, or (with the extra `postgresql`)
    postgresql://USER@HOST/DATABASE. Empty: rulserve/rulserve.db under XDG_STATE_HOME or ~/.local/state. An
    SQLite file serves one machine; services on several machines need PostgreSQL."""
    store_retention_days: float = Field(default=365.0, gt=0, le=MOST_DAYS)
    """Time to keep predictions, readings and outcomes, in days. Too high: the database grows, by some 100
    bytes per prediction, 250 with its explanation. Too low: late outcomes find no prediction."""
    store_explanations: bool = True
    """Store a short explanation with each prediction of a model that explains readings: its three most
    evident cycles and three leading sensors, in at most 400 bytes. false: histories have no explanations."""
    store_queue_rows: PositiveInt = 100_000
    """Maximum predictions in a worker that wait to be stored; more are dropped and counted. Too high: memory
    grows by 400 bytes each while the database is down. Too low: bursts are dropped."""
    store_readings_per_unit: PositiveInt = 10_000
    """Maximum readings to keep per unit; the oldest are dropped. Too high: the database grows, by some 120
    bytes per reading of 17 columns. Too low: histories are short; below the model's context, windows too."""
    costs: str = ""
    """Costs of a planned stop and of a failure, MODEL=PLANNED:FAILURE or PLANNED:FAILURE for all models,
    separated by commas: each prediction then says when to act (docs/when_to_act.md). Empty: only requests
    with costs get a decision. Failure cost too high: stops come too early. Too low: too late."""
    log_level: LogLevel = LogLevel.INFO
    """Minimum log level. debug adds events of libraries, and the models of every worker."""
    log_format: LogFormat = LogFormat.AUTO
    """Log format. json: one object per line. console: coloured text. auto: console if standard error is a
    terminal, else json."""
    log_sample: float = Field(default=0.01, ge=0, le=1)
    """Share of successful requests that are logged, from 0 to 1; refused and failed requests are always
    logged. Too high: logging takes more CPU than inference. Too low: the log hides traffic."""
    tracing: bool = False
    """Trace requests and send spans to RUL_OTLP_ENDPOINT. OpenTelemetry's own variables
    (OTEL_EXPORTER_OTLP_HEADERS, OTEL_RESOURCE_ATTRIBUTES, OTEL_BSP_...) apply too."""
    otlp_endpoint: str = Field(default="http://localhost:4318", pattern=r"^https?://[^/\s]+")
    """Base URL of an OpenTelemetry collector (OTLP over HTTP). Without it spans are lost."""
    trace_sample: float = Field(default=0.1, ge=0, le=1)
    """Share of requests that are traced, from 0 to 1; a request with a traceparent header follows its
    caller's decision. Too high: tracing takes CPU. Too low: slow requests leave no trace."""

    @field_validator("bundles", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return parts(value) if isinstance(value, str) else value

    @field_validator("allowed_hosts")
    @classmethod
    def _check_hosts(cls, value: str) -> str:
        names = parts(value.lower())
        for name in names:
            if HOST_NAME.fullmatch(name) is None:
                raise ValueError(f"expected host names without scheme and port, as rul.example, got {name!r}")
        return ",".join(names)

    @field_validator("api_keys")
    @classmethod
    def _check_api_keys(cls, value: SecretStr) -> SecretStr:
        keys = parts(given := value.get_secret_value())
        if (given and not keys) or not all(key.isascii() and key.isprintable() for key in keys):
            raise ValueError("expected keys of printable ASCII characters, as headers carry")
        return value

    @field_validator("costs")
    @classmethod
    def _check_costs(cls, value: str) -> str:
        read_costs(value)
        return value

    @classmethod
    def read(cls) -> Settings:
        """Read the settings of this process.

        Raises:
            InvalidSettings: a variable has a value that cannot be used, or .env cannot be read.
        """
        try:
            return cls()
        except ValidationError as error:
            raise InvalidSettings(worded(error)) from None
        except (OSError, UnicodeError) as error:
            raise InvalidSettings(f"cannot read the settings in .env: {error}") from None

    def bundle_names(self) -> tuple[str, ...]:
        """Return the bundles to load: the named ones, or the folder of every shipped one."""
        return self.bundles or tuple(sorted(str(graph.parent) for graph in BUNDLED.glob("*/model.onnx")))

    def as_environment(self) -> dict[str, str]:
        """Return the variables that give another process these settings, secrets included."""
        return {variable_of(name): as_text(getattr(self, name)) for name in type(self).model_fields}

    def threads(self) -> int:
        """Return the number of cores for the batches of all workers together, unless they have a GPU."""
        return self.inference_threads or usable_cores()

    def worker_count(self) -> int:
        """Return the number of workers behind Envoy: one for a GPU, to get the largest batches."""
        has_gpu = usable_gpu() if self.provider is ProviderChoice.AUTO else self.provider != "cpu"
        return self.workers or (1 if has_gpu else min(usable_cores(), MOST_WORKERS))

    def is_local(self) -> bool:
        """Return whether only this machine can connect."""
        return self.host == "localhost" or self.host.startswith("127.") or self.host == "::1"

    def keys(self) -> frozenset[str]:
        """Return the API keys of RUL_API_KEYS; the key file may have more."""
        return frozenset(parts(self.api_keys.get_secret_value()))

    def asks_for_keys(self) -> bool:
        """Return whether a request needs an API key."""
        return bool(self.keys() or self.keys_file)


def variable_of(name: str) -> str:
    """Return the environment variable of a field."""
    return f"{PREFIX}{name}".upper()


def unknown_variables() -> list[str]:
    """Return unknown variables with our prefix, also from .env: most likely misspelt."""
    given = {*EnvSettingsSource(Settings).env_vars, *DotEnvSettingsSource(Settings).env_vars}
    known = {OF_CLIENTS, *map(variable_of, Settings.model_fields)}
    return sorted(name for name in map(str.upper, given) if name.startswith(PREFIX) and name not in known)


def parts(text: str) -> tuple[str, ...]:
    """Split a comma-separated list."""
    return tuple(part for part in (piece.strip() for piece in text.split(",")) if part)


def as_text(value: Any) -> str:  # noqa: ANN401 - a default of any field
    """Format a value as in an environment variable."""
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, tuple) else str(value)


def worded(error: ValidationError) -> str:
    """List variables with wrong values: name, reason, and the value unless it is a secret."""
    lines: list[str] = []
    for item in error.errors(include_url=False):
        name = "_".join(map(str, item["loc"]))
        field, given = Settings.model_fields.get(name), item["input"]
        is_shown = field is not None and field.annotation is not SecretStr and "got " not in item["msg"]
        got = f", got {printable(str(given), 64)!r}" if is_shown else ""
        why = item["msg"].removeprefix("Value error, ")  # pydantic's, before our own words
        lines.append(f"{PREFIX}{name.upper()}: {why}{got}")
    return "; ".join(lines)


def descriptions() -> dict[str, str]:
    """Return the text below each setting, which pydantic would look for at the start of every process."""
    (fields,) = ast.parse(inspect.getsource(Settings)).body
    return {
        ast.unparse(field.target): " ".join(ast.literal_eval(text.value).split())
        for field, text in pairwise(fields.body if isinstance(fields, ast.ClassDef) else ())
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


def env_example() -> str:
    """Return the text of `.env.example`: every variable, its default and its description."""
    texts = descriptions()
    parts = [
        "# Every setting with its default. Put into .env those that you change: the image gpu has others.\n"
    ]
    for name, field in Settings.model_fields.items():
        kind = field.annotation
        choices = list(kind) if isinstance(kind, type) and issubclass(kind, StrEnum) else []
        text = textwrap.wrap(texts[name], 98, break_long_words=False, break_on_hyphens=False)
        comment = "\n".join(f"# {line}" for line in text)
        suffix = f"\n# One of: {', '.join(choices)}." if choices else ""
        parts.append(f"{comment}{suffix}\n{variable_of(name)}={as_text(field.default)}\n")
    return "\n".join(parts)
