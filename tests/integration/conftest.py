"""The real service in a process of its own, behind each front end that users run it with."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.waiting import wait_until

START_SECONDS = 60
STOP_SECONDS = 30


@dataclass
class Server:
    """A running service.

    Attributes:
        http: Base URL.
        grpc: Target of a gRPC channel.
        log: What the process has written so far.
    """

    front_end: str
    http: str
    grpc: str
    process: subprocess.Popen[bytes]
    log: Path

    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_SECONDS)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def running(
    folder: Path, bundles: str, *, front_end: str = "envoy", ready: bool = True, **settings: str
) -> Iterator[Server]:
    """`rul serve` with these settings (RUL_ and upper case are added), stopped at the end."""
    port, grpc_port = free_port(), free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RUL_")}
    environment |= {f"RUL_{name.upper()}": value for name, value in settings.items()}
    environment |= {
        "RUL_BUNDLES": bundles,
        "RUL_HOST": "127.0.0.1",
        "RUL_PORT": str(port),
        "RUL_GRPC_PORT": str(grpc_port),
        "RUL_FRONT_END": front_end,
        "BENTOML_HOME": str(folder / "bentoml"),
        "BENTOML_DO_NOT_TRACK": "true",
    }
    log = folder / "server.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [str(Path(sys.executable).with_name("rul")), "serve"],
            env=environment,
            stdout=sink,
            stderr=subprocess.STDOUT,
            cwd=folder,
            start_new_session=True,
        )
    server = Server(
        front_end,
        f"http://127.0.0.1:{port}",
        f"127.0.0.1:{port if front_end == 'envoy' else grpc_port}",
        process,
        log,
    )
    try:
        if ready:
            wait_until(
                lambda: process.poll() is not None or _answers_ready(server), START_SECONDS, what="readiness"
            )
            assert process.poll() is None, f"the service ended:\n{server.output()}"
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


def _answers_ready(server: Server) -> bool:
    try:
        return httpx.get(server.http + "/readyz", timeout=5, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.fixture(scope="session", params=["envoy", "uvicorn"])
def server(request, tiny_bundle, tmp_path_factory) -> Iterator[Server]:
    """The service with the tiny bundle, once behind each front end."""
    folder = tmp_path_factory.mktemp(f"server-{request.param}")
    with running(folder, str(tiny_bundle), front_end=request.param, log_format="json") as started:
        yield started
