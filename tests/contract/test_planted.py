"""Planted truth, small: evidence is on what decides, and attention passes over broken readings."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from export.session import Session
from export.to_onnx import to_onnx
from model.calibration import read_windows
from model.dataset import train_all
from model.evaluation import root_mean_square_error
from model.networks import network_class
from model.run import prepare
from model.training import TrainConfig
from tests.fleets import worn_pumps
from tests.planted import (
    DRIFTING,
    EVENT_CYCLES,
    KINDS,
    drift_leads,
    planted_fleet,
    planted_units,
    planted_windows,
    points_at,
)
from tests.unit.test_networks_of_the_texts import trainer_of

pytestmark = pytest.mark.usefixtures("one_thread")

CONTEXT = 20
UNITS = 100
TRAINED_ON = {"event": "event", "missing": "event", "two events": "two events", "drift": "drift"}
"""Units of each kind are trained on these; `event` and `missing` differ in the windows only."""
MOST_RMSE = {"event": 1.5, "two events": 1.8, "drift": 3.5, "missing": 3.0}
"""In cycles; `python -m tests.benchmarks.planted` measures networks of the full size."""
LEAST_FOUND = {
    "evidence": {"event": 0.95, "two events": 0.5, "missing": 0.9},
    "attention": {"event": 0.95, "two events": 0.95, "missing": 0.9},
}
"""After so short a training evidence has both events first in 0.6 of the windows, and by chance in 0.05."""


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    """Answers of a graph, trained for a moment, to windows of a kind; the windows; where events are."""
    folder, sessions = tmp_path_factory.mktemp("graphs"), {}

    def answer(kind):
        trained_on = TRAINED_ON[kind]
        if trained_on not in sessions:
            to_onnx(trained(trained_on), folder / "model.onnx")
            sessions[trained_on] = Session(folder / "model.onnx")
        others = planted_units(kind, units=UNITS, context=CONTEXT, seed=1)
        windows, where = planted_windows(others, context=CONTEXT, seed=0)
        answers = sessions[trained_on].answer_all(windows)
        return answers, windows, where

    return answer


def trained(kind):
    fleet = planted_fleet(kind, context=CONTEXT)
    split = train_all(planted_units(kind, units=UNITS, context=CONTEXT, seed=0).units, fleet)
    recipe = {**network_class("flagship").recipe, "learning_rate": 1e-2}
    config = TrainConfig(seed=0, steps=250, batch=64, **recipe)
    trainer, _ = prepare(split, fleet, network="flagship", config=config)
    while not trainer.done:
        trainer.update()
    return trainer.net


@pytest.mark.parametrize("kind", KINDS)
def test_every_window_holds_its_whole_events(kind):
    planted = planted_units(kind, units=40, context=CONTEXT, seed=2)

    windows, where = planted_windows(planted, context=CONTEXT, seed=0)

    assert (where.sum(2) == EVENT_CYCLES).all() or kind == "drift"
    assert not (where.sum(1) > 1).any()
    assert (windows.rul < 1.25 * CONTEXT).all()
    assert np.isnan(windows.readings[windows.lengths == CONTEXT]).any(1).sum(1).max() == (kind == "missing")


def test_an_event_shifts_two_columns():
    windows, where = planted_windows(
        planted_units("two events", units=40, context=CONTEXT, seed=2), context=CONTEXT, seed=0
    )

    shifted = windows.readings[where.any(1)]

    assert shifted.mean(0) == pytest.approx([6.0, -4.0, 0.0, 0.0], abs=0.3)


def test_the_drifting_column_rises_to_the_failure():
    units = planted_units("drift", units=40, context=CONTEXT, seed=2).units

    last = np.stack([unit.readings[-3:] for unit in units]).mean((0, 1))

    assert last.argmax() == DRIFTING
    assert last[DRIFTING] > 5.0


def test_both_of_two_events_have_to_be_found():
    where = np.zeros((3, 2, 6), bool)
    where[:, 0, 1], where[:, 1, 4] = True, True
    both, one, none = [0, 3, 1, 1, 2, 0], [0, 3, 2, 2, 1, 0], [3, 2, 1, 1, 2, 0]

    assert points_at(np.array([both, one, none], float), where) == pytest.approx(1 / 3)


@pytest.mark.parametrize("kind", KINDS)
def test_the_rul_counts_from_the_deciding_event(answered, kind):
    answers, windows, _ = answered(kind)

    assert root_mean_square_error(answers["rul"] - windows.rul) < MOST_RMSE[kind]


@pytest.mark.parametrize("kind", ["event", "two events", "missing"])
@pytest.mark.parametrize("name", LEAST_FOUND)
def test_evidence_and_the_searching_head_point_at_the_events_that_decide(answered, kind, name):
    answers, _, where = answered(kind)

    assert points_at(answers[name], where) >= LEAST_FOUND[name][kind]


def test_the_event_leads_the_sensors_that_weigh_most(answered):
    answers, _, _ = answered("event")

    of_sensor = np.abs(answers["sensor_contribution"]).sum(1)

    assert np.isin(of_sensor.argmax(1), (0, 1)).mean() >= 0.95


def test_the_drifting_column_leads_the_others(answered):
    answers, _, _ = answered("drift")

    assert drift_leads(answers["sensor_contribution"]) >= 0.9


def test_attention_learns_to_pass_over_cycles_with_broken_readings():
    units, rng = worn_pumps(units=24, seed=2), np.random.default_rng(3)
    for i, unit in enumerate(units):
        shift = rng.choice([-1.0, 1.0], (len(unit), 2)) * (6.0, 4.0) * (rng.random((len(unit), 1)) < 0.25)
        readings = unit.readings + np.pad(shift, ((0, 0), (1, 0)))
        units[i] = replace(unit, readings=readings.astype(np.float32))
    trainer, parts, _ = trainer_of("amnl", units=units, steps=200, batch=64, learning_rate=2e-2)
    with torch.no_grad():  # even attention is a saddle: begin beside it
        trainer.net.score.score.vector.mul_(10.0)
    while not trainer.done:
        trainer.update()

    windows = parts.held_out
    weight = read_windows(trainer.net, windows).attention * windows.lengths[:, None]  # 1 where even

    pressure = windows.readings[:, :, 2]  # 3.6 to 7.2 bar, less or more where broken; NaN on padding
    broken, whole = np.abs(pressure - 5.4) > 2.0, np.abs(pressure - 5.4) <= 2.0
    assert weight[broken].mean() < 0.8 * weight[whole].mean()
