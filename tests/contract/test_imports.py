"""Who may import whom, and what serving must never load."""

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.environments import clean_environment

ROOT = Path(__file__).parents[2]
TRAINING = {"torch", "onnx", "pandas", "matplotlib", "scipy"}


@cache
def imported(module: str) -> list[str]:
    """Return what a process has that imports only this module: its threads, its host's parts, its modules."""
    host = f"getattr({module}, 'HOST', None)"
    code = f"import sys, threading, {module}\nprint(threading.active_count(), getattr({host}, 'parts', None))"
    return run(f"{code}\nprint(*sys.modules)").split()


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_import_rules_are_kept():
    lint = Path(sys.executable).with_name("lint-imports")

    done = subprocess.run([str(lint), "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("service.app", TRAINING),
        ("service.envoy", TRAINING | {"bentoml", "grpc"}),
        ("service.processes.front_end", TRAINING | {"bentoml", "grpc", "onnxruntime"}),
        ("service.cli", TRAINING | {"aiohttp", "grpc", "httpx", "onnxruntime", "pyarrow"}),
        ("service.store.store", {"sqlalchemy.dialects.postgresql"}),
    ],
)
def test_a_module_loads_nothing_that_it_does_without(module, heavy):
    loaded = set(imported(module))

    assert module in loaded
    assert loaded & heavy == set()


@pytest.mark.parametrize("module", ["service.envoy", "service.app"])
def test_importing_the_application_starts_nothing(module):
    assert imported(module)[:2] == ["1", "None"]


@pytest.mark.parametrize("module", ["service.core.session", "export.session"])
def test_onnx_runtime_is_loaded_without_its_telemetry(module, tmp_path):
    environment = clean_environment(HOME=str(tmp_path), XDG_CACHE_HOME=str(tmp_path))
    environment.pop("ORT_DISABLE_TELEMETRY", None)  # this process may have set it

    subprocess.run([sys.executable, "-c", f"import {module}"], cwd=ROOT, env=environment, check=True)

    assert not list(tmp_path.iterdir())


def test_every_benchmark_and_every_hostile_run_can_be_imported():
    files = [file for folder in ("benchmarks", "hostile") for file in (ROOT / "tests" / folder).glob("*.py")]
    modules = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]

    done = run(f"import importlib\nfor name in {modules!r}: importlib.import_module(name)\nprint('all')")

    assert done.split() == ["all"]
