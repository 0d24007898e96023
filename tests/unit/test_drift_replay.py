"""The replay table of drift: what is sent, what befalls it, and what is said of it."""

import numpy as np
import pytest

from model.domain import Trajectory
from tests.benchmarks.drift import Found, Healthy, watched
from tests.benchmarks.drift_faults import biased, column_faults, frozen, scaled, swapped
from tests.benchmarks.drift_page import faults_table, healthy_table
from tests.benchmarks.drift_replay import Place, answered, changed, places
from tests.fakes import FakeRuntime, make_manifest

MANIFEST = make_manifest(context=8)


class FakeSession:
    """A graph whose RUL is the sum of the last reading."""

    def __init__(self, manifest):
        self._manifest = manifest

    def answer(self, readings, lengths, last_cycle):
        outputs = FakeRuntime(self._manifest).run(np.nan_to_num(readings), lengths, last_cycle)
        return {name: getattr(outputs, name) for name in outputs.__dataclass_fields__}

    def answer_all(self, windows):
        return self.answer(windows.readings, windows.lengths, windows.last_cycle)


def fleet(*cycles):
    rng = np.random.default_rng(0)
    return [
        Trajectory(str(i), np.arange(1, n + 1), rng.uniform(0, 100, (n, 3)).astype(np.float32), failed=False)
        for i, n in enumerate(cycles)
    ]


def test_every_cycle_of_every_unit_is_sent_once_and_in_order():
    units = fleet(30, 50, 7)

    stream = places(units, together=False, rng=np.random.default_rng(1))

    for i, unit in enumerate(units):
        assert [place.row for place in stream if place.unit == i] == list(range(len(unit)))


@pytest.mark.parametrize(
    ("change", "others"),
    [
        (biased(1, 2.0), [0, 2]),
        (scaled(1, 3.0), [0, 2]),
        (frozen(1), [0, 2]),
        (swapped(1, 2), [0]),
        (biased(1, np.nan), [0, 2]),
    ],
)
def test_a_fault_touches_its_columns_from_its_cycle_on_and_nothing_else(change, others):
    readings = fleet(9)[0].readings
    before = readings.copy()

    after = change(readings, 4)

    np.testing.assert_array_equal(readings, before)
    np.testing.assert_array_equal(after[:4], before[:4])
    np.testing.assert_array_equal(after[:, others], before[:, others])
    assert (after[4:, 1] != before[4:, 1]).all()


def test_each_unit_has_the_fault_from_its_own_place_in_the_stream_on():
    units = fleet(2, 3, 1)
    stream = places(units, together=True, rng=np.random.default_rng(0))

    faulty = changed(units, stream, biased(1, 5.0), since=4)

    moved = [
        (np.flatnonzero((a.readings != b.readings).any(axis=1))).tolist()
        for a, b in zip(faulty, units, strict=True)
    ]
    assert moved == [[], [1, 2], []]


def test_windows_have_the_readings_up_to_their_place():
    units = fleet(12)

    (answers, names), *_ = answered(FakeSession(MANIFEST), MANIFEST, units, [Place(0, 2), Place(0, 11)])

    assert answers.asked.lengths.tolist() == [3, 8]
    np.testing.assert_array_equal(answers.asked.readings[1, -8:], units[0].readings[4:])
    assert names == ["0", "0"]


def test_a_healthy_fleet_is_told_by_its_windows_and_looks():
    units = fleet(*[40] * 20)
    batches = answered(
        FakeSession(MANIFEST), MANIFEST, units, places(units, together=True, rng=np.random.default_rng(0))
    )

    row = watched(Healthy("fake", "all"), MANIFEST, batches)

    assert (row.windows, row.looks) == (800, 8)
    assert 0 <= row.column < 1
    assert "| fake | all | 800 | 8 |" in healthy_table([row])


def test_every_sensor_has_every_fault():
    first, *others = MANIFEST.columns
    in_rankine = MANIFEST.model_copy(
        update={"columns": [first, *(each.model_copy(update={"unit": "degR"}) for each in others)]}
    )

    faults = {(fault.kind, fault.where) for fault in column_faults(in_rankine)}

    kinds = ["bias +2 sd", "bias -2 sd", "bias +3 sd", "frozen", "missing", "in K, not degR"]
    assert faults == {
        ("swapped", "sensor_1, sensor_2"),
        *((kind, sensor) for kind in kinds for sensor in ("sensor_1", "sensor_2")),
    }


def test_what_was_missed_is_said():
    rows = [
        Found("fake", "frozen", "sensor_1", 200, ["sensor_1"], named=True),
        Found("fake", "frozen", "sensor_2", None, [], named=False),
    ]

    table = faults_table(rows)

    assert "| frozen | 200 (200), 1 of 2 |" in table
    assert "Missed: fake frozen: sensor_2." in table
