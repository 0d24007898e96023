"""What both transports need of ASGI: its types, a bounded body, and a caller who may leave."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping
from types import TracebackType
from typing import Any, Final, TypeVar

from service.core.deadline import Deadline
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


async def body_of(headers: Mapping[bytes, bytes], receive: Receive, *, max_bytes: int) -> bytes:
    """The whole body of a request.

    Raises:
        TooLarge: it has more than `max_bytes`; what is past them is never held.
        Disconnected: the caller left before it was complete.
    """
    announced = headers.get(b"content-length", b"")
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

    Raises:
        Disconnected: the caller has gone; the work was cancelled and has ended.
    """
    with Patience(None, receive):
        return await work


class Patience(Deadline):
    """A time limit around awaited work that the caller's leaving ends too, with Disconnected.

    Whoever waits for the disconnect is never cancelled: a server may be about to hand it the event,
    and gets one in any case when the exchange ends. Nobody waits for it before `WATCH_AFTER_SECONDS`.

    Args:
        seconds: How long the work may take; None: as long as it needs.
        receive: Where the server says that the caller has gone.
    """

    __slots__ = ("_finished", "_left", "_receive", "_watch")

    def __init__(self, seconds: float | None, receive: Receive) -> None:
        super().__init__(seconds)
        self._receive: Final = receive
        self._watch: asyncio.Future[None] | None = None
        self._finished = False
        self._left = False

    def __enter__(self) -> None:
        if self.seconds is None or self.seconds > WATCH_AFTER_SECONDS:
            self._begin(WATCH_AFTER_SECONDS, self._look)
        else:
            self._begin(self.seconds, self._expire)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._finished = True
        super().__exit__(kind, error, trace)
        if not self._left or self._task is None:
            return
        theirs_alone = self._task.uncancel() <= self._cancelling
        if theirs_alone and kind is asyncio.CancelledError:
            raise Disconnected from None

    def _look(self) -> None:
        if self.seconds is not None:
            left = self.seconds - WATCH_AFTER_SECONDS
            self._timer = asyncio.get_running_loop().call_later(left, self._expire)
        self._watch = asyncio.ensure_future(self._disconnect())
        self._watch.add_done_callback(self._leave)

    async def _disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def _leave(self, leaving: asyncio.Future[None]) -> None:
        gone = leaving.cancelled() or leaving.exception() is None
        if gone and not self._finished and self._task is not None:
            self._left = True
            self._task.cancel()
