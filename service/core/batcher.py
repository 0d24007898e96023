"""Lets requests meet: windows of many callers become one batch, and each caller gets its own answers.

No timer: whenever an inference thread is free and windows wait, a batch leaves. What arrives while
they are busy meets in the next one, so batches grow exactly with load. Where a worker has one core, its
batches run on the event loop (`on_loop`), and threads are for large requests while other cores are idle.

    submit -> callers in turn -> batch (a free thread, or the loop) -> answers -> each caller's future

Everything but `_work` and what it calls runs on the event loop, so there is nothing to lock.
Promises, each tested over random arrivals, cancellations and failures: every caller gets exactly
one outcome, its own; the queue is bounded in windows; a caller who leaves delays nobody; a failed
batch fails its callers and no others; a large request does not starve small ones.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from time import perf_counter
from typing import Final, cast

import numpy as np

from model.domain import FloatArray, IntArray, pad_windows
from service.core.answers import Answers, WindowOutputs
from service.core.caller import Caller
from service.core.cores import Cores
from service.core.on_loop import OnLoop
from service.core.ports import BatchObserver, BatchTrace, Tracer
from service.core.rules import TrainingRange
from service.core.runtime import Runtime
from service.core.window import Window
from service.errors import NotReady, Overloaded, RuntimeFailed, ServiceError

_Places = list[tuple[Caller, int]]
"""Whose window stands in each row of a batch, and which of the caller's it is."""


