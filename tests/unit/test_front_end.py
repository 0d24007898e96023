"""Which front end runs, and what an operator is told where none can."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from ipaddress import IPv6Address
from pathlib import Path
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from export.bundle import InvalidBundle
from service import cli
from service.assembly import STORE_SECONDS
from service.choices import FrontEnd
from service.errors import FrontEndFailed
from service.grpc.server import serve
from service.processes import envoy_config, front_end, tls, workers
from service.processes.envoy_server import STOP_SECONDS, EnvoyServer, interrupts_blocked
from service.settings import Settings
from service.store.recorder import END_SECONDS
from service.tracing.otlp import FLUSH_SECONDS
from tests.environments import clean_environment

pytestmark = pytest.mark.usefixtures("no_settings")


@pytest.mark.parametrize(
    ("asked", "obstacle", "chosen"),
    [
        (FrontEnd.UVICORN, None, FrontEnd.UVICORN),
        (FrontEnd.AUTO, "", FrontEnd.ENVOY),
        (FrontEnd.AUTO, "no libpython", FrontEnd.UVICORN),
    ],
)
def test_what_is_asked_for_is_chosen_else_envoy_where_it_can_run(asked, obstacle, chosen):
    with capture_logs() as logged:
        assert front_end.choose(Settings(front_end=asked), obstacle=obstacle) is chosen

    changed = asked is FrontEnd.AUTO and chosen is FrontEnd.UVICORN
    assert [event["reason"] for event in logged] == [obstacle] * changed


def test_a_worker_may_write_its_last_predictions_and_traces_before_it_is_killed():
    assert STOP_SECONDS > STORE_SECONDS + END_SECONDS + FLUSH_SECONDS


def test_envoy_asked_for_where_it_cannot_run_is_an_error_that_says_what_to_do():
    with pytest.raises(FrontEndFailed, match="no libpython; use --front-end uvicorn"):
        front_end.choose(Settings(front_end=FrontEnd.ENVOY), obstacle="no libpython")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("0.0.0.0", "localhost"),
        ("::", "localhost"),
        ("127.0.0.1", "localhost"),
        ("10.0.0.7", "10.0.0.7"),
        ("fd00::7", "[fd00::7]"),
    ],
)
def test_the_address_that_is_announced_can_be_reached(host, expected):
    assert workers.reachable(host) == expected


def test_a_taken_port_is_an_error_that_says_what_to_do():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        with pytest.raises(FrontEndFailed, match=rf"127\.0\.0\.1:{port}: .*choose another"):
            front_end._held_port("127.0.0.1", port).__enter__()


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "0.0.0.0"), ("localhost", "127.0.0.1")],
)
def test_a_free_port_is_held_at_the_address_of_the_host(host, expected):
    with front_end._held_port(host, 0) as (address, port):
        assert address == expected
        assert port > 0


def test_a_link_local_address_is_held_with_its_interface():
    table = Path("/proc/net/if_inet6")
    lines = [line.split() for line in table.read_text().splitlines()] if table.exists() else []
    found = next(((line[0], line[-1]) for line in lines if line[0].startswith("fe80")), None)
    if found is None:
        pytest.skip("this machine has no link-local address")
    host = f"{IPv6Address(bytes.fromhex(found[0]))}%{found[1]}"

    with front_end._held_port(host, 0) as (address, _):
        assert address == host


def test_of_the_addresses_of_a_name_the_first_that_this_machine_has_is_held(monkeypatch):
    inet, kind = socket.AF_INET, socket.SOCK_STREAM
    found = [(inet, kind, 6, "", (address, 0)) for address in ("192.0.2.1", "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)

    with front_end._held_port("plant.example", 0) as (address, _):
        assert address == "127.0.0.1"


@pytest.fixture
def other():
    """A socket of another program on ::1, which clients of `localhost` try first."""
    with socket.socket(socket.AF_INET6) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            pytest.skip("this machine has no IPv6")
        yield made


@pytest.mark.usefixtures("other")
async def test_grpc_beside_uvicorn_listens_on_an_ipv6_address():
    with capture_logs() as events:
        server = await serve({}, Settings(host="::1", grpc_port=0))
    await server.stop(0)

    assert events[0]["port"] > 0


def test_another_program_cannot_take_the_port_on_the_ipv6_address_of_localhost(other):
    with front_end._held_port("127.0.0.1", 0) as (_, port):
        with pytest.raises(OSError, match="already in use"):
            other.bind(("::1", port))
        with pytest.raises(ConnectionRefusedError):  # clients then try 127.0.0.1
            socket.create_connection(("::1", port))


def test_a_port_that_another_program_has_on_the_ipv6_address_of_localhost_is_warned_of(other):
    other.bind(("::1", 0))
    port = other.getsockname()[1]

    with capture_logs() as events, front_end._held_port("127.0.0.1", port):
        pass

    assert [(event["event"], event["address"]) for event in events] == [("port shared", f"[::1]:{port}")]


def test_a_host_that_is_not_this_machine_is_an_error():
    with pytest.raises(FrontEndFailed, match=r"192\.0\.2\.1:3000"):
        front_end._held_port("192.0.2.1", 3000).__enter__()


def admin_of(folder, configure=dict):
    return EnvoyServer(
        "none:application", host="127.0.0.1", port=1, admin=folder / "admin",
        configure=configure, environment={}, arguments=[],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (1, "its log has the reason"),
        (-signal.SIGKILL, "SIGKILL, usually for memory: see `dmesg`"),
        (-signal.SIGSEGV, "SIGSEGV: see `dmesg`"),
    ],
)
async def test_a_start_that_is_killed_has_its_signal_as_the_reason(status, said, tmp_path):
    server = admin_of(tmp_path)

    with pytest.raises(FrontEndFailed, match=said):
        await server._listening(SimpleNamespace(returncode=status))


async def test_a_worker_whose_configuration_cannot_be_written_did_not_start(tmp_path):
    """It starts again later: any other error would end the workers that answer."""
    certificate = tmp_path / "none" / "certificate.json"
    server = admin_of(tmp_path, lambda _: certificate.write_text("{}"))

    with pytest.raises(FrontEndFailed, match=r"Envoy did not start: .*certificate"):
        await server.start()

    assert server.process.cancelled()


async def test_a_liveness_that_envoy_did_not_accept_is_told_again(short_path):
    server, lines = admin_of(short_path), []
    await server.set_alive(is_alive=False)  # nothing listens

    async def answer(reader, writer):
        lines.append(await reader.readline())
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        writer.close()

    async with await asyncio.start_unix_server(answer, short_path / "admin"):
        await server.set_alive(is_alive=False)
        await server.set_alive(is_alive=False)

    assert lines == [b"POST /healthcheck/fail HTTP/1.1\r\n"]


async def test_a_worker_that_does_not_drain_in_time_gets_no_more_time(short_path):
    class Stuck:
        is_awaited = False

        async def wait(self):
            self.is_awaited = True

    settings = SimpleNamespace(drain_seconds=-1, worker_count=lambda: 1)  # a second is added
    made = workers.Workers(settings, short_path, address=("127.0.0.1", 1), ready=print)
    made._servers[0] = stuck = Stuck()

    with socket.socket(socket.AF_UNIX) as control, capture_logs() as logged:
        control.bind(str(short_path / "worker-0"))
        control.listen()
        await made._drain(0)

    assert not stuck.is_awaited
    assert [event["event"] for event in logged] == ["drain failed"]


def test_a_worker_that_restarts_does_not_write_what_other_workers_read(tmp_path):
    settings = Settings(tls_cert="/tls/server.pem", tls_key="/tls/server.key")
    tls.use_tls({"static_resources": {"listeners": []}}, settings, folder=tmp_path)
    os.utime(tmp_path / "certificate.json", (0, 0))

    tls.use_tls({"static_resources": {"listeners": []}}, settings, folder=tmp_path)

    assert (tmp_path / "certificate.json").stat().st_mtime == 0


def test_a_comma_separates_bundles_in_the_option_as_in_its_variable():
    with pytest.raises(InvalidBundle, match="no bundle 'none':"):
        cli.serve(bundle=["fd001,none"])


def test_interrupts_are_blocked_only_while_the_front_end_starts():
    assert threading.current_thread() is threading.main_thread()

    with interrupts_blocked():
        held = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    after = signal.pthread_sigmask(signal.SIG_BLOCK, [])

    assert signal.SIGINT in held
    assert signal.SIGINT not in after


def test_a_stream_may_be_silent_behind_envoy_for_as_long_as_asked():
    filters = [{"typed_config": {"stat_prefix": "ingress_http"}}]
    config = {"static_resources": {"listeners": [{"filter_chains": [{"filters": filters}]}]}}

    envoy_config.limit_slow_clients(config, body_seconds=10.0, silent_seconds=660.0)

    assert filters[0]["typed_config"]["stream_idle_timeout"] == "660.000s"


def test_of_two_services_that_start_at_once_one_gets_the_port_and_its_workers_listen_on_it():
    with front_end._held_port("127.0.0.1", 0) as (_, port), socket.socket() as worker:
        with pytest.raises(
            FrontEndFailed, match=rf"cannot listen on 127\.0\.0\.1:{port}: Address already in use"
        ):
            front_end._held_port("127.0.0.1", port).__enter__()
        worker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        worker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        worker.bind(("127.0.0.1", port))
        worker.listen()

        socket.create_connection(("127.0.0.1", port)).close()


def test_bentomls_server_gets_the_free_ports_that_stand_for_port_zero(monkeypatch, shipped):
    started = []
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(os, "execv", lambda _program, arguments: started.extend(arguments))

    front_end._run_uvicorn(Settings(bundles=(str(shipped.path),), port=0, grpc_port=0))

    assert int(started[-1]) > 0
    assert os.environ["RUL_PORT"] == started[-1]
    assert int(os.environ["RUL_GRPC_PORT"]) > 0


@pytest.mark.parametrize("removed", [False, True])
def test_only_a_removed_working_folder_is_left(tmp_path, monkeypatch, removed):
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    if removed:
        folder.rmdir()

    workers.leave_removed_folder()

    assert Path.cwd() == (Path("/") if removed else folder)


def test_bentomls_server_reports_nothing_to_its_maker():
    code = """
from bentoml._internal.utils.analytics.usage_stats import do_not_track
from service.processes import bentoml_server
bentoml_server.cli = lambda: print(do_not_track())
bentoml_server.main()
"""

    environment = clean_environment()
    environment.pop("BENTOML_DO_NOT_TRACK", None)

    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )

    assert done.stdout == "True\n", done.stderr
