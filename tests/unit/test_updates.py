"""Choice of the number of updates."""

import pytest

from model.run import Plan, choose_updates
from model.training import TrainConfig
from tests.fleets import PUMPS, worn_pumps

pytestmark = pytest.mark.usefixtures("one_thread")


def test_lengths_are_tried_until_held_out_units_stop_gaining(monkeypatch):
    monkeypatch.setattr("model.run.LENGTHS", (1, 60, 61, 400))
    config = TrainConfig(batch=32, truncations=3, learning_rate=1e-2)
    plan = Plan(worn_pumps(units=9, seed=1), PUMPS, "flagship", config, 3, {"hidden": 4})
    told = []

    chosen = choose_updates(plan, tell=lambda steps, rmse: told.append((steps, rmse)))

    assert [steps for steps, _ in told] == [1, 60, 61]
    assert chosen == 60
    assert told[1][1] < 0.98 * told[0][1]
