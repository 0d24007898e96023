"""Overload of the real process; `tests/hostile/overload.py` measures it."""

import asyncio

import pytest

from tests.benchmarks.loads import Load
from tests.benchmarks.payloads import calls_of
from tests.hostile.crowds import closed_loop
from tests.integration.conftest import running

pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def server(tiny_bundle, tmp_path_factory):
    settings = {"max_batch_windows": "1", "request_timeout_seconds": "60", "log_level": "error"}
    with running(tmp_path_factory.mktemp("overload"), str(tiny_bundle.path), **settings) as started:
        yield started


@pytest.mark.parametrize(
    ("protocol", "answered", "refused"), [("json", "200", "429"), ("grpc", "OK", "RESOURCE_EXHAUSTED")]
)
def test_too_many_callers_are_answered_or_refused_and_nothing_fails(
    protocol, answered, refused, server, tiny_bundle
):
    calls = calls_of(str(tiny_bundle.path), Load(protocol, 64, 8, realistic=True))
    address = server.http.removeprefix("http://")

    ends = asyncio.run(closed_loop(address, calls, 64, 1.5, settle=0.0, is_patient=True))

    assert ends.codes.keys() == {answered, refused}
