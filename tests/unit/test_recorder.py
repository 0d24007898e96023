"""The recorder: bounded, deduplicated, retried, never in the way of a prediction."""

import threading
from concurrent.futures import ThreadPoolExecutor
from time import time, time_ns
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from structlog.testing import capture_logs

from service.core.answers import Piece, prediction
from service.core.queries import Explain, Grounds, ModelName, Trust
from service.errors import StoreUnavailable
from service.store.explanation import (
    MOST_BYTES,
    BriefGrounds,
    StoredExplanation,
    explanation_text,
    read_explanation,
)
from service.store.recorder import Recorder, briefs_of
from service.store.rows import NO_ANSWER, Drop, RowsRefused
from tests.examples import examples
from tests.fakes import FakeKeepingObserver, asked_of, fake_answers, joined, make_manifest, window_input

PATIENCE = 20
FD001 = ModelName("fd001", "1", "f" * 64)
MANIFEST = make_manifest()
EVIDENT = make_manifest(explains_readings=True)


class FakeStore:
    """Keeps rows in a dictionary; can be made to fail, to refuse, or to hang."""

    def __init__(self):
        self.kept = {}
        self.failures = 0
        self.refused = set()
        self.connections = self.checks = 0
        self.closed = 0
        self.sizes = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.is_replaced = False
        self.noticed = threading.Event()

    def connect(self):
        self.connections += 1
        return self

    def check(self):
        self.checks += 1
        if self.is_replaced:
            self.is_replaced = False
            self.noticed.set()
            raise StoreUnavailable("replaced")

    def write(self, rows):
        self.entered.set()
        self.gate.wait(PATIENCE)
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("away") from OSError("no route")
        if any(row[1] in self.refused for row in rows):
            raise RowsRefused("refused") from ValueError("a secret unit")
        self.sizes.append(len(rows))
        self.kept |= {row[:4]: row for row in rows}

    def close(self):
        self.closed += 1


@pytest.fixture
def fake():
    return FakeStore()


@pytest.fixture
def observer():
    return FakeKeepingObserver()


@pytest.fixture
def recorder(fake, observer):
    made = started(fake, observer)
    yield made
    fake.gate.set()
    made.close(PATIENCE)


def started(fake, observer, *, most_rows=1000, flush_seconds=0.001, chore=None, start=True, **options):
    made = Recorder(
        fake.connect, most_rows=most_rows, observer=observer, log=structlog.get_logger(),
        flush_seconds=flush_seconds, back_off_seconds=(0.001, 0.002), **options,
    )  # fmt: skip
    made.chore = chore
    if start:
        made.start()
    return made


def answered(*given, manifest=MANIFEST, trust=UNSET):
    """Windows with predictions and pieces: pairs of RUL and options of `window_input`."""
    windows, _ = joined(*(window_input(rul, **options) for rul, options in given))
    piece = Piece(fake_answers(asked_of(windows), manifest), 0, range(len(windows)))
    grounds = Grounds(trust=trust)
    worded = [prediction(piece, i, windows, i, explain=Explain.NONE, grounds=grounds) for i in piece.places]
    return windows, worded, [piece]


@pytest.mark.parametrize(
    ("rul", "expected"),
    [
        (40.0, (40.0, 35.0, 45.0, "estimated", '{"10":0.68,"30":0.68}')),
        (124.0, (125.0, 119.0, 125.0, "at_least_cap", '{"10":0.008,"30":0.008}')),
    ],
)
def test_the_reported_prediction_is_the_written_one(recorder, fake, observer, rul, expected):
    before = time_ns() // 1000 / 1e6

    recorder.offer(FD001, *answered((rul, {"unit": "17", "last_cycle": 121})))

    assert recorder.flush(PATIENCE)
    (row,) = fake.kept.values()
    assert (*row[:8], row[10]) == ("fd001", "17", "", 121, *expected)
    assert [*map(type, row[3:10])] == [int, float, float, float, str, str, float]  # nothing keeps the batch
    assert before <= row[9] == round(row[9], 6) <= time()
    assert row[-2:] == (None, "1")
    assert observer.written == 1


