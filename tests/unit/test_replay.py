"""Replay of decisions on lives whose end is known."""

import cProfile
from dataclasses import replace

import numpy as np
import pytest

from model.decision import Costs
from model.domain import InvalidData
from model.prognostics import Life
from model.replay import HELD_OUT_FILE, compare, cross_fitted_lives, load_held_out, save_held_out
from tests.fleets import PUMPS

CAP, COVERAGE, HORIZONS = 125.0, 0.9, (10, 30, 60)
FACTS = {"horizons": HORIZONS, "coverage": COVERAGE, "cap": CAP}
ENDS = (90, 120, 150, 180, 210, 240, 270, 300)
KEPT = ("cycle", "truth", "rul", "lower", "upper", "failure_probability")
FOLDS = (0, 1, 0, 1, 0, 1, 0, 1)


def life_of(end, *, width=2.0, error=0.0, every=1):
    """One unit, predicted at each n-th cycle up to its last."""
    cycle = np.arange(end, 0, -every)[::-1].astype(float)
    truth = end - cycle
    rul = np.clip(truth + error, 0.0, CAP)
    probability = (rul[:, None] <= np.array(HORIZONS)).astype(float)
    bounds = np.clip(rul - width, 0.0, CAP), np.clip(rul + width, 0.0, CAP)
    return Life(str(end), cycle, truth, rul, *bounds, probability, str(end))


def held(**options):
    return cross_fitted_lives([life_of(end, **options) for end in ENDS], FOLDS, **FACTS)


def test_good_predictions_cost_little_more_than_foresight():
    found = compare(held(), Costs(1.0, 20.0))

    cost = {name: figure.value for name, figure in found.cost_per_cycle.items()}
    assert cost["foresight"] <= cost["ours"] < 1.05 * cost["foresight"]
    assert cost["ours"] < cost["fixed age"] < cost["run to failure"]
    assert found.failures["ours"] == 0.0
    assert found.saved.low > 0


def test_predictions_that_are_late_by_more_than_they_say_let_units_fail():
    found = compare(held(error=30.0), Costs(1.0, 20.0))

    assert found.failures["ours"] == 1.0
    assert found.cost_per_cycle["ours"].value == found.cost_per_cycle["run to failure"].value


def test_run_to_failure_and_foresight_cost_what_arithmetic_says():
    found = compare(held(), Costs(3.0, 20.0))

    cycles = sum(ENDS)
    assert found.cost_per_cycle["run to failure"].value == pytest.approx(20.0 * len(ENDS) / cycles)
    foresight = 3.0 * len(ENDS) / (cycles - len(ENDS))
    assert found.cost_per_cycle["foresight"].value == pytest.approx(foresight)
    assert found.cycles["run to failure"] == pytest.approx(np.mean(ENDS))


def test_the_fixed_age_of_a_unit_comes_from_units_of_other_folds():
    """Fold 0 has the shortest life: the others do not know it, so it fails before their age."""
    found = compare(held(), Costs(1.0, 500.0))

    assert found.failures["fixed age"] == pytest.approx(1 / len(ENDS))


def test_a_stop_between_two_reviews_is_made_at_its_cycle():
    often, seldom = (compare(held(every=every), Costs(1.0, 20.0)) for every in (1, 7))

    assert seldom.failures["ours"] == 0.0
    assert seldom.cycles["ours"] == pytest.approx(often.cycles["ours"], abs=0.5)


def test_the_last_advice_holds_where_the_last_cycles_have_no_prediction():
    lives = [life_of(end) for end in ENDS]
    cut = [replace(life, **{name: getattr(life, name)[:-8] for name in KEPT}) for life in lives]

    found = compare(cross_fitted_lives(cut, FOLDS, **FACTS), Costs(1.0, 20.0))

    assert found.failures["ours"] == 0.0
    assert found.cycles["run to failure"] == pytest.approx(np.mean(ENDS))


