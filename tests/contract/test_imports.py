"""Who may import whom, and what serving must never load."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "onnx", "pandas", "matplotlib", "scipy"}


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_import_rules_are_kept():
    lint = Path(sys.executable).with_name("lint-imports")

    done = subprocess.run([str(lint), "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "module", ["service.app", "service.envoy", "service.processes.front_end", "service.cli"]
)
def test_serving_loads_nothing_of_training(module):
    loaded = set(run(f"import sys, {module}; print(*{{m.partition('.')[0] for m in sys.modules}})").split())

    assert module.partition(".")[0] in loaded
    assert loaded & HEAVY == set()


def test_what_stays_beside_envoy_does_without_onnxruntime_and_bentoml():
    loaded = run("import sys, service.processes.front_end; print(*sys.modules)").split()

    assert {"onnxruntime", "bentoml"}.isdisjoint(loaded)


def test_a_worker_behind_envoy_does_without_bentoml():
    assert "bentoml" not in run("import sys, service.envoy; print(*sys.modules)").split()


def test_a_store_in_sqlite_does_without_the_dialect_of_postgresql():
    loaded = run("import sys, service.store.store; print(*sys.modules)").split()

    assert "sqlalchemy.dialects.postgresql" not in loaded


@pytest.mark.parametrize("module", ["service.envoy", "service.app"])
def test_importing_the_application_starts_nothing(module):
    code = f"import threading, {module}; print(threading.active_count(), {module}.HOST.parts)"

    assert run(code).split() == ["1", "None"]


def test_every_benchmark_and_every_hostile_run_can_be_imported():
    files = [file for folder in ("benchmarks", "hostile") for file in (ROOT / "tests" / folder).glob("*.py")]
    modules = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]

    done = run(f"import importlib\nfor name in {modules!r}: importlib.import_module(name)\nprint('all')")

    assert done.split() == ["all"]
