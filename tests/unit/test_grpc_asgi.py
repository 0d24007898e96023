"""gRPC over ASGI: framing, compression, deadlines and statuses, and the service behind them."""

import asyncio
import gzip
import math
import zlib
from contextlib import nullcontext
from functools import partial

import grpc
import pytest
from grpc_health.v1 import health_pb2
from hypothesis import given
from hypothesis import strategies as st

from service.edge.intake import Intake
from service.grpc.call import Call
from service.grpc.over_asgi import PREFIX, GrpcOverAsgi
from tests.in_process import (
    PREDICT,
    ask_grpc,
    framed,
    in_process,
    message_window,
    until,
)

LIMIT = 1000
INTAKE = Intake(most_bytes=LIMIT, seconds=30, expected=nullcontext)
GZIP = [("grpc-encoding", "gzip")]


async def echo(messages, call):
    async for message in messages:
        await call.write(message)


async def repeat(messages, _call):
    return await anext(messages, None)


async def breaks(_messages, _call):
    raise KeyError("a secret")


async def tell(_messages, call):
    return repr(call.invocation_metadata()).encode()


METHODS = {"Echo": echo, "Repeat": repeat, "Breaks": breaks, "Tell": tell}


@pytest.fixture(scope="module")
def app():
    return GrpcOverAsgi(METHODS, max_message_bytes=LIMIT, intake=INTAKE)


@st.composite
def messages_in_parts(draw):
    """Messages, some compressed, and their bytes cut anywhere into ASGI events."""
    messages = draw(st.lists(st.tuples(st.binary(max_size=40), st.booleans()), max_size=5))
    body = b"".join(
        framed(gzip.compress(message, mtime=0) if compressed else message, compressed=compressed)
        for message, compressed in messages
    )
    cuts = sorted(draw(st.lists(st.integers(0, len(body)), max_size=8)))
    parts = [body[i:j] for i, j in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    return [message for message, _ in messages], parts


@given(messages_in_parts())
def test_however_the_bytes_are_cut_into_events_the_messages_are_the_same(app, case):
    messages, parts = case

    answer = asyncio.run(ask_grpc(app, "Echo", *parts, metadata=GZIP))

    assert answer.code is grpc.StatusCode.OK
    assert answer.messages == messages


@given(st.binary(min_size=1, max_size=60), st.data())
def test_a_body_that_ends_within_a_message_is_never_a_message(app, message, data):
    body = framed(message)
    cut = data.draw(st.integers(1, len(body) - 1))

    answer = asyncio.run(ask_grpc(app, "Repeat", body[:cut]))

    assert answer.code is grpc.StatusCode.INVALID_ARGUMENT
    assert answer.messages == []


BODIES = (
    st.binary(max_size=20)
    | st.builds(framed, st.binary(max_size=20), compressed=st.booleans())
    | st.builds(
        lambda message: framed(gzip.compress(message, mtime=0), compressed=True), st.binary(max_size=20)
    )
    | st.builds(PREFIX.pack, st.integers(0, 255), st.integers(0, 2 * LIMIT))
    | st.builds(framed, st.integers(LIMIT - 1, LIMIT + 1).map(bytes))
)


@given(st.lists(BODIES, min_size=1, max_size=2).map(b"".join))
def test_a_body_that_comes_at_once_is_answered_as_one_whose_end_comes_later(app, body):
    at_once = asyncio.run(ask_grpc(app, "Repeat", body, metadata=GZIP, at_once=True))

    assert at_once == asyncio.run(ask_grpc(app, "Repeat", body, metadata=GZIP))


async def test_a_method_is_told_the_metadata_that_methods_read_and_the_last_of_two(app):
    metadata = [("x-request-id", "1"), ("x-api-key", "2"), ("other", "3"), ("x-api-key", "4")]

    answer = await ask_grpc(app, "Tell", framed(b""), metadata=metadata)

    assert answer.messages == [b"[('x-request-id', '1'), ('x-api-key', '4')]"]


@pytest.mark.parametrize("path", [PREDICT, "/grpc.health.v1.Health/Check"])
async def test_a_call_without_a_message_is_refused(service, path):
    answer = await ask_grpc(service.grpc, path)

    assert (answer.code, answer.detail) == (grpc.StatusCode.INVALID_ARGUMENT, "the request has no message")


async def test_a_message_above_the_limit_is_refused_before_it_has_come(app):
    answer = await ask_grpc(app, "Repeat", PREFIX.pack(0, LIMIT + 1))

    assert answer.code is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    ("encoding", "compress"), [("gzip", partial(gzip.compress, mtime=0)), ("deflate", zlib.compress)]
)
async def test_a_message_that_inflates_to_the_limit_is_read(app, encoding, compress):
    most = framed(compress(b"0" * LIMIT), compressed=True)

    answer = await ask_grpc(app, "Repeat", most, metadata=[("grpc-encoding", encoding)])

    assert answer.messages == [b"0" * LIMIT]


