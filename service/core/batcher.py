"""Batches windows of many callers, and gives each caller its own answers.

    submit -> callers in turn -> batch (event loop, or a thread) -> answers -> each caller's future

A batch starts as soon as something can run it, so batches grow with load and no timer is needed. A quick
network runs on the event loop itself, because waking a thread takes longer than a window. Before such a batch
starts, the loop yields the core as long as that brings more windows. Slow networks, GPUs and surplus batches
of large requests run on threads. Only `_work` and `_run` run on threads, so there are no locks.

Promises, tested over random arrivals, cancellations and failures: every caller gets exactly one outcome, its
own; the queue is bounded in windows; a cancelled caller does not delay others; a failed batch fails only its
own callers; a large request does not starve small ones.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import KW_ONLY, dataclass
from time import perf_counter
from typing import Final

from service.core.answers import Answers, Piece
from service.core.cores import Cores
from service.core.ports import Batch, BatchObserver, BatchReport, Caller, Share, Tracer
from service.core.rules import WindowRules
from service.core.runtime import Runtime, stacked
from service.core.window import Windows
from service.errors import NotReady, Overloaded, RuntimeFailed, ServiceError

LOOP_SECONDS: Final = 0.01
"""Maximum seconds of a batch on the event loop: callers that arrive meanwhile wait as long."""
YIELDS_IN_VAIN: Final = 6
"""Yields in a row without a new window before a batch starts; one if a single window waits, and waited before
the last batch. Too few: a request whose head has arrived misses the batch: its body takes more turns of Envoy
and of the loop."""
STRANGER_SECONDS: Final = 0.001
"""If a yield takes longer and brings no window, another process holds the core."""
DISTRUSTED_BATCHES: Final = 64
"""Batches that start without a yield after that."""
STOPPED: Final = "the batch scheduler stopped; restart the process"
_yield_core: Final[Callable[[], None]] = getattr(os, "sched_yield", lambda: None)  # not on every platform


@dataclass(eq=False)
class MicroBatcher:
    """Batches for one runtime, on one event loop.

    Attributes:
        runtime: Answers a batch.
        rules: Rules of the model for windows.
        executor: Runs batches that do not run on the loop; its creator shuts it down.
        threads: Maximum batches that run there at once.
        max_batch_windows: Maximum windows in a batch.
        max_pending_windows: Maximum windows that may wait.
        observer: Gets the report of each batch.
        loop_windows: Maximum windows of a batch on the event loop; 0: no batch runs there.
        cores: Tells whether a core is idle for one more batch; None: each thread has its own core.
        tracer: Records batches; None: they are not traced.
        yield_core: Yields the core to another thread or process.
        clock: Returns the time in seconds.
        runs_on_loop: Whether whole batches run on the event loop.
    """

    runtime: Runtime
    rules: WindowRules
    _: KW_ONLY
    executor: Executor
    threads: int
    max_batch_windows: int
    max_pending_windows: int
    observer: BatchObserver
    loop_windows: int = 0
    cores: Cores | None = None
    tracer: Tracer | None = None
    yield_core: Callable[[], None] = _yield_core
    clock: Callable[[], float] = perf_counter

    def __post_init__(self) -> None:
        self.runs_on_loop = self.loop_windows >= self.max_batch_windows
        self._cores = self.cores or Cores(None, self.threads)
        self._callers: deque[Caller] = deque()
        self._free, self._pending, self._window_seconds = self.threads, 0, math.inf
        self._dispatch_due = self._closing = False
        self._seen = self._in_vain = self._left = self._distrust = 0
        self._idle: asyncio.Event | None = None
        self._running: set[Caller] = set()
        self._failure: BaseException | None = None

    @property
    def healthy(self) -> bool:
        """Whether the batch scheduler runs; if it stopped, only a restart helps."""
        return self._failure is None

    @property
    def pending_windows(self) -> int:
        """Windows that wait for a batch."""
        return self._pending

    async def submit(self, windows: Windows) -> list[Piece]:
        """Answer windows, all or none.

        Raises:
            Overloaded: the queue has no room for all of them; nothing was queued.
            NotReady: the batcher is closing.
            RuntimeFailed: a batch with one of them failed, or the batch scheduler stopped.
        """
        if self._failure is not None:
            raise RuntimeFailed(STOPPED) from self._failure
        if self._closing:
            raise NotReady("the service is shutting down")
        if not (count := len(windows.lengths)):
            return []
        if self._pending + count > self.max_pending_windows:
            if count > self.max_pending_windows:
                raise Overloaded(
                    f"expected at most {self.max_pending_windows} windows at once "
                    f"(RUL_MAX_PENDING_WINDOWS), got {count} for this request: a retry does not help"
                )
            raise Overloaded(
                f"{self._pending} windows wait and {count} more were sent, "
                f"at most {self.max_pending_windows} may wait"
            )
        loop = asyncio.get_running_loop()
        trace = None if self.tracer is None else self.tracer.submitted()
        order: Sequence[int] = range(count)
        if count > 2 and min(windows.lengths) < max(windows.lengths):  # padding costs as much as readings
            order = sorted(order, key=windows.lengths.__getitem__)
        caller = Caller(windows, order, loop.create_future(), trace, self.clock(), count)
        self._callers.append(caller)
        self._pending += count
        self._dispatch_soon(loop)
        try:
            return await caller.future
        except asyncio.CancelledError:
            self._withdraw(caller)
            raise
        finally:
            if trace is not None:
                trace.ended(caller)

    def _is_busy(self) -> bool:
        return bool(self._pending) or self._free < self.threads

    async def close(self, *, drain_seconds: float) -> None:
        """Refuse new windows, give pending ones this long to finish, then fail the rest."""
        self._closing = True
        if self._is_busy() and self.healthy:
            self._idle = asyncio.Event()
            try:
                async with asyncio.timeout(drain_seconds):
                    await self._idle.wait()
            except TimeoutError:
                self._fail_everyone(lambda: NotReady("the service shut down before it could answer"))

    def _dispatch_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        # After the callbacks that are ready by now, so that requests that came together share a batch.
        if not self._dispatch_due:
            self._dispatch_due = True
            loop.call_soon(self._dispatch, loop)

    def _dispatch(self, loop: asyncio.AbstractEventLoop) -> None:
        self._dispatch_due = False
        try:
            while self._pending:
                if self._fits_loop():
                    if self._waits_for_more():
                        self._dispatch_soon(loop)
                    else:
                        self._run_here(loop)
                    break
                if not self._send(loop, shares_core=self._free < self.threads):
                    break
        except BaseException as error:  # noqa: BLE001 - nothing awaits this callback: callers would hang
            self._stop(error)
        if not self._pending:
            self._seen = 0
            if self._idle is not None and not self._is_busy():
                self._idle.set()

    def _fits_loop(self) -> bool:
        """Whether the next batch runs on the event loop; few windows do so only while no thread computes."""
        size = min(self._pending, self.max_batch_windows)
        return (
            size <= self.loop_windows
            and size * self._window_seconds < LOOP_SECONDS
            and (self.runs_on_loop or self._free == self.threads)
        )

    def _waits_for_more(self) -> bool:
        """Yield the core before a batch starts; return False once another yield would not help."""
        size = self._pending
        if not self.runs_on_loop or size >= self.max_batch_windows or self._distrust:
            self._distrust = max(0, self._distrust - 1)
            self._seen, self._left = 0, size
            return False
        self._in_vain = self._in_vain + 1 if size == self._seen else 0
        if self._in_vain >= (YIELDS_IN_VAIN if max(size, self._left) > 1 else 1):
            self._seen, self._left = 0, size
            return False
        self._seen = size
        start = self.clock()
        self.yield_core()
        if self._in_vain and self.clock() - start > STRANGER_SECONDS:
            self._distrust = DISTRUSTED_BATCHES
        return True

    def _run_here(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run a batch on the event loop; threads with idle cores help with a large request."""
        self._cores.running[0] += 1.0
        try:
            while self._pending >= 2 * self.max_batch_windows and self._send(loop, shares_core=True):
                pass
            batch = self._take(min(self._pending, self.max_batch_windows))
            self._finish(batch, self._run(batch))
        finally:
            self._cores.running[0] -= 1.0
        if self._pending:
            self._dispatch_soon(loop)

    def _send(self, loop: asyncio.AbstractEventLoop, *, shares_core: bool) -> bool:
        """Send a batch to a free thread; beside another batch of this worker only if a core is idle."""
        if not self._free or (shares_core and not self._cores.spare):
            return False
        # Free threads share the waiting windows: two batches of 20 end before one of 32 and one of 8.
        batch = self._take(min(self.max_batch_windows, -(-self._pending // self._free)))
        self._free -= 1
        self._cores.running[0] += 1.0
        self.executor.submit(self._work, loop, batch)
        return True

    def _take(self, size: int) -> Batch:
        """Take up to `size` windows, callers in turn; a caller's rest goes to the end of the queue."""
        batch = Batch(BatchReport(size))
        callers, now, left = self._callers, self.clock(), size
        while left:
            share = max(1, left // len(callers))
            caller = callers.popleft()
            start = caller.next
            if start == 0:
                caller.taken_at = now
                self._running.add(caller)
                batch.report.queued.append(now - caller.arrived)
            caller.next = stop = min(start + share, len(caller.order))
            batch.shares.append(Share(caller, caller.order[start:stop]))
            left -= stop - start
            if stop < len(caller.order):
                callers.append(caller)
        self._pending -= size
        return batch

    def _work(self, loop: asyncio.AbstractEventLoop, batch: Batch) -> None:
        """Run a batch on a thread and pass its outcome to the loop."""
        # If the loop is closed, no caller waits; the executor's future keeps the error to itself.
        loop.call_soon_threadsafe(self._deliver, loop, batch, self._run(batch))

    def _run(self, batch: Batch) -> BaseException | None:
        """Run the graph; return the error, if any."""
        trace, failure, runtime = None, None, self.runtime
        try:
            if self.tracer is not None:
                served = dict.fromkeys(caller.trace for caller, _ in batch.shares)
                trace = self.tracer.batch(served, model=runtime.manifest.name, windows=batch.report.size)
            asked = stacked([(caller.windows, places) for caller, places in batch.shares])
            start = self.clock()
            outputs = runtime.run(asked.readings, asked.lengths, asked.last_cycle)
            batch.report.seconds = self.clock() - start
            batch.answers = Answers(asked, outputs, runtime.manifest, self.rules)
            batch.report.answers = batch.answers.bare()
        except BaseException as caught:  # noqa: BLE001 - whatever it was, the callers must hear of it
            failure = caught
        if trace is not None:
            trace.end(failure)
        return failure

    def _deliver(self, loop: asyncio.AbstractEventLoop, batch: Batch, error: BaseException | None) -> None:
        self._free += 1
        self._cores.running[0] -= 1.0
        try:
            self._finish(batch, error)
        except BaseException as stopped:  # noqa: BLE001 - as in _dispatch
            self._stop(stopped)
        self._dispatch(loop)

    def _finish(self, batch: Batch, error: BaseException | None) -> None:
        """Give the answers to their callers, and report the batch."""
        if batch.answers is None:
            for caller, _ in batch.shares:
                self._fail(caller, RuntimeFailed("inference failed"), cause=error)
        else:
            self._hand_back(batch, batch.answers)
            if (size := batch.report.size) <= self.loop_windows:
                known, new = self._window_seconds, batch.report.seconds / size
                self._window_seconds = new if math.isinf(known) else known + (new - known) / 8
        self.observer.ran(batch.report)

    def _hand_back(self, batch: Batch, answers: Answers) -> None:
        row, now, report = 0, self.clock(), batch.report
        for caller, places in batch.shares:
            windows = caller.windows
            units = [windows.units[i] for i in places]
            if owner := windows.owner:  # another tenant's unit of the same name is another unit
                units = [unit and f"{owner}\0{unit}" for unit in units]
            report.units += units
            report.imputed_fraction += [windows.imputed_fraction[i] for i in places]
            report.is_probe += [windows.is_probe] * len(places)
            caller.pieces.append(Piece(answers, row, places))
            row += len(places)
            caller.missing -= len(places)
            if not caller.missing:
                self._running.discard(caller)
                if not caller.future.done():  # it may be cancelled
                    caller.done_at = now
                    report.answered.append(now - caller.taken_at)
                    caller.future.set_result(caller.pieces)

    def _fail(self, caller: Caller, error: ServiceError, *, cause: BaseException | None) -> None:
        self._withdraw(caller)
        if not caller.future.done():
            error.__cause__ = cause
            caller.future.set_exception(error)

    def _withdraw(self, caller: Caller) -> None:
        """Remove the caller's windows that no batch has taken yet."""
        waiting = len(caller.order) - caller.next
        self._running.discard(caller)
        if waiting:
            self._callers.remove(caller)
            self._pending -= waiting
            caller.next = len(caller.order)

    def _stop(self, error: BaseException) -> None:
        """Fail every waiting and every later caller: the scheduler itself is broken."""
        self._failure = error
        self._fail_everyone(lambda: RuntimeFailed(STOPPED), cause=error)

    def _fail_everyone(self, error: Callable[[], ServiceError], cause: BaseException | None = None) -> None:
        for caller in [*self._callers, *self._running]:
            self._fail(caller, error(), cause=cause)
