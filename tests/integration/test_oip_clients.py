"""Stock clients of the Open Inference Protocol, each in a process and an environment of its own.

They share their generated messages' names with ours, so they are never imported here: a program of
`tests/clients` takes a tour of the service and leaves what it was told.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.proto import open_inference_pb2 as pb

OUTPUTS = [
    "rul", "rul_interval", "failure_probability", "health_state", "attention", "contribution",
    "head_attention", "novelty", "sensor_contribution", "window_contribution", "evidence",
]  # fmt: skip
FIND_KSERVE = "import importlib.util as u; print(u.find_spec('kserve') or '')"

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "clients"
INSTALL_SECONDS, TOUR_SECONDS = 900, 120


@pytest.fixture(scope="session")
def clients_python(tmp_path_factory) -> Path:
    """The interpreter of the clients' environment, which is made where it is not there or not current."""
    lock = tmp_path_factory.getbasetemp().parent / "clients.lock"
    base = getattr(sys, "_base_executable", sys.executable)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        command = ["make", "--silent", "clients", f"PYTHON={base}"]
        subprocess.run(command, cwd=ROOT, check=True, timeout=INSTALL_SECONDS)
    return ROOT / ".venv" / "clients" / "bin" / "python"


@dataclass(frozen=True)
class Told:
    """What a client brought back: facts by their names, and arrays by way of asking and output."""

    facts: dict[str, Any]
    answers: dict[str, dict[str, Any]]


