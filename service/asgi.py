"""What both transports need of ASGI: its types, a bounded body, and a caller who may leave."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, Final, TypeVar

from service.errors import TooLarge

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Result = TypeVar("Result")

WATCH_AFTER_SECONDS: Final = 0.1
"""How long a request is worked on before anybody asks whether its caller is still there. Asking is a task
and, behind Envoy, a message to another thread and back: more than an ordinary request costs altogether."""


class Disconnected(Exception):
    """The caller has gone: nobody is left to answer."""


def header(scope: Scope, name: bytes) -> bytes:
    """A request header, or b"" where it was not sent."""
    for key, value in scope["headers"]:
        if key == name:
            return value
    return b""


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
    and gets one in any case when the exchange ends. Nobody waits for it before `WATCH_AFTER_SECONDS`.

    Raises:
        Disconnected: the caller has gone; the work was cancelled and has ended.
    """
    watch = _Watch(asyncio.current_task(), receive)
    begin = asyncio.get_running_loop().call_later(WATCH_AFTER_SECONDS, watch.begin)
    try:
        return await work
    except asyncio.CancelledError:
        if watch.left and watch.task is not None and watch.task.uncancel() == 0:
            raise Disconnected from None
        raise
    finally:
        watch.finished = True
        begin.cancel()


class _Watch:
    """Cancels a task where its caller leaves before it has finished."""

    __slots__ = ("finished", "left", "receive", "task")

    def __init__(self, task: asyncio.Task[Any] | None, receive: Receive) -> None:
        self.task = task
        self.receive = receive
        self.finished = False
        self.left = False

    def begin(self) -> None:
        asyncio.ensure_future(self._disconnect()).add_done_callback(self._leave)

    async def _disconnect(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass

    def _leave(self, leaving: asyncio.Task[None]) -> None:
        gone = leaving.cancelled() or leaving.exception() is None
        if gone and not self.finished and self.task is not None:
            self.left = True
            self.task.cancel()