@pytest.mark.parametrize(
    ("body", "metadata"),
    [
        (b"no gzip", GZIP),
        (gzip.compress(b"cut short", mtime=0)[:-9], GZIP),
        (gzip.compress(b"a", mtime=0) * 2, GZIP),
        (b"hello", []),
        (b"hello", [("grpc-encoding", "identity")]),
    ],
)
async def test_a_compressed_message_that_is_not_one_gzip_stream_or_names_no_encoding_is_refused(
    app, body, metadata
):
    answer = await ask_grpc(app, "Repeat", framed(body, compressed=True), metadata=metadata)

    assert answer.code is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("path", [PREDICT, "/grpc.health.v1.Health/Check"])
async def test_an_encoding_that_is_not_known_is_told_which_are(service, path):
    message = framed(b"", compressed=True)

    answer = await ask_grpc(service.grpc, path, message, metadata=[("grpc-encoding", "zstd")])

    assert answer.code is grpc.StatusCode.UNIMPLEMENTED
    assert answer.metadata["grpc-accept-encoding"] == "identity,deflate,gzip"


async def test_a_servicer_that_breaks_ends_its_call_as_our_fault_and_shows_nothing(app):
    answer = await ask_grpc(app, "Breaks", framed(b""))

    assert answer.code is grpc.StatusCode.INTERNAL
    assert "secret" not in answer.detail


@pytest.mark.parametrize(
    ("version", "extension", "content_type", "expected"),
    [
        ("2", "trailers", b"application/grpc", True),
        ("2", "trailers", b"application/grpc+proto", True),
        ("2", "trailers", b"application/json", False),
        ("2", "other", b"application/grpc", False),
        ("1.1", "trailers", b"application/grpc", False),
    ],
)
def test_grpc_is_spoken_only_where_trailers_can_be_sent(version, extension, content_type, expected):
    scope = {"http_version": version, "extensions": {f"http.response.{extension}": {}}, "path": "/"}
    scope["headers"] = [(b"content-type", content_type)]
    asked = []

    async def http(scope, _receive, _send):
        asked.append(scope)

    async def receive():
        return {"type": "http.disconnect"}

    asyncio.run(GrpcOverAsgi({}, max_message_bytes=1, intake=INTAKE).beside(http)(scope, receive, send))

    assert (asked == []) is expected


async def send(_message):
    pass


# The service behind it


@pytest.mark.parametrize("name", ["x", "x" * 5000, "\N{SNOWMAN}" * 5000])
async def test_the_trailers_of_an_error_stay_below_what_clients_read(service, name):
    window = message_window(math.inf)
    window.columns.columns[name].values.append(1.0)

    answer = await service.predict_grpc(windows=[window, *[message_window(math.inf)] * 60])

    assert answer.code is grpc.StatusCode.INVALID_ARGUMENT
    assert len(answer.metadata["grpc-status-details-bin"]) <= 4096
    assert answer.trailer_bytes < 7500


async def test_problems_that_do_not_fit_into_the_trailers_are_counted(service):
    answer = await service.predict_grpc(windows=[message_window(math.inf)] * 60)

    *shown, more = answer.violations().items()
    assert 20 < len(shown) < 60
    assert more == ("", "more problems are not listed")


