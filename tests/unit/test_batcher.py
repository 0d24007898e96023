"""Each caller gets exactly one outcome, its own, whatever arrives, leaves or fails in any order.

Nothing here waits for time. `StepExecutor` runs a batch when the test says so, and `Bench.settle`
lets the loop come to rest.
"""

import asyncio
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from export.drift_reference import STUCK_CYCLES
from service.core.batcher import (
    DISTRUSTED_BATCHES,
    LOOP_SECONDS,
    STRANGER_SECONDS,
    YIELDS_IN_VAIN,
    MicroBatcher,
)
from service.core.cores import Cores
from service.core.probes import probes, without_each
from service.core.runtime import stacked
from service.errors import NotReady, Overloaded, RuntimeFailed
from service.metrics.board import Board
from tests.examples import examples
from tests.fakes import (
    RULES,
    FakeObserver,
    FakeRuntime,
    StepExecutor,
    joined,
    make_manifest,
    make_windows,
    window_input,
)

UNCAPPED = 1e6
FOREVER = 3600.0


class Bench:
    """A batcher whose threads, loop and clock are moved by hand.

    Attributes:
        now: What the clock shows, in seconds.
        run_seconds: What one window costs.
        yield_seconds: What a yield costs.
        brought: Windows that each of the next yields brings.
        yields: How often the core was yielded.
    """

    def __init__(self, *, threads=2, max_batch_windows=4, max_pending_windows=16, **options):
        self.loop = asyncio.new_event_loop()
        self.executor = StepExecutor()
        self.runtime = FakeRuntime(make_manifest(cap=UNCAPPED))
        self.observer = FakeObserver()
        self.now = self.run_seconds = self.yield_seconds = 0.0
        self.brought, self.late, self.yields = [], [], 0
        answer = self.runtime.run

        def run(readings, lengths, last_cycle):
            self.now += self.run_seconds * len(lengths)
            return answer(readings, lengths, last_cycle)

        self.runtime.run = run
        self.batcher = MicroBatcher(
            self.runtime,
            RULES,
            executor=self.executor,
            threads=threads,
            max_batch_windows=max_batch_windows,
            max_pending_windows=max_pending_windows,
            observer=self.observer,
            yield_core=self._yield_core,
            clock=lambda: self.now,
            **options,
        )

    @classmethod
    def quick(cls, **options):
        """One that knows how quick its network is."""
        bench = cls(**options)
        bench.submit(0.0)
        bench.finish()
        bench.observer.reports.clear()
        return bench

    def _yield_core(self):
        self.yields += 1
        self.now += self.yield_seconds
        arriving = self.brought.pop(0) if self.brought else 0
        self.late += [self.ask(make_windows(50.0)) for _ in range(arriving)]

    def ask(self, windows):
        return self.loop.create_task(self.batcher.submit(windows))

    def submit(self, *ruls, cycles=4):
        task = self.ask(make_windows(*ruls, cycles=cycles))
        self.settle()
        return task

    def step(self, which=0):
        self.executor.step(which)
        self.settle()

    def finish(self):
        while self.executor.waiting:
            self.step()

    def settle(self):
        # The longest chain: delivered, dispatched (each time the core was yielded), future, task.
        for _ in range(6 + 2 * YIELDS_IN_VAIN + len(self.brought)):
            self.loop.run_until_complete(asyncio.sleep(0))

    def close(self):
        self.finish()
        self.loop.close()


def ragged(*cycles, ruls=None):
    """Windows of these lengths, with the lengths as RULs."""
    pairs = zip(ruls or map(float, cycles), cycles, strict=True)
    return joined(*(window_input(rul, cycles=n) for rul, n in pairs))[0]


def ruls(pieces):
    """RULs in the order of the request."""
    found = {
        i: float(answers.outputs.rul[row])
        for answers, first, places in pieces
        for row, i in enumerate(places, first)
    }
    assert sum(len(piece.places) for piece in pieces) == len(found)
    return [found[i] for i in range(len(found))]


@pytest.fixture
def bench():
    made = Bench()
    yield made
    made.close()


@pytest.fixture
def busy(bench):
    """A bench whose two threads are both at work."""
    tasks = [bench.submit(900.0), bench.submit(901.0)]
    assert len(bench.executor.waiting) == 2
    yield bench
    bench.finish()
    assert [ruls(task.result()) for task in tasks] == [[900.0], [901.0]]


