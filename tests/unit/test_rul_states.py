"""The table of states: what is counted, and where it is put."""

import numpy as np
import pytest

from model.domain import RulState
from tests.benchmarks.fault_kinds import Kind, faulty_kinds
from tests.benchmarks.faults import random_windows
from tests.benchmarks.rul_states import Row, asked, overview
from tests.benchmarks.tables import END, replaced
from tests.fakes import COLUMNS, make_manifest
from tests.unit.test_drift_replay import FakeSession
from tests.unit.test_faults import unit

MANIFEST = make_manifest(min_cycles=3)
SESSION = FakeSession(MANIFEST)


@pytest.fixture
def own():
    return random_windows([unit(20)], context=8, per_unit=20, rng=np.random.default_rng(0))


def test_rows_count_the_states_that_the_service_gives(own):
    few = own.take(own.lengths < 3)

    row = next(asked(SESSION, MANIFEST, [Kind("young", few)], few))

    assert row.windows == 2
    assert row.shares[RulState.AT_LEAST_CAP] == 1  # their whole life, so not insufficient
    assert row.moved is None


def test_the_rul_moves_against_the_same_windows_without_the_fault(own):
    lower = own.take(np.arange(len(own)))
    lower.readings[:, :, :] = 10.0

    row = next(asked(SESSION, MANIFEST, [Kind("ten", lower, paired=True)], own))

    assert row.moved == pytest.approx(MANIFEST.cap - 10 * len(COLUMNS))


def test_every_paired_kind_has_a_window_for_each_of_the_own(own):
    manifest = make_manifest(columns=("setting_1", "sensor_1", "sensor_2"))

    kinds = faulty_kinds(own, [unit(20)], {"fleet": own}, manifest, rng=np.random.default_rng(0))

    assert len({kind.name for kind in kinds}) == len(kinds)
    assert sum(not kind.paired for kind in kinds) == 3  # another fleet, and units of two short lives
    assert all(kind.windows.last_cycle.shape == own.last_cycle.shape for kind in kinds if kind.paired)


def row(kind, model):
    shares = dict.fromkeys(RulState, 0.25)
    return Row(kind, model, 4, shares, novelty=0.5, novel=0.01, moved=None)


def test_the_overview_has_a_line_a_kind_and_a_column_a_model():
    lines = overview([row("own", "a"), row("zeros", "a"), row("own", "b")]).splitlines()

    assert lines[2:] == [
        "| windows | a | b |",
        "|---|---:|---:|",
        "| own | 25.0 % | 25.0 % |",
        "| zeros | 25.0 % |  |",
    ]


def test_a_page_keeps_what_stands_around_its_markers():
    begin = "<!-- made by python -m b -->"

    page = replaced(f"above\n{begin}\nold\n{END}\nbelow\n", "new", "b")

    assert page == f"above\n{begin}\n\nnew\n\n{END}\nbelow\n"
    assert replaced(page, "new", "b") == page


def test_a_page_without_markers_is_refused():
    with pytest.raises(ValueError, match="markers"):
        replaced("nothing", "new", "b")
