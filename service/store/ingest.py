"""Group commit: waiting requests with readings share a transaction, on a separate thread.

    append (event loop) -> waiting requests -> one thread, one transaction -> each its result

A result follows the commit. While a transaction is written, requests gather for the next one: the busier the
service, the fewer commits per reading.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import time
from typing import TYPE_CHECKING, Final

from service.errors import NotReady, Overloaded, StoreUnavailable
from service.store.rows import Append, Appended

if TYPE_CHECKING:
    from service.store.readings import Readings

MOST_WAITING: Final = 2000
"""Maximum waiting requests; if the database is slow, more would only wait for their deadline."""
GROUP_READINGS: Final = 1000
"""Maximum readings in a transaction, for which other processes wait."""
CLOSED: Final = "the service shut down before it stored the readings"

Result = Appended | Exception


class Ingest:
    """Appends readings for the event loop.

    Args:
        opened: Returns the readings of the open store, on any thread; raises StoreUnavailable.
        committed: Gets the number of new readings that were committed, on the event loop.
    """

    def __init__(self, opened: Callable[[], Readings], committed: Callable[[int], None]) -> None:
        self._opened: Final = opened
        self._committed: Final = committed
        self._executor: Final = ThreadPoolExecutor(1, thread_name_prefix="readings")
        self._waiting: Final[deque[tuple[Append, asyncio.Future[Appended]]]] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._is_closed = False

    async def append(self, request: Append) -> Appended:
        """Commit readings, all or none, and return the unit's newest ones.

        Raises:
            CycleConflict: a cycle has another reading.
            InvalidRequest: a reading has no cycle, and no number follows the unit's last one.
            NotReady: the service shut down before they were stored.
            Overloaded: too many requests wait.
            StoreUnavailable: the database does not answer.
        """
        if self._is_closed:
            raise NotReady(CLOSED)
        if len(self._waiting) >= MOST_WAITING:
            raise Overloaded(
                f"{len(self._waiting)} requests wait for the store, its maximum; try again later"
            )
        result: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, result))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.ensure_future(self._write_all())
        return await result

    def close(self) -> None:
        """Stop the thread after the transaction that it writes; fail the callers of all later ones."""
        self._is_closed = True
        self._executor.shutdown(wait=False)
        for _, caller in self._waiting:
            if not caller.done():
                caller.set_exception(NotReady(CLOSED))
        self._waiting.clear()

    async def _write_all(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            group = self._group()
            results: Sequence[Result]
            try:
                results = await loop.run_in_executor(self._executor, self._write, [r for r, _ in group])
            except Exception as error:  # noqa: BLE001 each caller gets it
                results = [error] * len(group)
            self._committed(sum(r.stored for r in results if isinstance(r, Appended)))
            for (_, caller), result in zip(group, results, strict=True):
                if caller.done():
                    continue
                if isinstance(result, Appended):
                    caller.set_result(result)
                else:
                    caller.set_exception(result)

    def _group(self) -> list[tuple[Append, asyncio.Future[Appended]]]:
        group: list[tuple[Append, asyncio.Future[Appended]]] = []
        readings = 0
        while self._waiting and readings < GROUP_READINGS:
            request, caller = self._waiting.popleft()
            if not caller.done():  # it may be cancelled
                group.append((request, caller))
                readings += len(request.given.cycles)
        return group

    def _write(self, requests: Sequence[Append]) -> Sequence[Result]:
        try:
            return self._opened().append(requests, at=time())
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 values that the database rejects: whose, each one alone tells
            if len(requests) == 1:
                return [error]
        results: list[Result] = []
        try:
            for request in requests:
                results += self._write([request])
        except StoreUnavailable as error:  # the others would wait for it in vain
            results += [error] * (len(requests) - len(results))
        return results
