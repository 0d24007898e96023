"""The same windows by HTTP and by gRPC, behind both front ends: the same numbers, in the promised shape."""

import math

import numpy as np
import pytest

from export.seal import read_bundle
from service.proto import rul_v1_pb2 as pb

EXPLAIN = {"none": pb.EXPLAIN_NONE, "attention": pb.EXPLAIN_ATTENTION, "sensors": pb.EXPLAIN_SENSORS}
EXPLAIN["full"] = pb.EXPLAIN_FULL
CAP = 40.0


def by_http(http, windows, **options):
    reply = http.post("/v1/predict", json={"windows": [w.json() for w in windows], **options})
    assert reply.status_code == 200, reply.text
    return reply.json()["predictions"]


def by_grpc(stub, windows, **options):
    return stub.Predict(pb.PredictRequest(windows=[w.message() for w in windows], **options)).predictions


def float32(values):
    return np.asarray(list(values), dtype=np.float32).tolist()


def numbers_of_json(prediction):
    return {
        "rul": float32([prediction["rul"]]),
        "interval": float32(prediction["interval"].values()),
        "failure_probability": float32(prediction["failure_probability"].values()),
        "health_state": float32(prediction["health_state"]["probabilities"].values()),
        "imputed_fraction": float32([prediction["imputed_fraction"]]),
        "sensors": float32(dict(sorted(prediction.get("sensor_contributions", {}).items())).values()),
        **{
            name: float32(prediction.get("attention", {}).get(name, []))
            for name in ("cycles", "weights", "contributions")
        },
    }


def numbers_of_message(prediction):
    states = prediction.health_state.probabilities
    return {
        "rul": [prediction.rul],
        "interval": [prediction.interval.coverage, prediction.interval.lower, prediction.interval.upper],
        "failure_probability": [prediction.failure_probability[h] for h in (5, 15)],
        "health_state": [states[state] for state in ("healthy", "degrading", "critical")],
        "imputed_fraction": [prediction.imputed_fraction],
        "sensors": list(dict(sorted(prediction.sensor_contributions.items())).values()),
        "cycles": list(prediction.attention.cycles),
        "weights": list(prediction.attention.weights),
        "contributions": list(prediction.attention.contributions),
    }


@pytest.mark.parametrize("explain", EXPLAIN)
def test_http_and_grpc_give_exactly_equal_numbers_for_the_same_window(http, stub, windows, explain):
    for window in windows[:6]:  # one a request: in another batch the last bit may differ
        (by_json,) = by_http(http, [window], explain=explain)
        (by_message,) = by_grpc(stub, [window], explain=EXPLAIN[explain])

        assert numbers_of_json(by_json) == numbers_of_message(by_message)


def test_http_and_grpc_give_the_same_words_for_the_same_window(http, stub, windows):
    unknown_age = [window for window in windows if window.last_cycle is None]

    by_json = by_http(http, unknown_age)
    by_message = by_grpc(stub, unknown_age)

    assert [w["code"] for p in by_json for w in p["warnings"]].count("last_cycle_unknown") == len(unknown_age)
    for one, other in zip(by_json, by_message, strict=True):
        assert (one["unit"], one["rul_state"]) == (other.unit, other.rul_state)
        assert one["health_state"]["label"] == other.health_state.label
        assert [(w["code"], w["detail"]) for w in one["warnings"]] == [
            (w.code, w.detail) for w in other.warnings
        ]


def test_columns_and_readings_are_two_ways_to_send_the_same_window(http, windows, column_names):
    window = windows[0].json()
    by_column = {name: [row[i] for row in window["readings"]] for i, name in enumerate(column_names)}

    reply = http.post(
        "/v1/predict",
        json={
            "windows": [window, {"unit": "unit-0", "last_cycle": window["last_cycle"], "columns": by_column}]
        },
    )

    by_row, by_name = reply.json()["predictions"]
    assert by_row == by_name


def test_answers_agree_with_the_exporters_golden_ones(http, windows, golden):
    predictions = by_http(http, windows)

    assert [p["rul"] for p in predictions] == pytest.approx(golden.expected["rul"].tolist(), abs=1e-3)


def test_attention_sums_to_one_over_the_cycle_numbers_that_were_sent(http, windows):
    known = [window for window in windows if window.last_cycle is not None]

    for window, prediction in zip(known, by_http(http, known), strict=True):
        attention = prediction["attention"]
        last = int(window.last_cycle)
        assert attention["cycles"] == list(range(last - len(window.readings) + 1, last + 1))
        assert math.fsum(attention["weights"]) == pytest.approx(1, abs=1e-5)
        assert min(attention["weights"]) >= 0


def test_baseline_and_contributions_add_up_to_the_rul_where_it_is_not_clipped(http, windows):
    added = 0
    for prediction in by_http(http, windows):
        attention = prediction["attention"]
        total = (
            attention["baseline"] + math.fsum(attention["contributions"]) + attention["window_contribution"]
        )
        assert prediction["rul"] == pytest.approx(min(max(total, 0), CAP), abs=1e-3)
        added += 0 < total < CAP

    assert added > len(windows) / 2


def test_the_answer_names_the_model_by_its_files_digest(http, stub, windows, tiny_bundle):
    by_json = http.post("/v1/predict", json={"windows": [windows[0].json()]}).json()["model"]
    by_message = stub.Predict(pb.PredictRequest(windows=[windows[0].message()])).model

    assert by_json == {"name": "tiny", "version": "1.0.0", "sha256": read_bundle(tiny_bundle).sha256}
    assert {name: getattr(by_message, name) for name in by_json} == by_json