def test_answers_come_in_order_although_short_windows_go_first(bench):
    task = bench.ask(ragged(5, 2, 8, 1, 3, 7))
    bench.settle()

    bench.finish()

    assert ruls(task.result()) == [5.0, 2.0, 8.0, 1.0, 3.0, 7.0]
    assert bench.runtime.lengths == [[1, 2, 3], [5, 7, 8]]


def test_requests_that_arrive_while_all_threads_work_meet_in_the_next_batch(busy):
    tasks = [busy.submit(float(i)) for i in range(3)]

    busy.step()
    busy.finish()

    assert busy.observer.batches == [1, 1, 3]
    assert [ruls(task.result()) for task in tasks] == [[0.0], [1.0], [2.0]]


# On the event loop


@pytest.fixture
def quick():
    """A bench that answers up to two windows on the loop."""
    made = Bench.quick(loop_windows=2)
    yield made
    made.close()


def test_few_windows_of_a_quick_network_are_answered_on_the_loop_unless_a_thread_works(quick):
    few, more, beside = quick.submit(1.0, 2.0), quick.submit(1.0, 2.0, 3.0), quick.submit(5.0)

    assert ruls(few.result()) == [1.0, 2.0]
    assert (more.done(), beside.done()) == (False, False)
    quick.finish()
    assert ruls(more.result()) == [1.0, 2.0, 3.0]


def test_a_network_that_has_become_slow_leaves_the_loop_and_comes_back_when_it_is_quick_again(quick):
    quick.run_seconds = 100 * LOOP_SECONDS
    assert quick.submit(1.0).done()

    quick.run_seconds = 0.0
    assert not quick.submit(1.0).done()
    quick.finish()

    for _ in range(60):
        quick.submit(1.0)
        quick.finish()
    assert quick.submit(1.0).done()


def test_a_batch_that_would_take_too_long_for_the_loop_or_an_unknown_time_goes_to_a_thread():
    bench = Bench(loop_windows=2)
    bench.run_seconds = 0.7 * LOOP_SECONDS
    unknown = bench.submit(0.0).done()
    bench.finish()

    one, two = bench.submit(1.0), bench.submit(1.0, 2.0)

    assert (unknown, one.done(), two.done()) == (False, True, False)
    bench.close()


# Whole batches on the event loop


@pytest.fixture
def one_core():
    """A bench whose loop runs whole batches."""
    made = Bench.quick(loop_windows=4)
    yield made
    made.close()


def test_whole_batches_of_a_worker_with_one_core_run_on_the_loop(one_core):
    tasks = [one_core.ask(make_windows(float(i))) for i in range(3)]
    one_core.settle()

    assert [ruls(task.result()) for task in tasks] == [[0.0], [1.0], [2.0]]
    assert one_core.observer.batches == [3]
    assert not one_core.executor.waiting


def test_windows_that_a_yield_brings_leave_together(one_core):
    one_core.brought = [1, 0, 1]

    first = one_core.submit(1.0)

    assert ruls(first.result()) == [1.0]
    assert [ruls(task.result()) for task in one_core.late] == [[50.0], [50.0]]
    assert one_core.observer.batches == [3]


def test_a_batch_that_has_become_full_leaves_at_once_and_the_next_one_yields_again(one_core):
    one_core.yields, one_core.brought = 0, [3]

    one_core.submit(1.0)

    assert (one_core.observer.batches, one_core.yields) == ([4], 1)
    one_core.submit(1.0)
    assert one_core.yields > 1


def test_slow_yields_that_bring_windows_go_on(one_core):
    one_core.yield_seconds, one_core.brought = 2 * STRANGER_SECONDS, [1, 1, 1]

    one_core.submit(1.0)

    assert one_core.observer.batches == [4]


def test_yielding_ends_when_it_brings_no_windows(one_core):
    one_core.yields = 0

    one_core.submit(1.0, 2.0)

    # The first yield was no yield in vain: it could have brought windows.
    assert one_core.yields == YIELDS_IN_VAIN


@pytest.mark.parametrize(("before", "yields"), [([1.0], 1), ([1.0, 2.0], YIELDS_IN_VAIN)])
def test_a_single_caller_yields_once_unless_there_were_more_windows_before(one_core, before, yields):
    one_core.submit(*before)
    one_core.yields = 0

    one_core.submit(2.0)

    assert one_core.yields == yields


