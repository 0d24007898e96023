"""How a stream ends: by its caller's last message, or by its caller leaving."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from service.streams.life import Inbox


async def ended_by(messages: AsyncIterator[bytes]) -> bytes | None:
    inbox = Inbox(messages, idle_seconds=60, remaining_seconds=None)
    try:
        return await inbox.take()
    finally:
        inbox.close()


async def test_after_the_last_message_there_is_none():
    async def none() -> AsyncIterator[bytes]:
        return
        yield

    assert await ended_by(none()) is None


async def test_a_caller_who_is_said_to_have_left_right_after_the_messages_end_has_left():
    """As `grpc.aio` says it: first that there are no more messages, then that the call is cancelled."""
    loop = asyncio.get_running_loop()

    async def none() -> AsyncIterator[bytes]:
        loop.call_soon(loop.call_soon, answering.cancel)
        return
        yield

    answering = asyncio.ensure_future(ended_by(none()))

    with pytest.raises(asyncio.CancelledError):
        await answering
