"""Run the service behind a front end: Envoy where it can be had, else the server that BentoML brings.

Envoy (through pyvoy) speaks HTTP and gRPC on one port and hosts the same BentoML application in
one process; see docs/adr/0001. This module starts and stops the front end, and must not know
what is behind it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import secrets
import signal
import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from service.errors import FrontEndFailed
from service.settings import FrontEnd, Settings

APPLICATION = "service.app:application"
BENTO = "service.app:RulService"
DRAIN_PATH = "/-/drain"
READY_POLL_SECONDS = 0.05
ENVOY_IDLE_SECONDS = 300
"""How long Envoy by itself lets a request or a stream be silent."""


def choose(settings: Settings, *, obstacle: str | None = None) -> FrontEnd:
    """The front end to run: what the settings ask for, or the best that this machine can run.

    Args:
        settings: What the operator asks for.
        obstacle: Why Envoy cannot run, "" where it can; None: look.

    Raises:
        FrontEndFailed: Envoy is asked for and cannot run here.
    """
    obstacle = _obstacle_to_envoy() if obstacle is None else obstacle
    if settings.front_end is FrontEnd.ENVOY and obstacle:
        raise FrontEndFailed(f"the Envoy front end cannot run here: {obstacle}; use --front-end uvicorn")
    if settings.front_end is not FrontEnd.AUTO:
        return settings.front_end
    return FrontEnd.UVICORN if obstacle else FrontEnd.ENVOY


def _obstacle_to_envoy() -> str:
    if importlib.util.find_spec("pyvoy") is None:
        return "pyvoy is not installed (there is no build of it for this platform)"
    import find_libpython  # noqa: PLC0415 comes with pyvoy, so not on every platform

    if not any(Path(path).exists() for path in find_libpython.candidate_paths()):
        return "this Python has no shared library (libpython)"
    return ""


def run(settings: Settings, *, announce: bool = True) -> int:
    """Serve until a signal says otherwise; the exit status."""
    if choose(settings) is FrontEnd.ENVOY:
        return asyncio.run(_run_envoy(settings, announce=announce))
    return _run_uvicorn(settings)


def _run_uvicorn(settings: Settings) -> int:
    """Become `bentoml serve`: its own supervisor answers signals and starts the worker again."""
    from service.loading import load_bundles  # noqa: PLC0415 ONNX Runtime, which Envoy's parent does without

    for port in (settings.port, settings.grpc_port):
        _check_free(settings.host, port)
    load_bundles(settings)  # what is damaged ends here: the supervisor would start it again and again
    arguments = ["serve", BENTO, "--host", settings.host, "--port", str(settings.port)]
    os.environ.update(settings.as_environment(), RUL_FRONT_END=FrontEnd.UVICORN.value)
    os.execv(sys.executable, [sys.executable, "-m", "bentoml", *arguments])  # noqa: S606 our own arguments


async def _run_envoy(settings: Settings, *, announce: bool) -> int:
    from pyvoy import PyvoyServer, StartupError  # noqa: PLC0415 not on every platform

    token = secrets.token_urlsafe(32)
    environment = settings.as_environment() | {
        "RUL_FRONT_END": FrontEnd.ENVOY.value,
        "RUL_CONTROL_TOKEN": token,
    }
    _check_free(settings.host, settings.port)
    idle_seconds = max(ENVOY_IDLE_SECONDS, settings.stream_idle_seconds + 60)  # so that ours comes first

    class Server(PyvoyServer):
        def get_envoy_config(self) -> dict[str, Any]:
            return patient(super().get_envoy_config(), idle_seconds=idle_seconds)

    server = Server(
        APPLICATION,
        address=settings.host,
        port=settings.port,
        lifespan=True,
        log_level="off",  # a start-up that fails would print Envoy's whole configuration after our reason
        env=environment,
        stdout=None,
        stderr=None,
    )
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stopping.set)
    try:
        with _interrupts_held():
            await server.start()
    except StartupError as error:
        raise FrontEndFailed("the service did not start, for the reason above") from error
    try:
        exited = asyncio.ensure_future(server.wait())
        stop = asyncio.ensure_future(stopping.wait())
        url = f"http://{_reachable(settings.host)}:{server.listener_port}"
        greeting = asyncio.ensure_future(_announce(url)) if announce else None
        await asyncio.wait({exited, stop}, return_when=asyncio.FIRST_COMPLETED)
        if greeting is not None:
            greeting.cancel()
        if not stopping.is_set():
            raise FrontEndFailed(f"the front end stopped by itself with status {exited.result()}")
        await _drain(url, token, exited, seconds=settings.drain_seconds)
    finally:
        await server.stop()
    return 0


def patient(config: dict[str, Any], *, idle_seconds: float) -> dict[str, Any]:
    """Envoy's configuration, with streams that may be silent for this long."""
    for listener in config["static_resources"]["listeners"]:
        for chain in listener["filter_chains"]:
            for one in chain["filters"]:
                one["typed_config"]["stream_idle_timeout"] = f"{idle_seconds:.3f}s"
    return config


@contextmanager
def _interrupts_held() -> Generator[None]:
    """Start a process that Ctrl+C does not reach: the terminal tells the whole group, and we drain first."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _check_free(host: str, port: int) -> None:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise FrontEndFailed(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another address with --host, --port "
            "or, for gRPC beside uvicorn, RUL_GRPC_PORT"
        ) from error


async def _drain(url: str, token: str, exited: asyncio.Future[int | None], *, seconds: float) -> None:
    """Let the service finish what it has begun; it refuses what is new meanwhile."""
    async with httpx.AsyncClient(timeout=seconds + 1, trust_env=False) as client:
        try:
            await client.post(url + DRAIN_PATH, headers={"authorization": f"Bearer {token}"})
        except httpx.HTTPError as error:
            # Whoever signals the whole process group stops Envoy too: then nothing is left to drain.
            await asyncio.wait({exited}, timeout=seconds + 1)
            if not exited.done():
                print(f"rul: could not drain: {error!r}", file=sys.stderr)  # noqa: T201 to the operator


async def _announce(url: str) -> None:
    """Say where the service is, once it is ready."""
    async with httpx.AsyncClient(trust_env=False) as client:
        while True:
            try:
                reply = await client.get(url + "/readyz")
            except httpx.HTTPError:
                await asyncio.sleep(READY_POLL_SECONDS)
                continue
            if reply.is_success:
                break
            await asyncio.sleep(READY_POLL_SECONDS)
    models = ", ".join(f"{model['name']} on {model['provider']}" for model in reply.json()["models"])
    print(f"ready: {url} (HTTP and gRPC; {models}); try {url}/docs", flush=True)  # noqa: T201


def _reachable(host: str) -> str:
    if host in {"0.0.0.0", "::", "127.0.0.1"}:  # noqa: S104 compared, not bound
        return "localhost"
    return f"[{host}]" if ":" in host else host
