"""BentoML's own commands and clients work, as the README says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import grpc
import httpx
import pytest

from service.proto import rul_v1_pb2 as pb
from service.proto import rul_v1_pb2_grpc
from tests.environments import borrowing_environment
from tests.integration.conftest import ANSWER_SECONDS, running

ROOT = Path(__file__).parents[2]
SECONDS = 120
CLIENT = """
import json, sys
import bentoml

with bentoml.SyncHTTPClient(sys.argv[1]) as client:
    print(json.dumps(client.predict(windows=[json.loads(sys.argv[2])], explain="none")))
"""


def asked_by_bentomls_client(url: str, window: dict[str, object]) -> object:
    """What BentoML's client returns; in a process of its own, because importing BentoML warns."""
    command = [sys.executable, "-c", CLIENT, url, json.dumps(window)]
    return json.loads(subprocess.run(command, capture_output=True, check=True, timeout=SECONDS).stdout)


def asked_by_http(url: str, window: dict[str, object]) -> object:
    body = {"windows": [window], "explain": "none"}
    return httpx.post(url + "/v1/predict", json=body, timeout=ANSWER_SECONDS, trust_env=False).json()


def test_bentomls_client_gets_the_same_answer(server, windows):
    window = windows[0].json()

    answer = asked_by_bentomls_client(server.http, window)

    assert answer == asked_by_http(server.http, window)
    assert answer["predictions"][0]["rul"] >= 0


def test_the_schema_names_the_fields_of_a_request(http):
    (route,) = http.get("/schema.json").json()["routes"]

    document = http.get("/openapi.json").json()
    fields = document["components"]["schemas"]["PredictQuery"]["properties"]
    assert route["route"] == "/v1/predict"
    assert route["input"]["properties"].keys() == fields.keys()


def test_bentoml_serve_answers_http_and_grpc(tiny_bundle, tmp_path, windows):
    serve = [sys.executable, "-m", "bentoml", "serve", "service.app:RulService", "--port", "{port}"]

    with running(tmp_path, str(tiny_bundle.path), front_end="uvicorn", command=serve) as server:
        by_http = asked_by_http(server.http, windows[0].json())
        with grpc.insecure_channel(server.grpc) as channel:
            request = pb.PredictRequest(windows=[windows[0].message()], explain=pb.EXPLAIN_NONE)
            by_grpc = rul_v1_pb2_grpc.RulServiceStub(channel).Predict(request, timeout=ANSWER_SECONDS)

    assert by_grpc.predictions[0].rul == pytest.approx(by_http["predictions"][0]["rul"])


def test_a_bento_serves_without_the_source_tree(tiny_bundle, tmp_path, windows):
    home = {"BENTOML_HOME": str(tmp_path / "bentoml"), "BENTOML_DO_NOT_TRACK": "true"}
    built = subprocess.run(
        [sys.executable, "-m", "bentoml", "build", "--output", "tag"],
        env=os.environ | home, cwd=ROOT, capture_output=True, text=True, check=True, timeout=SECONDS,
    )  # fmt: skip
    tag = built.stdout.strip().removeprefix("__tag__:")
    python = borrowing_environment(tmp_path / "environment") / "bin/python"
    serve = [str(python), "-m", "bentoml", "serve", tag, "--port", "{port}"]

    with running(tmp_path, str(tiny_bundle.path), front_end="uvicorn", command=serve) as server:
        answer = asked_by_http(server.http, windows[0].json())

    assert answer["model"]["name"] == "tiny"
