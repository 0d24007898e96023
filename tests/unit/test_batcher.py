"""Each caller gets exactly one outcome, its own, whatever arrives, leaves or fails in any order.

Nothing here waits for time. `StepExecutor` runs a batch when the test says so, and `Bench.settle`
lets the loop come to rest.
"""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from service.core.on_loop import IN_VAIN, OnLoop

from service.core.batcher import MicroBatcher, stacked
from service.core.cores import Cores
from service.errors import NotReady, Overloaded, RuntimeFailed
from tests.fakes import FakeObserver, FakeRuntime, StepExecutor, make_manifest, make_window

UNCAPPED = 1e6


class Bench:
    """A batcher whose threads and loop are moved by hand."""

    def __init__(self, *, threads=2, max_batch_windows=4, max_pending_windows=16, **options):
        self.loop = asyncio.new_event_loop()
        self.executor = StepExecutor()
        self.runtime = FakeRuntime(make_manifest(cap=UNCAPPED))
        self.observer = FakeObserver()
        self.batcher = MicroBatcher(
            self.runtime,
            executor=self.executor,
            threads=threads,
            max_batch_windows=max_batch_windows,
            max_pending_windows=max_pending_windows,
            observer=self.observer,
            **options,
        )

    def submit(self, *ruls, cycles=4):
        task = self.loop.create_task(self.batcher.submit([make_window(rul, cycles=cycles) for rul in ruls]))
        self.settle()
        return task

    def step(self, which=0):
        self.executor.step(which)
        self.settle()

    def finish(self):
        while self.executor.waiting:
            self.step()

    def settle(self):
        # The longest chain: delivered, dispatched (each time that others had the core), future, task.
        for _ in range(6 + 2 * IN_VAIN):
            self.loop.run_until_complete(asyncio.sleep(0))

    def close(self):
        self.finish()
        self.loop.close()


def ruls(outputs):
    return [float(out.answers.outputs.rul[out.row]) for out in outputs]


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


def test_a_caller_gets_its_answers_in_its_order(bench):
    task = bench.submit(3.0, 1.0, 2.0)

    bench.finish()

    assert ruls(task.result()) == [3.0, 1.0, 2.0]


def test_answers_come_in_order_although_short_windows_go_first(bench):
    windows = [make_window(float(n), cycles=n) for n in (5, 2, 8, 1, 3, 7)]
    task = bench.loop.create_task(bench.batcher.submit(windows))
    bench.settle()

    bench.finish()

    assert ruls(task.result()) == [5.0, 2.0, 8.0, 1.0, 3.0, 7.0]
    assert bench.runtime.lengths == [[1, 2, 3], [5, 7, 8]]


def test_a_batch_says_whose_readings_are_out_of_range(bench):
    normal, strange = make_window(50.0, cycles=2), make_window(400.0, cycles=8)
    tasks = [bench.loop.create_task(bench.batcher.submit([window])) for window in (normal, strange)]
    bench.settle()

    bench.finish()

    (first,), (second,) = (task.result() for task in tasks)
    assert (first.answers.out_of_range[first.row], second.answers.out_of_range[second.row]) == (False, True)


def test_a_request_for_nothing_is_answered_with_nothing(bench):
    assert bench.submit().result() == []


def test_callers_who_come_together_leave_together(bench):
    tasks = [bench.loop.create_task(bench.batcher.submit([make_window(float(i))])) for i in range(4)]
    bench.settle()

    bench.finish()

    assert bench.observer.batches == [2, 2]
    assert [ruls(task.result()) for task in tasks] == [[0.0], [1.0], [2.0], [3.0]]


def test_who_comes_while_all_threads_work_meets_in_the_next_batch(busy):
    tasks = [busy.submit(float(i)) for i in range(3)]

    busy.step()
    busy.finish()

    assert busy.observer.batches == [1, 1, 3]
    assert [ruls(task.result()) for task in tasks] == [[0.0], [1.0], [2.0]]


@pytest.fixture
def one_eager():
    """A bench with two threads, of which one takes what waits and the other full batches alone."""
    made = Bench(eager_threads=1)
    yield made
    made.close()


def test_a_thread_that_is_not_eager_leaves_few_windows_to_meet(one_eager):
    one_eager.submit(0.0)
    one_eager.submit(1.0, 2.0)

    one_eager.finish()

    assert one_eager.observer.batches == [1, 2]