async def test_health_is_not_serving_until_the_service_is_ready():
    check = "/grpc.health.v1.Health/Check"
    request = framed(health_pb2.HealthCheckRequest().SerializeToString())

    async with in_process(ready=False) as service:
        answers = [await ask_grpc(service.grpc, check, request)]
        await service.parts.become_ready(settle=lambda **_: None)
        answers.append(await ask_grpc(service.grpc, check, request))
        service.health.advertise(serving=False)
        answers.append(await ask_grpc(service.grpc, check, request))

    reply = health_pb2.HealthCheckResponse
    statuses = [reply.FromString(answer.messages[0]).status for answer in answers]
    assert statuses == [reply.NOT_SERVING, reply.SERVING, reply.NOT_SERVING]


async def test_every_watcher_hears_of_each_change_also_when_another_has_left(service):
    leave = [asyncio.Event() for _ in range(3)]
    path = "/grpc.health.v1.Health/Watch"
    watching = [asyncio.create_task(ask_grpc(service.grpc, path, framed(b""), leaves=one)) for one in leave]
    await until(lambda: service.health._watchers == 3)
    leave[0].set()
    await until(lambda: service.health._watchers == 2)

    service.health.advertise(serving=False)
    await asyncio.sleep(0)
    for one in leave:
        one.set()
    told = [(await one).messages for one in watching]

    reply = health_pb2.HealthCheckResponse
    serving, then = (
        reply(status=status).SerializeToString() for status in (reply.SERVING, reply.NOT_SERVING)
    )
    assert told == [[serving], [serving, then], [serving, then]]


@pytest.mark.parametrize("text", ["60S", "1M", "60000m", "60000000u", "99999999n", "1H"])
def test_a_timeout_is_read_in_its_unit(text):
    call = Call({"headers": [(b"grpc-timeout", text.encode())]}, None, None)

    call.check({})

    assert math.ceil(call.time_remaining()) == {"99999999n": 1, "1H": 3600}.get(text, 60)


@pytest.mark.parametrize(
    "seconds", ["²S".encode().decode("latin-1"), "1", "S", "-1S", "123456789S", "1 S", "9" * 5000 + "S"]
)
@pytest.mark.parametrize("path", [PREDICT, "/rul.v1.RulService/PredictStream", "/nothing"])
async def test_an_invalid_timeout_is_the_callers_error(service, path, seconds):
    answer = await ask_grpc(service.grpc, path, framed(b""), metadata=[("grpc-timeout", seconds)])

    assert answer.code is grpc.StatusCode.INVALID_ARGUMENT
    assert answer.detail.startswith("expected grpc-timeout as 1 to 8 digits")


async def test_metadata_that_is_not_utf8_is_the_callers_error(service):
    answer = await ask_grpc(service.grpc, PREDICT, framed(b""), metadata=[("x-request-id", "\xff")])

    assert answer.code is grpc.StatusCode.INVALID_ARGUMENT
    assert answer.detail == "header x-request-id: expected UTF-8"


async def leave(app, error):
    """Call a method and be gone when it answers: the server raises this error. Return what was sent."""
    events = [{"type": "http.request", "body": framed(b"ping"), "more_body": True}]
    sent = []

    async def receive():
        return events.pop(0) if events else await asyncio.Event().wait()

    async def send(message):
        sent.append(message["type"])
        if message["type"] == "http.response.body":
            raise error

    scope = {"type": "http", "http_version": "2", "method": "POST", "path": "Echo"}
    await app(scope | {"headers": [(b"content-type", b"application/grpc")]}, receive, send)
    return sent


async def test_a_caller_that_leaves_before_its_answer_is_written_is_no_error(app):
    assert await leave(app, ConnectionResetError()) == ["http.response.start", "http.response.body"]


async def test_a_server_that_raises_one_error_for_all_who_leave_keeps_none_of_their_messages(app):
    error = ConnectionResetError()
    for _ in range(3):
        await leave(app, error)

    assert error.__traceback__ is None
