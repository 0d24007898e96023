"""The types of ASGI and the inflater of bodies, as both transports use them."""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, Final

from service.errors import MalformedBody, TooLarge

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]

WINDOW_BITS: Final = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
"""Encodings that the service inflates, as zlib takes them."""


def header(scope: Scope, name: bytes) -> bytes:
    """A request header, or b"" where it was not sent."""
    for key, value in scope["headers"]:
        if key == name:
            return value
    return b""


def inflated(data: bytes, encoding: str, limit: int) -> bytes:
    """Inflate one whole stream of a known encoding, to `limit` bytes at most.

    Raises:
        MalformedBody: the data are not one whole stream of this encoding.
        TooLarge: they inflate to more bytes.
    """
    inflater = zlib.decompressobj(WINDOW_BITS[encoding])
    try:
        plain = inflater.decompress(data, limit + 1)
    except zlib.error as error:
        raise MalformedBody(f"the body is not {encoding}, as its encoding says") from error
    if len(plain) > limit:
        raise TooLarge(f"the body inflates to more than {limit} bytes, which the service does not read")
    if not inflater.eof or inflater.unused_data:
        raise MalformedBody(f"the body is not one whole {encoding} stream")
    return plain