def test_a_thread_that_is_not_eager_takes_a_full_batch(one_eager):
    one_eager.submit(0.0)
    one_eager.submit(1.0, 2.0, 3.0, 4.0, 5.0)

    assert len(one_eager.executor.waiting) == 2
    one_eager.finish()

    assert one_eager.observer.batches == [1, 4, 1]


def test_a_full_batch_more_waits_while_other_workers_use_the_cores():
    cores = Cores(None, 2)
    cores.begin()
    cores.begin()
    bench = Bench(eager_threads=1, cores=cores)
    bench.submit(0.0)
    bench.submit(1.0, 2.0, 3.0, 4.0, 5.0)

    assert len(bench.executor.waiting) == 1
    bench.close()

    assert bench.observer.batches == [1, 4, 1]


def test_what_this_worker_runs_is_off_the_board_when_it_has_ended():
    cores = Cores(None, 1)
    bench = Bench(eager_threads=1, cores=cores)
    bench.submit(0.0)
    assert not cores.spare
    bench.finish()

    assert cores.spare
    bench.close()


@pytest.fixture
def quick():
    """A bench whose network is so quick that few windows are answered on the loop."""
    made = Bench(on_loop=OnLoop(most_seconds=60.0))
    made.submit(0.0)
    made.finish()  # from here on it is known how quick it is
    yield made
    made.close()


def test_few_windows_of_a_quick_network_are_answered_on_the_loop(quick):
    task = quick.submit(1.0, 2.0)

    assert ruls(task.result()) == [1.0, 2.0]
    assert quick.observer.batches == [1, 2]


def test_more_windows_of_a_quick_network_go_to_the_threads(quick):
    task = quick.submit(1.0, 2.0, 3.0)

    assert not task.done()
    quick.finish()

    assert ruls(task.result()) == [1.0, 2.0, 3.0]


def test_nothing_runs_on_the_loop_while_a_thread_works(quick):
    quick.submit(1.0, 2.0, 3.0, 4.0)
    task = quick.submit(5.0)

    assert not task.done()
    quick.finish()

    assert ruls(task.result()) == [5.0]


def test_a_network_that_fails_on_the_loop_fails_its_callers_alone(quick):
    quick.runtime.failures = 1
    failed = quick.submit(1.0)
    answered = quick.submit(2.0)

    assert isinstance(failed.exception(), RuntimeFailed)
    assert ruls(answered.result()) == [2.0]


def test_a_network_that_is_not_quick_runs_on_the_threads():
    bench = Bench(on_loop=OnLoop(most_seconds=0.0))
    bench.submit(0.0)
    bench.finish()

    task = bench.submit(1.0)

    assert not task.done()
    bench.close()


def whole_batches(**options):
    """What runs on the loop of a worker with one core, once it is known how quick the network is."""
    on_loop = OnLoop(most_windows=4, most_seconds=60.0, meet_windows=4, **options)
    on_loop.ran(4, 4.0)
    return on_loop


@pytest.fixture
def one_core():
    """A bench whose loop runs whole batches."""
    made = Bench(eager_threads=1, on_loop=whole_batches())
    yield made
    made.close()


def test_a_worker_with_one_core_runs_its_batches_on_the_loop(one_core):
    tasks = [one_core.loop.create_task(one_core.batcher.submit([make_window(float(i))])) for i in range(3)]
    one_core.settle()

    assert [ruls(task.result()) for task in tasks] == [[0.0], [1.0], [2.0]]
    assert one_core.observer.batches == [3]
    assert not one_core.executor.waiting


def test_windows_that_others_bring_while_they_have_the_core_leave_together():
    arriving = [1.0, 2.0]

    def give_way():
        if arriving:
            late.append(bench.loop.create_task(bench.batcher.submit([make_window(arriving.pop(0))])))

    bench, late = Bench(eager_threads=1, on_loop=whole_batches(give_way=give_way)), []

    first = bench.submit(0.0)
    bench.settle()

    assert [ruls(task.result()) for task in (first, *late)] == [[0.0], [1.0], [2.0]]
    assert bench.observer.batches == [3]
    bench.close()


def test_a_large_request_has_other_cores_too_where_they_are_idle(one_core):
    task = one_core.submit(*map(float, range(8)))

    assert one_core.observer.batches == [4]
    assert len(one_core.executor.waiting) == 1
    one_core.finish()
    assert ruls(task.result()) == list(map(float, range(8)))


