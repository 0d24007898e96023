"""Turns on the event loop: large requests run in short slices, so that small ones can pass."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

LARGE_BYTES: Final = 256 * 1024
"""Bodies up to this size are decoded in one call: 20 ms at worst, usually 2 ms."""
LARGE_JSON_BYTES: Final = 8 * LARGE_BYTES
MOST_PARTS: Final = {b":": 8192, b"{": 8192, b"[": 8192, b",": 256 * 1024}
"""Maximum keys, objects, lists and values in JSON above `LARGE_BYTES` that is decoded in one call: 20 ms at
worst. A usual large body consists of numbers with many digits and takes 3 ms per MiB."""
SLICE_SECONDS: Final = 0.002
BUSY_SECONDS: Final = 0.0002
"""If others used the loop for longer between two slices, the loop is busy."""
PAUSE: Final = 2.0
"""On a busy loop the next slice waits this many times the last one: others get two thirds."""
AT_ONCE: Final = 16
"""Answers to encode in one slice: 6 ms if each is explained in full."""


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
        """Let others use the loop at the end of a slice."""
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
    """Encode items, `size` per slice; other callbacks run between slices."""
    turns, written = Turns(), list[bytes]()
    for start in range(0, len(items), size):
        await turns.give()
        written.append(write(items[start : start + size]))
    return written
