"""Run the service behind a front end: Envoy where it can be had, else the server that BentoML brings.

Envoy (through pyvoy) speaks HTTP and gRPC on one port and hosts the same BentoML application; see
docs/adr/0001. This module chooses and starts the front end, and must not know what is behind it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import socket
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from service.errors import FrontEndFailed
from service.processes.scheduling import yield_to_running
from service.processes.workers import Workers
from service.settings import FrontEnd, Scheduling, Settings

BENTO = "service.app:RulService"


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
    front_end = choose(settings)
    if settings.scheduling is Scheduling.BATCH:
        yield_to_running()
    if front_end is FrontEnd.ENVOY:
        return asyncio.run(_run_envoy(settings, announce=announce))
    return _run_uvicorn(settings)


def _run_uvicorn(settings: Settings) -> int:
    """Become `bentoml serve`: its own supervisor answers signals and starts the worker again."""
    from service.core.bundles import load_bundles  # noqa: PLC0415 ONNX Runtime, which Envoy's parent does without

    for port in (settings.port, settings.grpc_port):
        _check_free(settings.host, port)
    load_bundles(settings)  # what is damaged ends here: the supervisor would start it again and again
    arguments = ["serve", BENTO, "--host", settings.host, "--port", str(settings.port)]
    os.environ.update(settings.as_environment(), RUL_FRONT_END=FrontEnd.UVICORN.value)
    os.execv(sys.executable, [sys.executable, "-m", "bentoml", *arguments])  # noqa: S606 our own arguments


async def _run_envoy(settings: Settings, *, announce: bool) -> int:
    _check_free(settings.host, settings.port)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)

    def say_ready(status: dict[str, Any], url: str) -> None:
        if announce:
            models = ", ".join(f"{model['name']} on {model['provider']}" for model in status["models"])
            print(f"ready: {url} (HTTP and gRPC; {models}); try {url}/docs", flush=True)  # noqa: T201

    with TemporaryDirectory(prefix="rul-") as folder:
        await Workers(settings, Path(folder), ready=say_ready).run(stop)
    return 0


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
