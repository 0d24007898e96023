"""ASGI types, decoding of paths, and inflating of bodies, for both transports."""

from __future__ import annotations

import re
import zlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping
from typing import Any, Final
from urllib.parse import unquote

from service.errors import MalformedBody, TooLarge, UnsupportedMedia, short

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]

WINDOW_BITS: Final = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
"""Encodings that the service inflates, with zlib's window sizes."""

_TAIL: Final = "%[89ABab][0-9A-Fa-f]"
DECODABLE: Final = (
    "(?:[^%]|%[0-7][0-9A-Fa-f]"
    f"|%(?:[Cc][2-9A-Fa-f]|[Dd][0-9A-Fa-f]){_TAIL}"
    f"|%(?:[Ee]0%[ABab]|[Ee][Dd]%[89])[0-9A-Fa-f]{_TAIL}|%[Ee][1-9ABCEFabcef]{_TAIL}{_TAIL}"
    f"|%(?:[Ff]0%[9ABab]|[Ff]4%8)[0-9A-Fa-f]{_TAIL}{_TAIL}|%[Ff][1-3]{_TAIL}{_TAIL}{_TAIL})*"
)
"""A raw path with query, percent-encoded UTF-8 (RFC 3986, RFC 3629), for both Envoy and `re`."""
UNDECODABLE: Final = "expected a path and a query in UTF-8 without NUL, each other byte as %XX"
_decodable: Final = re.compile(DECODABLE.encode())
QUOTED_SLASH: Final = "\0"
"""Stands for a slash inside a name while a path is matched; no path may hold NUL."""


def path_of(scope: Scope) -> str:
    """Decode a path; a percent-encoded slash belongs to a name and becomes `QUOTED_SLASH`."""
    raw: bytes | None = scope.get("raw_path")
    if raw is None:
        return scope["path"]
    return unquote(raw.replace(b"%2F", b"%00").replace(b"%2f", b"%00").decode("latin-1"))


def check_decodable(scope: Scope, headers: Mapping[bytes, bytes]) -> None:
    """Check that path, query and headers are UTF-8; path and query must not hold NUL.

    Raises:
        MalformedBody: one of them is not.
    """
    for target in (scope.get("raw_path") or b"", scope.get("query_string", b"")):
        if not target.isascii() or not _decodable.fullmatch(target) or b"%00" in target:
            raise MalformedBody(UNDECODABLE)
    for name, value in headers.items():
        try:
            value.decode()
        except UnicodeDecodeError:
            raise MalformedBody(f"header {name.decode('latin-1')[:80]}: expected UTF-8") from None


def inflated(data: bytes, encoding: str, limit: int) -> bytes:
    """Inflate one complete stream to at most `limit` bytes.

    Raises:
        UnsupportedMedia: the service does not read the encoding.
        MalformedBody: the data are not one whole stream of this encoding.
        TooLarge: they inflate to more bytes.
    """
    if encoding in {"", "identity"}:
        return data
    if encoding not in WINDOW_BITS:
        raise UnsupportedMedia(f"expected the encoding gzip, deflate or none, got {short(encoding)}")
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
