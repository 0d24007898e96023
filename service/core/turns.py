"""Turns on the event loop: a large request is read in short slices, and smaller ones go first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

LARGE_BYTES: Final = 256 * 1024
"""A body up to here is decoded in one call: 20 ms at worst, 2 ms for usual ones."""
LARGE_JSON_BYTES: Final = 8 * LARGE_BYTES
MOST_PARTS: Final = {b":": 8192, b"{": 8192, b"[": 8192, b",": 256 * 1024}
"""Keys, objects, lists and values of JSON that is decoded in one call though above `LARGE_BYTES`: they take
the time, 20 ms at worst. The usual large body is numbers of many digits, 3 ms for each MiB."""
SLICE_SECONDS: Final = 0.002
BUSY_SECONDS: Final = 0.0002
"""If other callers used the loop for longer in between, they are at work."""
PAUSE: Final = 2.0
"""Then the next slice waits this many times the last one: others have two thirds of the loop."""
AT_ONCE: Final = 16
"""Answers that are written in one slice: 6 ms if each is explained in full."""


def is_large(body: bytes) -> bool:
    """Whether JSON above `LARGE_BYTES` is read in slices."""
    if len(body) > LARGE_JSON_BYTES:
        return True
    text = np.frombuffer(body, np.uint8)  # counts in a quarter of the time of `bytes.count`
    return any(np.count_nonzero(text == ord(part)) > most for part, most in MOST_PARTS.items())


class Turns:
    """The slices of one request."""

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since = perf_counter()

    async def give(self) -> None:
        """Give others the loop at the end of a slice."""
        start = perf_counter()
        used = start - self._since
        if used < SLICE_SECONDS:
            return
        await asyncio.sleep(0)
        if perf_counter() - start > BUSY_SECONDS:
            await asyncio.sleep(PAUSE * used)
        self._since = perf_counter()


async def in_slices(
    items: Sequence[Any] | NDArray[Any], size: int, write: Callable[[Any], bytes]
) -> list[bytes]:
    """Write items, `size` in each slice, and let the event loop have its turns in between."""
    turns, written = Turns(), list[bytes]()
    for start in range(0, len(items), size):
        await turns.give()
        written.append(write(items[start : start + size]))
    return written
