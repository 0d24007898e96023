"""The trailers of a failed call.

This module knows statuses; it must not know any service.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

import grpc

from service import logs
from service.errors import ServiceError, public_detail, status_of

Metadata = Sequence[tuple[str, str | bytes]]
Trailers = list[tuple[bytes, bytes]]

SAFE = " !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"


class Aborted(Exception):
    """A servicer ended its call with a status."""

    def __init__(self, code: grpc.StatusCode, details: str, metadata: Metadata = ()) -> None:
        super().__init__(details)
        self.code = code
        self.details = details
        self.metadata = metadata


def failure(error: Exception) -> tuple[Trailers, Metadata]:
    """Word an error as trailers, and the metadata that goes with them."""
    if isinstance(error, Aborted):
        return _trailers(error.code, error.details), error.metadata
    if isinstance(error, ServiceError):
        return _trailers(status_of(error).grpc, public_detail(error)), ()
    if isinstance(error, TimeoutError):
        return _trailers(grpc.StatusCode.DEADLINE_EXCEEDED, "the deadline passed"), ()
    logs.logger().error("failed", protocol="grpc", exc_info=error)
    return _trailers(grpc.StatusCode.INTERNAL, public_detail(error)), ()


def _trailers(status: grpc.StatusCode, details: str) -> Trailers:
    code: int = status.value[0]
    trailers = [(b"grpc-status", b"%d" % code)]
    if details:
        trailers.append((b"grpc-message", quote(details, safe=SAFE, errors="replace").encode()))
    return trailers
