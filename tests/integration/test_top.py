"""`rul top` as a user runs it, against the real process."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from model.domain import RulError
from service.proto import rul_v1_pb2 as pb
from tests import commands
from tests.environments import clean_environment
from tests.integration.conftest import KEY, RUL, Server, rul

SECONDS = 60
LEAVE_SCREEN = b"\x1b[?1049l"


def command(url, *options):
    return [RUL, "top", url, *map(str, options)]


@pytest.fixture(scope="session")
def server(behind_envoy):
    return behind_envoy


TERMINAL = {"COLUMNS": "120", "LINES": "60", "TERM": "xterm"}
rul_top = partial(rul, "top", **TERMINAL)


@contextmanager
def relay(server: Server, before: Callable[[], None]) -> Iterator[str]:
    """Pass requests on to the service, each scrape after this call: what it asks lies between two scrapes."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path == "/metrics":
                before()
            answer = server.ask("GET", self.path)
            self.send_response(answer.status_code)
            self.send_header("content-type", answer.headers["content-type"])
            self.end_headers()
            self.wfile.write(answer.content)

        def log_message(self, *_args):
            """Nothing to say."""

    with HTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_port}"
        finally:
            listening.shutdown()
            thread.join()


def test_requests_between_two_scrapes_are_shown(server, http, stub, windows):
    def predict() -> None:
        for _ in range(20):
            assert http.post("/v1/predict", json={"windows": [windows[0].json()]}).status_code == 200
            stub.Predict(pb.PredictRequest(windows=[windows[0].message()]))

    with relay(server, predict) as url:
        done = rul_top(url, "--once", "--interval", 0.1)

    shown = done.stdout
    assert done.returncode == 0, done.stderr
    for protocol in ("http", "grpc"):
        row = re.search(rf"^{protocol} +([\d.,]+) +(\S+) +([\d.,]+) +([\d.,]+)", shown, re.MULTILINE)
        assert row is not None, shown
        asked, errors, p50, p99 = (float(figure.replace(",", "")) for figure in row.groups())
        assert asked > 0
        assert errors == 0
        assert 0 < p50 <= p99
    assert re.search(r"^\w+ +[\d.,]*[1-9].* 0 %", shown, re.MULTILINE), shown
    assert "ready" in shown


@pytest.mark.parametrize("strict", ["envoy"], indirect=True)
def test_a_service_that_asks_for_a_key_gets_it_or_says_so(strict):
    without = commands.rul("top", strict.http, "--once", "--interval", 0.1)
    with_key = commands.rul("top", strict.http, "--once", "--interval", 0.1, "--api-key", KEY)

    assert isinstance(without.exception, RulError)
    assert "--api-key" in str(without.exception)
    assert with_key.exit_code == 0, with_key.output


def test_letters_that_the_output_cannot_encode_are_escaped(server):
    shown = rul_top(server.http, "--once", "--interval", 0.1, COLUMNS="40", PYTHONIOENCODING="ascii")

    assert shown.returncode == 0, shown.stderr
    assert r"\u2026" in shown.stdout


def test_ctrl_c_ends_it_quietly_and_gives_the_terminal_back(server):
    ours, theirs = pty.openpty()
    watching = subprocess.Popen(
        command(server.http, "--interval", 0.1),
        env=clean_environment(**TERMINAL), stdout=theirs, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    seen = b""
    while seen.count(server.http.encode()) < 3:
        seen += read(ours)

    watching.send_signal(signal.SIGINT)
    while LEAVE_SCREEN not in seen:
        seen += read(ours)
    _, error = watching.communicate(timeout=SECONDS)
    os.close(ours)

    assert watching.returncode == 0
    assert error == b""


def test_without_a_terminal_frames_follow_each_other(server):
    watching = subprocess.Popen(
        command(server.http, "--interval", 0.1),
        env=clean_environment(**TERMINAL), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert watching.stdout is not None
    frames = 0
    while frames < 3:
        line = watching.stdout.readline()
        assert line
        frames += line.startswith(server.http)

    watching.send_signal(signal.SIGINT)
    rest, error = watching.communicate(timeout=SECONDS)

    assert watching.returncode == 0, rest
    assert error == ""


def read(terminal):
    ready, _, _ = select.select([terminal], [], [], SECONDS)
    assert ready, "nothing more was drawn"
    return os.read(terminal, 65536)