def test_a_core_that_another_process_holds_is_not_yielded_for_some_batches(one_core):
    one_core.yield_seconds = 2 * STRANGER_SECONDS
    one_core.submit(1.0, 2.0)
    one_core.yields = 0

    for _ in range(DISTRUSTED_BATCHES - 1):
        one_core.submit(1.0, 2.0)
    distrusted = one_core.yields
    one_core.submit(1.0, 2.0)

    assert distrusted == 0
    assert one_core.yields > 0  # the other process may have gone


def test_a_large_request_has_idle_cores_too_and_callers_meanwhile_are_answered_on_the_loop(one_core):
    task = one_core.submit(*map(float, range(8)))
    small = one_core.submit(50.0)

    assert one_core.observer.batches == [4, 1]
    assert len(one_core.executor.waiting) == 1
    assert ruls(small.result()) == [50.0]
    one_core.finish()
    assert ruls(task.result()) == list(map(float, range(8)))


def test_a_large_request_stays_on_the_loop_while_other_workers_use_the_cores():
    cores = Cores(Board().slots("running batches", 1), 2)
    bench = Bench.quick(cores=cores, loop_windows=4)
    cores.running[0] += 1

    task = bench.submit(*map(float, range(8)))

    assert ruls(task.result()) == list(map(float, range(8)))
    assert bench.observer.batches == [4, 4]
    bench.close()


@pytest.mark.parametrize("loop_windows", [0, 2, 4])
def test_a_batch_that_does_not_fit_the_loop_has_a_thread_even_if_other_workers_use_every_core(loop_windows):
    cores = Cores(Board().slots("running batches", 1), 1)
    cores.running[0] += 1
    bench = Bench(cores=cores, loop_windows=loop_windows)

    tasks = [bench.submit(1.0), bench.submit(2.0)]

    assert len(bench.executor.waiting) == 1  # the second waits for the first
    bench.finish()
    assert [ruls(task.result()) for task in tasks] == [[1.0], [2.0]]
    bench.close()


def test_a_batch_waits_for_a_free_thread_although_a_core_is_idle():
    bench = Bench(threads=1, cores=Cores(Board().slots("running batches", 1), 4))

    tasks = [bench.submit(1.0), bench.submit(2.0)]

    assert len(bench.executor.waiting) == 1
    bench.finish()
    assert [ruls(task.result()) for task in tasks] == [[1.0], [2.0]]
    bench.close()


@pytest.mark.parametrize("loop_windows", [0, 4])
def test_batches_that_have_ended_leave_the_cores_to_other_workers(loop_windows):
    cores = Cores(Board().slots("running batches", 1), 1)
    bench = Bench.quick(cores=cores, loop_windows=loop_windows)
    bench.submit(0.0)
    bench.finish()

    assert cores.spare
    bench.close()


# On threads


def test_a_large_request_does_not_starve_a_small_one(busy):
    large = busy.submit(*map(float, range(12)))
    small = busy.submit(50.0)

    busy.step()
    busy.step(1)

    assert ruls(small.result()) == [50.0]
    assert not large.done()
    busy.finish()
    assert ruls(large.result()) == list(map(float, range(12)))


def test_a_request_smaller_than_its_share_of_a_batch_leaves_the_rest_to_others(busy):
    small = busy.submit(50.0)
    large = busy.submit(60.0, 61.0, 62.0, 63.0)

    busy.finish()

    assert (ruls(small.result()), ruls(large.result())) == ([50.0], [60.0, 61.0, 62.0, 63.0])


def test_a_request_with_more_windows_than_may_wait_hears_that_a_retry_does_not_help(bench):
    refused = bench.submit(*map(float, range(17)))

    with pytest.raises(Overloaded, match=r"at most 16 windows at once .*got 17.*a retry does not help"):
        refused.result()


def test_a_full_queue_refuses_at_once_and_queues_nothing(busy):
    waiting = busy.submit(*map(float, range(15)))

    refused = busy.submit(50.0, 51.0)
    accepted = busy.submit(52.0)

    with pytest.raises(Overloaded, match="15 windows wait and 2 more were sent, at most 16"):
        refused.result()
    assert busy.batcher.pending_windows == 16
    busy.finish()
    assert ruls(accepted.result()) == [52.0]
    assert ruls(waiting.result()) == list(map(float, range(15)))


