"""One line an event, under its request's id, and nothing of the client's readings."""

import io
import json
import logging

import pytest
import structlog

from service import logs
from service.errors import Overloaded
from service.settings import LogFormat, LogLevel


@pytest.fixture
def stream():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    text = io.StringIO()
    logs.configure(stream=text)
    yield text
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def lines(stream):
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_json_object_with_level_and_time(stream):
    logs.logger().info("ready", model="fd001")

    (line,) = lines(stream)
    assert (line["event"], line["level"], line["model"]) == ("ready", "info", "fd001")
    assert line["timestamp"].endswith("Z")


def test_what_is_logged_within_a_request_carries_its_id(stream):
    token = logs.request_id.set("abc-1")
    logs.logger().info("inside")
    logs.request_id.reset(token)
    logs.logger().info("outside")

    inside, outside = lines(stream)
    assert inside["request_id"] == "abc-1"
    assert "request_id" not in outside


def test_an_id_that_is_fit_to_log_is_kept():
    assert logs.safe_request_id("abc-1") == "abc-1"


@pytest.mark.parametrize("given", ["", "x" * 200, 'forged"}\n{"event": "x'])
def test_an_id_that_is_not_fit_to_log_is_replaced(given):
    chosen = logs.safe_request_id(given)

    assert chosen != given
    assert len(chosen) == 32


def test_two_requests_have_two_ids():
    assert logs.new_request_id() != logs.new_request_id()


@pytest.mark.parametrize("field", sorted(logs.WITHHELD))
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


def test_the_console_format_is_for_people(stream):
    logs.configure(log_format=LogFormat.CONSOLE, stream=stream)

    logs.logger().info("ready", model="fd001")

    assert not stream.getvalue().startswith("{")
    assert "ready" in stream.getvalue()


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("kind", "is_json"), [(Terminal, False), (io.StringIO, True)])
@pytest.mark.usefixtures("stream")
def test_by_itself_the_log_is_text_on_a_terminal_and_json_elsewhere(kind, is_json):
    out = kind()
    logs.configure(stream=out)

    logs.logger().info("model ready")

    assert out.getvalue().startswith("{") is is_json


@pytest.mark.parametrize(("sample", "expected"), [(0.0, 0), (0.1, 10), (1.0, 100)])
def test_the_share_of_answered_requests_that_is_logged_is_exact(stream, sample, expected):
    access = logs.AccessLog(logs.logger(), sample=sample)

    for _ in range(100):
        access.answered(protocol="http", route="/v1/predict", code="200", seconds=0.001, windows=1)

    assert len(lines(stream)) == expected
    assert all(line["windows"] == 1 for line in lines(stream))


def test_every_refused_request_is_logged(stream):
    access = logs.AccessLog(logs.logger(), sample=0)

    access.refused(Overloaded("full"), protocol="http", route="/v1/predict", code="429", seconds=0.001)

    (line,) = lines(stream)
    assert (line["event"], line["level"], line["error"]) == ("request refused", "warning", "Overloaded")


def test_a_failure_is_logged_with_its_cause(stream):
    access = logs.AccessLog(logs.logger(), sample=0)
    error = RuntimeError("inference failed")
    error.__cause__ = ValueError("device lost")

    access.failed(error, protocol="http", route="/v1/predict", code="500", seconds=0.001)

    (line,) = lines(stream)
    assert line["level"] == "error"
    assert "device lost" in line["exception"]


def test_importing_configures_nothing():
    assert logs.request_id.get() is None
    assert not structlog.is_configured()
