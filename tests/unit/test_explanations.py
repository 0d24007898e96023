"""Explanations in numbers and words: each clause is what the model answers when its sensor stays healthy."""

import numpy as np
import pytest
from msgspec import UNSET

from export.regime_readings import HealthyRange, average_life, healthy_z
from service.core.departures import Departure, Estimate, account, departures
from service.core.probes import blocks_of, staying_healthy
from service.core.queries import Explain
from service.core.window import WindowInput
from tests.fakes import make_manifest
from tests.unit.test_predictor import ask, make_predictor

EVIDENT = make_manifest(explains_readings=True, context=16)
LOWER, UPPER = -6.86, 73.53  # of the fake manifest: 33.3 and two deviations of 20.1


async def explained(sensor_1, manifest=EVIDENT, sensor_2=20.0):
    """The full explanation of a window whose other readings are healthy."""
    cycles = len(sensor_1)
    if not isinstance(sensor_2, list):
        sensor_2 = [sensor_2] * cycles
    columns = {"setting_1": [0.0] * cycles, "sensor_1": sensor_1, "sensor_2": sensor_2}
    window = WindowInput(last_cycle=100, columns=columns)
    reply = await ask(window, predictor=make_predictor(manifest), explain=Explain.FULL)
    return reply.predictions[0]


async def test_a_clause_is_the_answer_to_the_window_in_which_the_sensor_stayed_healthy():
    prediction = await explained([30.0] * 6 + [90.0] * 6)

    (clause,) = prediction.explanation.clauses
    again = await explained([30.0] * 6 + [100 / 3] * 6)
    assert clause.without == pytest.approx(again.rul, abs=1e-4)
    assert (clause.column, clause.side, clause.since_cycle) == ("sensor_1", "above", 95)
    assert clause.cycles == pytest.approx(prediction.rul - again.rul, abs=1e-4)
    assert prediction.explanation.sentence == (
        "sensor_1 above its healthy range since cycle 95 adds 57 cycles; without it the estimate would be "
        "53, not 110."
    )


async def test_ranges_contributions_and_the_figures_of_trust_stand_beside_the_readings():
    explanation = (await explained([30.0] * 12)).explanation

    assert explanation.columns == ["sensor_1", "sensor_2"]
    assert explanation.cycles.tolist() == [*range(89, 101)]
    assert explanation.usual["sensor_1"].lower == pytest.approx([LOWER] * 12, abs=0.01)
    assert explanation.usual["sensor_1"].upper == pytest.approx([UPPER] * 12, abs=0.01)
    assert explanation.sentence == "No sensor is outside its healthy range for 5 readings or more."
    assert explanation.contributions["sensor_1"].tolist() == [0.0] * 11 + [30.0]  # the graph's
    assert (explanation.needed_agreement, explanation.needed_skill) == (0.6, 0.5)
    assert explanation.judged_cycles == 12
    assert explanation.agreement == pytest.approx(1.0)
    assert explanation.skill > 0.9


async def test_cycles_without_a_reading_are_not_judged():
    manifest = make_manifest(explains_readings=True, context=16, max_missing_fraction=1.0)

    gappy = (await explained([None, 30.0] * 8, manifest, [None, 20.0] * 8)).explanation
    enough = (await explained([None] * 4 + [30.0] * 12, manifest, [None] * 4 + [20.0] * 12)).explanation

    assert (gappy.judged_cycles, gappy.agreement) == (0, None)  # 8 readings are too few
    assert enough.judged_cycles == 12


async def test_contributions_by_occlusion_are_zero_where_a_reading_is_missing():
    manifest = make_manifest(context=16, max_missing_fraction=1.0)

    prediction = await explained([30.0] * 11 + [None], manifest)

    assert prediction.trust is UNSET
    assert prediction.explanation.agreement is None
    assert prediction.explanation.contributions["sensor_1"].tolist() == [0.0] * 12


async def test_contributions_by_occlusion_are_the_effect_of_typical_readings():
    prediction = await explained([30.0] * 12, make_manifest(context=16))

    expected = [0.0] * 11 + [30.0 - 50.0]  # the training mean is 50
    assert prediction.explanation.contributions["sensor_1"] == pytest.approx(expected, abs=1e-4)


HEALTHY = HealthyRange(EVIDENT)


def departed(*values):
    readings = np.full((len(values), 3), 20.0, np.float32)
    readings[:, 1] = values
    return departures(readings, HEALTHY.of(readings), [1, 2])


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([20.0] * 8, []),
        ([20.0] * 4 + [80.0] * 4, []),  # too few
        ([20.0] * 3 + [80.0] * 5, [(1, "above", 3, True)]),
        ([20.0] * 3 + [-20.0] * 5, [(1, "below", 3, True)]),
        ([80.0] * 3 + [20.0] + [80.0] * 4, [(1, "above", 0, False)]),
        ([80.0] * 3 + [np.nan] + [80.0] * 4, [(1, "above", 0, True)]),
        ([80.0] * 5 + [20.0] * 5, []),  # it has returned
        ([80.0] * 10 + [-20.0] * 5, [(1, "above", 0, False)]),  # once, since its first departure
        ([-20.0] * 10 + [80.0] * 5, [(1, "below", 0, False)]),
    ],
)
def test_a_sensor_departs_where_most_readings_up_to_the_last_are_outside_on_one_side(values, found):
    assert [tuple(each) for each in departed(*values)] == found


