"""An error as RFC 9457 has it: status, headers and body of an HTTP answer."""

from __future__ import annotations

import math
from typing import Final

import msgspec

from service.errors import Problem, listed, problems_of, public_detail, retry_after_seconds, status_of

PROBLEM: Final = "application/problem+json"


class ProblemBody(msgspec.Struct, frozen=True):
    """An error as RFC 9457 has it, with every place in the request that is wrong."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[Problem]
    request_id: str


def problem(error: Exception, request_id: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body that tell a client what went wrong."""
    status = status_of(error)
    body = ProblemBody(
        f"urn:rulserve:problem:{status.code}",
        status.title,
        status.http,
        public_detail(error),
        listed(problems_of(error)),
        request_id,
    )
    headers = {"content-type": PROBLEM, **refusal_headers(error)}
    return status.http, headers, msgspec.json.encode(body)


def refusal_headers(error: Exception) -> dict[str, str]:
    """What headers say of an error, however its body is worded: when to come back, which key to bring."""
    headers: dict[str, str] = {}
    seconds = retry_after_seconds(error)
    if seconds is not None:
        headers["retry-after"] = str(math.ceil(seconds))
    if status_of(error).http == 401:
        headers["www-authenticate"] = "Bearer"
    return headers
