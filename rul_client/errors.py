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
    """A temporary failure.

    Attributes:
        after_seconds: The pause that the server asks for, if any.
        may_be_done: Whether the server may have done what it was asked: the connection broke.
    """

    def __init__(
        self, message: str, after_seconds: float | None = None, *, may_be_done: bool = False
    ) -> None:
        super().__init__(message)
        self.after_seconds = after_seconds
        self.may_be_done = may_be_done
