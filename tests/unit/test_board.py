"""Numbers that several workers add up, and that outlive the worker who wrote them."""

import errno
import os
import resource
import subprocess

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client import Histogram as PlainHistogram

from service.errors import FrontEndFailed
from service.metrics.board import PID, ROW, Board
from service.metrics.buckets import Buckets
from service.metrics.instruments import Processes, Shared


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "board"
    path.touch()
    return path


def boards(path, workers=2):
    return [Board(path, worker=worker, workers=workers) for worker in range(workers)]


def test_what_a_worker_has_counted_outlives_it_in_the_places_of_its_names(path):
    first = Board(path, worker=1, workers=2)
    for name in ("a", "b", "c"):
        first.slots(name, 2).own[:] = ord(name)

    later, again = Board(path, worker=0, workers=2), Board(path, worker=1, workers=2)

    assert later.slots("c", 2).total().tolist() == [99, 99]
    assert later.slots("a", 2).total().tolist() == [97, 97]
    assert again.slots("c", 2).own.tolist() == [99, 99]


def test_a_board_without_a_file_is_its_workers_own():
    slots = Board().slots("numbers", 2)

    slots.own[:] = [1, 2]

    assert slots.total().tolist() == slots.total_of_living().tolist() == [1, 2]
    assert Board().pids() == [os.getpid()]


def test_workers_that_declare_other_names_or_sizes_do_not_mix(path):
    first, second = boards(path)
    mine, theirs = first.slots("numbers", 2), second.slots("others", 3)
    first.slots("others", 3).own[:] = 1
    second.slots("numbers", 2).own[:] = 2
    mine.own[:] = 4

    assert mine.total().tolist() == [6, 6]
    assert theirs.total().tolist() == [1, 1, 1]
    assert first.slots("numbers", 3).total().tolist() == [0, 0, 0]