def test_the_writing_thread_sleeps_until_rows_are_due_or_asked_for(fake, observer):
    recorder = started(fake, observer, flush_seconds=PATIENCE)

    for _ in range(3):
        recorder.flush(PATIENCE)
        recorder.offer(FD001, *answered((40.0, {"last_cycle": 121})))
    recorder.close(PATIENCE)

    assert fake.checks <= 5  # one at the start, at each flush and at the end


def explained(fake, observer, **options):
    """The explanation that is written for a window of four cycles, the last of which is 121."""
    recorder = started(fake, observer, **options)
    given = (30.0, {"last_cycle": 121}), (45.0, {"last_cycle": 122})
    recorder.offer(FD001, *answered(*given, manifest=EVIDENT, trust=Trust.SUPPORTED))
    recorder.close(PATIENCE)
    return fake.kept["fd001", "1", "", 121][-2]


def test_a_prediction_is_written_with_what_it_rests_on(fake, observer):
    text = explained(fake, observer)

    assert msgspec.json.decode(text) == {
        "evidence": {"121": 1.0},
        "sensor_contributions": {"sensor_1": 30.0, "sensor_2": 0.0},
        "trust": "supported",
    }
    assert read_explanation(text).evidence == {121: 1.0}


def test_windows_in_the_middle_of_a_batch_are_written_with_what_they_rest_on_themselves(
    recorder, fake, observer
):
    """Rows 1 and 2 of the batch answer windows 1 and 0 of the request."""
    windows, worded, _ = answered((30.0, {"unit": "a"}), (45.0, {"unit": "b"}), manifest=EVIDENT)
    batch, _ = joined(*(window_input(rul) for rul in (99.0, 45.0, 30.0)))
    piece = Piece(fake_answers(asked_of(batch), EVIDENT), 1, [1, 0])

    recorder.offer(FD001, windows, worded, [piece])

    recorder.flush(PATIENCE)
    texts = {key[1]: msgspec.json.decode(row[-2]) for key, row in fake.kept.items()}
    found = {unit: text["sensor_contributions"]["sensor_1"] for unit, text in texts.items()}
    assert found == {"a": 30.0, "b": 45.0}


def test_explanations_can_be_left_out(fake, observer):
    assert explained(fake, observer, explanations=False) is None


def test_an_explanation_is_bounded_whatever_sensors_are_called():
    names = ("a" * 200, "b" * 100, "c" * 9000)

    text = explanation_text(BriefGrounds(([1], [1.0], [0, 1, 2], [3.0, 2.0, 1.0]), 10, names, UNSET))

    assert len(text) <= MOST_BYTES
    assert read_explanation(text) == StoredExplanation({11: 1.0}, {"a" * 200: 3.0, "b" * 100: 2.0})


def test_a_brief_has_the_most_evident_cycles_and_the_heaviest_sensors_first():
    evidence = np.float32([[0.1, 0.4, 0.2, 0.3], [0.0, 0.9, 0.1, 0.0]])
    of_readings = np.zeros((2, 4, 4), np.float32)
    of_readings[:, 0] = [[90, -5, 1, 2], [90, 0, 5, -7]]
    of_readings[:, 3] = [[9, 2, 0, 0], [9, 0, 0, 0]]

    outputs = SimpleNamespace(evidence=evidence, sensor_contribution=of_readings)
    one, other = briefs_of(SimpleNamespace(outputs=outputs, rules=SimpleNamespace(contributing=(1, 2, 3))))

    assert one == ([1, 3, 2], [0.4, 0.3, 0.2], [1, 3, 2], [-3, 2, 1])
    assert other[2:] == ([3, 2, 1], [-7, 5, 0])


@pytest.mark.parametrize("options", [{"unit": None}, {"last_cycle": None}])
def test_windows_without_unit_or_cycle_are_neither_stored_nor_dropped(recorder, fake, observer, options):
    recorder.offer(FD001, *answered((40.0, options), (41.0, {})))

    recorder.flush(PATIENCE)
    assert len(fake.kept) == 1
    assert not observer.drops


def test_a_repeated_question_takes_one_waiting_row(fake, observer):
    recorder = started(fake, observer, most_rows=100)
    fake.gate.clear()
    recorder.offer(FD001, *answered((40.0, {"unit": "first"})))
    assert fake.entered.wait(PATIENCE)
    for rul in range(20):
        recorder.offer(FD001, *answered((float(rul), {})))
    fake.gate.set()

    recorder.flush(PATIENCE)
    recorder.close(PATIENCE)
    assert fake.kept["fd001", "1", "", 100][4] == 19.0
    assert observer.written == 2


