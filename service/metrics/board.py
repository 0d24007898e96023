"""Numbers that the workers of one service share, without a lock and without a message.

Each worker writes its own row of a memory-mapped file; a scraped worker sums the rows. A worker that
dies leaves its row behind, and its successor goes on from there: counts never go back. The processors
we run on write an aligned float64 whole, so a reader sees the old value or the new one. This module must
not know what is counted.
"""

from __future__ import annotations

import math
import mmap
import os
import zlib
from pathlib import Path
from typing import Final

import numpy as np

from model.domain import FloatArray
from service.errors import FrontEndFailed

ITEM: Final = np.dtype(np.float64).itemsize
ROW: Final = 1 << 20
"""Places a worker: eight megabytes of a sparse file, of which only what is declared takes room."""
DIGEST, PID, HEADER = 0, 1, 2
"""The first places of each row: what was declared, and by which process."""


class Slots:
    """Some places of the board under one name.

    Attributes:
        own: float64 [size], this worker's: written by one thread, or under the writer's lock.
    """

    __slots__ = ("_board", "_rows", "own")

    def __init__(self, board: Board, rows: FloatArray, worker: int) -> None:
        self._board: Final = board
        self._rows: Final = rows
        self.own: Final[FloatArray] = rows[worker]

    def total(self) -> FloatArray:
        """Return the sum over all workers, also those that have died, [size]."""
        total: FloatArray = self._rows.sum(axis=0)
        return total

    def latest(self) -> FloatArray:
        """Return the largest value that any worker has written, [size]: of times, the last."""
        latest: FloatArray = self._rows.max(axis=0)
        return latest

    def each_living(self) -> FloatArray:
        """Return the values of each worker, [workers, size]; 0 of one that does not live."""
        living = np.array([pid > 0 for pid in self._board.pids()])
        each: FloatArray = self._rows * living[:, None]
        return each

    def total_of_living(self) -> FloatArray:
        """Return the sum over the workers that live, [size]: for current values."""
        living = [pid > 0 for pid in self._board.pids()]
        total: FloatArray = self._rows[living].sum(axis=0)
        return total


class Board:
    """The numbers of one worker, and a view of all workers' numbers.

    Every worker declares the same names in the same order, because all load the same bundles; `seal`
    checks it.
    """

    def __init__(self, path: Path | None = None, *, worker: int = 0, workers: int = 1) -> None:
        """Open the board of several workers; without a path, of one worker alone."""
        self._worker: Final = worker
        self._workers: Final = workers
        self._path: Final = path
        self._rows: Final = None if path is None else _mapped(path, workers)
        self._reserve(0, HEADER)
        self._next = HEADER
        self._digest = 0
        if self._rows is not None:
            self._rows[worker, PID] = os.getpid()

    def slots(self, name: str, size: int) -> Slots:
        """Reserve places under a name, all 0 when the service starts.

        Raises:
            FrontEndFailed: the board or the file system is full.
        """
        self._digest = zlib.crc32(f"{name}:{size};".encode(), self._digest)
        if self._rows is None:
            return Slots(self, np.zeros((1, size)), 0)
        start, self._next = self._next, self._next + size
        if self._next > ROW:
            raise FrontEndFailed(
                f"the metrics of so many bundles need more than {ROW} numbers: run fewer bundles a service"
            )
        self._reserve(start, size)
        return Slots(self, self._rows[:, start : self._next], self._worker)

    def _reserve(self, start: int, size: int) -> None:
        """Reserve room for these places of every worker: a page without room ends the process (SIGBUS)."""
        if self._path is None or not hasattr(os, "posix_fallocate"):
            return
        try:
            with self._path.open("r+b") as file:
                for worker in range(self._workers):
                    os.posix_fallocate(file.fileno(), (worker * ROW + start) * ITEM, size * ITEM)
        except OSError as error:
            raise FrontEndFailed(
                f"no room for the workers' metrics in {self._path.parent.parent}: {error.strerror}; "
                "free some, or set TMPDIR"
            ) from error

    def seal(self) -> None:
        """Compare what is declared with the other workers.

        Raises:
            FrontEndFailed: another worker has declared something else.
        """
        if self._rows is None:
            return
        others = {int(digest) for digest in self._rows[:, DIGEST] if digest} - {self._digest}
        if others:
            raise FrontEndFailed(
                "this worker has loaded other bundles than the running workers: the bundles changed, "
                "restart the service"
            )
        self._rows[self._worker, DIGEST] = self._digest

    def pids(self) -> list[int]:
        """Return the process of each worker; 0 for one that does not live."""
        if self._rows is None:
            return [os.getpid()]
        return [pid if pid and _lives(pid) else 0 for pid in map(int, self._rows[:, PID])]


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _mapped(path: Path, workers: int) -> FloatArray:
    size = workers * ROW * ITEM
    with path.open("r+b") as file:
        file.truncate(math.ceil(size / mmap.PAGESIZE) * mmap.PAGESIZE)
        shared = mmap.mmap(file.fileno(), size)
    return np.frombuffer(shared, dtype=np.float64).reshape(workers, ROW)
