"""Two services behind HAProxy, and callers that count the outcome of each request.

HAProxy asks each service's /readyz twice a second. It sends requests to both in turn, also those of
one HTTP/2 connection.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import grpc
import httpx

from service.proto import rul_v1_pb2 as pb
from service.proto import rul_v1_pb2_grpc
from tests.integration.conftest import Server, free_port, metrics_of, running
from tests.programs import program
from tests.waiting import wait_until

CONFIG: Final = """
defaults
  mode http
  balance roundrobin
  retries {retries}
  option redispatch 1
  timeout connect 2s
  timeout client 30s
  timeout server 30s
  option httpchk GET /readyz
  timeout check 5s
  default-server check inter 500ms fall 1 rise 1
frontend http
  bind 127.0.0.1:{http}
  default_backend http
frontend grpc
  bind 127.0.0.1:{grpc} proto h2
  default_backend grpc
backend http
  server a 127.0.0.1:{a}
  server b 127.0.0.1:{b}
backend grpc
  server a 127.0.0.1:{a} proto h2 check-proto h1
  server b 127.0.0.1:{b} proto h2 check-proto h1
"""
PATIENCE_SECONDS: Final = 60
BACK_OFF_SECONDS: Final = 0.1
"""Time after which a caller sends its next request if one failed."""
GENTLE_SECONDS: Final = 0.02
"""The same after an answer, in tests: more requests would find nothing more, and cost a core."""
ROUTES: Final = {
    "http": ("200", ("/v1/predict", "/v1/units/{unit}/cycles")),
    "grpc": ("OK", ("rul.v1.RulService/Predict", "rul.v1.RulService/AppendCycles")),
}
Ask = Callable[[], None]


class Load:
    """Callers that send requests until they are stopped; counts outcomes by protocol.

    A caller pauses `pace` seconds after an answer, and `BACK_OFF_SECONDS` after a failed request.
    """

    def __init__(self, *, pace: float = 0.0) -> None:
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self._pace = pace
        self._stop = threading.Event()
        self._lock = threading.Lock()

    @property
    def failed(self) -> int:
        """Number of requests without an answer."""
        return sum(count for (_, outcome), count in self.outcomes.items() if outcome != "answered")

    def ask(self, protocol: str, once: Ask) -> None:
        """Send requests until stopped."""
        while not self._stop.is_set():
            try:
                once()
                outcome = "answered"
            except (httpx.HTTPError, grpc.RpcError, AssertionError) as error:
                text = error.code().name if isinstance(error, grpc.RpcError) else str(error)
                outcome = f"{type(error).__name__}: {text.splitlines()[0][:60]}"
            with self._lock:
                self.outcomes[protocol, outcome] += 1
            self._stop.wait(self._pace if outcome == "answered" else BACK_OFF_SECONDS)

    @contextmanager
    def running(self, asks: list[tuple[str, Ask]]) -> Generator[None]:
        """Send requests while the block runs."""
        with ThreadPoolExecutor(len(asks)) as threads:
            for each in asks:
                threads.submit(self.ask, *each)
            try:
                yield
            finally:
                self._stop.set()

    def show(self) -> None:
        """Print the outcomes."""
        for (protocol, outcome), count in sorted(self.outcomes.items()):
            print(f"{protocol}  {count:7,}  {outcome}")


class Pair:
    """Two services that stop and start one by one.

    Attributes:
        http: Port of HAProxy for HTTP.
        grpc: Port of HAProxy for gRPC.
        servers: The services.
    """

    def __init__(self, folder: Path, bundle: str, settings: dict[str, str]) -> None:
        self._folder, self._bundle, self._settings = folder, bundle, settings
        self.http, self.grpc, self.ports = free_port(), free_port(), (free_port(), free_port())
        self._stacks: Final = (ExitStack(), ExitStack())
        with ThreadPoolExecutor(2) as threads:
            self.servers: Final = [*threads.map(self._start, (0, 1))]

    def _start(self, number: int) -> Server:
        home = Path(tempfile.mkdtemp(dir=self._folder))
        opened = running(home, self._bundle, port=self.ports[number], **self._settings)
        return self._stacks[number].enter_context(opened)

    def start(self, number: int) -> None:
        """Start a service again, and wait until it answers requests by both protocols."""
        self.servers[number] = new = self._start(number)
        wait_until(lambda: is_used(new), PATIENCE_SECONDS, what="requests at the new service")

    def stop(self, number: int) -> int:
        """Stop a service by SIGTERM; return its exit status."""
        status = self.servers[number].stop()
        self._stacks[number].close()
        return status

    def kill(self, number: int) -> None:
        """Kill a service and all its workers by SIGKILL."""
        process = self.servers[number].process
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._stacks[number].close()

    def close(self) -> None:
        """Stop both; each gets a second SIGTERM at the end of its block, which skips the lame-duck time."""
        for server in self.servers:
            server.process.terminate()
        for stack in self._stacks:
            stack.close()


@contextmanager
def balanced(folder: Path, bundle: str, *, retries: int = 0, **settings: str) -> Iterator[Pair]:
    """Start two services at once, and HAProxy in front; skip if it is missing.

    HAProxy repeats a request `retries` times, at the other service, if it could not connect.
    """
    haproxy, pair = program("haproxy"), Pair(folder, bundle, settings)
    try:
        config = folder / "haproxy.cfg"
        a, b = pair.ports
        config.write_text(CONFIG.format(http=pair.http, grpc=pair.grpc, a=a, b=b, retries=retries))
        process = subprocess.Popen([haproxy, "-f", config, "-db", "-q"])
        try:
            # If a request succeeds, HAProxy has seen a service as ready.
            url = f"http://127.0.0.1:{pair.http}/readyz"
            wait_until(lambda: httpx.get(url, trust_env=False).is_success, PATIENCE_SECONDS, what="HAProxy")
            yield pair
        finally:
            process.kill()
            process.wait()
    finally:
        pair.close()


def asks_of(given: dict[str, Any], pair: Pair, callers: int, opened: ExitStack) -> list[tuple[str, Ask]]:
    """Return callers by both protocols, each on its own connection, which `opened` closes."""
    columns = {name: pb.Series(values=values) for name, values in given["columns"].items()}
    request = pb.PredictRequest(windows=[pb.Window(columns=pb.Columns(columns=columns))])
    asks: list[tuple[str, Ask]] = []
    for number in range(callers):
        client = opened.enter_context(
            httpx.Client(base_url=f"http://127.0.0.1:{pair.http}", timeout=30, trust_env=False)
        )
        options = [("grpc.use_local_subchannel_pool", 1), ("caller", number), ("grpc.enable_retries", 0)]
        channel = opened.enter_context(grpc.insecure_channel(f"127.0.0.1:{pair.grpc}", options=options))
        stub = rul_v1_pb2_grpc.RulServiceStub(channel)

        def by_http(client: httpx.Client = client) -> None:
            client.post("/v1/predict", json={"windows": [given]}).raise_for_status()

        def by_grpc(stub: rul_v1_pb2_grpc.RulServiceStub = stub) -> None:
            assert stub.Predict(request, timeout=30).predictions

        asks += [("http", by_http), ("grpc", by_grpc)]
    return asks


def answered(server: Server) -> dict[str, float]:
    """Count the predictions that a service has answered, by protocol."""
    found = metrics_of(server, "rul_requests_total")
    return {
        protocol: sum(
            found["rul_requests_total", (("code", code), ("protocol", protocol), ("route", route))]
            for route in routes
        )
        for protocol, (code, routes) in ROUTES.items()
    }


def is_used(server: Server) -> bool:
    """Return whether a service has answered by both protocols."""
    return all(answered(server).values())
