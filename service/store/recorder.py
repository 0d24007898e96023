"""Keeps what was predicted, beside the road of predictions: it never slows, fails or waits for one.

    offer (event loop) -> a bounded buffer -> one thread -> the store

What is said to be written is committed. While the database is away rows wait, and those for which
there is no room are dropped and counted; the latest prediction of a unit and cycle replaces the one
before it in memory already, so that the same question asked again and again takes one row.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic, time
from typing import Final, Generic, TypeVar

from structlog.typing import FilteringBoundLogger

from model.domain import HEALTH_STATES
from service.core.answers import WindowOutputs
from service.core.window import Window
from service.store.rows import Drop, Row, RowsRefused, RowStore, StoreObserver

FLUSH_SECONDS: Final = 0.5
"""How long a prediction may wait to be written: long enough for a transaction to be worth its while."""
BATCH_ROWS: Final = 2000
"""Rows a transaction: other processes wait for it."""
BACK_OFF_SECONDS: Final = (0.2, 15.0)
"""The first pause after a failure, and the longest; each is twice the one before."""
CHORE_SECONDS: Final = 60.0
MOST_UNIT_CHARACTERS: Final = 256

S = TypeVar("S", bound=RowStore)


class Recorder(Generic[S]):
    """Offers are taken at once; a thread of its own writes them.

    Args:
        connect: Opens the store; called on the writing thread, again after each failure.
        most_rows: How many rows may wait.
        chore: What is to be done now and then on the writing thread, where the database answers.
    """

    def __init__(
        self,
        connect: Callable[[], S],
        *,
        most_rows: int,
        observer: StoreObserver,
        log: FilteringBoundLogger,
        chore: Callable[[S], None] | None = None,
        flush_seconds: float = FLUSH_SECONDS,
        back_off_seconds: tuple[float, float] = BACK_OFF_SECONDS,
    ) -> None:
        self._connect: Final = connect
        self._most: Final = most_rows
        self._observer: Final = observer
        self._log: Final = log
        self._chore: Final = chore
        self._flush_seconds: Final = flush_seconds
        self._back_off: Final = back_off_seconds
        self._offered: Final[deque[Row]] = deque()
        self._waiting: Final[dict[tuple[str, str, int], Row]] = {}
        self._wake: Final = threading.Event()
        self._tried: Final = threading.Event()
        self._flushed: Final = threading.Condition()
        self._rounds = 0
        self._closing = False
        self._gives_up_at = 0.0
        self._failures = 0
        self._chore_at = 0.0
        self._store: S | None = None
        self._thread: Final = threading.Thread(target=self._run, name="store", daemon=True)

    # On the event loop

    def offer(self, model: str, windows: Sequence[Window], outputs: Sequence[WindowOutputs]) -> None:
        """Keep what was answered. Windows that name no unit or cycle can meet no outcome and are not kept."""
        offered = self._offered
        if len(offered) + len(self._waiting) + len(windows) > self._most:
            self._refuse(windows)
            return
        now = time()
        for window, output in zip(windows, outputs, strict=True):
            unit, cycle = window.unit, window.last_cycle
            if unit is not None and cycle == cycle:  # noqa: PLR0124 NaN is not itself: the cycle is unknown
                answers, row = output.answers, output.row
                lower, upper = answers.interval[row]
                state, health = answers.states[row]._value_, HEALTH_STATES[answers.health_label[row]]
                offered.append((model, unit, int(cycle), answers.rul[row], lower, upper, state, health, now))

    def _refuse(self, windows: Sequence[Window]) -> None:
        count = sum(w.unit is not None and w.last_cycle == w.last_cycle for w in windows)
        if count:
            self._observer.dropped(Drop.FULL, count)

    @property
    def pending_rows(self) -> int:
        """Rows that wait to be written."""
        return len(self._offered) + len(self._waiting)

    def store(self, seconds: float) -> S | None:
        """The open store, for those who read it; None while the database is away. Not on the loop.

        Args:
            seconds: How long to wait for the first attempt to open it.
        """
        self._tried.wait(seconds)
        return self._store

    def start(self) -> None:
        """Open the store, and begin to write."""
        self._wake.set()
        self._thread.start()

    def flush(self, seconds: float) -> bool:
        """Wait until what has been offered by now is written; False where it took longer. Not on the loop."""
        with self._flushed:
            # The round that is under way may have begun before the last offer.
            wanted = self._rounds + 2
            self._wake.set()
            return self._flushed.wait_for(lambda: self._rounds >= wanted or not self.pending_rows, seconds)

    def close(self, seconds: float) -> None:
        """Write what waits, for so long at most; what is left then is dropped and counted."""
        self._gives_up_at = monotonic() + seconds
        self._closing = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(seconds + 1)

    # On the writing thread

    def _run(self) -> None:
        while True:
            self._wake.wait(self._pause())
            self._wake.clear()
            last = self._closing
            self._round()
            if last and (not self.pending_rows or monotonic() >= self._gives_up_at):
                break
        if self.pending_rows:
            self._observer.dropped(Drop.SHUTDOWN, self.pending_rows)
        if self._store is not None:
            self._store.close()

    def _pause(self) -> float:
        if not self._failures:
            return 0.0 if self._closing else self._flush_seconds
        first, longest = self._back_off
        pause = min(longest, first * 2 ** min(self._failures - 1, 20))
        return min(pause, max(0.0, self._gives_up_at - monotonic())) if self._closing else pause

    def _round(self) -> None:
        self._collect()
        try:
            store = self._opened()
            for rows in batched([*self._waiting.values()], BATCH_ROWS):
                self._write(store, rows)
            self._do_chore(store)
        except Exception as error:  # noqa: BLE001 the thread must live as long as the service
            self._failed(error)
        else:
            self._worked()
        self._tried.set()
        with self._flushed:
            self._rounds += 1
            self._flushed.notify_all()

    def _collect(self) -> None:
        """What has been offered, the latest of each unit and cycle; who offers meanwhile does not wait."""
        offered, waiting = self._offered, self._waiting
        for _ in range(len(offered)):
            row = offered[0]
            if len(row[1]) > MOST_UNIT_CHARACTERS:
                self._observer.dropped(Drop.REFUSED, 1)
            else:
                waiting[row[:3]] = row
            offered.popleft()  # last: at no moment does what waits look like nothing

    def _opened(self) -> S:
        store = self._store or self._connect()
        self._store = store
        return store

    def _write(self, store: S, rows: list[Row]) -> None:
        """Write rows, or find out which of them cannot be.

        Raises:
            StoreUnavailable: the database is away; the rows wait on.
        """
        try:
            store.write(rows)
        except RowsRefused as error:
            if len(rows) > 1:
                half = len(rows) // 2
                self._write(store, rows[:half])
                self._write(store, rows[half:])
                return
            self._log.warning("prediction not kept", error=type(error.__cause__).__name__)
            self._observer.dropped(Drop.REFUSED, 1)
        else:
            self._observer.wrote(len(rows))
        for row in rows:
            self._waiting.pop(row[:3], None)

    def _do_chore(self, store: S) -> None:
        if self._chore is not None and monotonic() >= self._chore_at and not self._closing:
            self._chore_at = monotonic() + CHORE_SECONDS
            self._chore(store)

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        self._observer.up(up=False)
        lost, self._store = self._store, None
        if lost is not None:
            lost.close()
        if self._failures == 1:
            cause = error.__cause__ or error
            self._log.error("store away", error=f"{type(cause).__name__}: {cause}"[:300])

    def _worked(self) -> None:
        self._observer.up(up=True)
        if self._failures:
            self._log.info("store back", failures=self._failures)
        self._failures = 0


def batched(rows: list[Row], size: int) -> list[list[Row]]:
    """The same rows, so many at a time."""
    return [rows[i : i + size] for i in range(0, len(rows), size)]