def test_a_cancelled_caller_does_not_delay_the_rest_of_its_batch(busy):
    before, leaver, after = busy.submit(1.0), busy.submit(2.0), busy.submit(3.0)
    busy.step()

    leaver.cancel()
    busy.settle()
    busy.finish()

    assert leaver.cancelled()
    assert ruls(before.result()) == [1.0]
    assert ruls(after.result()) == [3.0]
    assert busy.batcher.healthy


def test_units_of_one_name_of_two_tenants_are_reported_as_two_units(busy):
    windows = make_windows(1.0, 2.0)
    for owner in ("", "a", "b"):
        busy.ask(msgspec.structs.replace(windows, units=["17", None], owner=owner))
    busy.settle()
    busy.finish()

    reported = [unit for report in busy.observer.reports[2:] for unit in report.units]
    assert sorted(reported, key=str) == ["17", None, None, None, "a\x0017", "b\x0017"]


def test_windows_of_a_caller_that_left_never_reach_a_batch(busy):
    leaver, stayer = busy.submit(1.0, 2.0, 3.0), busy.submit(4.0)

    leaver.cancel()
    busy.settle()

    assert busy.batcher.pending_windows == 1
    busy.finish()
    assert busy.observer.batches == [1, 1, 1]
    assert ruls(stayer.result()) == [4.0]


def test_waiting_windows_of_a_failed_caller_are_taken_back(busy):
    task = busy.submit(*map(float, range(12)))
    busy.step()
    busy.step()
    busy.runtime.failures = 1

    busy.step()

    assert isinstance(task.exception(), RuntimeFailed)
    assert isinstance(task.exception().__cause__, ValueError)  # what the log shows
    assert busy.batcher.pending_windows == 0
    assert len(busy.executor.waiting) == 1  # sent before; no batch leaves without a caller


def test_a_broken_scheduler_fails_every_caller_and_turns_health_false(bench):
    in_flight = [bench.submit(1.0), bench.submit(2.0)]
    waiting = bench.submit(3.0)
    bench.executor.refuse = True

    bench.step()

    assert ruls(in_flight[0].result()) == [1.0]
    assert isinstance(waiting.exception(), RuntimeFailed)
    assert isinstance(waiting.exception().__cause__, RuntimeError)
    assert isinstance(in_flight[1].exception(), RuntimeFailed)
    assert isinstance(bench.submit(4.0).exception(), RuntimeFailed)
    assert not bench.batcher.healthy
    bench.loop.run_until_complete(bench.batcher.close(drain_seconds=FOREVER))


@pytest.mark.parametrize("loop_windows", [0, 4])
def test_a_report_that_cannot_be_counted_stops_the_scheduler_wherever_its_batch_ran(loop_windows):
    bench = Bench.quick(loop_windows=loop_windows)
    bench.observer.ran = lambda _report: 1 / 0

    answered = bench.submit(1.0)
    bench.finish()

    assert ruls(answered.result()) == [1.0]
    assert not bench.batcher.healthy
    assert isinstance(bench.submit(2.0).exception(), RuntimeFailed)
    bench.close()


def test_a_report_that_waits_holds_nothing_of_its_requests_but_the_last_readings(bench):
    windows = make_windows(5.0, 6.0, 7.0, cycles=40)
    readings, lists = weakref.ref(windows.readings), [windows.units, windows.imputed_fraction]
    before = [sys.getrefcount(each) for each in lists]
    task = bench.ask(windows)
    bench.settle()
    bench.finish()

    del windows, task

    assert readings() is None
    assert [sys.getrefcount(each) for each in lists] == [count - 1 for count in before]
    kept = [report.answers.asked.readings.shape[1] for report in bench.observer.reports]
    assert kept == [STUCK_CYCLES] * 2


def test_closing_waits_for_accepted_requests_and_refuses_new_ones(busy):
    waiting = busy.submit(1.0)

    closing = busy.loop.create_task(busy.batcher.close(drain_seconds=FOREVER))
    busy.settle()
    late = busy.submit(2.0)
    assert not closing.done()
    busy.finish()

    assert closing.done()
    assert ruls(waiting.result()) == [1.0]
    assert isinstance(late.exception(), NotReady)