def test_a_large_request_stays_on_the_loop_while_other_workers_use_the_cores():
    cores = Cores(None, 2)
    cores.begin()
    bench = Bench(eager_threads=1, cores=cores, on_loop=whole_batches())

    task = bench.submit(*map(float, range(8)))
    bench.settle()

    assert ruls(task.result()) == list(map(float, range(8)))
    assert bench.observer.batches == [4, 4]
    bench.close()


def test_who_comes_while_a_thread_runs_a_large_request_is_answered_on_the_loop(one_core):
    one_core.submit(*map(float, range(8)))

    task = one_core.submit(50.0)
    one_core.settle()

    assert len(one_core.executor.waiting) == 1
    assert ruls(task.result()) == [50.0]


def test_a_worker_with_one_core_leaves_a_slow_network_to_a_thread():
    bench = Bench(eager_threads=1, on_loop=OnLoop(most_windows=4, most_seconds=0.0, meet_windows=4))

    bench.submit(0.0, 1.0)

    assert len(bench.executor.waiting) == 1
    bench.close()


def test_no_batch_is_larger_than_the_limit(busy):
    task = busy.submit(*map(float, range(11)))

    busy.finish()

    assert max(busy.observer.batches) == 4
    assert ruls(task.result()) == list(map(float, range(11)))


def test_a_large_request_does_not_starve_a_small_one(busy):
    large = busy.submit(*map(float, range(12)))
    small = busy.submit(50.0)

    busy.step()
    busy.step(1)

    assert ruls(small.result()) == [50.0]
    assert not large.done()
    busy.finish()
    assert ruls(large.result()) == list(map(float, range(12)))


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


def test_windows_of_a_caller_who_left_never_reach_a_batch_and_are_counted(busy):
    leaver, stayer = busy.submit(1.0, 2.0, 3.0), busy.submit(4.0)

    leaver.cancel()
    busy.settle()

    assert busy.batcher.pending_windows == 1
    assert busy.observer.cancelled_windows == 3
    busy.finish()
    assert busy.observer.batches == [1, 1, 1]
    assert ruls(stayer.result()) == [4.0]


def test_who_leaves_in_the_middle_of_a_batch_is_counted_and_harms_nobody(bench):
    leaver, stayer = bench.submit(1.0), bench.submit(2.0)

    leaver.cancel()
    bench.settle()
    bench.finish()

    assert bench.observer.cancelled_windows == 1
    assert ruls(stayer.result()) == [2.0]
    assert bench.batcher.healthy


def test_a_failed_batch_fails_its_callers_and_no_others(busy):
    waiting = busy.submit(5.0)
    busy.step()
    victim = busy.submit(6.0)
    busy.step()
    busy.runtime.failures = 1

    busy.step()
    busy.finish()

    outcomes = {type(task.exception()) for task in (waiting, victim)}
    assert outcomes == {RuntimeFailed, type(None)}
    assert busy.batcher.healthy


def test_what_a_failed_caller_still_had_in_the_queue_is_taken_back(busy):
    task = busy.submit(*map(float, range(12)))
    busy.step()
    busy.step()
    busy.runtime.failures = 1

    busy.step()

    with pytest.raises(RuntimeFailed):
        task.result()
    assert busy.batcher.pending_windows == 0
    assert len(busy.executor.waiting) == 1  # what had left before; nothing leaves for nobody


def test_the_cause_of_a_failure_is_kept_for_the_log_and_not_in_the_message(bench):
    task = bench.submit(1.0)
    bench.runtime.failures = 1

    bench.finish()

    assert isinstance(task.exception().__cause__, ValueError)
    assert "secret" not in str(task.exception())


def test_if_batches_cannot_leave_any_more_everyone_is_told_and_health_turns_false(bench):
    in_flight = [bench.submit(1.0), bench.submit(2.0)]
    waiting = bench.submit(3.0)
    bench.executor.refuse = True

    bench.step()

    assert ruls(in_flight[0].result()) == [1.0]
    assert isinstance(waiting.exception(), RuntimeFailed)
    assert isinstance(in_flight[1].exception(), RuntimeFailed)
    assert isinstance(bench.submit(4.0).exception(), RuntimeFailed)
    assert not bench.batcher.healthy


def test_an_observer_that_fails_fails_the_batch_and_not_the_batcher(bench):
    def broken(windows, seconds):
        raise KeyError("no such metric")

    bench.observer.ran = broken

    failed = bench.submit(1.0)
    bench.finish()
    del bench.observer.ran
    answered = bench.submit(2.0)
    bench.finish()

    assert isinstance(failed.exception(), RuntimeFailed)
    assert ruls(answered.result()) == [2.0]


