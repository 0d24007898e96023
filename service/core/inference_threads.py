"""The threads that run batches: the one that worked last works next."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from threading import Lock
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class InferenceThreads(Executor):
    """An executor whose least busy thread gets the work, and of several the one that had work last.

    `ThreadPoolExecutor` wakes the thread that has slept longest: with one batch at a time its threads
    take turns, on cores and in caches that the other has filled. Work on one thread is done in order.
    """

    def __init__(self, threads: int) -> None:
        """So many threads, each started with its first work."""
        self._threads: Final = [ThreadPoolExecutor(1, f"inference_{n}") for n in range(threads)]
        self._load: Final = [0] * threads
        self._order: Final = list(range(threads))  # the last at work in front
        self._lock: Final = Lock()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """See `Executor`."""
        with self._lock:
            chosen = min(self._order, key=self._load.__getitem__)
            self._order.remove(chosen)
            self._order.insert(0, chosen)
            self._load[chosen] += 1

        def run() -> T:
            try:
                return fn(*args, **kwargs)
            finally:
                self._ended(chosen)  # before anybody hears of the result, and brings more work

        future = self._threads[chosen].submit(run)
        future.add_done_callback(lambda done: self._ended(chosen) if done.cancelled() else None)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 theirs
        """See `Executor`."""
        for thread in self._threads:
            thread.shutdown(wait, cancel_futures=cancel_futures)

    def _ended(self, thread: int) -> None:
        with self._lock:
            self._load[thread] -= 1
