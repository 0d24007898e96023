"""Messages in the bodies of gRPC over ASGI: length-prefixed, and compressed where the caller likes.

A request that came as one event with one plain message, as nearly all do, is read at a glance; all
others by `Messages`, which says what is wrong. This module must not know calls.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Final, Self

import grpc

from service.edge.asgi import Disconnected, Message, Receive, Scope, header

Metadata = Sequence[tuple[str, str | bytes]]

PREFIX: Final = struct.Struct(">BI")  # compressed?, length
GZIP: Final = 16 + zlib.MAX_WBITS


class Aborted(Exception):
    """A servicer ended its call with a status."""

    def __init__(self, code: grpc.StatusCode, details: str, metadata: Metadata = ()) -> None:
        super().__init__(details)
        self.code = code
        self.details = details
        self.metadata = metadata


def plain_message(event: Message, *, max_bytes: int) -> bytes | None:
    """The message of a request that came as one event, and plain; None: it is for `Messages` to read."""
    body: bytes = event.get("body", b"")
    length = len(body) - PREFIX.size
    usual = 0 <= length <= max_bytes and not event.get("more_body", False)
    return body[PREFIX.size :] if usual and PREFIX.unpack_from(body) == (0, length) else None


def framed(message: bytes) -> bytes:
    """A message as it stands in a body."""
    return PREFIX.pack(0, len(message)) + message


class Messages:
    """The request's messages, unframed and, where the caller compressed them, inflated.

    An iterator and not an async generator: the event loop keeps track of each of those, and ends
    one that was not run to its end, as that of a call with one message is not, by a task of its own.
    """

    def __init__(self, scope: Scope, receive: Receive, *, max_bytes: int) -> None:
        self._scope: Final = scope
        self._receive: Final = receive
        self._max_bytes: Final = max_bytes
        self._buffer = bytearray()
        self._more = True

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        buffer = self._buffer
        while len(buffer) < PREFIX.size or len(buffer) < PREFIX.size + self._checked_length():
            if not self._more:
                if buffer:
                    raise Aborted(grpc.StatusCode.INVALID_ARGUMENT, "the request ends within a message")
                raise StopAsyncIteration
            self.add(await self._receive())
        compressed, length = PREFIX.unpack_from(buffer)
        message = bytes(memoryview(buffer)[PREFIX.size : PREFIX.size + length])
        del buffer[: PREFIX.size + length]
        return self._inflated(message) if compressed else message

    def add(self, event: Message) -> None:
        """Read on in what has come.

        Raises:
            Disconnected: the caller has left.
        """
        if event["type"] == "http.disconnect":
            raise Disconnected
        self._buffer += event.get("body", b"")
        self._more = event.get("more_body", False)

    async def only(self) -> bytes:
        """The first message, of a call that has one."""
        try:
            return await anext(self)
        except StopAsyncIteration:
            raise Aborted(grpc.StatusCode.INVALID_ARGUMENT, "the request has no message") from None

    def _checked_length(self) -> int:
        length = PREFIX.unpack_from(self._buffer)[1]
        if length > self._max_bytes:
            raise Aborted(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"the message has {length} bytes, the server reads {self._max_bytes} at most",
            )
        return length

    def _inflated(self, message: bytes) -> bytes:
        encoding = header(self._scope, b"grpc-encoding")
        if encoding != b"gzip":
            raise Aborted(
                grpc.StatusCode.UNIMPLEMENTED,
                f"message encoding {encoding.decode('latin-1')!r} is not known: use gzip or identity",
                [("grpc-accept-encoding", "identity,gzip")],
            )
        inflater = zlib.decompressobj(GZIP)
        try:
            plain = inflater.decompress(message, self._max_bytes + 1)
        except zlib.error as error:
            raise Aborted(grpc.StatusCode.INVALID_ARGUMENT, "the message is not gzip") from error
        if len(plain) > self._max_bytes:
            raise Aborted(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"the message inflates to more than {self._max_bytes} bytes",
            )
        if not inflater.eof or inflater.unused_data:
            raise Aborted(grpc.StatusCode.INVALID_ARGUMENT, "the message is not one whole gzip member")
        return plain
