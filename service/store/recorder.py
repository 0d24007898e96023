"""Writes predictions to the store without delaying or failing any request.

    offer (event loop) -> bounded buffer -> one thread -> the store

`wrote` counts only committed rows. While the database does not answer, rows wait; rows beyond the limit are
dropped and counted. Of waiting predictions of the same version, unit and cycle only the latest is kept, so a
repeated request takes one row.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from math import inf
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

import msgspec
import numpy as np
from structlog.typing import FilteringBoundLogger

from model.domain import FloatArray
from service.core.answers import Answers, Piece
from service.core.queries import ModelName, Prediction
from service.core.window import Windows
from service.errors import StoreUnavailable
from service.store.explanation import DECIMALS, MOST, Brief, BriefGrounds, explanation_text
from service.store.rows import NO_ANSWER, Drop, Row, RowsRefused, StoreObserver, reason_of

if TYPE_CHECKING:
    from service.store.store import Store

FLUSH_SECONDS: Final = 0.5
"""Seconds that a prediction may wait to be written; a shorter wait makes small, costly transactions."""
BATCH_ROWS: Final = 2000
"""Maximum rows in a transaction, for which other processes wait."""
BACK_OFF_SECONDS: Final = (0.2, 4.0)
"""First and longest pause after a failure, in seconds; each is twice the one before."""
END_SECONDS: Final = 1.0
"""Seconds that `close` waits for a write beyond its time limit."""
CHORE_SECONDS: Final = 60.0
"""Seconds between chores."""

Offered = tuple[
    str, str, str, int, float, float, float, str, str, float, dict[str, float], BriefGrounds | None, str
]
"""A row whose failure probabilities and explanation are not encoded yet."""


def _written(row: Offered) -> Row:
    probability, why, version = row[-3:]
    fails = msgspec.json.encode({horizon: round(value, DECIMALS) for horizon, value in probability.items()})
    return (*row[:-3], fails.decode(), None if why is None else explanation_text(why), version)


class Recorder:
    """Buffers predictions; its thread writes them. `service.core` knows it as a Protocol.

    Args:
        connect: Opens the store; the writing thread calls it at first and after each failure.
        most_rows: Maximum waiting rows; further ones are dropped.
        explanations: Whether rows have short explanations.
        progress: Numbers of rows that were offered and settled, [2], for other workers to read; the event
            loop writes the first, the writing thread the second.

    Attributes:
        chore: Runs on the writing thread every minute, if the database answers; rows are written between its
            steps.
        trouble: Why there is no open store, for callers.
    """

    def __init__(
        self,
        connect: Callable[[], Store],
        *,
        most_rows: int,
        explanations: bool = True,
        observer: StoreObserver,
        log: FilteringBoundLogger,
        progress: FloatArray | None = None,
        flush_seconds: float = FLUSH_SECONDS,
        back_off_seconds: tuple[float, float] = BACK_OFF_SECONDS,
    ) -> None:
        self._connect: Final = connect
        self._most: Final = most_rows
        self._explanations: Final = explanations
        self._briefs: Final[WeakKeyDictionary[Answers, list[Brief]]] = WeakKeyDictionary()
        self._observer: Final = observer
        self._log: Final = log
        self._progress: Final[FloatArray] = np.zeros(2) if progress is None else progress
        self._progress[1] = self._progress[0]  # rows offered by the worker before this one are lost
        self.chore: Callable[[Store], Iterable[None]] | None = None
        self._flush_seconds: Final = flush_seconds
        self._back_off: Final = back_off_seconds
        self._offered: Final[deque[Offered]] = deque()
        self._waiting: Final[dict[tuple[str, str, str, int, str], Offered]] = {}
        self._wake: Final = threading.Event()
        self._flushed: Final = threading.Condition()
        self._tried = False
        self._closing = False
        self._gives_up_at = inf
        self._failures = 0
        self._chore_at = 0.0
        self._store: Store | None = None
        self.trouble = NO_ANSWER
        self._thread: Final = threading.Thread(target=self._run, name="store", daemon=True)

    # On the event loop

    def offer(
        self,
        model: ModelName,
        windows: Windows,
        predictions: Sequence[Prediction],
        pieces: Sequence[Piece],
        *,
        tenant: str = "",
    ) -> None:
        """Buffer predictions with unit and last cycle; if not all fit, drop and count them.

        A prediction without unit or last cycle is not stored: no outcome can be matched to it.
        """
        grounds = self._grounds(windows, predictions, pieces) if self._explanations else {}
        at = time_ns() // 1000 / 1e6  # to the microseconds that answers show, for `changed_since`
        rows: list[Offered] = []
        for i, (p, cycle) in enumerate(zip(predictions, windows.last_cycle, strict=True)):
            if p.unit is not None and cycle == cycle:  # noqa: PLR0124 NaN differs from itself: unknown cycle
                lower, upper, state = p.interval.lower, p.interval.upper, p.rul_state._value_
                why = grounds.get(i)
                rows.append(
                    (
                        model.name, p.unit, tenant, int(cycle), p.rul, lower, upper, state,
                        p.health_state.label, at, p.failure_probability, why, model.version,
                    )
                )  # fmt: skip
        if self.pending_rows + len(rows) <= self._most:
            self._offered.extend(rows)
            self._progress[0] += len(rows)  # last, so that rows count as settled only after they were taken
        else:
            self._observer.dropped(Drop.FULL, len(rows))

    def _grounds(
        self, windows: Windows, predictions: Sequence[Prediction], pieces: Sequence[Piece]
    ) -> dict[int, BriefGrounds]:
        """Return short explanations by place; empty if the model explains no readings."""
        found: dict[int, BriefGrounds] = {}
        for answers, first, places in pieces:
            briefs = self._briefs.get(answers)
            if briefs is None:  # once per batch: its callers come one after the other
                briefs = self._briefs[answers] = briefs_of(answers)
            for row, i in enumerate(places if briefs else (), first):
                found[i] = BriefGrounds(
                    briefs[row], windows.first_cycle[i], answers.rules.names, predictions[i].trust
                )
        return found

    @property
    def pending_rows(self) -> int:
        """Number of rows that wait to be written."""
        return len(self._offered) + len(self._waiting)

    def start(self) -> None:
        """Start the writing thread, which opens the store."""
        self._wake.set()
        self._thread.start()

    # On any other thread

    def flush(self, seconds: float) -> Store | None:
        """Return the open store once it has all rows offered so far, or after this many seconds.

        None while the store does not answer; the first call waits for the first attempt to open it.
        """
        offered = self._progress[0]
        with self._flushed:
            if self._store is not None:
                self._wake.set()
            self._flushed.wait_for(
                lambda: self._tried and (self._store is None or self._progress[1] >= offered), seconds
            )
            return self._store

    def opened(self, seconds: float) -> Store | None:
        """Return the open store, or None; wait only for the first attempt to open it."""
        with self._flushed:
            self._flushed.wait_for(lambda: self._tried, seconds)
            return self._store

    def close(self, seconds: float) -> None:
        """Write the waiting rows within this time; drop, count and log the rest."""
        self._gives_up_at = monotonic() + seconds
        self._closing = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(seconds + END_SECONDS)
        if lost := self.pending_rows:
            self._observer.dropped(Drop.SHUTDOWN, lost)
            self._log.error("predictions lost", rows=lost, reason=Drop.SHUTDOWN.value)

    # On the writing thread

    def _run(self) -> None:
        while True:
            self._wake.wait(self._pause())
            self._wake.clear()
            last = self._closing
            self._round()
            if last and (not self.pending_rows or monotonic() >= self._gives_up_at):
                break
        if self._store is not None:
            self._store.close()

    def _pause(self) -> float:
        if not self._failures:
            return 0.0 if self._closing else self._flush_seconds
        first, longest = self._back_off
        pause = min(longest, first * 2 ** min(self._failures - 1, 20))
        return max(0.0, min(pause, self._gives_up_at - monotonic()))

    def _round(self) -> None:
        self._collect()
        try:
            self._store = store = self._store or self._connect()
            store.check()
            self._write_waiting(store)
            if self.chore is not None and monotonic() >= self._chore_at and not self._closing:
                self._chore_at = monotonic() + CHORE_SECONDS
                for _ in self.chore(store):
                    self._write_waiting(store)
                    if self._closing:
                        break
        except Exception as error:  # noqa: BLE001 the thread lives as long as the service
            self._failed(error)
        else:
            self._observer.up(up=True)
            if self._failures:
                self._log.info("store recovered", failures=self._failures)
            self._failures = 0
        self._notify()

    def _notify(self) -> None:
        """Wake threads that wait for the store or for rows."""
        with self._flushed:
            self._tried = True
            self._flushed.notify_all()

    def _write_waiting(self, store: Store) -> None:
        """Write the rows offered so far.

        Raises:
            StoreUnavailable: the database does not answer; the rows wait.
        """
        offered = self._progress[0]
        self._collect()
        rows = [*self._waiting.values()]
        for start in range(0, len(rows), BATCH_ROWS):
            self._write(store, [_written(row) for row in rows[start : start + BATCH_ROWS]])
        self._progress[1] = offered
        self._notify()

    def _collect(self) -> None:
        """Move offered rows to the waiting ones without blocking the event loop."""
        offered, waiting = self._offered, self._waiting
        for _ in range(len(offered)):
            row = offered[0]
            waiting[*row[:4], row[-1]] = row
            offered.popleft()  # last, so that `pending_rows` is never 0 while a row waits

    def _write(self, store: Store, rows: list[Row]) -> None:
        """Write rows; if the database rejects them, bisect until the bad row is alone.

        Raises:
            StoreUnavailable: the database does not answer; the rows wait.
        """
        try:
            store.write(rows)
        except RowsRefused as error:
            if len(rows) > 1:
                half = len(rows) // 2
                self._write(store, rows[:half])
                self._write(store, rows[half:])
                return
            self._log.warning("prediction dropped", error=type(error.__cause__).__name__)
            self._observer.dropped(Drop.REFUSED, 1)
        else:
            self._observer.wrote(len(rows))
        for row in rows:
            self._waiting.pop((*row[:4], row[-1]), None)

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        self.trouble = str(error) if isinstance(error, StoreUnavailable) else NO_ANSWER
        self._observer.up(up=False)
        lost, self._store = self._store, None
        if lost is not None:
            lost.close()
        if self._failures == 1:
            self._log.error("store lost", error=reason_of(error))


def briefs_of(answers: Answers) -> list[Brief]:
    """Choose the leading cycles and sensors of each answer; empty if the model explains no readings."""
    evidence, contribution = answers.outputs.evidence, answers.outputs.sensor_contribution
    if evidence is None or contribution is None:
        return []
    rows = np.arange(len(evidence))[:, None]
    places = evidence.argsort(axis=1)[:, : -MOST - 1 : -1]
    of_columns = np.ones(contribution.shape[1], np.float32) @ contribution  # a tenth of the time of `sum`
    contributing = np.array(answers.rules.contributing, np.intp)
    columns = contributing[np.abs(of_columns[:, contributing]).argsort(axis=1)[:, : -MOST - 1 : -1]]
    shares, cycles = (
        values.astype(np.float64).round(DECIMALS).tolist()
        for values in (evidence[rows, places], of_columns[rows, columns])
    )
    return [*zip(places.tolist(), shares, columns.tolist(), cycles, strict=True)]