@pytest.mark.parametrize(("running", "waiting"), [(0, 0), (1, 0), (2, 0), (2, 1), (0, 1)])
def test_closing_waits_as_long_as_windows_run_or_wait_and_no_longer(bench, running, waiting):
    tasks = [bench.submit(float(i)) for i in range(running)]
    tasks += [bench.ask(make_windows(50.0)) for _ in range(waiting)]  # which no batch has taken yet
    closing = bench.loop.create_task(bench.batcher.close(drain_seconds=FOREVER))
    bench.settle()

    while tasks and bench.executor.waiting:
        assert not closing.done()
        bench.step()

    assert [task.exception() for task in tasks] == [None] * len(tasks)
    assert closing.done()


@pytest.mark.parametrize("running", [0, 2])
def test_closing_ends_although_the_last_waiting_caller_leaves(bench, running):
    for i in range(running):
        bench.submit(float(i))
    last = bench.ask(make_windows(50.0))
    closing = bench.loop.create_task(bench.batcher.close(drain_seconds=FOREVER))
    bench.loop.run_until_complete(asyncio.sleep(0))  # it waits, and no batch has been made since

    last.cancel()
    bench.settle()
    bench.finish()

    assert closing.done()


def test_closing_without_time_fails_every_waiting_request():
    bench = Bench()
    running, waiting = bench.submit(1.0, 2.0), bench.submit(3.0)
    waiting_too = bench.submit(*map(float, range(9)))

    bench.loop.run_until_complete(bench.batcher.close(drain_seconds=0))
    bench.settle()

    assert all(isinstance(t.exception(), NotReady) for t in (running, waiting, waiting_too))
    bench.close()


def test_probes_share_a_batch_and_are_reported_apart_from_predictions(busy):
    windows = msgspec.structs.replace(make_windows(5.0, 6.0), imputed_fraction=[0.0, 0.25])
    varied = without_each(windows.readings[0], [0, 1])
    tasks = [busy.ask(windows), busy.ask(probes(windows, 0, [varied]))]
    busy.settle()
    busy.finish()

    report = busy.observer.reports[-1]
    assert [len(ruls(task.result())) for task in tasks] == [2, 2]
    assert report.is_probe == [False, False, True, True]
    assert report.imputed_fraction[:2] == [0.0, 0.25]


def test_a_batch_is_counted_with_the_times_of_its_requests(busy):
    busy.submit(1.0, 2.0, 3.0, 4.0, 5.0)
    busy.now = 3.0
    busy.step()
    busy.run_seconds = 0.25
    busy.now = 10.0

    busy.finish()

    began, ended = busy.observer.reports[-2:]
    assert (began.queued, ended.queued) == ([3.0], [])
    assert (began.answered, ended.answered) == ([], [busy.now - 3.0])
    assert ended.seconds == 0.25 * ended.size


def test_padding_is_nan_and_lengths_say_where_it_begins():
    asked = stacked([(ragged(2), range(1)), (ragged(5, 1, 8), range(2)), (ragged(8, 3), [1])])

    assert asked.readings.shape == (4, 5, 3)
    assert asked.lengths.tolist() == [2, 5, 1, 3]
    assert np.isnan(asked.readings).any(axis=2).sum(axis=1).tolist() == [3, 0, 4, 2]
    assert asked.last_cycle.dtype == np.float32


async def test_real_threads_run_side_by_side():
    runtime, observer = FakeRuntime(), FakeObserver()
    meeting = threading.Barrier(2, timeout=60)
    run = runtime.run

    def run_together(readings, lengths, last_cycle):
        meeting.wait()  # passes only if two calls are inside at once
        return run(readings, lengths, last_cycle)

    runtime.run = run_together
    with ThreadPoolExecutor(2) as executor:
        batcher = MicroBatcher(
            runtime, RULES, executor=executor, threads=2, max_batch_windows=8, max_pending_windows=64,
            observer=observer,
        )  # fmt: skip

        answers = await asyncio.gather(*(batcher.submit(make_windows(float(i))) for i in range(4)))

    assert [ruls(outputs) for outputs in answers] == [[0.0], [1.0], [2.0], [3.0]]
    assert observer.batches == [2, 2]