def tour(python: Path, program: str, target: str, folder: Path, golden) -> Told:
    np.savez(
        folder / "asked.npz", readings=golden.readings, lengths=golden.lengths, last_cycle=golden.last_cycle
    )
    environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    done = subprocess.run(
        [python, PROGRAMS / program, target, folder],
        capture_output=True, text=True, timeout=TOUR_SECONDS, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, f"{program}:\n{done.stdout}\n{done.stderr}"
    answers: dict[str, dict[str, Any]] = {}
    with np.load(folder / "answered.npz") as stored:
        for key in stored.files:
            title, _, name = key.partition("/")
            answers.setdefault(title, {})[name] = stored[key]
    return Told(json.loads((folder / "facts.json").read_text("utf-8")), answers)


@pytest.fixture(scope="session")
def server(behind_envoy):
    return behind_envoy


@pytest.fixture(scope="session")
def native(server, windows) -> list[dict[str, Any]]:
    """What `POST /v1/predict` says to the same windows."""
    reply = server.predict(*(window.json() for window in windows))
    return reply.raise_for_status().json()["predictions"]


@pytest.fixture(scope="session")
def triton_http(clients_python, server, golden, tmp_path_factory) -> Told:
    target = f"http {server.http.removeprefix('http://')}"
    return tour(clients_python, "triton.py", target, tmp_path_factory.mktemp("triton-http"), golden)


@pytest.fixture(scope="session")
def triton_grpc(clients_python, server, golden, tmp_path_factory) -> Told:
    target = f"grpc {server.grpc}"
    return tour(clients_python, "triton.py", target, tmp_path_factory.mktemp("triton-grpc"), golden)


@pytest.fixture(scope="session")
def kserve(clients_python, server, golden, tmp_path_factory) -> Told:
    found = subprocess.run([clients_python, "-c", FIND_KSERVE], capture_output=True, check=True)
    if not found.stdout.strip():
        pytest.skip("kserve cannot be installed for this Python")
    folder = tmp_path_factory.mktemp("kserve")
    return tour(clients_python, "kserve_both.py", f"{server.http} {server.grpc}", folder, golden)


def assert_same_numbers(answer, predictions):
    """Compare the outputs that both answers have, window by window; RUL is one of them."""
    close = pytest.approx
    assert "rul" in answer
    for i, expected in enumerate(predictions):
        per_window = {
            "rul": expected["rul"],
            "rul_interval": [expected["interval"]["lower"], expected["interval"]["upper"]],
            "failure_probability": list(expected["failure_probability"].values()),
            "health_state": list(expected["health_state"]["probabilities"].values()),
        }
        for name, value in per_window.items():
            if name in answer:
                assert answer[name][i] == close(value, abs=1e-4), (name, i)
        weights = expected["attention"]["weights"]
        for name, value in (("attention", weights), ("contribution", expected["attention"]["contributions"])):
            if name in answer:
                assert answer[name][i][: len(value)] == close(value, abs=1e-4), (name, i)
                assert not answer[name][i][len(value) :].any(), (name, i)


# Numbers


TRITON_HTTP = ["raw", "json", "mixed", "version", "gzip", "deflate", "parameters", "async 3"]
TRITON_GRPC = ["raw", "mixed", "version", "gzip", "parameters"]
KSERVE = ["http json", "http binary", "grpc typed", "grpc raw"]


@pytest.mark.parametrize("way", TRITON_HTTP)
def test_tritonclient_gets_the_numbers_of_the_native_api_by_http(triton_http, native, way):
    assert_same_numbers(triton_http.answers[way], native)


@pytest.mark.parametrize("way", TRITON_GRPC)
def test_tritonclient_gets_the_numbers_of_the_native_api_by_grpc(triton_grpc, native, way):
    assert_same_numbers(triton_grpc.answers[way], native)


@pytest.mark.parametrize("way", KSERVE)
def test_kserve_gets_the_numbers_of_the_native_api(kserve, native, way):
    assert_same_numbers(kserve.answers[way], native)


def test_without_a_choice_every_output_comes(triton_http, triton_grpc, kserve):
    for told, way in ((triton_http, "raw"), (triton_grpc, "raw"), (kserve, "http binary")):
        assert list(told.answers[way]) == OUTPUTS


def test_outputs_come_as_they_were_chosen_and_in_that_order(triton_http, triton_grpc, kserve):
    for told in (triton_http, triton_grpc):
        assert list(told.answers["mixed"]) == ["attention", "rul"]
    assert kserve.facts["http outputs"] == kserve.facts["grpc outputs"] == ["rul"]


# What the service says of itself


def test_the_service_and_its_models_are_live_and_ready(triton_http, triton_grpc, kserve):
    for name in ("live", "ready", "model ready"):
        assert triton_http.facts[name] is True
        assert triton_grpc.facts[name] is True
        assert kserve.facts[f"http {name}"] is True
        assert kserve.facts[f"grpc {name}"] is True
    assert triton_http.facts["version ready"] is triton_grpc.facts["version ready"] is True
    assert triton_http.facts["other ready"] is kserve.facts["http other ready"] is False


def test_both_transports_say_the_same_of_server_model_and_index(triton_http, triton_grpc):
    by_http, by_grpc = triton_http.facts, triton_grpc.facts
    sizes = [tensor.pop("shape") for which in ("inputs", "outputs") for tensor in by_grpc["metadata"][which]]
    again = [tensor.pop("shape") for which in ("inputs", "outputs") for tensor in by_http["metadata"][which]]

    assert by_grpc["server"] == by_http["server"]
    assert by_grpc["metadata"] == by_http["metadata"]
    assert [[int(size) for size in shape] for shape in sizes] == again  # JSON of protobuf writes them as text
    assert by_grpc["index"]["models"][0] == {"name": "tiny", "version": "1.0.0", "state": "READY"}
    assert by_http["index"] == [{"name": "tiny", "version": "1.0.0", "state": "READY", "reason": ""}]


def test_an_id_comes_back_with_the_model_and_its_version(triton_http, triton_grpc, kserve):
    expected = {"id": "a-1", "model_name": "tiny", "model_version": "1.0.0"}

    assert triton_http.facts["response"] == triton_grpc.facts["response"] == expected
    assert kserve.facts["http id"] == kserve.facts["grpc id"] == "k-1"


# Refusals


REFUSALS = {
    "unknown model": ("404", "NOT_FOUND", "no model 'other' is loaded, only tiny"),
    "unknown version": ("404", "NOT_FOUND", "model 'tiny' is loaded in version 1.0.0, not '9'"),
    "unknown input": (
        "400",
        "INVALID_ARGUMENT",
        "expected the inputs readings, lengths, last_cycle, got 'nothing'",
    ),
    "no readings": ("400", "INVALID_ARGUMENT", "expected the input readings"),
    "wrong datatype": ("400", "INVALID_ARGUMENT", "input readings: expected datatype FP32, got 'FP64'"),
    "wrong shape": ("400", "INVALID_ARGUMENT", "input readings: expected shape [-1, -1, 6]"),
    "unknown output": ("400", "INVALID_ARGUMENT", "got 'nothing'"),
    "infinite": ("400", "INVALID_ARGUMENT", "for load, got inf, at [0, 0, 0]"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_tritonclient_shows_why_it_was_refused(triton_http, triton_grpc, case):
    http_code, grpc_code, text = REFUSALS[case]

    assert triton_http.facts[case].startswith(f"[{http_code}] ")
    assert triton_grpc.facts[case].startswith(f"[StatusCode.{grpc_code}] ")
    assert text in triton_http.facts[case]
    assert text in triton_grpc.facts[case]


def test_kserve_shows_why_it_was_refused(kserve):
    status, text = kserve.facts["http unknown model"]
    code, detail = kserve.facts["grpc unknown model"]

    assert (status, code) == (404, "NOT_FOUND")
    assert "no model 'other' is loaded" in text
    assert "no model 'other' is loaded" in detail


def test_an_endpoint_that_is_not_served_is_404_or_unimplemented(triton_http, triton_grpc):
    assert triton_http.facts["no such config"].startswith("[404] no endpoint at")
    for call in ("no such config", "no such statistics"):
        assert triton_grpc.facts[call].startswith("[StatusCode.UNIMPLEMENTED] ")


def test_our_messages_have_the_numbers_and_types_of_the_protocol(triton_grpc):
    theirs = {key: value for fields in triton_grpc.facts["numbers"].values() for key, value in fields.items()}

    ours = fields_of(pb.DESCRIPTOR.message_types_by_name.values())

    assert ours.items() <= theirs.items()
    assert len(ours) > 50


def fields_of(messages):
    found = {}
    for message in messages:
        found |= {f"{message.full_name}.{f.name}": [f.number, f.type, f.label] for f in message.fields}
        found |= fields_of(message.nested_types)
    return found