def test_names_get_places_all_together_or_none_of_them(path):
    board, declared = Board(path, worker=0, workers=1), Board()
    declared.slots("first", 2)
    declared.slots("second", ROW // 2)
    board.slots("taken", ROW // 2)

    with pytest.raises(FrontEndFailed, match="fewer bundles"):
        board.reserve(declared)

    assert path.with_name("board-names").read_text() == f"{ROW // 2} taken\n"


def test_names_that_are_reserved_need_no_more_room(path, monkeypatch):
    board, other = boards(path)
    declared = Board()
    declared.slots("numbers", 2)
    board.reserve(declared)
    monkeypatch.setattr(os, "posix_fallocate", full)

    other.slots("numbers", 2).own[:] = 7

    assert board.slots("numbers", 2).total().tolist() == [7, 7]


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def ended_process():
    ended = subprocess.Popen(["true"])
    ended.wait()
    return ended.pid


def test_the_latest_that_any_worker_wrote_is_seen_by_all(path):
    first, second = (board.slots("times", 2) for board in boards(path))

    first.own[:] = [5, 1]
    second.own[1] = 7

    assert first.latest().tolist() == second.latest().tolist() == [5, 7]


def test_every_process_that_lives_is_shown(path):
    registry = CollectorRegistry()
    _other, board = (Board(path, worker=worker, workers=3) for worker in (0, 1))
    Processes(Shared(registry, board))

    of_each = [
        registry.get_sample_value("process_resident_memory_bytes", {"worker": worker}) for worker in "012"
    ]
    assert min(of_each[:2]) > 1e6
    assert of_each[2] is None


def test_a_worker_is_no_other_one_after_the_clock_was_set(path, monkeypatch):
    registries = [CollectorRegistry(), CollectorRegistry()]
    for registry, board in zip(registries, boards(path), strict=True):
        Processes(Shared(registry, board))

    def started():
        return [
            registry.get_sample_value("process_start_time_seconds", {"worker": worker})
            for registry in registries
            for worker in "01"
        ]

    before = started()
    monkeypatch.setattr(ProcessCollector, "_boot_time", lambda _self: 1.0)  # of a clock set back

    assert started() == before


def test_a_process_of_another_user_with_the_number_of_a_dead_worker_is_no_worker(path, monkeypatch):
    def refuse(_pid, _signal):
        raise PermissionError

    board = Board(path, worker=1, workers=2)
    monkeypatch.setattr("os.kill", refuse)

    assert board.pids() == [0, 0]


def test_counters_of_two_workers_are_one_series(path):
    registries = [CollectorRegistry(), CollectorRegistry()]
    one, other = (
        Shared(registry, board).counter("rul_things_total", "Things.", kind=["good", "bad"])
        for registry, board in zip(registries, boards(path), strict=True)
    )

    one.labels("good").inc()
    other.labels("good").inc(2)

    for registry in registries:
        assert registry.get_sample_value("rul_things_total", {"kind": "good"}) == 3
        assert registry.get_sample_value("rul_things_total", {"kind": "bad"}) == 0


def test_a_rare_child_is_shown_once_it_is_counted():
    registry = CollectorRegistry()
    counter = Shared(registry).counter("rul_things_total", "Things.", kind=["good"])
    counter.add_rare([("odd",)])
    before = registry.get_sample_value("rul_things_total", {"kind": "odd"})

    counter.labels("odd").inc()

    assert (before, registry.get_sample_value("rul_things_total", {"kind": "odd"})) == (None, 1)


def test_what_a_worker_published_is_shown_by_another_and_a_gauge_only_while_the_worker_lives(path):
    registry = CollectorRegistry()
    first, second = boards(path)
    mine, other = Shared(registry, first), Shared(CollectorRegistry(), second)
    for shared, value in ((mine, 2), (other, 3)):
        shared.gauge("rul_open", "Open.", lambda value=value: value)
        shared.histogram("rul_sizes", "Sizes.", Buckets((1,), "for the test")).labels().observe(value)

    def shown():
        return [registry.get_sample_value(name) for name in ("rul_open", "rul_sizes_sum")]

    before, _ = shown(), other.publish()
    published, second._rows[1, PID] = shown(), ended_process()
    after = shown()

    assert (before, published, after) == ([2, 2], [5, 5], [2, 5])


def test_a_worker_that_restarts_shows_no_current_value_of_the_one_before_it(path):
    registry = CollectorRegistry()
    Shared(registry, Board(path, worker=0, workers=2)).gauge("rul_open", "Open.", lambda: 2)
    before = Shared(CollectorRegistry(), Board(path, worker=1, workers=2))
    before.gauge("rul_open", "Open.", lambda: 3)
    before.publish()

    Shared(CollectorRegistry(), Board(path, worker=1, workers=2)).gauge("rul_open", "Open.", lambda: 4)

    assert registry.get_sample_value("rul_open") == 2


VALUES = st.floats(-1e6, 1e6) | st.sampled_from([0.0, 0.5, 1.0, 2.0])


@given(values=st.lists(st.lists(VALUES, max_size=20), min_size=1, max_size=4), cut=st.integers(0, 20))
def test_a_histogram_of_many_workers_counts_as_prometheus_clients_does(tmp_path_factory, values, cut):
    path = tmp_path_factory.mktemp("board") / "board"
    path.touch()
    registries = [CollectorRegistry() for _ in values]
    registry, bounds = registries[0], (0.0, 0.5, 1.0, 2.0, 100.0)
    plain = PlainHistogram("plain", "help", buckets=bounds, registry=registry)

    for board, seen_by, seen in zip(boards(path, len(values)), registries, values, strict=True):
        one = Shared(seen_by, board).histogram("ours", "help", Buckets(bounds, "for the test"))
        one.labels().observe_array(np.array(seen[:cut]))
        one.labels().observe_each(seen[cut:])
        one.publish()
        for value in seen:
            plain.observe(value)

    for bound in ("0.0", "0.5", "1.0", "2.0", "100.0", "+Inf"):
        expected = registry.get_sample_value("plain_bucket", {"le": bound})
        assert registry.get_sample_value("ours_bucket", {"le": bound}) == expected
    assert registry.get_sample_value("ours_sum") == pytest.approx(sum(sum(seen) for seen in values), abs=1e-6)


def test_the_children_of_a_model_come_and_go_and_go_on_counting_where_they_were():
    registry = CollectorRegistry()
    shared = Shared(registry)
    counter = shared.counter("rul_things_total", "Things.", model=(), kind=["good", "bad"])
    histogram = shared.histogram("rul_heads", "Heads.", Buckets((1,), "for the test"), model=(), head=())

    def value(name, **labels):
        return registry.get_sample_value(name, {"model": "a", **labels})

    shared.add_model("a", head=["0", "1"])
    counter.labels("a", "good").inc(3)
    histogram.labels("a", "1").observe(0.5)
    old = histogram.labels("a", "0")
    shared.add_model("a", head=["0"])
    old.observe(0.5)  # a request of the old version that ends after the swap
    seen = value("rul_heads_count", head="0")
    after_a_swap = value("rul_things_total", kind="good"), value("rul_heads_count", head="1")
    shared.remove_model("a")
    without = value("rul_things_total", kind="good"), value("rul_heads_count", head="0")
    shared.add_model("a", head=["0", "1"])

    assert (seen, after_a_swap) == (1, (3, None))
    assert without == (None, None)
    assert (value("rul_things_total", kind="good"), value("rul_heads_count", head="1")) == (3, 1)


def test_a_full_file_system_is_an_error_that_names_its_folder(path, monkeypatch):
    monkeypatch.setattr(os, "posix_fallocate", full)

    with pytest.raises(FrontEndFailed, match=f"in {path.parent.parent}: No space left on device; .*TMPDIR"):
        Board(path, worker=0, workers=2)


def test_a_name_that_the_file_system_takes_in_part_is_taken_back(path):
    board, limits = Board(path), resource.getrlimit(resource.RLIMIT_FSIZE)

    resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))
    try:
        with pytest.raises(FrontEndFailed, match="No space left on device"):
            board.slots("x" * 100, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    board.slots("numbers", 1)
    assert path.with_name("board-names").read_text() == "1 numbers\n"


def test_what_is_declared_has_room_in_every_row_and_nothing_else_has(path):
    board = Board(path, worker=0, workers=2)
    board.slots("numbers", ROW // 4)

    assert 2 * ROW // 4 * 8 <= path.stat().st_blocks * 512 < 2 * ROW // 2 * 8
