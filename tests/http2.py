"""Minimal HTTP/2 for load generators, because a library uses more CPU per call than the service.

Header tables stay empty, so every block of headers is written and read alone (RFC 7541).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
"""Types of frames."""
END_STREAM, ACK, END_HEADERS = 1, 1, 4
HEADER_TABLE_SIZE, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE = 1, 3, 4
HEAD: Final = 9
FRAME_BYTES: Final = 16_384
"""Maximum bytes of a frame's payload."""
WINDOW_BYTES: Final = 65_535
"""Initial window of flow control in bytes, of a connection and of each stream."""
LARGEST_WINDOW: Final = 2**31 - 1
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, flags: int, stream: int, payload: bytes | memoryview = b"") -> bytes:
    """Write one frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + bytes(payload)


def greeting() -> bytes:
    """Write the preface of a connection, which lets the server send without limit."""
    settings = struct.pack(">HIHI", HEADER_TABLE_SIZE, 0, INITIAL_WINDOW_SIZE, LARGEST_WINDOW)
    more = struct.pack(">I", LARGEST_WINDOW - WINDOW_BYTES)
    return PREFACE + frame(SETTINGS, 0, 0, settings) + frame(WINDOW_UPDATE, 0, 0, more)


def grpc_head(path: str, authority: str = "localhost", **more: str) -> bytes:
    """Write the headers of a gRPC call without indexing (RFC 7541, 6.2.2)."""
    fields = {
        ":method": "POST", ":scheme": "http", ":path": path, ":authority": authority,
        "content-type": "application/grpc", "te": "trailers", **more,
    }  # fmt: skip
    return b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in fields.items()
    )


def settings_of(payload: bytes) -> dict[int, int]:
    """Read a SETTINGS frame."""
    return dict(struct.iter_unpack(">HI", payload))


class Frames:
    """Cuts received bytes into frames."""

    def __init__(self) -> None:
        self._buffer: Final = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
        """Yield kind, flags, stream and payload of each complete frame."""
        buffer, at, whole = self._buffer, 0, []
        buffer += data
        while len(buffer) - at >= HEAD:
            end = at + HEAD + int.from_bytes(buffer[at : at + 3], "big")
            if len(buffer) < end:
                break
            stream = int.from_bytes(buffer[at + 5 : at + HEAD], "big")
            whole.append((buffer[at + 3], buffer[at + 4], stream, bytes(buffer[at + HEAD : end])))
            at = end
        del buffer[:at]
        yield from whole