def test_rows_beyond_the_limit_are_dropped_and_counted_at_once(fake, observer):
    recorder = started(fake, observer, most_rows=3, start=False)

    recorder.offer(FD001, *answered((1.0, {"unit": "a"}), (1.0, {"unit": "b"})))
    recorder.offer(FD001, *answered((1.0, {"unit": "c"}), (1.0, {"unit": "d"}), (1.0, {"unit": None})))

    assert recorder.pending_rows == 2
    assert observer.drops == {Drop.FULL: 2}
    recorder.offer(FD001, *answered((1.0, {"unit": "e"})))
    assert recorder.pending_rows == 3
    recorder.close(PATIENCE)
    assert observer.drops == {Drop.FULL: 2, Drop.SHUTDOWN: 3}


def test_rows_wait_for_an_unavailable_store(recorder, fake, observer):
    fake.failures = 5

    with capture_logs() as said:
        recorder.offer(FD001, *answered((40.0, {"unit": "a"}), (40.0, {"unit": "b"})))
        while recorder.pending_rows:
            recorder.flush(PATIENCE)
        recorder.close(PATIENCE)
    assert [line["event"] for line in said] == ["store lost", "store recovered"]
    assert said[-1]["failures"] == fake.closed - 1 == 5
    assert len(fake.kept) == 2
    assert fake.connections == 6
    assert observer.written == 2
    assert False in observer.ups
    assert observer.ups[-1] is True


@pytest.mark.parametrize(("failures", "pause"), [(0, 0.001), (1, 0.001), (2, 0.002), (10_000, 0.002)])
def test_the_pause_after_failures_doubles_up_to_a_limit_however_long_the_store_is_away(
    fake, observer, failures, pause
):
    recorder = started(fake, observer, start=False)
    recorder._failures = failures

    assert recorder._pause() == pause


@pytest.mark.parametrize("question", [Recorder.flush, Recorder.opened])
def test_a_question_waits_for_the_first_attempt_to_open_the_store(fake, observer, question):
    recorder = started(fake, observer, start=False)

    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(question, recorder, PATIENCE)
        recorder.start()

    assert asked.result() is fake
    recorder.close(PATIENCE)


def test_neither_the_start_nor_a_question_nor_the_end_waits_for_the_next_flush(fake, observer):
    recorder = started(fake, observer, flush_seconds=3600.0)
    assert recorder.opened(PATIENCE) is fake
    recorder.offer(FD001, *answered((40.0, {})))

    recorder.flush(PATIENCE)

    assert observer.written == 1
    recorder.close(PATIENCE)
    assert fake.closed == 1


def test_a_question_to_a_store_that_is_away_is_answered_although_rows_wait(recorder, fake):
    fake.failures = 10**9
    recorder.offer(FD001, *answered((40.0, {})))

    assert recorder.flush(threading.TIMEOUT_MAX) is None

    fake.failures = 0


def test_a_question_to_a_store_that_is_away_does_not_shorten_the_pause(fake, observer):
    recorder = started(fake, observer, start=False)

    assert recorder.flush(0.0) is None

    assert recorder.trouble == NO_ANSWER
    assert not recorder._wake.is_set()


def test_predictions_of_two_versions_of_one_cycle_wait_side_by_side(fake, observer):
    recorder = started(fake, observer, start=False)
    for version in ("1", "2"):
        recorder.offer(ModelName("fd001", version, "f" * 64), *answered((40.0, {})))

    recorder.start()
    recorder.close(PATIENCE)

    assert fake.sizes == [2]


def test_a_store_that_cannot_be_opened_yet_is_tried_again(fake, observer):
    defects = [RuntimeError("a defect of the driver")] * 3

    def connect():
        if defects:
            raise defects.pop()
        return fake

    fake.connect = connect
    recorder = started(fake, observer)
    recorder.offer(FD001, *answered((40.0, {})))

    while recorder.pending_rows:
        recorder.flush(PATIENCE)
    recorder.close(PATIENCE)
    assert len(fake.kept) == 1


def test_a_store_whose_file_is_replaced_is_opened_anew_without_a_row_to_write(recorder, fake):
    assert recorder.flush(PATIENCE) is fake
    fake.is_replaced = True

    assert fake.noticed.wait(PATIENCE)
    recorder.close(PATIENCE)

    assert (fake.connections, fake.sizes) == (2, [])


