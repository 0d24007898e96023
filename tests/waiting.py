"""Waiting for events of other processes, which can only be asked and never call back."""

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
    """Ask until the answer is truthy, and return it.

    Args:
        predicate: What to ask. That nobody listens yet counts as "no".
        seconds: After this long, give up.
        what: What is waited for, for the message.
        pause: Seconds between two questions.

    Raises:
        TimeoutError: the answer stayed falsy; names the last answer or error.
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
