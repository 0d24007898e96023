"""The types of ASGI, as both transports use them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]


def header(scope: Scope, name: bytes) -> bytes:
    """A request header, or b"" where it was not sent."""
    for key, value in scope["headers"]:
        if key == name:
            return value
    return b""