class BatcherMachine(RuleBasedStateMachine):
    """Arrivals, departures, batches that end well or badly, in any order."""

    callers = Bundle("callers")

    def make_bench(self):
        return Bench(threads=2, max_batch_windows=4, max_pending_windows=12)

    def __init__(self):
        super().__init__()
        self.bench = self.make_bench()
        self.next = 0.0
        self.wanted = {}
        self.doomed = set()
        self.cancelled = set()

    @rule(target=callers, sizes=st.lists(st.integers(1, 8), min_size=1, max_size=9))
    def arrive(self, sizes):
        batcher = self.bench.batcher
        wanted = [self.next + i for i in range(len(sizes))]
        self.next += len(sizes)
        room = batcher.pending_windows + len(sizes) <= 12
        task = self.bench.ask(ragged(*sizes, ruls=wanted))
        self.bench.settle()
        if room:
            self.wanted[task] = wanted
        else:
            assert isinstance(task.exception(), Overloaded)
        return task

    @rule(task=consumes(callers))
    def leave(self, task):
        if task.cancel():
            self.cancelled.add(task)
        self.bench.settle()

    @rule(which=st.integers(0, 1))
    def a_batch_ends_well(self, which):
        if which < len(self.bench.executor.waiting):
            self.bench.step(which)

    @rule(which=st.integers(0, 1))
    def a_batch_ends_badly(self, which):
        if which < len(self.bench.executor.waiting):
            run, hit = self.bench.runtime.run, set()

            def failing(readings, lengths, last_cycle):
                hit.update(readings[np.arange(len(lengths)), lengths - 1].sum(axis=1).tolist())
                raise ValueError("the device fell off")

            self.bench.runtime.run = failing
            self.bench.step(which)
            self.bench.runtime.run = run
            self.doomed |= {task for task, wanted in self.wanted.items() if hit & set(wanted)}

    @invariant()
    def the_queue_is_bounded_and_never_waits_for_a_free_thread(self):
        batcher, working = self.bench.batcher, len(self.bench.executor.waiting)

        assert 0 <= batcher.pending_windows <= 12
        assert working <= 2
        assert working == 2 or batcher.pending_windows == 0
        assert batcher.healthy
        assert max(self.bench.observer.batches, default=0) <= 4

    @invariant()
    def a_caller_that_is_done_has_its_own_outcome(self):
        for task, wanted in self.wanted.items():
            if not task.done():
                continue
            if task in self.cancelled:
                assert task.cancelled()
            elif task in self.doomed:
                assert isinstance(task.exception(), RuntimeFailed)
            else:
                assert ruls(task.result()) == wanted

    @invariant()
    def callers_of_a_failed_batch_and_cancelled_callers_are_told_at_once(self):
        assert all(task.done() for task in self.doomed | self.cancelled)

    def teardown(self):
        self.bench.finish()
        assert all(task.done() for task in self.wanted)
        self.a_caller_that_is_done_has_its_own_outcome()
        assert self.bench.batcher.pending_windows == 0
        assert not self.bench.batcher._running  # nothing holds the windows of callers that left
        self.bench.close()


class OneCoreMachine(BatcherMachine):
    """The same where whole batches run on the loop, and threads help with large requests."""

    def make_bench(self):
        return Bench.quick(threads=2, max_batch_windows=4, max_pending_windows=12, loop_windows=4)

    @rule(sizes=st.lists(st.integers(1, 8), min_size=1, max_size=4))
    def come_to_a_network_that_fails(self, sizes):
        before = len(self.bench.executor.waiting)
        self.bench.runtime.failures = 1
        task = self.bench.ask(ragged(*sizes, ruls=[-1.0] * len(sizes)))
        self.bench.settle()

        assert isinstance(task.exception(), RuntimeFailed)
        assert len(self.bench.executor.waiting) == before

    @invariant()
    def the_queue_is_bounded_and_never_waits_for_a_free_thread(self):
        assert self.bench.batcher.pending_windows == 0
        assert len(self.bench.executor.waiting) <= 2
        assert self.bench.batcher.healthy
        assert max(self.bench.observer.batches, default=0) <= 4


TestOneCoreMachine = OneCoreMachine.TestCase
TestOneCoreMachine.settings = examples(60, stateful_step_count=30)
TestBatcherMachine = BatcherMachine.TestCase
TestBatcherMachine.settings = examples(60, stateful_step_count=30)