def test_closing_waits_for_what_is_at_hand_and_refuses_what_is_new(busy):
    waiting = busy.submit(1.0)

    closing = busy.loop.create_task(busy.batcher.close(drain_seconds=3600))
    busy.settle()
    late = busy.submit(2.0)
    assert not closing.done()
    busy.finish()

    assert closing.done()
    assert ruls(waiting.result()) == [1.0]
    assert isinstance(late.exception(), NotReady)


def test_closing_without_patience_fails_what_is_left():
    bench = Bench()
    running, waiting = bench.submit(1.0, 2.0), bench.submit(3.0)
    waiting_too = bench.submit(*map(float, range(9)))

    bench.loop.run_until_complete(bench.batcher.close(drain_seconds=0))
    bench.settle()

    assert all(isinstance(t.exception(), NotReady) for t in (running, waiting, waiting_too))
    bench.close()


def test_closing_an_idle_batcher_takes_no_time(bench):
    closing = bench.loop.create_task(bench.batcher.close(drain_seconds=3600))

    bench.settle()

    assert closing.done()


def test_probes_are_run_and_not_counted_as_predictions(busy):
    window = make_window(5.0)
    task = busy.loop.create_task(busy.batcher.submit([window, window.without(0)]))
    busy.settle()

    busy.finish()

    assert len(task.result()) == 2
    assert len(busy.observer.imputed) == 3  # the two of the fixture, and the window itself
    assert len(busy.observer.units) == busy.observer.rows == 3


def test_padding_is_nan_and_lengths_say_where_it_begins():
    readings, lengths, last_cycle = stacked([make_window(cycles=2), make_window(cycles=5)])

    assert readings.shape == (2, 5, 3)
    assert lengths.tolist() == [2, 5]
    assert np.isnan(readings[0, 2:]).all()
    assert not np.isnan(readings[0, :2]).any()
    assert last_cycle.dtype == np.float32


async def test_real_threads_run_side_by_side():
    runtime, observer = FakeRuntime(), FakeObserver()
    meeting = threading.Barrier(2, timeout=10)
    run = runtime.run

    def run_together(readings, lengths, last_cycle):
        meeting.wait()  # passes only if two calls are inside at once
        return run(readings, lengths, last_cycle)

    runtime.run = run_together
    with ThreadPoolExecutor(2) as executor:
        batcher = MicroBatcher(
            runtime, executor=executor, threads=2, max_batch_windows=8, max_pending_windows=64,
            observer=observer,
        )  # fmt: skip

        answers = await asyncio.gather(*(batcher.submit([make_window(float(i))]) for i in range(4)))

    assert [ruls(outputs) for outputs in answers] == [[0.0], [1.0], [2.0], [3.0]]
    assert observer.batches == [2, 2]


class BatcherMachine(RuleBasedStateMachine):
    """Arrivals, departures, batches that end well or badly, in any order."""

    callers = Bundle("callers")

    def make_bench(self, **options):
        return Bench(threads=2, max_batch_windows=4, max_pending_windows=12, **options)

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
        windows = [make_window(rul, cycles=n) for rul, n in zip(wanted, sizes, strict=True)]
        task = self.bench.loop.create_task(batcher.submit(windows))
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
    def who_is_done_has_its_own_outcome(self):
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
    def who_is_doomed_is_told_at_once(self):
        assert all(task.done() for task in self.doomed | self.cancelled)

    def teardown(self):
        self.bench.finish()
        assert all(task.done() for task in self.wanted)
        self.who_is_done_has_its_own_outcome()
        assert self.bench.batcher.pending_windows == 0
        self.bench.close()


class OneCoreMachine(BatcherMachine):
    """The same where whole batches run on the loop, and threads help with large requests."""

    def make_bench(self):
        return super().make_bench(eager_threads=1, on_loop=whole_batches())

    @rule(sizes=st.lists(st.integers(1, 8), min_size=1, max_size=4))
    def come_to_a_network_that_fails(self, sizes):
        before = len(self.bench.executor.waiting)
        self.bench.runtime.failures = 1
        windows = [make_window(-1.0, cycles=n) for n in sizes]
        task = self.bench.loop.create_task(self.bench.batcher.submit(windows))
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
TestOneCoreMachine.settings = settings(max_examples=60, stateful_step_count=30)
TestBatcherMachine = BatcherMachine.TestCase
TestBatcherMachine.settings = settings(max_examples=60, stateful_step_count=30)
