"""What listens, for whom, and how it stops listening."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import psutil

from tests.integration.conftest import Server, running
from tests.waiting import wait_until

LAME_DUCK_SECONDS = 20
"""Longer than any step of a test takes."""


def processes_of(server: Server) -> list[psutil.Process]:
    supervisor = psutil.Process(server.process.pid)
    return [supervisor, *supervisor.children(recursive=True)]


def inodes_of(server: Server) -> set[str]:
    """The sockets that a service's processes hold."""
    # A process may have ended since it was listed: glob finds nothing there.
    links = [link for one in processes_of(server) for link in Path(f"/proc/{one.pid}/fd").glob("*")]
    targets = [str(link.readlink()) for link in links if link.is_symlink()]
    return {target[8:-1] for target in targets if target.startswith("socket:")}


def test_another_user_of_this_machine_reaches_the_port_of_the_service_and_nothing_else(tiny_bundle, tmp_path):
    with running(tmp_path, str(tiny_bundle.path), workers="2") as server:
        own = {one.pid for one in processes_of(server)}
        listening = {
            found.laddr.port
            for found in psutil.net_connections(kind="inet")  # of all: one of ours may end meanwhile
            if found.pid in own and found.status == psutil.CONN_LISTEN
        }
        held = inodes_of(server)
        lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
        named = [line[7] for line in lines if line[6] in held and len(line) > 7]

        assert listening == {server.port}
        assert named
        assert [name for name in named if name.startswith("@")] == []
        assert {Path(name).parent.stat().st_mode & 0o777 for name in named} == {0o700}


def test_a_service_about_to_leave_says_so_first_and_answers_until_then(tiny_bundle, tmp_path, windows):
    body = {"windows": [windows[0].json()]}
    settings = {"lame_duck_seconds": str(LAME_DUCK_SECONDS)}
    with (
        running(tmp_path, str(tiny_bundle.path), **settings) as server,
        server.client() as client,
    ):
        assert client.get("/readyz").headers.get("connection") != "close"

        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: client.get("/readyz").status_code == 503, 10, what="readiness to be withdrawn")
        asked_to_close = wait_until(
            lambda: client.get("/livez").headers.get("connection") == "close", LAME_DUCK_SECONDS, what="close"
        )
        answers = [client.post("/v1/predict", json=body).status_code for _ in range(20)]

        assert asked_to_close
        assert answers == [200] * 20
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(LAME_DUCK_SECONDS / 2) == 0


def test_a_port_of_zero_is_any_free_port():
    from service.processes.front_end import _free_port

    port = _free_port("127.0.0.1", 0)

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))
