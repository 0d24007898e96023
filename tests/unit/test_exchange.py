"""What surrounds a request: it is counted once, under its code, however it ends."""

import asyncio
import gc
import weakref
from contextlib import nullcontext, suppress

import pytest
import structlog

from service import logs
from service.core.lifecycle import Lifecycle, Phase
from service.core.predictor import Predictor
from service.core.sampling import evenly
from service.edge.access import Credentials
from service.edge.admission import Admission
from service.edge.exchange import Desk, Exchange
from service.edge.intake import Intake
from service.errors import DeadlineExceeded, Disconnected, InvalidWindows, MalformedBody, Overloaded, TooLarge
from service.labels import Route, Transport
from service.metrics.metrics import Metrics
from service.settings import Settings


@pytest.fixture
def desk(registry):
    return Desk(
        settings=Settings.model_construct(log_sample=0.1),
        predictor=Predictor({}, max_request_windows=1),
        metrics=Metrics(registry, []),
        lifecycle=Lifecycle(lambda: True),
        log=logs.logger(),
        credentials=Credentials([]),
        intake=Intake(most_bytes=1, seconds=1, expected=nullcontext),
        admission=Admission(room_windows=1, limit_seconds=1),
        store=None,
        units=None,
    )


def asked(desk, transport=Transport.HTTP, route=Route.PREDICT, request_id=None):
    return Exchange(desk, transport, route, request_id)


def counted(registry, route, code, protocol="http"):
    labels = {"protocol": protocol, "route": route, "code": code}
    return registry.get_sample_value("rul_requests_total", labels)


def test_a_request_is_counted_and_measured(desk, registry):
    with asked(desk):
        assert registry.get_sample_value("rul_inflight_requests") == 1

    labels = {"protocol": "http", "route": "/v1/predict"}
    assert counted(registry, "/v1/predict", "200") == 1
    assert registry.get_sample_value("rul_request_duration_seconds_count", labels) == 1
    assert registry.get_sample_value("rul_inflight_requests") == 0


@pytest.mark.parametrize(
    ("transport", "error", "code"),
    [
        (Transport.HTTP, Overloaded("full"), "429"),
        (Transport.GRPC, Overloaded("full"), "RESOURCE_EXHAUSTED"),
        (Transport.HTTP, InvalidWindows("bad"), "422"),
        (Transport.HTTP, KeyError("ours"), "500"),
        (Transport.HTTP, Disconnected(), "499"),
        (Transport.GRPC, Disconnected(), "CANCELLED"),
    ],
)
def test_a_request_that_fails_is_counted_under_its_code(desk, registry, transport, error, code):
    with asked(desk, transport, Route.OTHER):
        raise error

    labels = {"protocol": transport.value, "route": "other"}
    assert counted(registry, "other", code, transport.value) == 1
    assert registry.get_sample_value("rul_request_duration_seconds_count", labels) == 1


@pytest.mark.parametrize(
    ("error", "counted"),
    [
        (Disconnected(), 3),
        (DeadlineExceeded("late"), 3),
        (asyncio.CancelledError(), 3),
        (Overloaded("full"), 0),
    ],
)
def test_windows_whose_caller_left_or_whose_deadline_passed_are_counted(desk, registry, error, counted):
    with suppress(asyncio.CancelledError), asked(desk) as exchange:
        exchange.windows = 3
        raise error

    assert registry.get_sample_value("rul_cancelled_total") == counted


@pytest.mark.parametrize(("transport", "code"), [(Transport.HTTP, "499"), (Transport.GRPC, "CANCELLED")])
def test_a_request_that_is_cancelled_is_counted_and_stays_cancelled(desk, registry, transport, code):
    with pytest.raises(asyncio.CancelledError), asked(desk, transport, Route.OTHER):
        raise asyncio.CancelledError

    assert counted(registry, "other", code, transport.value) == 1


@pytest.mark.parametrize(
    ("error", "reason"),
    [(Overloaded("full"), "queue_full"), (InvalidWindows("bad"), "invalid"), (TooLarge("big"), "too_large")],
)
def test_a_refusal_is_counted_under_its_reason(desk, registry, error, reason):
    with asked(desk):
        raise error

    assert registry.get_sample_value("rul_rejected_total", {"reason": reason}) == 1


async def test_a_drain_waits_for_admitted_requests_also_if_they_fail(desk):
    desk.lifecycle.enter(Phase.READY)

    with asked(desk), asked(desk) as exchange:
        exchange.admit()
        draining = asyncio.create_task(desk.lifecycle.drain(30))
        await asyncio.sleep(0)
        assert not draining.done()
        raise KeyError("its own")

    assert await draining


@pytest.mark.parametrize(
    ("error", "event"), [(None, "request answered"), (Disconnected(), "caller disconnected")]
)
def test_the_log_calls_no_request_answered_whose_caller_has_left(desk, error, event):
    desk.settings, desk.is_logged = Settings.model_construct(log_sample=1.0), evenly(1.0)

    with structlog.testing.capture_logs() as lines, asked(desk):
        if error is not None:
            raise error

    assert [line["event"] for line in lines] == [event]


def test_an_id_that_is_not_fit_to_log_is_replaced(desk):
    unfit = ("two\nlines", "", None, "x" * 200, "é")
    ids = [asked(desk, request_id=given).request_id for given in ("abc-1", *unfit)]

    assert ids[0] == "abc-1"
    assert len({*ids}) == 6
    assert all(logs.SAFE_ID.fullmatch(request_id) for request_id in ids)


def test_a_stream_is_open_while_it_lasts_and_has_no_duration(desk, registry):
    with asked(desk, Transport.GRPC, Route.GRPC_STREAM):
        assert registry.get_sample_value("rul_open_streams") == 1
        assert registry.get_sample_value("rul_inflight_requests") == 0

    assert registry.get_sample_value("rul_open_streams") == 0
    assert counted(registry, "rul.v1.RulService/PredictStream", "OK", "grpc") == 1


def test_all_that_is_logged_inside_is_under_the_callers_id(desk):
    with asked(desk, request_id="abc-1") as outer:
        with asked(desk, request_id="abc-2"):
            assert logs.request_id.get() == "abc-2"
        assert logs.request_id.get() == outer.request_id == "abc-1"

    assert logs.request_id.get() is None


class Large:
    """What a refused request has read."""


@pytest.mark.parametrize("cause", [None, ValueError("unreadable")])
def test_a_refused_request_leaves_nothing_to_the_garbage_collector(desk, cause):
    gc.disable()
    try:
        kept = refused(desk, cause)
        assert kept() is None
    finally:
        gc.enable()


def refused(desk, cause):
    body = Large()
    kept = weakref.ref(body)
    with asked(desk) as exchange:
        try:
            read(body, cause)
        except ValueError as error:
            raise MalformedBody("not readable") from error
    assert exchange.error is not None
    return kept


def read(body, cause):
    assert body is not None
    if cause is not None:
        raise type(cause)(*cause.args)
    raise MalformedBody("not readable")
