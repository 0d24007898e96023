"""Starts the front end: Envoy if it can run, else BentoML's own server.

Envoy (through pyvoy) serves HTTP and gRPC on one port (docs/adr/0001). Both host the same service. Bundles,
keys and store are checked first, so that a start which cannot succeed ends with one line.
"""

from __future__ import annotations

import asyncio
import errno
import importlib.util
import os
import signal
import socket
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from export.bundle import find_bundle
from export.seal import read_bundle
from service import logs
from service.choices import FrontEnd, Scheduling
from service.edge.keys import read_keys
from service.errors import FrontEndFailed
from service.processes.folder import service_folder
from service.processes.tls import check_certificates
from service.processes.tuning import disable_huge_pages, prepare_descriptors, schedule_as_batch
from service.processes.workers import Workers
from service.settings import Settings
from service.store.url import store_url

SERVICE = "service.app:RulService"
BENTOML = "service.processes.bentoml_server"
NOT_HERE = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}
"""Errors of addresses that this machine does not have, such as those of IPv6."""


def choose(settings: Settings, *, obstacle: str | None = None) -> FrontEnd:
    """Choose the front end: the configured one, or the best one that can run here.

    `obstacle`: why Envoy cannot run, "" if it can, None to find out.

    Raises:
        FrontEndFailed: Envoy is configured and cannot run here.
    """
    obstacle = _obstacle_to_envoy() if obstacle is None else obstacle
    if settings.front_end is FrontEnd.ENVOY and obstacle:
        raise FrontEndFailed(f"the Envoy front end cannot run here: {obstacle}; use --front-end uvicorn")
    if settings.front_end is not FrontEnd.AUTO:
        return settings.front_end
    if not obstacle:
        return FrontEnd.ENVOY
    logs.logger().warning("Envoy cannot run here", reason=obstacle, grpc_port=settings.grpc_port)
    return FrontEnd.UVICORN


def _obstacle_to_envoy() -> str:
    if importlib.util.find_spec("pyvoy") is None:
        return "pyvoy is not installed (this platform has no build of it)"
    import find_libpython  # noqa: PLC0415 comes with pyvoy, so not on every platform

    if not any(Path(path).exists() for path in find_libpython.candidate_paths()):
        return "this Python has no shared library (libpython)"
    return ""


def run(settings: Settings) -> int:
    """Serve until a signal arrives; return the exit status.

    Raises:
        FrontEndFailed: the front end did not start, or no worker is left.
        InvalidBundle: a bundle is missing, damaged or not signed as demanded.
        InvalidKeys: the key file cannot be used.
        InvalidStoreUrl: the store cannot be addressed.
        ModuleNotFoundError: ONNX Runtime is not installed.
    """
    if importlib.util.find_spec("onnxruntime") is None:  # otherwise each worker would fail with a traceback
        raise ModuleNotFoundError("onnxruntime is not installed", name="onnxruntime")
    if settings.keys_file:
        read_keys(Path(settings.keys_file))  # at run time a bad file is only logged
    if settings.store:
        store_url(settings.store_url.get_secret_value())
    for name in settings.bundle_names():  # otherwise a worker would fail, with a line of Envoy's
        read_bundle(find_bundle(name), public_key=settings.bundle_public_key)
    logs.configure(level=settings.log_level, log_format=settings.log_format)
    front_end = choose(settings)
    check_certificates(settings, front_end)
    if settings.scheduling is Scheduling.BATCH:
        schedule_as_batch()
    if not settings.asks_for_keys() and not settings.is_local():
        logs.logger().warning(
            "service open to the network", host=settings.host, reason="RUL_API_KEYS is empty"
        )
    prepare_descriptors(settings)
    if front_end is FrontEnd.ENVOY:
        return asyncio.run(_run_envoy(settings))
    return _run_uvicorn(settings)


