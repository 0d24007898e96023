"""Planted truth: evidence points at the event that decides when a unit fails."""

import numpy as np
import pytest
import torch

from model.calibration import tensors
from model.evaluation import root_mean_square_error
from model.folds import train_all
from model.networks import network_class
from model.run import prepare
from model.training import TrainConfig
from tests.planted import EVENT_CYCLES, planted_fleet, planted_units, points_at, windows_with_event

pytestmark = pytest.mark.usefixtures("one_thread")

CONTEXT = 20


@pytest.fixture(scope="module")
def answered():
    """Answers of `evidence`, trained for a moment, to windows that hold an event; and where it is."""
    fleet = planted_fleet(context=CONTEXT)
    split = train_all(planted_units(units=100, context=CONTEXT, seed=0).units, fleet)
    recipe = {**network_class("evidence").recipe, "learning_rate": 1e-2}
    config = TrainConfig(seed=0, steps=200, batch=128, **recipe)
    trainer, _ = prepare(split, fleet, network="evidence", config=config)
    while not trainer.done:
        trainer.update()
    windows, where = windows_with_event(
        planted_units(units=100, context=CONTEXT, seed=1), context=CONTEXT, seed=0
    )
    with torch.no_grad():
        return trainer.net.eval()(*tensors(windows)), windows, where


def test_every_window_holds_its_whole_event():
    planted = planted_units(units=40, context=CONTEXT, seed=2)
    windows, where = windows_with_event(planted, context=CONTEXT, seed=0)

    assert (where.sum(1) == EVENT_CYCLES).all()
    assert (windows.readings[where][:, 0] > 2.0).mean() > 0.99
    assert (windows.rul < CONTEXT).all()


def test_the_answer_counts_from_the_event(answered):
    answers, windows, _ = answered

    assert root_mean_square_error(answers.rul.numpy() - windows.rul) < 2.0


@pytest.mark.parametrize("name", ["evidence", "attention"])
def test_evidence_and_the_searching_head_point_at_the_event_that_decides(answered, name):
    answers, _, where = answered

    assert points_at(getattr(answers, name).numpy(), where) >= 0.95


def test_the_event_leads_the_sensors_that_weigh_most(answered):
    answers, _, _ = answered

    of_sensor = np.abs(answers.sensor_contribution.numpy()).sum(1)

    assert np.isin(of_sensor.argmax(1), (0, 1)).mean() >= 0.95
