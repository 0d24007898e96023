"""Numbers that the workers of a service share without locks or messages.

Each worker writes its own row of a memory-mapped file; a scraped worker sums the rows. The successor of a
worker that dies continues its row, so counts never decrease. Our processors write an aligned float64
atomically, so a reader sees the old value or the new one. A shared list assigns places to names, so models
can be loaded and unloaded at run time. This module must not know what is counted.
"""

from __future__ import annotations

import errno
import fcntl
import math
import mmap
import os
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np

from model.domain import FloatArray
from service.errors import FrontEndFailed

ITEM: Final = np.dtype(np.float64).itemsize
ROW: Final = 1 << 20
"""Places per worker: eight megabytes of a sparse file; only declared places take room."""
PID, HEADER = 0, 1
"""The first place of each row holds the id of the process that writes it."""


class Slots:
    """The places of one name on the board.

    Attributes:
        own: float64 [size], this worker's: written by one thread, or under the writer's lock.
    """

    __slots__ = ("_board", "_rows", "own")

    def __init__(self, board: Board, rows: FloatArray, worker: int) -> None:
        self._board: Final = board
        self._rows: Final = rows
        self.own: FloatArray = rows[worker]

    def total(self) -> FloatArray:
        """Return the sum over all workers, including dead ones, [size]."""
        total: FloatArray = self._rows.sum(axis=0)
        return total

    def latest(self) -> FloatArray:
        """Return the largest value of all workers, [size]: for times, the latest."""
        latest: FloatArray = self._rows.max(axis=0)
        return latest

    def each_living(self) -> FloatArray:
        """Return the values of each worker, [workers, size]; 0 for dead workers."""
        living = np.array([pid > 0 for pid in self._board.pids()])
        return np.where(living[:, None], self._rows, 0.0)

    def total_of_living(self) -> FloatArray:
        """Return the sum over living workers, [size]: for current values."""
        total: FloatArray = self.each_living().sum(axis=0)
        return total


class Board:
    """One worker's numbers, and a view of all workers' numbers."""

    def __init__(self, path: Path | None = None, *, worker: int = 0, workers: int = 1) -> None:
        """Open the board of several workers, or without a path of a single one."""
        self._worker: Final = 0 if path is None else worker
        self._workers: Final = workers
        self._path: Final = path
        self._rows: Final = np.zeros((1, ROW)) if path is None else _mapped(path, workers)
        self._slots: Final[dict[str, Slots]] = {}
        self._places: Final[dict[str, slice]] = {}
        self._next, self._read = HEADER, 0
        self._reserve(0, HEADER)
        self._rows[self._worker, PID] = os.getpid()

    def slots(self, name: str, size: int) -> Slots:
        """Return the places of a name and size, all 0 when the service starts.

        Raises:
            FrontEndFailed: the board or the file system is full.
        """
        key = f"{size} {name}"
        if key not in self._slots:
            self._take([key])
            self._slots[key] = Slots(self, self._rows[:, self._places[key]], self._worker)
        return self._slots[key]

    def reserve(self, declared: Board) -> None:
        """Reserve places for every name that another board has declared, or for none.

        Raises:
            FrontEndFailed: the board or the file system is full.
        """
        self._take([*declared._slots])

    def _take(self, keys: Sequence[str]) -> None:
        """Find names in the shared list; the first worker that needs them appends them, all or none."""
        if self._path is None:
            self._assign(self._missing(keys))
            return
        with self._path.with_name(f"{self._path.name}-names").open("a+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(self._read)
            self._assign(file.read().decode().splitlines())
            self._read = file.tell()
            missing = self._missing(keys)
            text = "".join(f"{key}\n" for key in missing).encode()
            with _room(self._path):
                if file.write(text) < len(text):
                    file.truncate(self._read)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._assign(missing)
            self._read = file.tell()

    def _missing(self, keys: Sequence[str]) -> list[str]:
        """Return the names that need new places, after a check that there is room."""
        missing = [key for key in keys if key not in self._places]
        self._reserve(self._next, sum(map(_size, missing)))
        return missing

    def _reserve(self, start: int, size: int) -> None:
        """Reserve file space for these places: without it a write ends the process (SIGBUS)."""
        if start + size > ROW:
            raise FrontEndFailed(
                f"the metrics of all bundles since the start need more than {ROW} numbers: run fewer bundles "
                "a service, or restart it, which forgets those that were unloaded"
            )
        if self._path is None or not size or not hasattr(os, "posix_fallocate"):
            return
        with _room(self._path), self._path.open("r+b") as file:
            for worker in range(self._workers):
                os.posix_fallocate(file.fileno(), (worker * ROW + start) * ITEM, size * ITEM)

    def _assign(self, keys: Iterable[str]) -> None:
        for key in keys:
            start, self._next = self._next, self._next + _size(key)
            self._places[key] = slice(start, self._next)

    def pids(self) -> list[int]:
        """Return the process id of each worker; 0 for dead ones."""
        return [pid if pid and _lives(pid) else 0 for pid in map(int, self._rows[:, PID])]


@contextmanager
def _room(board: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise FrontEndFailed(
            f"no room for the workers' metrics in {board.parent.parent}: {error.strerror}; "
            "free some, or set TMPDIR"
        ) from error


def _size(key: str) -> int:
    return int(key.partition(" ")[0])


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):  # another user's process has the number of a dead worker
        return False
    return True


def _mapped(path: Path, workers: int) -> FloatArray:
    size = workers * ROW * ITEM
    with path.open("r+b") as file:
        file.truncate(math.ceil(size / mmap.PAGESIZE) * mmap.PAGESIZE)
        shared = mmap.mmap(file.fileno(), size)
    return np.frombuffer(shared, dtype=np.float64).reshape(workers, ROW)
