"""BentoML's own commands and clients work, as the README says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from export.bundle import find_bundle
from export.seal import read_bundle
from model.domain import NEAR_CAP
from service.proto import rul_v1_pb2 as pb
from service.proto import rul_v1_pb2_grpc
from tests.asking import golden_windows
from tests.environments import borrowing_environment
from tests.integration.conftest import ANSWER_SECONDS, running

ROOT = Path(__file__).parents[2]
SECONDS = 120
CAP = 125
CLIENT = """
import json, sys
import bentoml

with bentoml.SyncHTTPClient(sys.argv[1]) as client:
    print(json.dumps(client.predict(windows=[json.loads(sys.argv[2])], explain="none")))
"""


def asked_by_bentomls_client(url: str, window: dict[str, object]) -> Any:
    """What BentoML's client returns; in a process of its own, because importing BentoML warns."""
    command = [sys.executable, "-c", CLIENT, url, json.dumps(window)]
    return json.loads(subprocess.run(command, capture_output=True, check=True, timeout=SECONDS).stdout)


def asked_by_grpc(target: str, *windows: pb.Window) -> pb.PredictReply:
    with grpc.insecure_channel(target) as channel:
        request = pb.PredictRequest(windows=windows, explain=pb.EXPLAIN_NONE)
        return rul_v1_pb2_grpc.RulServiceStub(channel).Predict(request, timeout=ANSWER_SECONDS)


@pytest.mark.parametrize("server", ["envoy"], indirect=True)
def test_bentomls_client_gets_the_same_answer(server, windows):
    window = windows[0].json()

    answer = asked_by_bentomls_client(server.http, window)

    assert answer == server.predict(window, explain="none").json()
    assert answer["predictions"][0]["rul"] >= 0


@pytest.mark.parametrize("server", ["envoy"], indirect=True)
def test_the_schema_names_the_fields_of_a_request(http):
    (route,) = http.get("/schema.json").json()["routes"]

    document = http.get("/openapi.json").json()
    fields = document["components"]["schemas"]["PredictQuery"]["properties"]
    assert route["route"] == "/v1/predict"
    assert route["input"]["properties"].keys() == fields.keys() >= {"model", "windows", "explain"}


def test_bentoml_serve_answers_http_and_grpc(tiny_bundle, tmp_path, windows):
    serve = [sys.executable, "-m", "bentoml", "serve", "service.app:RulService", "--port", "{port}"]

    with running(tmp_path, str(tiny_bundle.path), front_end="uvicorn", command=serve) as server:
        by_http = asked_by_bentomls_client(server.http, windows[0].json())
        by_grpc = asked_by_grpc(server.grpc, windows[0].message())

    assert by_grpc.predictions[0].rul == pytest.approx(by_http["predictions"][0]["rul"])


def test_a_bento_serves_its_own_bundles_without_the_source_tree(tmp_path):
    golden = read_bundle(find_bundle("fd001")).golden
    asked = golden_windows(golden)
    home = {"BENTOML_HOME": str(tmp_path / "bentoml"), "BENTOML_DO_NOT_TRACK": "true"}
    built = subprocess.run(
        [sys.executable, "-m", "bentoml", "build", "--output", "tag"],
        env=os.environ | home, cwd=ROOT, capture_output=True, text=True, check=True, timeout=SECONDS,
    )  # fmt: skip
    tag = built.stdout.strip().removeprefix("__tag__:")
    python = borrowing_environment(tmp_path / "environment") / "bin/python"
    serve = [str(python), "-m", "bentoml", "serve", tag, "--port", "{port}"]

    with running(tmp_path, "fd001", front_end="uvicorn", command=serve) as server:
        by_http = server.predict(*(window.json() for window in asked), explain="none").json()
        by_grpc = asked_by_grpc(server.grpc, *(window.message() for window in asked))

    assert by_http["model"]["name"] == "fd001"
    ruls = [prediction["rul"] for prediction in by_http["predictions"]]
    expected = golden.expected["rul"]
    expected = np.where(expected >= NEAR_CAP * CAP, CAP, expected)
    np.testing.assert_allclose(ruls, expected, atol=1e-3)
    np.testing.assert_allclose([one.rul for one in by_grpc.predictions], ruls, atol=1e-3)