class MicroBatcher:
    """Batches for one runtime, on one event loop."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        executor: Executor,
        threads: int,
        max_batch_windows: int,
        max_pending_windows: int,
        observer: BatchObserver,
        eager_threads: int | None = None,
        cores: Cores | None = None,
        on_loop: OnLoop | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """Batches run on an executor, which its maker shuts down.

        Args:
            runtime: What answers a batch.
            executor: Where batches run.
            threads: At most so many batches at once.
            max_batch_windows: Most windows a batch.
            max_pending_windows: Most windows that may wait.
            observer: Who counts.
            eager_threads: So many batches leave as soon as a window waits; one more leaves only when it
                is full, so that a large request has every core and small ones meet. None: all of them.
            cores: Who knows whether that one more has a core to itself, or must wait; None: it has.
            on_loop: Which batches run on the event loop; None: none does.
            tracer: Who is told of batches; None: nobody.
        """
        self._runtime: Final = runtime
        self._range: Final = TrainingRange.of(runtime.manifest)
        self._executor: Final = executor
        self._max_batch: Final = max_batch_windows
        self._max_pending: Final = max_pending_windows
        self._observer: Final = observer
        self._tracer: Final = tracer
        self._callers: Final[deque[Caller]] = deque()
        self._running: Final[set[Caller]] = set()
        self._threads: Final = threads
        self._eager: Final = threads if eager_threads is None else min(eager_threads, threads)
        self._cores: Final = cores or Cores(None, threads)
        self._on_loop: Final = on_loop or OnLoop()
        self._free = threads
        self._pending = 0
        self._dispatch_due = False
        self._closing = False
        self._idle: asyncio.Event | None = None
        self._failure: BaseException | None = None

    @property
    def healthy(self) -> bool:
        """Whether batches still leave; once false, only a restart helps."""
        return self._failure is None

    @property
    def pending_windows(self) -> int:
        """Windows that wait for a batch."""
        return self._pending

    async def submit(self, windows: Sequence[Window]) -> list[WindowOutputs]:
        """The answers to these windows, in their order; all or none.

        Raises:
            Overloaded: the queue has no room for all of them; nothing was queued.
            NotReady: the batcher is closing.
            RuntimeFailed: a batch with one of them failed, or batches no longer leave.
        """
        if self._failure is not None:
            raise RuntimeFailed("batches no longer leave") from self._failure
        if self._closing:
            raise NotReady("the service is shutting down")
        if not windows:
            return []
        if self._pending + len(windows) > self._max_pending:
            raise Overloaded(
                f"{self._pending} windows wait and {len(windows)} more were sent, "
                f"at most {self._max_pending} may wait"
            )
        loop = asyncio.get_running_loop()
        caller = Caller(windows, self._order(windows), loop.create_future())
        if self._tracer is not None:
            caller.trace = self._tracer.submitted()
        self._callers.append(caller)
        self._pending += len(windows)
        self._dispatch_soon(loop)
        try:
            return await caller.future
        except asyncio.CancelledError:
            self._withdraw(caller)
            self._observer.cancelled(caller.missing)
            raise
        finally:
            if caller.trace is not None:
                caller.trace.ended(caller)

    async def close(self, *, drain_seconds: float) -> None:
        """Refuse new windows, give those at hand this long to finish, then fail the rest."""
        self._closing = True
        if self._busy() and self.healthy:
            self._idle = asyncio.Event()
            try:
                async with asyncio.timeout(drain_seconds):
                    await self._idle.wait()
            except TimeoutError:
                self._fail_everyone(lambda: NotReady("the service shut down before it could answer"))

    def _order(self, windows: Sequence[Window]) -> Sequence[int]:
        """A request of several batches goes shortest first: padding costs as much as readings."""
        if len(windows) <= 2:
            return range(len(windows))
        return sorted(range(len(windows)), key=lambda i: len(windows[i]))

    def _busy(self) -> bool:
        return bool(self._pending) or self._free < self._threads

    def _dispatch_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        # After the callbacks that are ready by now: requests that came together leave together.
        if not self._dispatch_due:
            self._dispatch_due = True
            loop.call_soon(self._dispatch, loop)

    def _dispatch(self, loop: asyncio.AbstractEventLoop) -> None:
        self._dispatch_due = False
        try:
            if self._failure is None and self._runs_here():
                self._run_here(loop)
            else:
                while self._failure is None and (size := self._next_size()):
                    self._send(loop, size)
        except BaseException as error:  # noqa: BLE001 - nobody awaits this callback: callers would hang
            self._stop(error)
        if self._idle is not None and not self._busy():
            self._idle.set()

    def _next_size(self) -> int:
        """Windows of the batch that may leave now; 0: none may."""
        busy = self._threads - self._free
        if not self._pending or not self._free:
            return 0
        if busy >= self._eager:
            full = self._pending >= self._max_batch
            return self._max_batch if full and self._cores.spare else 0
        # Free threads share what waits: two batches of 20 are done before one of 32 and one of 8.
        return min(self._max_batch, -(-self._pending // (self._eager - busy)))

    def _runs_here(self) -> bool:
        """Whether the next batch runs on the event loop; a few windows do where no other batch runs."""
        alone = self._free == self._threads or self._on_loop.takes_whole_batches
        return alone and self._on_loop.fits(min(self._pending, self._max_batch))

    def _run_here(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._on_loop.waits(self._pending):
            self._dispatch_soon(loop)
            return
        self._cores.begin()
        try:
            while self._pending >= 2 * self._max_batch and self._free and self._cores.spare:
                self._send(loop, self._max_batch)
            places = self._take(min(self._pending, self._max_batch))
            self._hand_back(places, *self._outcome(places))
        finally:
            self._cores.end()
        if self._pending:
            self._dispatch_soon(loop)

    def _send(self, loop: asyncio.AbstractEventLoop, size: int) -> None:
        """A batch of this size to the threads."""
        places = self._take(size)
        self._free -= 1
        self._cores.begin()
        self._executor.submit(self._work, loop, places)

    def _take(self, size: int) -> _Places:
        """Up to `size` windows, every caller in turn; what a caller keeps waits at the end of the line."""
        places: _Places = []
        waited: list[float] = []
        callers, now = self._callers, perf_counter()
        while len(places) < size and callers:
            share = max(1, (size - len(places)) // len(callers))
            caller = callers.popleft()
            if caller.next == 0:
                caller.taken_at = now
                self._running.add(caller)
                waited.append(now - caller.arrived)
            upto = min(caller.next + share, len(caller.windows))
            for i in caller.order[caller.next : upto]:
                places.append((caller, i))
            caller.next = upto
            if upto < len(caller.windows):
                callers.append(caller)
        self._observer.queued(waited)
        self._pending -= len(places)
        return places

    def _work(self, loop: asyncio.AbstractEventLoop, places: _Places) -> None:
        """On an inference thread: run a batch, and hand back whatever came of it."""
        answers, error = self._outcome(places)
        try:
            loop.call_soon_threadsafe(self._deliver, loop, places, answers, error)
        except RuntimeError:  # the loop is closed: nobody waits any more
            return

    def _outcome(self, places: _Places) -> tuple[Answers | None, BaseException | None]:
        trace: BatchTrace | None = None
        answers, error = None, None
        try:
            if self._tracer is not None:
                served = dict.fromkeys(caller.trace for caller, _ in places)
                trace = self._tracer.batch(served, model=self._runtime.manifest.name, windows=len(places))
            answers = self._answered([caller.windows[i] for caller, i in places])
        except BaseException as caught:  # noqa: BLE001 - whatever it was, the callers must hear of it
            error = caught
        if trace is not None:
            trace.end(error)
        return answers, error

    def _answered(self, windows: Sequence[Window]) -> Answers:
        readings, lengths, last_cycle = stacked(windows)
        start = perf_counter()
        outputs = self._runtime.run(readings, lengths, last_cycle)
        seconds = perf_counter() - start
        self._on_loop.ran(len(windows), seconds)
        answers = Answers(
            outputs,
            lengths,
            self._runtime.manifest,
            last_cycle=last_cycle,
            out_of_range=self._range.leaving(readings),
        )
        self._observer.ran(len(windows), seconds)
        self._observe(answers, windows, readings)
        return answers

    def _observe(self, answers: Answers, windows: Sequence[Window], readings: FloatArray) -> None:
        if any(window.probe for window in windows):
            # Probes are no predictions: counted, they would look like a fleet with failing sensors.
            asked = np.array([not window.probe for window in windows])
            if not asked.any():
                return
            windows = [window for window in windows if not window.probe]
            answers, readings = answers.only(asked), readings[asked]
        self._observer.answers(answers, np.array([window.imputed_fraction for window in windows]))
        self._observer.windows(readings, answers, [window.unit for window in windows])

    def _deliver(
        self,
        loop: asyncio.AbstractEventLoop,
        places: _Places,
        answers: Answers | None,
        error: BaseException | None,
    ) -> None:
        self._free += 1
        self._cores.end()
        try:
            self._hand_back(places, answers, error)
        except BaseException as stopped:  # noqa: BLE001 - as in _dispatch
            self._stop(stopped)
        self._dispatch(loop)

    def _hand_back(self, places: _Places, answers: Answers | None, error: BaseException | None) -> None:
        if answers is None:
            for caller in {caller for caller, _ in places}:
                self._fail(caller, RuntimeFailed("inference failed"), cause=error)
        else:
            took: list[float] = []
            now = perf_counter()
            for row, (caller, i) in enumerate(places):
                caller.outputs[i] = WindowOutputs(answers, row)
                caller.missing -= 1
                if not caller.missing:
                    self._running.discard(caller)
                    if not caller.future.done():  # they may have gone
                        caller.done_at = now
                        took.append(now - caller.taken_at)
                        caller.future.set_result(cast("list[WindowOutputs]", caller.outputs))
            self._observer.answered(took)

    def _fail(self, caller: Caller, error: ServiceError, *, cause: BaseException | None) -> None:
        self._withdraw(caller)
        if not caller.future.done():
            error.__cause__ = cause
            caller.future.set_exception(error)

    def _withdraw(self, caller: Caller) -> None:
        """Take back what no batch has taken yet."""
        waiting = caller.waiting
        self._running.discard(caller)
        if waiting and caller in self._callers:
            self._callers.remove(caller)
            self._pending -= waiting
            caller.next = len(caller.windows)
        if self._idle is not None and not self._busy():
            self._idle.set()

    def _stop(self, error: BaseException) -> None:
        """The scheduling itself is broken: say so to everyone, now and from now on."""
        self._failure = error
        self._fail_everyone(lambda: RuntimeFailed("batches no longer leave"), cause=error)

    def _fail_everyone(
        self, error: Callable[[], ServiceError], *, cause: BaseException | None = None
    ) -> None:
        for caller in {*self._callers, *self._running}:
            self._fail(caller, error(), cause=cause)


def stacked(windows: Sequence[Window]) -> tuple[FloatArray, IntArray, FloatArray]:
    """Ragged windows as the graph's inputs: float32 [B, T, F], int64 [B], float32 [B]."""
    lengths = np.array([len(window) for window in windows], dtype=np.int64)
    last_cycle = np.array([window.last_cycle for window in windows], dtype=np.float32)
    if len(windows) == 1:
        readings: FloatArray = np.ascontiguousarray(windows[0].readings[np.newaxis])
    else:
        readings = pad_windows([window.readings for window in windows])
    return readings, lengths, last_cycle
