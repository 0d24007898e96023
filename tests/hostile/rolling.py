"""Restart two services, one after the other, behind HAProxy under load: no request may fail.

    .venv/dev/bin/python -m tests.hostile.rolling [--rounds 1] [--callers 4] [--lame-duck 5] [--bundle fd001]

HAProxy asks each service's /readyz twice a second and repeats no request. `--lame-duck 0` shows what fails
without the lame-duck time. Exit status: 0 without a failed request, 1 otherwise, 2 without HAProxy.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx

from service.proto import rul_v1_pb2 as pb
from service.proto import rul_v1_pb2_grpc
from tests.integration.conftest import Server, free_port, metrics_of, rul, running
from tests.waiting import wait_until

CONFIG = """
defaults
  mode http
  retries 0
  timeout connect 2s
  timeout client 30s
  timeout server 30s
  option httpchk
  http-check send meth GET uri /readyz ver HTTP/1.1 hdr host localhost
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
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])
"""Debian keeps servers where only root looks."""
Ask = Callable[[], None]


class Load:
    """Callers that ask without a pause until told to stop; counts outcomes by protocol."""

    def __init__(self) -> None:
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self._stop = threading.Event()
        self._lock = threading.Lock()

    def ask(self, protocol: str, once: Ask) -> None:
        """Ask again and again."""
        while not self._stop.is_set():
            try:
                once()
                outcome = "answered"
            except (httpx.HTTPError, grpc.RpcError, AssertionError) as error:
                text = error.code().name if isinstance(error, grpc.RpcError) else str(error)
                outcome = f"{type(error).__name__}: {text.splitlines()[0][:60]}"
            with self._lock:
                self.outcomes[protocol, outcome] += 1

    @contextmanager
    def running(self, asks: list[tuple[str, Ask]]) -> Generator[None]:
        """Ask while the block runs."""
        threads = [threading.Thread(target=self.ask, args=each) for each in asks]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()


@contextmanager
def haproxy(folder: Path, http: int, grpc_port: int, ports: list[int]) -> Generator[None]:
    """HAProxy before two services."""
    config = folder / "haproxy.cfg"
    config.write_text(CONFIG.format(http=http, grpc=grpc_port, a=ports[0], b=ports[1]))
    process = subprocess.Popen([shutil.which("haproxy", path=PATH) or "", "-f", config, "-db", "-q"])
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def asks_of(given: dict[str, Any], http: int, grpc_port: int, callers: int) -> list[tuple[str, Ask]]:
    """Callers by both protocols, each with a connection of its own."""
    columns = {name: pb.Series(values=values) for name, values in given["columns"].items()}
    request = pb.PredictRequest(windows=[pb.Window(columns=pb.Columns(columns=columns))])
    asks: list[tuple[str, Ask]] = []
    for number in range(callers):
        client = httpx.Client(base_url=f"http://127.0.0.1:{http}", timeout=30, trust_env=False)
        options = [("grpc.use_local_subchannel_pool", 1), ("caller", number), ("grpc.enable_retries", 0)]
        channel = grpc.insecure_channel(f"127.0.0.1:{grpc_port}", options=options)
        stub = rul_v1_pb2_grpc.RulServiceStub(channel)

        def by_http(client: httpx.Client = client) -> None:
            client.post("/v1/predict", json={"windows": [given]}).raise_for_status()

        def by_grpc(stub: rul_v1_pb2_grpc.RulServiceStub = stub) -> None:
            assert stub.Predict(request, timeout=30).predictions

        asks += [("http", by_http), ("grpc", by_grpc)]
    return asks


def roll(*, rounds: int, callers: int, lame_duck: float, bundle: str, folder: Path) -> Load:
    """Restart both services in turn, so many rounds, under load."""
    simulated = folder / "request.json"
    made = rul(
        "simulate", "--bundle", bundle, "--units", 1, "--truncate", "--format", "json", "--output", simulated
    )
    assert made.returncode == 0, made.stderr
    given = json.loads(simulated.read_text())["windows"][0]
    ports, http, grpc_port = [free_port(), free_port()], free_port(), free_port()

    def start(number: int) -> tuple[ExitStack, Server]:
        stack, port = ExitStack(), ports[number]
        home = Path(tempfile.mkdtemp(dir=folder))
        opened = running(home, bundle, port=port, lame_duck_seconds=str(lame_duck), store="false")
        return stack, stack.enter_context(opened)

    load = Load()
    with haproxy(folder, http, grpc_port, ports):
        services = [start(0), start(1)]
        try:
            # Once a request has gone through, HAProxy has seen a service.
            wait_until(
                lambda: httpx.get(f"http://127.0.0.1:{http}/readyz", trust_env=False).is_success,
                30,
                what="HAProxy",
            )
            with load.running(asks_of(given, http, grpc_port, callers)):
                for _, started in services:
                    wait_until(lambda started=started: is_used(started), 60, what="requests at both services")
                for number in [0, 1] * rounds:
                    stack, server = services[number]
                    assert server.stop() == 0
                    stack.close()
                    services[number] = start(number)
                    new = services[number][1]
                    wait_until(lambda new=new: is_used(new), 60, what="requests at the new service")
        finally:
            for stack, _ in services:
                stack.close()
    return load


def is_used(server: Server) -> bool:
    """Say whether a service has answered by both protocols."""
    found = metrics_of(server)
    routes = {"http": ("/v1/predict", "200"), "grpc": ("rul.v1.RulService/Predict", "OK")}
    return all(
        found["rul_requests_total", (("code", code), ("protocol", protocol), ("route", route))] > 0
        for protocol, (route, code) in routes.items()
    )


def main() -> int:
    """Run, print the table and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--callers", type=int, default=4)
    parser.add_argument("--lame-duck", type=float, default=5.0)
    parser.add_argument("--bundle", default="fd001")
    given = parser.parse_args()
    if shutil.which("haproxy", path=PATH) is None:
        print("haproxy is not installed: apt install haproxy", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        load = roll(**vars(given), folder=Path(folder))
    restarts, callers = 2 * given.rounds, given.callers
    print(f"{restarts} restarts, {callers} callers a protocol, lame-duck time {given.lame_duck:g} s")
    for (protocol, outcome), count in sorted(load.outcomes.items()):
        print(f"{protocol}  {count:7,}  {outcome}")
    return int(any(outcome != "answered" for _, outcome in load.outcomes))


if __name__ == "__main__":
    sys.exit(main())
