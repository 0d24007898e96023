"""Messages of gRPC: decoded where the library does it, inflated where they are compressed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from service.edge.asgi import inflated
from service.errors import MalformedBody, TooLarge
from service.grpc.failure import Aborted

MOST_FOREIGN_BYTES: Final = 64 * 1024
"""Largest message of health and reflection."""
Decode = Callable[[bytes], Any]


def decoded(decode: Decode, message: bytes) -> Any:  # noqa: ANN401 a message of any method
    """Decode a message of health or reflection.

    Raises:
        TooLarge: it is above `MOST_FOREIGN_BYTES`.
        MalformedBody: it cannot be read.
    """
    if len(message) > MOST_FOREIGN_BYTES:
        raise TooLarge(f"expected a message of at most {MOST_FOREIGN_BYTES} bytes, got {len(message)}")
    try:
        return decode(message)
    except DecodeError as error:
        raise MalformedBody(f"the message cannot be read: {error}") from error


def inflated_message(message: bytes, encoding: bytes, *, max_bytes: int) -> bytes:
    """Inflate a message that is compressed with gzip.

    Raises:
        Aborted: the encoding is another one.
        TooLarge: it has more bytes than allowed.
    """
    if encoding != b"gzip":
        raise Aborted(
            grpc.StatusCode.UNIMPLEMENTED,
            f"expected message encoding gzip or identity, got {encoding.decode('latin-1')!r}",
            [("grpc-accept-encoding", "identity,gzip")],
        )
    return inflated(message, "gzip", max_bytes)