def _run_uvicorn(settings: Settings) -> int:
    """Replace this process by `bentoml serve`, whose supervisor handles signals and restarts."""
    from service.core.bundles import load_bundles  # noqa: PLC0415 ONNX Runtime, which Envoy's parent does without

    with (
        _held_port(settings.host, settings.port) as (address, port),
        _held_port(settings.host, settings.grpc_port) as (_, grpc_port),
    ):
        ports = {"port": port, "grpc_port": grpc_port}
    settings = settings.model_copy(update=ports)
    load_bundles(settings)  # stop here at a damaged bundle, which BentoML's supervisor would retry forever
    arguments = ["serve", SERVICE, "--host", address, "--port", str(settings.port)]
    os.environ.update(settings.as_environment())
    os.execv(sys.executable, [sys.executable, "-m", BENTOML, *arguments])  # noqa: S606 our own arguments


async def _run_envoy(settings: Settings) -> int:
    disable_huge_pages()
    stop, hurry = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def end(number: signal.Signals) -> None:
        if stop.is_set() or number is not signal.SIGTERM:  # second signal, or from a terminal
            hurry.set()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # as nohup sets it
            loop.add_signal_handler(number, end, number)
    announce = partial(_announce, is_local=settings.is_local())
    with _held_port(settings.host, settings.port) as address, service_folder() as folder:
        await Workers(settings, folder, address=address, ready=announce).run(stop, hurry)
    return 0


def _announce(models: dict[str, str], url: str, *, is_local: bool) -> None:
    """Print the service's address on a terminal, or else log it."""
    if not sys.stderr.isatty():
        logs.logger().info("service started", url=url, models=models, only_this_machine=is_local)
        return
    lines = [
        f"rulserve answers HTTP and gRPC (models: {', '.join(models)})",
        f"{url}  page; rul demo (or make demo) sends a simulated fleet",
    ]
    if is_local:
        lines.append("only this machine can connect; --host 0.0.0.0 lets others")
    sys.stderr.write("".join(f"{line}\n" for line in lines))  # at once: the terminal may close


@contextmanager
def _held_port(host: str, port: int) -> Generator[tuple[str, int]]:
    """Reserve a port (0: any free one) for the Envoy processes of this service; yield IP address and port.

    Of the addresses of a name it is the first that this machine has, IPv4 before IPv6.

    Envoy's processes share their port with any process that sets SO_REUSEPORT: without the reservation, two
    services that start at once would each get half of the connections.

    Raises:
        FrontEndFailed: nothing can listen there.
    """
    with ExitStack() as stack:
        try:
            held = stack.enter_context(_bound(host, port))
        except OSError as error:
            raise FrontEndFailed(
                f"cannot listen on {host}:{port}: {error.strerror}; choose another address with --host, "
                "--port or, for gRPC beside uvicorn, RUL_GRPC_PORT"
            ) from error
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        held.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEPORT, 1
        )  # only now: before, two reservations would share the port
        # Unlike `getsockname`, with the interface of a link-local address.
        numeric = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV
        address, service = socket.getnameinfo(held.getsockname(), numeric)
        port = int(service)
        if held.family is socket.AF_INET:
            _hold_ipv6(stack, port)
        yield address, port


def _bound(host: str, port: int) -> socket.socket:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for family, *_, address in sorted(found, key=lambda each: each[0] is not socket.AF_INET):
        with ExitStack() as stack:
            try:
                held = stack.enter_context(socket.socket(family))
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                held.bind(address)
            except OSError as error:
                if error.errno not in NOT_HERE:
                    raise
            else:
                stack.pop_all()
                return held
    raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))


def _hold_ipv6(stack: ExitStack, port: int) -> None:
    """Reserve the port on ::1 too, without listening.

    Clients of `localhost` try ::1 first: another user who listens there would get their keys.
    """
    try:
        stack.enter_context(socket.socket(socket.AF_INET6)).bind(("::1", port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:  # else this machine has no IPv6
            reason = "clients of http://localhost may reach another program; use http://127.0.0.1"
            logs.logger().warning("port shared", address=f"[::1]:{port}", reason=reason)