def test_a_rejected_row_costs_no_other(recorder, fake, observer):
    fake.refused = {"b"}
    given = [(40.0, {"unit": name}) for name in ("a", "b", "c", "d")]

    recorder.offer(FD001, *answered(*given))

    recorder.flush(PATIENCE)
    assert sorted(key[1] for key in fake.kept) == ["a", "c", "d"]
    assert observer.drops == {Drop.REFUSED: 1}
    assert recorder.pending_rows == 0


def test_a_long_backlog_is_written_in_bounded_transactions(fake, observer, monkeypatch):
    monkeypatch.setattr("service.store.recorder.BATCH_ROWS", 4)
    recorder = started(fake, observer, start=False)
    recorder.offer(FD001, *answered(*((40.0, {"unit": str(i)}) for i in range(10))))

    recorder.start()
    recorder.close(PATIENCE)

    assert fake.sizes == [4, 4, 2]


@pytest.mark.parametrize("hangs", [False, True])
def test_rows_that_cannot_be_written_at_shutdown_are_dropped_counted_and_logged(
    recorder, fake, observer, hangs
):
    if hangs:
        fake.gate.clear()
    else:
        fake.failures = 10**9
    recorder.offer(FD001, *answered((40.0, {})))
    fake.entered.wait(PATIENCE)

    with capture_logs() as logged:
        recorder.close(0.0 if hangs else 0.05)

    assert observer.drops == {Drop.SHUTDOWN: 1}
    assert observer.written == 0
    assert recorder._thread.is_alive() is hangs
    assert logged[-1] == {"event": "predictions lost", "log_level": "error", "reason": "shutdown", "rows": 1}


def test_predictions_are_written_while_a_chore_has_the_open_store(fake, observer):
    begun, ended, given_stores = threading.Event(), threading.Event(), []

    def chore(store):
        given_stores.append(store)
        begun.set()
        while not ended.is_set():
            yield

    recorder = started(fake, observer, chore=chore)
    assert begun.wait(PATIENCE)
    recorder.offer(FD001, *answered((40.0, {"unit": "1"})))
    store = recorder.flush(PATIENCE)
    kept = [*fake.kept]
    ended.set()
    recorder.close(PATIENCE)

    assert [*given_stores, store] == [fake, fake]
    assert [row[1] for row in kept] == ["1"]


def test_no_chore_begins_while_the_service_ends(fake, observer):
    done = []
    recorder = started(fake, observer, chore=done.append, start=False)
    recorder._closing = True

    recorder.start()
    recorder.close(PATIENCE)

    assert (done, fake.closed) == ([], 1)


@examples(30)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(4, 9), st.integers(0, 100), st.booleans()), max_size=40)
)
def test_every_row_is_written_or_counted_whatever_fails(drawn):
    fake, observer = FakeStore(), FakeKeepingObserver()
    recorder = started(fake, observer, most_rows=12)
    offered = {}
    for unit, cycle, rul, fails in drawn:
        fake.failures += fails
        before = observer.drops[Drop.FULL]
        recorder.offer(FD001, *answered((float(rul), {"unit": str(unit), "last_cycle": cycle})))
        if observer.drops[Drop.FULL] == before:
            offered["fd001", str(unit), "", cycle] = float(rul)

    recorder.close(PATIENCE)

    assert {key: row[4] for key, row in fake.kept.items()} == offered
    assert sum(observer.drops.values()) + len(offered) <= len(drawn)
    assert observer.written >= len(offered)


def test_what_was_offered_is_settled_once_it_is_written_and_not_before(fake, observer):
    progress = np.array([5.0, 3.0])
    recorder = started(fake, observer, progress=progress, start=False)
    assert progress.tolist() == [5, 5]  # a worker before this one was killed
    fake.gate.clear()
    recorder.start()
    recorder.offer(FD001, *answered((1.0, {"unit": "a"}), (1.0, {"unit": "b"}), (1.0, {"unit": "b"})))
    fake.entered.wait(PATIENCE)

    before = progress.tolist()
    fake.gate.set()
    recorder.close(PATIENCE)

    assert before == [8, 5]
    assert progress.tolist() == [8, 8]
