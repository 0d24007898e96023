"""Work goes to the thread that worked last, unless it is busy."""

import threading

import pytest
from service.core.inference_threads import InferenceThreads


@pytest.fixture
def threads():
    made = InferenceThreads(3)
    yield made
    made.shutdown()


def held(threads):
    """A thread at work until its gate is opened: its name, the gate, and what comes of it."""
    gate, started, names = threading.Event(), threading.Event(), []

    def work():
        names.append(threading.current_thread().name)
        started.set()
        gate.wait()

    future = threads.submit(work)
    assert started.wait(10)
    return names[0], gate, future


def finish(works):
    for _, gate, future in works:
        gate.set()
        future.result()


def held_name(threads):
    name, gate, future = held(threads)
    gate.set()
    future.result()
    return name


def test_one_batch_at_a_time_stays_on_one_thread(threads):
    assert len({held_name(threads) for _ in range(20)}) == 1


def test_batches_at_the_same_time_have_a_thread_each(threads):
    works = [held(threads) for _ in range(3)]
    finish(works)

    assert len({name for name, _, _ in works}) == 3


def test_of_idle_threads_the_one_that_worked_last_works_next(threads):
    works = [held(threads) for _ in range(2)]
    finish(works)
    (first, _, _), (second, _, _) = works

    assert first != second
    assert held_name(threads) == second


def test_work_that_finds_every_thread_busy_is_done_all_the_same(threads):
    works = [held(threads) for _ in range(3)]
    late = [threads.submit(lambda: threading.current_thread().name) for _ in range(3)]
    finish(works)

    assert {future.result() for future in late} == {name for name, _, _ in works}


def test_work_that_fails_leaves_its_thread_free(threads):
    def fail():
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        threads.submit(fail).result()

    assert held_name(threads)


def test_work_that_is_withdrawn_leaves_its_thread_free(threads):
    works = [held(threads) for _ in range(3)]
    withdrawn = [threads.submit(print) for _ in range(2)]
    assert all(future.cancel() for future in withdrawn)
    finish(works)

    again = [held(threads) for _ in range(3)]
    finish(again)

    assert len({name for name, _, _ in again}) == 3


def test_nothing_is_taken_after_shutdown(threads):
    threads.shutdown()

    with pytest.raises(RuntimeError):
        threads.submit(print)
