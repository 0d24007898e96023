"""Judgement: errors and coverage from failures, contradictions from removals."""

from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.domain import Trajectory, capped_rul, cycles_left
from service.store.judgement import accuracy_of, judge
from tests.accuracy import accuracy_by_pandas


def judged(*, failed=True, outcome=100, last=(90,), rul=(12.0,), lower=(5.0,), upper=(20.0,)):
    rows = list(zip(last, rul, lower, upper, strict=True))
    return judge(rows, failed=failed, outcome_cycle=outcome, cap=125.0)


def test_the_truth_is_the_rul_of_training():
    unit = Trajectory("1", np.arange(1, 201), np.zeros((200, 1)), failed=True)
    everything = np.zeros(200)

    found = judged(outcome=200, last=unit.cycles, rul=everything, lower=everything, upper=everything)

    assert found.truth.tolist() == capped_rul(cycles_left(unit), cap=125).tolist()


@pytest.mark.parametrize(("lower", "upper", "short"), [(5, 9, True), (11, 20, False), (10, 10, False)])
def test_a_removal_only_shows_that_an_interval_was_too_short(lower, upper, short):
    found = judged(failed=False, lower=(lower,), upper=(upper,))

    assert found.contradicted.tolist() == [short]
    assert found.covered.tolist() == [False]
    assert np.isnan(found.error).all()


def test_figures_without_a_basis_are_missing():
    nothing = accuracy_of(judged(last=(), rul=(), lower=(), upper=()))
    removal = accuracy_of(judged(failed=False))

    assert (nothing.predictions, nothing.coverage, nothing.rmse, nothing.mean_width) == (0, None, None, None)
    assert (removal.predictions, removal.with_error, removal.coverage, removal.rmse) == (1, 0, None, None)
    assert removal.mean_width == 15.0


@pytest.mark.parametrize(("cap", "is_scored"), [(150.0, True), (600.0, False), (10_000.0, False)])
def test_the_nasa_score_of_long_lives_means_nothing_and_is_missing(cap, is_scored):
    """A prediction of 10,000 cycles that is late by all of them would score infinity."""
    found = judge([(100, cap, 0.9 * cap, cap)], failed=True, outcome_cycle=100, cap=cap)

    assert found.is_scored == is_scored
    assert (accuracy_of(found).nasa_score is not None) == is_scored


PREDICTION = st.tuples(
    st.sampled_from(["failed", "removed"]), st.integers(0, 300), st.integers(0, 300),
    st.integers(0, 1250), st.integers(0, 400),
)  # fmt: skip


@given(st.lists(PREDICTION, min_size=1, max_size=50))
def test_the_figures_are_those_of_pandas(drawn):
    rows = pd.DataFrame(drawn, columns=["kind", "last_cycle", "left", "tenths", "width"])
    rows["cycle"], rows["rul"] = rows.last_cycle + rows.left, rows.tenths / 10
    rows["lower"] = (rows.rul - rows.width / 10).clip(lower=0)
    rows["upper"] = (rows.rul + rows.width / 10).clip(upper=125)

    found = accuracy_of(
        judge(
            rows[["last_cycle", "rul", "lower", "upper"]].to_numpy(), cap=125.0,
            failed=(rows.kind == "failed").to_numpy(), outcome_cycle=rows.cycle.to_numpy(),
        )
    )  # fmt: skip

    expected = {name: None if np.isnan(x) else x for name, x in accuracy_by_pandas(rows, 125.0).items()}
    expected["covered"] = expected["hits"]
    figures = asdict(found)
    assert figures == pytest.approx({name: expected[name] for name in figures}, abs=1e-9)
