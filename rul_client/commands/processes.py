"""Processes of a command: they end with it, however it ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager


@contextmanager
def process_pool(count: int, begin: Callable[[], object] = bool) -> Generator[ProcessPoolExecutor]:
    """Open a pool of processes; after a failure, Ctrl+C or SIGTERM they end at once.

    `begin` runs first in each process.
    """
    # Spawned, not forked: gRPC, ONNX Runtime and pyarrow have threads, and a fork has none of them.
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), _begin, (begin,))
    is_done = False
    try:
        yield pool
        is_done = True
    finally:
        if not is_done:  # results of running calls would be unused
            for process in multiprocessing.active_children():
                process.terminate()
        # Waits for the pool's own thread: Python prints a traceback if it still ends while the command exits.
        pool.shutdown(cancel_futures=True)


def _begin(begin: Callable[[], object]) -> None:
    """Prepare a process: it ends with its parent and ignores Ctrl+C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    begin()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
