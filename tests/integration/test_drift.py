"""An operator hears of drift: two workers, real requests, one scrape."""

from __future__ import annotations

import numpy as np
import pytest

from export.bundle import BundleFolder
from export.evaluation_windows import spread_windows
from export.session import open_bundle
from tests.integration.conftest import ANSWER_SECONDS, Server, metric, metrics_of, running
from tests.tiny_bundle import COLUMNS, pumps
from tests.waiting import wait_until

AT_ONCE = 50
WORN = "bearing_temperature"
MODEL = (("model", "tiny"),)


@pytest.fixture
def server(tiny_bundle, tmp_path):
    with running(tmp_path, str(tiny_bundle.path), workers="2") as server:
        yield server


def send(server: Server, bundle: BundleFolder, *, bias: float = 0.0) -> int:
    """Windows of pumps that the model has not seen, of all ages, each batch over its own connection."""
    windows = spread_windows(pumps(units=60, seed=77), open_bundle(bundle)[1], per_unit=15)
    readings = windows.readings.astype(np.float64)
    readings[..., [column.name for column in COLUMNS].index(WORN)] += bias
    queries = [
        {"unit": unit, "last_cycle": float(last), "readings": rows[:length].tolist()}
        for unit, last, rows, length in zip(
            windows.unit.tolist(), windows.last_cycle, readings, windows.lengths.tolist(), strict=True
        )
    ]
    for start in range(0, len(queries), AT_ONCE):
        answer = server.predict(*queries[start : start + AT_ONCE], explain="none")
        assert answer.status_code == 200, answer.text
    return len(queries)


def counted(server: Server, windows: int) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """What is scraped once all workers have counted so many windows."""
    wait_until(
        lambda: metric(server, "rul_column_drift_windows", model="tiny") == windows,
        ANSWER_SECONDS,
        what="every window",
    )
    return metrics_of(server)


def test_a_fleet_as_in_training_does_not_drift(server, tiny_bundle):
    sent = send(server, tiny_bundle)

    scraped = counted(server, sent)

    assert scraped["rul_column_drifting", MODEL] == 0
    assert scraped["rul_regime_unseen_ratio", MODEL] < 0.05
    assert "column drifts" not in server.output()


def test_a_sensor_that_is_off_is_named_by_a_metric_and_by_one_line_of_the_log(server, tiny_bundle):
    sent = send(server, tiny_bundle, bias=-30.0)  # against wear, so that no RUL explains it

    scraped = counted(server, sent)

    assert scraped["rul_column_drifting", MODEL] == 1
    assert scraped["rul_column_drift_psi", (("column", WORN), *MODEL)] > 1
    assert scraped["rul_column_drift_psi", (("column", "current"), *MODEL)] < 0.5
    lines = [line for line in server.output().splitlines() if "column drifts" in line]
    assert len(lines) == 1
    assert WORN in lines[0]
