"""What both transports need of ASGI: its types, a bounded body, and a caller who may leave."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, TypeVar

from service.errors import TooLarge

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Result = TypeVar("Result")


class Disconnected(Exception):
    """The caller has gone: nobody is left to answer."""


def header(scope: Scope, name: bytes) -> bytes:
    """A request header, or b"" where it was not sent."""
    return next((value for key, value in scope["headers"] if key == name), b"")


async def body_of(scope: Scope, receive: Receive, *, max_bytes: int) -> bytes:
    """The whole body of a request.

    Raises:
        TooLarge: it has more than `max_bytes`; what is past them is never held.
        Disconnected: the caller left before it was complete.
    """
    announced = header(scope, b"content-length")
    if announced.isdigit() and int(announced) > max_bytes:
        raise TooLarge(f"the body has {int(announced)} bytes, the service reads {max_bytes} at most")
    event = await receive()
    if event["type"] == "http.request" and not event.get("more_body", False):
        body: bytes = event.get("body", b"")
        if len(body) > max_bytes:
            raise TooLarge(f"the body has {len(body)} bytes, the service reads {max_bytes} at most")
        return body
    received = bytearray()
    while True:
        if event["type"] == "http.disconnect":
            raise Disconnected
        received += event.get("body", b"")
        if len(received) > max_bytes:
            raise TooLarge(f"the body has more than {max_bytes} bytes, which the service does not read")
        if not event.get("more_body", False):
            return bytes(received)
        event = await receive()


async def unless_disconnected(work: Coroutine[Any, Any, Result], receive: Receive) -> Result:
    """Wait for the work, and cancel it where the caller goes first.

    Whoever waits for the disconnect is never cancelled: a server may be about to hand it the event,
    and gets one in any case when the exchange ends.

    Raises:
        Disconnected: the caller has gone; the work was cancelled and has ended.
    """
    task = asyncio.current_task()
    finished = left = False

    def leave(leaving: asyncio.Task[None]) -> None:
        nonlocal left
        gone = leaving.cancelled() or leaving.exception() is None
        if gone and not finished and task is not None:
            left = True
            task.cancel()

    asyncio.ensure_future(_disconnect(receive)).add_done_callback(leave)
    try:
        return await work
    except asyncio.CancelledError:
        if left and task is not None and task.uncancel() == 0:
            raise Disconnected from None
        raise
    finally:
        finished = True


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
