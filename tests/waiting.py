"""Waiting for events of other processes, by polling."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

import httpx

T = TypeVar("T")

PAUSE_SECONDS: Final = 0.05
NOBODY_THERE: Final = (OSError, httpx.TransportError)


def wait_until(
    predicate: Callable[[], T], seconds: float, *, what: str = "", pause: float = PAUSE_SECONDS
) -> T:
    """Poll until the answer is truthy, and return it.

    Args:
        predicate: Returns the answer; a refused connection counts as false.
        seconds: Time limit.
        what: Name of the event, for the message.
        pause: Seconds between two polls.

    Raises:
        TimeoutError: the answer stayed falsy; the message has the last answer or error.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            answer = predicate()
            last = repr(answer)
            if answer:
                return answer
        except NOBODY_THERE as error:
            last = repr(error)
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {what or 'truthy answer'} within {seconds} s; last: {last}")
        time.sleep(pause)
