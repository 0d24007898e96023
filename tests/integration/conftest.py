"""The real service in its own process, behind each front end that users run."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import count as count_from
from pathlib import Path
from typing import Any

import grpc
import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from export.golden import Golden
from export.seal import read_bundle
from service.proto import rul_v1_pb2_grpc
from service.store.url import store_url
from tests.asking import Asked, golden_windows
from tests.browser import chromium, screenshot_folder, visit
from tests.databases import PostgreSql, postgresql
from tests.environments import clean_environment
from tests.waiting import wait_until

FRONT_ENDS = ("envoy", "uvicorn")
RUL = str(Path(sys.executable).with_name("rul"))
START_SECONDS = 60
STOP_SECONDS = 30
ANSWER_SECONDS = 30
COMMAND_SECONDS = 300
DEFAULTS = {"host": "127.0.0.1", "workers": "1", "lame_duck_seconds": "0"}


@dataclass
class Server:
    """A running service.

    Attributes:
        http: Base URL.
        grpc: Target of a gRPC channel.
        log: File of what the process writes.
    """

    front_end: str
    http: str
    grpc: str
    process: subprocess.Popen[bytes]
    log: Path

    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    @property
    def port(self) -> int:
        return int(self.http.rpartition(":")[2])

    def client(self, **options: Any) -> httpx.Client:
        """Make a client of the service; it may use several connections at once."""
        given = {"timeout": ANSWER_SECONDS, "trust_env": False, **options}
        return httpx.Client(base_url=self.http, **given)

    def ask(self, method: str, path: str, *, key: str = "", **options: Any) -> httpx.Response:
        """Send a request over a new connection, which the kernel assigns to any worker."""
        # `verify` only because an unused TLS context costs more than the request.
        with self.client(headers={"x-api-key": key} if key else {}, verify=False) as client:
            return client.request(method, path, **options)

    def predict(self, *windows: object, key: str = "", **options: Any) -> httpx.Response:
        """Predict windows in JSON over a new connection."""
        return self.ask("POST", "/v1/predict", key=key, json={"windows": windows, **options})

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_SECONDS)


def _ports() -> Iterator[int]:
    """Yield ports for this process only, below the system's ephemeral ports."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first, count = 12_000 + 2_000 * (worker % 8), 2_000
    for number in count_from(os.getpid()):  # parallel runs start at different ports
        yield first + number % count


PORTS = _ports()


def free_port() -> int:
    """Return a free port that no other process of these tests will use."""
    return next(port for port in PORTS if _is_free(port))


def _is_free(port: int) -> bool:
    with socket.socket() as probe, suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False


@contextmanager
def running(
    folder: Path,
    bundles: str,
    *,
    front_end: str = "envoy",
    ready: bool = True,
    command: Sequence[str] = (RUL, "serve"),
    tls: ssl.SSLContext | None = None,
    port: int | None = None,
    **settings: str,
) -> Iterator[Server]:
    """Run `rul serve` with these settings (without RUL_ and in lower case) until the block ends.

    With `ready` the service is ready, behind Envoy with every worker unless /metrics asks for a key. Another
    command may hold `{port}`.
    """
    port, grpc_port = port or free_port(), free_port()
    environment = {f"RUL_{name.upper()}": value for name, value in (DEFAULTS | settings).items()}
    environment |= {
        "RUL_BUNDLES": bundles,
        "RUL_PORT": str(port),
        "RUL_GRPC_PORT": str(grpc_port),
        "RUL_FRONT_END": front_end,
        "BENTOML_HOME": str(folder / "bentoml"),
        "XDG_STATE_HOME": str(folder / "state"),
        "BENTOML_DO_NOT_TRACK": "true",
    }
    log = folder / "server.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [part.format(port=port) for part in command],
            env=clean_environment(**environment),
            stdout=sink,
            stderr=subprocess.STDOUT,
            cwd=folder,
            start_new_session=True,
        )
    server = Server(
        front_end,
        f"http{'s' if tls else ''}://127.0.0.1:{port}",
        f"127.0.0.1:{port if front_end == 'envoy' else grpc_port}",
        process,
        log,
    )
    try:
        if ready:
            verify = tls or False
            wait_until(
                lambda: (
                    process.poll() is not None
                    or httpx.get(f"{server.http}/readyz", trust_env=False, verify=verify).is_success
                ),
                START_SECONDS,
                what="readiness",
            )
            assert process.poll() is None, f"the service ended:\n{server.output()}"
            count = int(settings.get("workers", 1))
            if count > 1 and front_end == "envoy" and not settings.keys() & {"keys_file", "api_keys"}:
                await_workers(server, count)
        yield server
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise


