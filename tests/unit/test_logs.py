"""One line an event, under its request's id, and nothing of the client's readings."""

import io
import json
import logging
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from service import logs
from service.choices import LogFormat, LogLevel
from service.core.sampling import AtMost
from tests.fakes import FakeRuntime
from tests.in_process import in_process, json_window, keeping


def lines(stream):
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_json_object_with_level_and_time(stream):
    logs.logger().info("ready", model="fd001")

    (line,) = lines(stream)
    assert (line["event"], line["level"], line["model"]) == ("ready", "info", "fd001")
    assert line["timestamp"].endswith("Z")


@pytest.mark.parametrize("log_format", [LogFormat.CONSOLE, LogFormat.JSON])
def test_a_traceback_shows_no_values(stream, log_format):
    logs.configure(log_format=log_format, stream=stream)
    reading = 600 + 41.82

    try:
        int(f"{reading:.0f} cycles")
    except ValueError as error:
        logs.logger().error("request failed", exc_info=error)

    assert "ValueError: invalid literal" in stream.getvalue()
    assert "641.82" not in stream.getvalue()


@pytest.mark.parametrize("field", ["readings", "columns", "body", "api_key", "authorization"])
def test_what_a_client_sent_is_never_written(stream, field):
    logs.logger().info("received", **{field: [641.82, 1589.7]})

    assert "641.82" not in stream.getvalue()
    assert lines(stream)[0][field] == "withheld"


def test_libraries_log_in_the_same_format(stream):
    logging.getLogger("uvicorn.error").warning("port %d is taken", 3000)

    assert lines(stream)[0]["event"] == "port 3000 is taken"


def test_a_lower_level_is_left_out(stream):
    logs.configure(level=LogLevel.ERROR, stream=stream)

    logs.logger().warning("unheard")
    logging.getLogger("other").warning("unheard too")

    assert stream.getvalue() == ""


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("kind", "chosen", "is_json"),
    [
        (Terminal, LogFormat.AUTO, False),
        (io.StringIO, LogFormat.AUTO, True),
        (io.StringIO, LogFormat.CONSOLE, False),
    ],
)
@pytest.mark.usefixtures("stream")
def test_the_log_is_text_on_a_terminal_or_where_that_is_chosen_and_json_elsewhere(kind, chosen, is_json):
    out = kind()
    logs.configure(log_format=chosen, stream=out)

    logs.logger().info("model ready")

    assert "model ready" in out.getvalue()
    assert out.getvalue().startswith("{") is is_json


def events(stream, name):
    return [line for line in lines(stream) if line["event"] == name]


@pytest.mark.parametrize(("sample", "expected"), [(0.0, 0), (0.1, 3), (1.0, 30)])
async def test_the_share_of_answered_requests_that_is_logged_is_exact(stream, sample, expected):
    async with in_process(log_sample=sample) as service:
        for _ in range(30):
            await service.predict_http()

    answered = events(stream, "request answered")
    assert len(answered) == expected
    assert all(line["windows"] == 1 for line in answered)


async def test_a_refused_request_is_logged(stream):
    async with in_process(max_pending_windows=1) as service:
        reply = await service.predict_http(windows=[json_window()] * 2)

    (line,) = events(stream, "request refused")
    assert (line["level"], line["error"], line["code"]) == ("warning", "Overloaded", "429")
    assert line["request_id"] == reply.headers["x-request-id"]


async def test_a_request_that_the_store_fails_is_logged_with_the_reason_that_its_caller_does_not_see(
    stream, tmp_path
):
    async with keeping(tmp_path) as service:
        while (await service.http.get("/v1/units")).status_code == 503:
            pass  # the database is being made
        with closing(sqlite3.connect(tmp_path / "rul.db")) as connection:
            connection.execute("ALTER TABLE units RENAME TO other")
        reply = await service.http.get("/v1/units")

    line = events(stream, "request refused")[-1]
    assert (line["error"], line["cause"]) == ("StoreUnavailable", "no such table: units")
    assert "no such table" not in reply.text


async def test_of_a_flood_of_refusals_some_lines_a_minute_are_logged_and_the_others_counted(stream):
    now = 0.5
    async with in_process(max_request_windows=1) as service:
        service.desk.errors = AtMost(2, lambda: now)
        for _ in range(5):
            await service.predict_http(windows=[json_window()] * 2)
        await service.predict_http(windows=[])
        now = 60.0
        await service.predict_http(windows=[json_window()] * 2)

    said = [(line["error"], line.get("left_out")) for line in events(stream, "request refused")]
    assert said == [("TooLarge", None)] * 2 + [("InvalidRequest", None), ("TooLarge", 3)]


async def test_a_failure_is_logged_with_its_cause(stream):
    runtime = FakeRuntime()
    runtime.failures = 1
    async with in_process(runtime) as service:
        await service.predict_http()

    (line,) = events(stream, "request failed")
    assert line["level"] == "error"
    assert "secret of the runtime" in line["exception"]


def test_importing_configures_nothing():
    code = (
        "import structlog; from service import logs; print(structlog.is_configured(), logs.request_id.get())"
    )

    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert said.split() == ["False", "None"]
