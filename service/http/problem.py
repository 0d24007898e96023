"""An error as an HTTP answer, in the form of RFC 9457 or the Open Inference Protocol."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Final, TypeVar

import msgspec
import orjson

from service.core.queries import Explain
from service.errors import (
    InvalidRequest,
    MalformedBody,
    Problem,
    Unauthenticated,
    listed,
    public,
    status_of,
)
from service.store.judgement import OutcomeKind

Body = TypeVar("Body")
PROBLEM: Final = b"application/problem+json"
MOST_DETAIL: Final = 300
ENUMS: Final[dict[str, type[StrEnum]]] = {"/explain": Explain, "/kind": OutcomeKind}
"""Enums by the pointer of their field: msgspec does not list the allowed values."""
UNREADABLE: Final = (msgspec.DecodeError, orjson.JSONDecodeError, UnicodeDecodeError, RecursionError)
"""Errors of a JSON body that cannot be decoded, or has another shape."""


class ProblemBody(msgspec.Struct, frozen=True):
    """An error in the form of RFC 9457, with every wrong place in the request."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[Problem]
    request_id: str


class OipError(msgspec.Struct):
    """An error in the form of the Open Inference Protocol."""

    error: str


def problem(
    error: Exception, request_id: str, path: str, allowed: str = ""
) -> tuple[int, bytes, list[tuple[bytes, bytes]], bytes]:
    """Return the status, media type, headers and body of an error.

    Below /v2 errors have the form of the Open Inference Protocol. `allowed` lists the methods of the path.
    """
    shown, status = public(error), status_of(error)
    headers = [(b"allow", allowed.encode())] if allowed else []
    if shown.retry_after_seconds is not None:
        headers.append((b"retry-after", b"%d" % math.ceil(shown.retry_after_seconds)))
    if status.http == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, Unauthenticated) and error.basic:
        headers.append((b"www-authenticate", b'Basic realm="rulserve: the API key is the password"'))
    if is_oip(path):
        return status.http, b"application/json", headers, msgspec.json.encode(OipError(str(shown)))
    kind = f"urn:rulserve:problem:{status.code}"
    body = ProblemBody(kind, status.title, status.http, str(shown), listed(shown.problems), request_id)
    return status.http, PROBLEM, headers, msgspec.json.encode(body)


def is_oip(path: str) -> bool:
    """Whether the Open Inference Protocol answers at this path."""
    return path == "/v2" or path.startswith("/v2/")


def read_json(body: bytes, kind: type[Body]) -> Body:
    """Decode a body.

    Raises:
        MalformedBody: it is not JSON, or has another shape.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except UNREADABLE as error:
        raise unreadable(error) from error


def read_number(text: str) -> float:
    """Read a number in plain digits; Python alone also reads 1_0 and the digits of other scripts.

    Raises:
        ValueError: it is not a number.
    """
    if "_" in text or not text.isascii():
        raise ValueError(text)
    return float(text)


def wrong(pointer: str, detail: str, code: str = "bad_parameter") -> InvalidRequest:
    """Make the error for a wrong parameter or field."""
    return InvalidRequest(f"{pointer}: {detail}", [Problem(pointer, code, detail)])


def unreadable(error: Exception, below: str = "") -> MalformedBody:
    """Make the error for a body that cannot be decoded, with the JSON pointer of the place.

    `below` is the pointer of the part that was decoded.

    >>> str(unreadable(msgspec.ValidationError("Expected `str`, got `int` - at `$.windows[3].unit`")))
    '/windows/3/unit: Expected `str`, got `int`'
    >>> str(unreadable(msgspec.ValidationError("Invalid enum value 'lost' - at `$.kind`")))
    "/kind: expected one of failed, removed, got 'lost'"
    """
    if isinstance(error, UnicodeDecodeError):
        return MalformedBody(f"the body is not UTF-8: {error.reason} at byte {error.start}")
    if not isinstance(error, msgspec.ValidationError):
        return MalformedBody(f"the body is not JSON: {error}")
    detail, _, path = str(error).rpartition(" - at `")
    detail, path = (detail, path) if detail else (path, "")
    detail = detail if len(detail) <= MOST_DETAIL else f"{detail[:MOST_DETAIL]}..."  # it may quote a value
    plain = path.rstrip("`").removeprefix("$").replace("[...]", "")  # msgspec does not name the key
    pointer = below + plain.replace("[", "/").replace("]", "").replace(".", "/")
    if (values := ENUMS.get(pointer)) is not None:
        detail = detail.replace("Invalid enum value", f"expected one of {', '.join(values)}, got", 1)
    return MalformedBody(f"{pointer or 'the body'}: {detail}", [Problem(pointer, "shape", detail)])
