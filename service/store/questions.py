"""What can be asked of the store, and told to it, from the event loop: the loop itself never waits for it.

This module knows units and outcomes; it must not know HTTP, nor what kind of database it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import time
from typing import Final, Protocol, TypeVar

from service.errors import (
    DeadlineExceeded,
    NoStore,
    OutcomeConflict,
    Overloaded,
    Problem,
    StoreUnavailable,
    UnknownUnit,
)
from service.http.units_bodies import OutcomeReport
from service.store.judgement import Judged, Outcome, OutcomeKind, Report, Scored, Taken
from service.store.recorder import FLUSH_SECONDS, Recorder
from service.store.rows import FleetRow, History, Place, RowStore

THREADS: Final = 2
MOST_QUESTIONS: Final = 64
"""Questions at once; more would wait past their deadline behind a database that is slow."""
PATIENCE_SECONDS: Final = 2.0

T = TypeVar("T")


class UnitStore(RowStore, Protocol):
    """What is asked; `service.store.opening.OpenStore` is one."""

    def take_outcome(self, outcome: Outcome, *, replace: bool) -> Report:
        """Keep an outcome where nothing speaks against it."""
        ...

    def settle(self, *, recorded_after: float) -> list[Scored]:
        """Count the predictions that came later than the outcome of their unit."""
        ...

    def purge(self, before: float) -> int:
        """Forget what is older; how many predictions that were."""
        ...

    def fleet(
        self, models: Sequence[str], *, state: str | None, limit: int, after: Place | None
    ) -> list[FleetRow]:
        """The latest prediction of each unit, the smallest RUL first."""
        ...

    def history(self, model: str, unit: str, *, limit: int, before: int | None) -> History | None:
        """What is stored of a unit, a page of it."""
        ...


class OutcomeObserver(Protocol):
    """What is told of outcomes, from any thread; `service.metrics.store` counts it."""

    def taken(self, kind: OutcomeKind, taken: Taken) -> None:
        """An outcome is committed: a new one, or one that replaces another."""
        ...

    def scored(self, model: str, predictions: Judged) -> None:
        """Predictions of the loaded version of a model have met an outcome."""
        ...


class Units:
    """The store, as the API asks it.

    Args:
        recorder: Where predictions go; None: they are not kept.
        versions: The loaded version of each model: what is counted is of these.
    """

    def __init__(
        self,
        recorder: Recorder[UnitStore] | None,
        *,
        versions: Mapping[str, str],
        observer: OutcomeObserver | None,
        lag_seconds: float = 2 * FLUSH_SECONDS,
    ) -> None:
        self._recorder: Final = recorder
        self._versions: Final = dict(versions)
        self._observer: Final = observer
        self._lag_seconds: Final = lag_seconds
        self._executor: Final = ThreadPoolExecutor(THREADS, thread_name_prefix="units")
        self._asking = 0

    def close(self) -> None:
        """Ask nothing more."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def fleet(
        self,
        models: Sequence[str],
        *,
        state: str | None,
        limit: int,
        after: Place | None,
        timeout_seconds: float,
    ) -> list[FleetRow]:
        """Units by urgency; see `store_units.fleet`.

        Raises:
            NoStore, StoreUnavailable, Overloaded, DeadlineExceeded: it cannot be asked, or not now.
        """
        return await self._ask(
            lambda store: store.fleet(models, state=state, limit=limit, after=after), timeout_seconds
        )

    async def history(
        self, model: str, unit: str, *, limit: int, before: int | None, timeout_seconds: float
    ) -> History:
        """What is known of a unit; see `store_units.history`.

        Raises:
            UnknownUnit: that is nothing.
            NoStore, StoreUnavailable, Overloaded, DeadlineExceeded: it cannot be asked, or not now.
        """
        for lag in (self._lag_seconds, 0.0):
            found = await self._ask(
                lambda store: store.history(model, unit, limit=limit, before=before), timeout_seconds
            )
            if found is not None:
                return found
            await asyncio.sleep(lag)  # another worker may be about to write it
        raise _unknown(model, unit)

    async def report(self, model: str, unit: str, given: OutcomeReport, *, timeout_seconds: float) -> Report:
        """Take an outcome; the same one again changes nothing.

        Raises:
            UnknownUnit: nothing was predicted of the unit.
            OutcomeConflict: another outcome of it is known, and this one is not to replace it.
            NoStore, StoreUnavailable, Overloaded, DeadlineExceeded: it cannot be told, or not now.
        """
        happened = None if given.time is None else given.time.timestamp()
        outcome = Outcome(model, unit, given.kind, given.cycle, happened, time())
        for lag in (self._lag_seconds, 0.0):
            report = await self._ask(lambda store: self._take(store, outcome, given), timeout_seconds)
            if report.taken is Taken.CONFLICT and report.outcome is not None:
                raise _conflict(outcome, report.outcome)
            if report.taken is not Taken.UNKNOWN_UNIT:
                return report
            await asyncio.sleep(lag)
        raise _unknown(model, unit)

    def _take(self, store: UnitStore, outcome: Outcome, given: OutcomeReport) -> Report:
        report = store.take_outcome(outcome, replace=given.replace)
        if self._observer is not None and report.taken in {Taken.CREATED, Taken.REPLACED}:
            self._observer.taken(outcome.kind, report.taken)
            self.count(report.scored)
        return report

    def count(self, scored: Sequence[Scored]) -> None:
        """Tell the observer of predictions that have met an outcome, where their version is loaded."""
        for found in scored:
            if self._observer is not None and self._versions.get(found.model) == found.version:
                self._observer.scored(found.model, found.judged)

    async def _ask(self, question: Callable[[UnitStore], T], timeout_seconds: float) -> T:
        recorder = self._recorder
        if recorder is None:
            raise NoStore("this service keeps no predictions: it was started with RUL_STORE=false")
        if self._asking >= MOST_QUESTIONS:
            raise Overloaded(f"{self._asking} questions wait for the store of predictions already")

        def ask() -> T:
            # What this process has answered is to be known to whoever asks it next.
            if recorder.store(PATIENCE_SECONDS) is not None:
                recorder.flush(PATIENCE_SECONDS)
            store = recorder.store(0)
            if store is None:
                raise StoreUnavailable("the store of predictions cannot be reached now")
            return question(store)

        self._asking += 1
        try:
            asked = asyncio.get_running_loop().run_in_executor(self._executor, ask)
            return await asyncio.wait_for(asked, timeout_seconds)
        except TimeoutError:
            raise DeadlineExceeded(f"the store did not answer within {timeout_seconds:g} s") from None
        finally:
            self._asking -= 1


def _unknown(model: str, unit: str) -> UnknownUnit:
    return UnknownUnit(f"no prediction of unit {unit[:64]!r} by model {model!r} is stored")


def _conflict(given: Outcome, known: Outcome) -> OutcomeConflict:
    detail = (
        f"unit {given.unit[:64]!r} is known to have been {known.kind.value} at cycle {known.cycle}, "
        f'got {given.kind.value} at {given.cycle}; "replace": true corrects it'
    ).replace("been failed", "failed")
    differ = {
        "/kind": given.kind is not known.kind,
        "/cycle": given.cycle != known.cycle,
        "/time": None not in {given.happened_at, known.happened_at}
        and given.happened_at != known.happened_at,
    }
    return OutcomeConflict(detail, [Problem(at, "conflict", detail) for at, wrong in differ.items() if wrong])