def test_held_out_predictions_survive_the_file(tmp_path):
    lives = [life_of(end) for end in ENDS]

    save_held_out(tmp_path, lives, FOLDS, replace(PUMPS, cap=CAP, horizons=HORIZONS))
    read = load_held_out(tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == [HELD_OUT_FILE]
    assert [life.unit for life in read.lives] == [life.unit for life in lives]
    assert read.horizons == HORIZONS
    assert compare(read, Costs(1.0, 20.0)) == compare(held(), Costs(1.0, 20.0))


def test_lives_of_a_kept_group_are_resampled_together(tmp_path):
    lives = [replace(life_of(end, error=7.0), group=str(n % 2)) for n, end in enumerate([90, 300] * 4)]
    save_held_out(tmp_path, lives, FOLDS, replace(PUMPS, cap=CAP, horizons=HORIZONS))

    found = compare(load_held_out(tmp_path), Costs(1.0, 20.0)).cost_per_cycle["run to failure"]

    assert (found.low, found.high) == (20.0 / 300, 20.0 / 90)


def test_a_run_of_an_earlier_version_has_no_groups(tmp_path):
    save_held_out(tmp_path, [life_of(end) for end in ENDS], FOLDS, replace(PUMPS, cap=CAP, horizons=HORIZONS))
    with np.load(tmp_path / HELD_OUT_FILE) as stored:
        kept = {name: stored[name] for name in stored if name != "group"}
    np.savez(tmp_path / HELD_OUT_FILE, **kept)

    assert [life.group for life in load_held_out(tmp_path).lives] == [str(end) for end in ENDS]


def test_reading_twice_the_lives_converts_no_more_arrays(tmp_path):
    def conversions(count):
        lives = [life_of(9, every=3)] * count
        save_held_out(tmp_path, lives, [0, 1] * (count // 2), replace(PUMPS, cap=CAP, horizons=HORIZONS))
        with cProfile.Profile() as profile:
            load_held_out(tmp_path)
        return sum(each.callcount for each in profile.getstats() if "astype" in str(each.code))

    assert conversions(40) == conversions(20) > 0


def test_a_fold_beside_a_life_alone_has_the_age_of_that_life():
    found = compare(cross_fitted_lives([life_of(90), life_of(120)], (0, 1), **FACTS), Costs(1.0, 20.0))

    assert found.units == 2
    assert found.failures["fixed age"] == 0.5


def test_lives_of_one_fold_are_refused():
    with pytest.raises(InvalidData, match="lives in two folds or more, got one: train on more units"):
        cross_fitted_lives([life_of(90), life_of(120)], (1, 1), **FACTS)


def test_a_file_of_one_fold_is_whole_but_too_small(tmp_path):
    save_held_out(tmp_path, [life_of(90), life_of(120)], (1, 1), replace(PUMPS, cap=CAP, horizons=HORIZONS))

    with pytest.raises(InvalidData, match=f"^{tmp_path}/held_out.npz: expected predicted lives in two folds"):
        load_held_out(tmp_path)


def test_a_run_without_held_out_predictions_is_refused(tmp_path):
    with pytest.raises(InvalidData, match=r"held_out.npz is missing: train again with this version"):
        load_held_out(tmp_path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive", b"no archive at all"])
def test_a_damaged_file_is_refused(tmp_path, content):
    (tmp_path / HELD_OUT_FILE).write_bytes(content)

    with pytest.raises(InvalidData, match="cannot be read, train again"):
        load_held_out(tmp_path)


@pytest.mark.parametrize(
    "change",
    [{"rul": np.ones(3)}, {"lower": np.ones(99)}, {"unit": np.array("a")}, {"horizons": np.array(3)}],
    ids=lambda change: next(iter(change)),
)
def test_arrays_that_do_not_fit_together_are_refused(tmp_path, change):
    lives = [life_of(9, every=3)] * 4
    save_held_out(tmp_path, lives, (0, 1, 0, 1), replace(PUMPS, cap=CAP, horizons=HORIZONS))
    with np.load(tmp_path / HELD_OUT_FILE) as stored:
        np.savez(tmp_path / HELD_OUT_FILE, **(dict(stored) | change))

    with pytest.raises(InvalidData, match="cannot be read, train again"):
        load_held_out(tmp_path)


@pytest.mark.parametrize("place", [0.1, 0.3, 0.5])
def test_a_run_with_a_damaged_byte_in_its_predictions_is_refused(tmp_path, place):
    save_held_out(tmp_path, [life_of(end) for end in ENDS], FOLDS, PUMPS)
    file = tmp_path / HELD_OUT_FILE
    stored = bytearray(file.read_bytes())
    at = int(place * len(stored))
    stored[at : at + 20] = b"\xff" * 20
    file.write_bytes(stored)

    with pytest.raises(InvalidData, match="cannot be read"):
        load_held_out(tmp_path)
