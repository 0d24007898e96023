"""Failures of a server, as one line each."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from model.domain import RulError

__all__ = ["Rejected", "RemoteFailed", "RulError"]  # strict type checkers refuse other imported names
KEY_HINT: Final = " (--key-file, --api-key or RUL_API_KEY)"


class RemoteFailed(RulError):
    """The server cannot be reached, or refused the request."""


@contextmanager
def counted_from(first: int) -> Generator[None]:
    """Say in a failure which of all windows was the first of its request, unless it was the first of all."""
    try:
        yield
    except RemoteFailed as error:
        if not first:
            raise
        raise type(error)(f"{error}; /windows/0 is window {first} of all") from error


class Rejected(RemoteFailed):
    """The server refused this request; another may succeed."""


class Retryable(RemoteFailed):
    """A temporary failure.

    Attributes:
        after_seconds: The pause that the server requests, if any.
        may_be_done: Whether the server may have completed the request although the connection broke.
    """

    def __init__(
        self, message: str, after_seconds: float | None = None, *, may_be_done: bool = False
    ) -> None:
        super().__init__(message)
        self.after_seconds = after_seconds
        self.may_be_done = may_be_done


class Unreachable(Retryable):
    """No connection; temporary if the server was reached before."""
