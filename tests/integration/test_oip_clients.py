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

import httpx
import numpy as np
import pytest

from tests.integration.conftest import ANSWER_SECONDS

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
        folder / "asked.npz",
        readings=golden.readings,
        lengths=golden.lengths,
        last_cycle=golden.last_cycle,
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
def native(server, windows) -> list[dict[str, Any]]:
    """What `POST /v1/predict` says to the same windows."""
    body = {"windows": [window.json() for window in windows]}
    reply = httpx.post(server.http + "/v1/predict", json=body, timeout=ANSWER_SECONDS, trust_env=False)
    return reply.raise_for_status().json()["predictions"]


@pytest.fixture(scope="session")
def triton_http(clients_python, server, golden, tmp_path_factory) -> Told:
    folder = tmp_path_factory.mktemp("triton-http")
    return tour(clients_python, "triton_http.py", server.http.removeprefix("http://"), folder, golden)


def assert_same_numbers(answer, predictions):
    """Every output that came, against the native answer to the same windows."""
    close = pytest.approx
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


@pytest.mark.parametrize(
    "way", ["binary", "json", "mixed", "version", "gzip", "deflate", "parameters", "async 3"]
)
def test_tritonclient_gets_the_numbers_of_the_native_api_by_http(triton_http, native, way):
    assert_same_numbers(triton_http.answers[way], native)
