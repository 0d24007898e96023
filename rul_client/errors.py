"""Failures of a server, as one line each."""

from __future__ import annotations

from typing import Final

from model.domain import RulError

KEY_HINT: Final = " (--key-file, --api-key or RUL_API_KEY)"


class RemoteFailed(RulError):
    """The server cannot be reached, or refused the request."""


class Rejected(RemoteFailed):
    """The server refused this request; another may succeed."""


class Retryable(RemoteFailed):
    """A temporary failure; `after_seconds` is the pause that the server asks for, if any."""

    def __init__(self, message: str, after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.after_seconds = after_seconds