KEY = "a-key"


@pytest.fixture(scope="session")
def start(tiny_bundle, tmp_path_factory) -> Iterator[Callable[..., Server]]:
    """Start a service once, by its name and front end; it runs until the session ends.

    pytest ends a fixture where its parameter changes: twice in each file, where xdist deals out files.
    """
    with ExitStack() as stack:

        @cache
        def started(name: str, front_end: str, **settings: str) -> Server:
            folder = tmp_path_factory.mktemp(f"{name}-{front_end}")
            return stack.enter_context(
                running(folder, str(tiny_bundle.path), front_end=front_end, **settings)
            )

        yield started


LOGGED = {"log_format": "json", "log_sample": "1"}


@pytest.fixture(scope="session", params=FRONT_ENDS)
def server(request, start) -> Server:
    """The service with the tiny bundle, for each front end."""
    return start("server", request.param, **LOGGED)


@pytest.fixture(scope="session")
def behind_envoy(start) -> Server:
    """The same behind Envoy, for clients: tests/golden compares the answers of both front ends."""
    return start("server", "envoy", **LOGGED)


@pytest.fixture(scope="session", params=FRONT_ENDS)
def strict(request, start) -> Server:
    """A service that needs a key and has low limits and short timeouts."""
    return start(
        "strict",
        request.param,
        api_keys=f"another, {KEY}",
        max_request_windows="4",
        request_timeout_seconds="0.000001",
    )


@pytest.fixture(scope="session")
def windows(tiny_bundle) -> list[Asked]:
    """Windows for the tiny bundle's model: long, short, with gaps, of unknown age."""
    return golden_windows(read_bundle(tiny_bundle).golden)


@pytest.fixture(scope="module")
def http(server) -> Iterator[httpx.Client]:
    """A client of this module's `server`."""
    with server.client() as client:
        yield client


@pytest.fixture(scope="module")
def channel(server) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.grpc) as opened:
        yield opened


@pytest.fixture(scope="module")
def stub(channel) -> rul_v1_pb2_grpc.RulServiceStub:
    return rul_v1_pb2_grpc.RulServiceStub(channel)


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgreSql]:
    with postgresql() as started:
        yield started


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.system)])
def url(request, tmp_path) -> str:
    """The address of a new database."""
    if request.param == "sqlite":
        return store_url(f"sqlite:///{tmp_path}/rul.db")
    return store_url(request.getfixturevalue("postgres").database(tmp_path.name))


def rul(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in its own process, with only these settings."""
    return subprocess.run(
        [RUL, *map(str, arguments)],
        env=clean_environment(**environment),
        capture_output=True, text=True, check=False, timeout=COMMAND_SECONDS,
    )  # fmt: skip


def metrics_of(server: Server, prefix: str = "") -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return every sample whose name begins so, by name and labels; to parse all takes a while."""
    lines = server.ask("GET", "/metrics").text.splitlines(keepends=True)
    text = "".join(line for line in lines if line.startswith(prefix))
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def metric(server: Server, name: str, **labels: str) -> float:
    """Return the sum of a metric's samples with these labels."""
    return sum(
        value
        for (found, of), value in metrics_of(server, name).items()
        if found == name and labels.items() <= dict(of).items()
    )


def workers_of(server: Server) -> list[psutil.Process]:
    """Return the worker processes in the order of their start."""
    return [child for child in psutil.Process(server.process.pid).children() if "envoy" in child.name()]


def await_workers(server: Server, count: int) -> None:
    """Wait until this number of workers is ready."""
    wait_until(lambda: metric(server, "rul_workers") == count, START_SECONDS, what="every worker")


@pytest.fixture(scope="session")
def golden(tiny_bundle) -> Golden:
    return read_bundle(tiny_bundle).golden


@pytest.fixture(scope="module")
def browser():
    """A browser per module, because its event loop must not run beside those of other tests."""
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def service(tmp_path_factory) -> Iterator[Server]:
    """A service with the bundle fd001."""
    with running(tmp_path_factory.mktemp("service"), "fd001") as started:
        yield started


@pytest.fixture
def expects() -> str:
    """Part of the errors that a test causes on purpose; see `tests.browser.expecting`."""
    return "\0"


@pytest.fixture
def opened(service, browser, look, tmp_path, expects):
    """The page of a module's `service`, in one look."""
    with visit(browser, service.http, look, screenshot_folder(tmp_path), expects=expects) as visited:
        yield visited
