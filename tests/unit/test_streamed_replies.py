"""An HTTP answer in parts: it ends with its caller, and HEAD gets none of it."""

from __future__ import annotations

import asyncio

import pytest

from tests.in_process import in_process

SECONDS = 10


@pytest.fixture
async def service(tmp_path):
    async with in_process(store=f"sqlite:///{tmp_path}/store.db") as started:
        while (await started.http.get("/v1/units")).status_code == 503:
            pass  # the database is being made
        yield started


class Caller:
    """One request to the application, and what came back."""

    def __init__(self, service, method):
        self.left = asyncio.Event()
        self.begun = asyncio.Event()
        self.sent = []
        scope = {
            "type": "http", "method": method, "path": "/v1/events", "raw_path": b"/v1/events",
            "query_string": b"", "headers": [(b"host", b"localhost")],
        }  # fmt: skip
        self.answer = asyncio.ensure_future(service.parts.http(scope, self._receive, self._send))

    async def _receive(self):
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message):
        self.sent.append(message)
        if message.get("body"):
            self.begun.set()


async def test_a_stream_has_no_length_and_ends_when_its_caller_leaves(service):
    caller = Caller(service, "GET")
    await asyncio.wait_for(caller.begun.wait(), SECONDS)
    assert not caller.answer.done()
    caller.left.set()

    await asyncio.wait_for(caller.answer, SECONDS)
    assert caller.sent[1]["body"] == b": open\n\n"
    headers = dict(caller.sent[0]["headers"])
    assert headers[b"content-type"] == b"text/event-stream"
    assert b"content-length" not in headers


async def test_head_of_a_stream_is_answered_at_once_without_a_body(service):
    caller = Caller(service, "HEAD")

    await asyncio.wait_for(caller.answer, SECONDS)
    assert [message.get("body", b"") for message in caller.sent] == [b"", b""]
