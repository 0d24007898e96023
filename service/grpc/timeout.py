"""The header `grpc-timeout`: a caller's deadline (gRPC over HTTP/2)."""

from __future__ import annotations

import re
from time import monotonic
from typing import Final

from service.errors import MalformedBody, short

SECONDS: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
TIMEOUT: Final = re.compile(rb"[0-9]{1,8}[HMSmun]")


def deadline(timeout: bytes) -> float:
    """Return the deadline on the monotonic clock that a header such as "250m" sets.

    Raises:
        MalformedBody: it is not one to eight digits and a unit.
    """
    if not TIMEOUT.fullmatch(timeout):
        raise MalformedBody(f"expected grpc-timeout as 1 to 8 digits and one of HMSmun, got {short(timeout)}")
    return monotonic() + int(timeout[:-1]) * SECONDS[timeout[-1:]]
