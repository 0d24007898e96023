"""Tells a hung worker from one that computes or waits for a core.

A worker's event loop replies to heartbeats; an empty reply does not count. If the loop is silent, the
kernel's statistics of its thread decide: a thread that neither runs nor waits for a core is blocked or
stopped. This module must not know how a worker starts or ends.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Final

from service.processes.control import await_reply

BEATS: Final = 4
"""Heartbeats per time limit; a pause of the supervisor or the machine costs only one of them."""
PATIENCE: Final = 10
"""Multiple of the limit for a silent loop that computes, and for a start without progress."""
BUSY: Final = 0.05
"""A thread is blocked if it runs or waits for a core during a smaller share of the time."""


class Heartbeat:
    """The heartbeat of one worker.

    Args:
        socket: Its control socket.
        tasks: The kernel's folder of its threads, /proc/PID/task.
        limit_seconds: Maximum silence of a blocked event loop.
    """

    def __init__(self, socket: Path, tasks: Path, *, limit_seconds: float) -> None:
        self._socket: Final = socket
        self._tasks: Final = tasks
        self._pause: Final = limit_seconds / BEATS
        self._thread: str | None = None
        self._renew()

    def _renew(self) -> None:
        self._misses, self._since, self._busy = 0, monotonic(), self._busy_seconds()

    @property
    def silent_seconds(self) -> float:
        """Return the time since the last reply, the start, or the last sign that it loads bundles."""
        return monotonic() - self._since

    @property
    def is_silent(self) -> bool:
        """Return whether a loop that has replied before is silent beyond the limit, busy or not."""
        return self._thread is not None and self._misses >= BEATS

    async def beat(self) -> bool:
        """Send one heartbeat; return whether the worker hangs."""
        replied, _ = await asyncio.gather(self._replied(), asyncio.sleep(self._pause))
        if replied:
            self._renew()
        else:
            self._misses += 1
        return self._misses >= BEATS and self._hangs()

    async def _replied(self) -> bool:
        try:
            async with asyncio.timeout(self._pause):
                thread = await await_reply(self._socket, "beat")
        except TimeoutError:
            return False
        self._thread = thread or self._thread
        return bool(thread)

    def _hangs(self) -> bool:
        is_over = self._misses >= BEATS * PATIENCE
        is_busy = self._waits() or self._busy_seconds() - self._busy > BUSY * self.silent_seconds
        if self._thread is not None:
            return is_over or not is_busy
        if is_over and is_busy:  # it loads bundles
            self._renew()
        return is_over and not is_busy

    def _waits(self) -> bool:
        """Return whether the loop's thread runs or waits for a core; its account lacks a wait that lasts."""
        for status in self._tasks.glob(f"{self._thread or '*'}/stat"):
            with suppress(OSError):  # the thread ended
                if status.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0] == "R":
                    return True
        return False

    def _busy_seconds(self) -> float:
        """Read how long the loop's thread (all threads before the first reply) ran or waited for a core.

        Without these statistics every silence counts as busy.
        """
        accounts = list(self._tasks.glob(f"{self._thread or '*'}/schedstat"))
        total = 0.0 if accounts else monotonic()
        for account in accounts:
            with suppress(OSError):  # the thread ended
                ran, waited, _ = account.read_text(encoding="ascii").split()
                total += (int(ran) + int(waited)) / 1e9
        return total
