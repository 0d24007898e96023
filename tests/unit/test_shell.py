"""A bounded body, plain or compressed, what it must say of itself, and the time to its answer."""

import asyncio
import gzip
import zlib
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.edge.admission import Admission
from service.edge.exchange import Desk
from service.edge.intake import Intake
from service.edge.keys import KeyScope
from service.errors import Disconnected, MalformedBody, TooLarge
from service.http.shell import Endpoint, _body, _wanted_seconds
from service.labels import Route
from service.settings import Settings
from tests.in_process import in_process

LIMIT = 10
BODY = b"0123456789"


def receiver(*parts, leaves=False):
    """What a server hands out: the body in parts, then the end of the connection."""
    waiting = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    if not leaves:
        waiting.append({"type": "http.request", "body": b"", "more_body": False})
    taken = []

    async def receive():
        taken.append(1)
        return waiting.pop(0) if waiting else {"type": "http.disconnect"}

    return receive, taken


def at_once(whole):
    async def receive():
        return {"type": "http.request", "body": whole}

    return receive


def desk(limit=LIMIT):
    admission = Admission(room_windows=1, limit_seconds=7.0)
    intake = Intake(most_bytes=2 * limit, seconds=30, expected=admission.expected)
    return SimpleNamespace(settings=Settings(max_body_bytes=limit, request_timeout_seconds=7), intake=intake)


def body(receive, limit=LIMIT, **headers):
    """The body of a request with these headers, underscores for hyphens."""
    endpoint = Endpoint("POST", "/", Route.OTHER, SimpleNamespace(), KeyScope.OPEN)
    given_headers = {name.replace("_", "-").encode(): value for name, value in headers.items()}
    return _body(desk(limit), endpoint, given_headers, receive)


@pytest.mark.parametrize("parts", [[], [BODY], [b"01234", b"56789"], [b"", b"0", b""]])
async def test_a_body_in_any_parts_is_read_up_to_the_limit(parts):
    receive, _ = receiver(*parts)

    assert await body(receive) == b"".join(parts)


async def test_a_body_in_one_part_is_read_up_to_the_limit_that_it_announces():
    assert await body(at_once(BODY), content_length=b"10") == BODY


async def test_a_body_in_one_part_above_the_limit_is_refused():
    with pytest.raises(TooLarge, match="at most 10 bytes, got 11"):
        await body(at_once(BODY + b"X"))


async def test_an_announced_body_above_the_limit_is_refused_before_it_is_read():
    receive, taken = receiver(b"x" * 11)

    with pytest.raises(TooLarge):
        await body(receive, content_length=b"11")
    assert taken == []


async def test_reading_stops_at_the_part_that_passes_the_limit():
    receive, taken = receiver(b"x" * 6, b"x" * 6, b"x" * 6, b"x" * 6)

    with pytest.raises(TooLarge):
        await body(receive)
    assert len(taken) == 2


async def test_a_caller_who_leaves_within_the_body_is_gone():
    receive, _ = receiver(b"x", leaves=True)

    with pytest.raises(Disconnected):
        await body(receive)


# Compression


@pytest.mark.parametrize(
    ("name", "compress"), [(b"gzip", gzip.compress), (b"deflate", zlib.compress), (b"GZIP", gzip.compress)]
)
async def test_a_compressed_body_is_inflated(name, compress):
    assert await body(at_once(compress(BODY)), 40, content_encoding=name) == BODY


async def test_a_small_body_that_inflates_above_the_limit_is_too_large():
    bomb = gzip.compress(b"0" * 100_000, mtime=0)

    with pytest.raises(TooLarge, match="inflates to more than 1000 bytes"):
        await body(at_once(bomb), 1000, content_encoding=b"gzip")


@pytest.mark.parametrize(
    "given_body",
    [b"", b"plain", gzip.compress(b"body", mtime=0)[:-1], gzip.compress(b"body", mtime=0) + b"more"],
)
async def test_a_body_that_is_not_what_its_encoding_says_is_malformed(given_body):
    with pytest.raises(MalformedBody):
        await body(at_once(given_body), 100, content_encoding=b"gzip")


INFLATED = st.integers(0, 120).map(bytes)
ANY_BODY = st.binary(max_size=60) | INFLATED.map(gzip.compress) | INFLATED.map(zlib.compress)


@given(ANY_BODY, st.sampled_from([b"gzip", b"deflate"]))
def test_any_bytes_are_refused_or_inflated_within_the_limit(given_body, name):
    try:
        plain = asyncio.run(body(at_once(given_body), 60, content_encoding=name))
    except (MalformedBody, TooLarge):
        return
    assert len(plain) <= 60


# What a body says of itself, and the time to its answer


@pytest.mark.parametrize(("asked", "least"), [(b"2.5", 2.5), (b"9", 7), (None, 7)])
def test_the_callers_limit_counts_where_it_is_less(asked, least):
    wanted = _wanted_seconds({} if asked is None else {b"request-timeout": asked})

    assert Desk.limit(desk(), wanted, None).seconds == least


@pytest.mark.parametrize("asked", [b"0", b"-1", b"nan", b"soon", b"1_0"])
def test_a_limit_of_the_caller_that_is_no_number_above_0_is_malformed(asked):
    with pytest.raises(MalformedBody, match="request-timeout: expected seconds above 0"):
        _wanted_seconds({b"request-timeout": asked})


@pytest.mark.parametrize(
    ("method", "path", "status"), [("POST", "/nowhere", 404), ("PUT", "/v1/predict", 405)]
)
async def test_a_body_that_nothing_reads_is_not_read(method, path, status):
    async with in_process(max_body_bytes=1) as service:
        reply = await service.http.request(method, path, content=b"xx", headers={"content-encoding": "br"})

    assert reply.status_code == status
