"""The store for the event loop, which it never blocks.

One thread writes predictions, one appends readings, two run queries. This module must not know HTTP; it loads
no database library, which the writing thread does.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import monotonic, time
from typing import TYPE_CHECKING, Any, Final, TypeVar

from model.domain import LARGEST_CYCLE, FloatArray
from service.core.ports import Slots
from service.errors import (
    DeadlineExceeded,
    NoStore,
    OutcomeConflict,
    Overloaded,
    Problem,
    StoreUnavailable,
    UnitConflict,
    UnknownUnit,
)
from service.store.ingest import Ingest
from service.store.judgement import Outcome, OutcomeResult, Receipt, VersionJudgement
from service.store.recorder import Recorder
from service.store.rows import (
    Append,
    Appended,
    DeletedRows,
    History,
    ModelVersion,
    StoreObserver,
    Stretch,
    UnitKey,
)

if TYPE_CHECKING:
    from service.store.readings import Readings
    from service.store.store import Store

DAY_SECONDS: Final = 86_400
PURGE_SECONDS: Final = 3600.0
"""Seconds between purges."""
THREADS: Final = 2
MOST_QUESTIONS: Final = 64
"""Maximum concurrent queries; if the database is slow, more would only wait for their deadline."""
PATIENCE_SECONDS: Final = 2.0
"""Maximum seconds that a query waits for the first connection and for rows offered before it."""

KNOWN: Final = "reading or prediction"
LOOK_SECONDS: Final = 0.02
"""Seconds between checks of what other workers have written."""

T = TypeVar("T")


class AsyncStore:
    """Queries about stored predictions and readings.

    They raise NoStore, StoreUnavailable, Overloaded or DeadlineExceeded if the store cannot answer.

    Args:
        recorder: Writes predictions, and opens the database; None: nothing is stored.
        versions: Model versions to register: the loaded models; `add_model` adds more. The observer counts
            only their predictions.
        progress: Rows that each worker of this machine has offered, and rows that are settled: written or
            dropped. None: other machines write too, whose progress is unknown.
        lag_seconds: Time in which another worker writes offered rows.
        retention_days: Age at which predictions, units, outcomes and readings are deleted.
        timeout_seconds: Time limit of a query; then DeadlineExceeded.
    """

    def __init__(
        self,
        recorder: Recorder | None,
        versions: list[ModelVersion],
        *,
        progress: Slots | None = None,
        lag_seconds: float,
        retention_days: float,
        timeout_seconds: float,
        observer: StoreObserver,
    ) -> None:
        self.recorder: Final = recorder
        if recorder is not None:
            recorder.chore = self._chore
        self._timeout_seconds: Final = timeout_seconds
        self._observer: Final = observer
        self._versions: Final = versions
        self._loaded: Final = {version.model: version.version for version in versions}
        self._counting: Final = threading.Lock()
        self._lag_seconds: Final = lag_seconds
        self._progress: Final = progress
        self._retention_seconds: Final = retention_days * DAY_SECONDS
        self._purge_at = 0.0
        self._clock = time(), monotonic()
        self._executor: Final = ThreadPoolExecutor(THREADS, thread_name_prefix="units")
        self._asking = 0
        self._ingest: Final = Ingest(self._readings, observer.ingested)

    def add_model(self, version: ModelVersion) -> None:
        """Store predictions of a model, in place of an older version."""
        self.add_version(version)
        self._loaded[version.model] = version.version

    def add_version(self, version: ModelVersion) -> None:
        """Store predictions of a version beside the serving one."""
        if version not in self._versions:
            self._versions.append(version)

    def remove_model(self, name: str) -> None:
        """Stop counting judged predictions of a model, after those that a thread counts now."""
        with self._counting:
            self._loaded.pop(name, None)

    def start(self) -> None:
        """Open the database in the background."""
        if self.recorder is not None:
            self.recorder.start()

    async def close(self, seconds: float) -> None:
        """Write the waiting predictions within this time; answer no more queries."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._ingest.close()
        if self.recorder is not None:
            await asyncio.to_thread(self.recorder.close, seconds)

    async def ask(self, question: Callable[[Store], T]) -> T:
        """Run a query on a thread after the rows offered so far are written, or after `PATIENCE_SECONDS`."""
        recorder = self._check_on()
        if self._asking >= MOST_QUESTIONS:
            raise Overloaded(f"{self._asking} queries wait for the store, its maximum; try again later")

        is_wanted = True

        def ask() -> T:
            if not is_wanted:
                raise DeadlineExceeded  # nobody hears of it
            # An answer of this process is visible to the next query.
            store = recorder.flush(PATIENCE_SECONDS)
            if store is None:
                raise StoreUnavailable(recorder.trouble)
            return question(store)

        answer = asyncio.get_running_loop().run_in_executor(self._executor, ask)
        self._asking += 1
        answer.add_done_callback(self._asked)
        try:
            done, _ = await asyncio.wait({answer}, timeout=self._timeout_seconds)
        finally:
            is_wanted = False
        if not done:
            raise DeadlineExceeded(f"the store did not answer within {self._timeout_seconds:g} s")
        return answer.result()

    def _asked(self, answer: asyncio.Future[Any]) -> None:
        """Stop counting a query that has ended; one whose caller has left counts until then."""
        self._asking -= 1
        if not answer.cancelled():
            answer.exception()  # else the event loop would log an error that no caller waits for

    async def history(
        self,
        key: UnitKey,
        *,
        columns: tuple[str, ...] = (),
        limit: int,
        before: int | None,
        predicted: bool = False,
    ) -> History:
        """Read a page of a unit's history, with readings in these columns; see `Store.history`.

        Readings are stored before their prediction: with `predicted`, also wait for other workers' rows.

        Raises:
            UnknownUnit: nothing of the unit is stored or, with `predicted`, no prediction.
        """

        def known(store: Store) -> History | None:
            found = store.history(key, columns=columns, limit=limit, before=before)
            return None if found is None or (predicted and not found.predictions) else found

        found = await self._ask_twice(known)
        if found is None:
            raise _unknown(key, "prediction" if predicted else KNOWN)
        return found

    async def delete(self, key: UnitKey) -> DeletedRows:
        """Delete a unit with its predictions, readings and outcome.

        Raises:
            UnknownUnit: nothing is stored of it.
        """
        deleted = await self._ask_twice(lambda store: store.delete(key))
        if deleted is None:
            raise _unknown(key)
        until = time()
        await self._catch_up(self._offered())  # other workers may write predictions of deleted readings
        late = await self.ask(lambda store: store.delete(key, until=until))
        return DeletedRows(deleted.readings, deleted.predictions + (late.predictions if late else 0))

    async def rename(self, key: UnitKey, to: str) -> None:
        """Rename a unit with all of its rows.

        Raises:
            UnknownUnit: nothing is stored of it.
            UnitConflict: another unit has the name.
        """
        await self._catch_up(self._offered())
        done = await self.ask(lambda store: store.rename(key, to))
        if done is None:
            raise _unknown(key)
        if not done:
            detail = f"another unit of model {key.model!r} has the name {to[:64]!r}"
            raise UnitConflict(detail, [Problem("/to", "conflict", detail)])

    async def append(self, request: Append) -> Appended:
        """Commit readings and return the unit's newest ones; see `Ingest`."""
        return await self._ingest.append(request)

    async def newest(
        self, key: UnitKey, columns: tuple[str, ...], *, most: int, until: int | None
    ) -> Stretch:
        """Read a unit's last readings, or the last ones up to a cycle; see `Readings.newest`.

        Raises:
            UnknownUnit: there is none, or none of this cycle.
        """
        last = LARGEST_CYCLE if until is None else until
        found = await self.ask(lambda store: store.readings.newest(key, columns, most=most, until=last))
        if not found.cycles or until not in {None, found.cycles[-1]}:
            raise _unknown(key, "reading" if until is None else f"reading of cycle {until}")
        return found

    async def take_outcome(self, outcome: Outcome, *, replace: bool) -> Receipt:
        """Store an outcome; a repeated one only adds a missing time.

        Raises:
            UnknownUnit: nothing is stored of it.
            OutcomeConflict: another outcome is stored, and `replace` is false.
        """
        receipt = await self._ask_twice(lambda store: self._take_outcome(store, outcome, replace=replace))
        if receipt is None:
            raise _unknown(UnitKey(outcome.tenant, outcome.model, outcome.unit))
        if receipt.result is OutcomeResult.CONFLICT:
            raise _conflict(outcome, receipt.outcome)
        return receipt

    def _take_outcome(self, store: Store, outcome: Outcome, *, replace: bool) -> Receipt | None:
        receipt = store.take_outcome(outcome, replace=replace)
        if receipt is not None and receipt.result in {OutcomeResult.CREATED, OutcomeResult.REPLACED}:
            self._observer.taken(outcome.kind, receipt.result)
            self._count(receipt.judgements, is_late=False)
        return receipt

    def _count(self, judgements: Sequence[VersionJudgement], *, is_late: bool) -> None:
        with self._counting:
            for found in judgements:
                if self._loaded.get(found.model) == found.version:
                    self._observer.scored(found.model, found.judgement, is_late=is_late)

    def _chore(self, store: Store) -> Iterator[None]:
        for found in store.judge_late_predictions():
            self._count([found], is_late=True)
        if monotonic() >= self._purge_at:
            # A clock that was set ahead counts from the next purge on: what a purge deletes is lost.
            (before, then), self._clock = self._clock, (time(), monotonic())
            now, seconds = self._clock
            yield from store.purge(min(now, before + seconds - then) - self._retention_seconds)
            self._purge_at = monotonic() + PURGE_SECONDS

    async def _ask_twice(self, question: Callable[[Store], T | None]) -> T | None:
        """If a unit is unknown, query again after other workers have written their rows."""
        offered = self._offered()
        is_late = self._unwritten(offered)  # before the query: rows written during it are not in its answer
        found = await self.ask(question)
        if found is not None or not is_late:
            return found
        await self._catch_up(offered)
        return await self.ask(question)

    def _offered(self) -> FloatArray | None:
        """Return how many rows each worker has offered."""
        return None if self._progress is None else self._progress.each_living()[:, 0]

    async def _catch_up(self, offered: FloatArray | None) -> None:
        """Wait, for a bounded time, until the workers have written these rows."""
        give_up_at = monotonic() + self._lag_seconds
        # Other processes write: there is no event.
        while self._unwritten(offered) and (left := give_up_at - monotonic()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(min(left, LOOK_SECONDS))

    def _unwritten(self, offered: FloatArray | None) -> bool:
        """Return whether some of the rows offered before may not be written yet."""
        return (
            self._progress is None
            or offered is None
            or bool((self._progress.each_living()[:, 1] < offered).any())
        )

    def _check_on(self) -> Recorder:
        if self.recorder is None:
            raise NoStore("the service stores no predictions; start it with RUL_STORE=true")
        return self.recorder

    def _readings(self) -> Readings:
        recorder = self._check_on()
        store = recorder.opened(self._timeout_seconds)
        if store is None:
            raise StoreUnavailable(recorder.trouble)
        return store.readings


def _unknown(key: UnitKey, what: str = KNOWN) -> UnknownUnit:
    return UnknownUnit(f"no {what} of unit {key.unit[:64]!r} for model {key.model!r} is stored")


def _conflict(given: Outcome, known: Outcome) -> OutcomeConflict:
    detail = (
        f"the stored outcome of unit {given.unit[:64]!r} is {known.kind} at cycle {known.cycle}, "
        f'got {given.kind} at cycle {given.cycle}; "replace": true corrects it'
    )
    problems = [Problem(f"/{name}", "conflict", detail) for name in given.differences(known)]
    return OutcomeConflict(detail, problems)