def test_sensors_return_to_the_middle_since_their_departure_alone_and_then_together():
    gone, past = np.nan, -1.0  # a missing reading stays missing, and what is past the window's end stays
    readings = np.array([[1.0, 20.0, 20.0], [2.0, 80.0, 20.0], [3.0, gone, 90.0], [past] * 3], np.float32)
    since = [Departure(1, "above", 1, is_steady=True), Departure(2, "above", 2, is_steady=True)]

    varied = staying_healthy(readings, np.full((3, 3), 50.0, np.float32), since)

    np.testing.assert_array_equal(
        varied[:, :, 1], [[20, 50, gone, past], [20, 80, gone, past], [20, 50, gone, past]]
    )
    np.testing.assert_array_equal(
        varied[:, :, 2], [[20, 20, 90, past], [20, 20, 50, past], [20, 20, 50, past]]
    )


async def test_the_joint_effect_is_that_of_every_sensor_outside_however_many():
    columns = {f"sensor_{n}": [-20.0] * 12 for n in range(1, 21)}
    manifest = make_manifest(columns=["setting_1", *columns], explains_readings=True, context=16)
    window = WindowInput(last_cycle=100, columns={"setting_1": [0.0] * 12, **columns})

    reply = await ask(window, predictor=make_predictor(manifest), explain=Explain.FULL)

    together = reply.predictions[0].explanation.together
    assert together.columns == [*columns]
    assert together.text.startswith("Together, the 20 sensors outside their healthy range")


def said(contribution, answer, *without, first_cycle=5):
    """What is said of departures that each add this many cycles."""
    found = departed(*[80.0] * 6)
    of_readings = np.zeros((6, 3))
    of_readings[0, 1] = contribution
    return account(found, answer, without, of_readings, names=["a", "b", "c"], first_cycle=first_cycle)


@pytest.mark.parametrize(("first_cycle", "since"), [(1, "1"), (5, "5 or earlier")])
def test_a_departure_at_the_windows_begin_may_be_older_unless_the_unit_is_not(first_cycle, since):
    answer, without = Estimate(40.0, False, 40.0), Estimate(60.0, False, 60.0)

    sentence, _, _ = said(-20.0, answer, without, first_cycle=first_cycle)

    assert f"since cycle {since} takes" in sentence


def test_a_sentence_has_the_three_departures_that_matter_most():
    found = [Departure(column, "above", 0, is_steady=True) for column in range(4)]
    effects = np.array([-3.0, 20.0, -40.0, 10.0])
    without = [Estimate(60.0 - effect, False, 60.0 - effect) for effect in (*effects, effects.sum())]

    _, clauses, _ = account(
        found, Estimate(60.0, False, 60.0), without, effects[None], names=["a", "b", "c", "d"], first_cycle=1
    )

    assert [(clause.column, clause.cycles) for clause in clauses] == [("c", -40.0), ("b", 20.0), ("d", 10.0)]


@pytest.mark.parametrize("contribution", [20.0, -2.0, -90.0])
def test_a_clause_that_its_recomputation_contradicts_is_not_said(contribution):
    sentence, clauses, _ = said(contribution, Estimate(40.0, False, 40.0), Estimate(60.0, False, 60.0))

    assert clauses == []
    assert sentence == "Outside the healthy range, without a clear effect on the estimate: b."


def test_an_estimate_at_the_cap_is_at_least_the_cap():
    sentence, _, _ = said(-80.0, Estimate(40.0, False, 40.0), Estimate(125.0, True, 130.0))

    assert sentence == (
        "b above its healthy range since cycle 5 or earlier takes at least 85 cycles off; without it the "
        "estimate would be at least 125, not 40."
    )


def test_the_numbers_of_a_sentence_add_up_as_they_are_rounded():
    sentence, (clause,), _ = said(-20.0, Estimate(38.4, False, 38.4), Estimate(61.6, False, 61.6))

    assert "takes 24 cycles off" in sentence
    assert "would be 62, not 38" in sentence
    assert clause.cycles == pytest.approx(-23.2)


def test_healthy_readings_are_those_at_the_cap_and_above():
    degradation = EVIDENT.degradation.model_copy(
        update={
            "rul": [0.0, 125.0],
            "z": [[9.0] * 3, [0.5] * 3],
            "spread": [[9.0] * 3, [0.3] * 3],
            "noise": [0.4] * 3,
        }
    )

    mean, deviation = healthy_z(degradation, cap=125.0)

    assert mean.tolist() == [0.5] * 3
    assert deviation.tolist() == pytest.approx([0.5] * 3)


def test_the_average_life_ends_at_its_rul():
    life = average_life(EVIDENT, np.array([0.0, 100.0]))

    assert life.shape == (2, 16, 3)
    assert life[:, -1].sum(axis=1).tolist() == pytest.approx([0.0, 100.0], abs=1e-3)


@pytest.mark.parametrize(("cycles", "sensors"), [(1, 1), (30, 14), (60, 300), (1000, 14)])
def test_blocks_cover_every_cycle_once_and_stay_few(cycles, sensors):
    blocks = blocks_of(cycles, sensors)

    assert [t for block in blocks for t in range(block.start, block.stop)] == [*range(cycles)]
    assert len(blocks) <= max(1, 256 // sensors)
