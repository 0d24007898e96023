"""The README is true: every block in it runs, in a fresh copy of the project, as a user would paste it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.environments import clean_environment
from tests.golden.comparison import differences
from tests.integration.conftest import free_port
from tests.programs import compose
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)
BASH = [text for language, text in BLOCKS if language == "bash"]
SHOWN = [text for language, text in BLOCKS if language == "json"]
ANOTHER_PROCESSOR = 2e-3
"""Of the figures in an answer."""
SERVE, DEV = "source .venv/serve/bin/activate\n", "source .venv/dev/bin/activate\n"
HEAD, TAIL = 2, 1  # of a list that is cut short
INSTALL_SECONDS, RUN_SECONDS = 900, 300


def block(start: str) -> str:
    found = [text for text in BASH if text.startswith(start)]
    assert len(found) == 1, f"the README has {len(found)} blocks that start with {start!r}"
    return found[0]


def cut_short(value: Any) -> Any:
    """An answer as the README shows it."""
    if isinstance(value, dict):
        return {key: value[key][:8] + "…" if key == "sha256" else cut_short(value[key]) for key in value}
    if isinstance(value, list) and len(value) > HEAD + TAIL:
        return [*map(cut_short, value[:HEAD]), "…", *map(cut_short, value[-TAIL:])]
    if isinstance(value, list):
        return [cut_short(item) for item in value]
    return round(value, 4) if isinstance(value, float) else value


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """What a clone of the working tree holds: no environment, no data, nothing that git ignores."""
    folder = tmp_path_factory.mktemp("clone")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT, capture_output=True, check=True, text=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def shell_environment(folder: Path) -> dict[str, str]:
    """A shell outside this test's own environment."""
    kept = {name: value for name, value in clean_environment().items() if not name.startswith("VIRTUAL_ENV")}
    here = str(Path(sys.executable).parent)
    kept["PATH"] = os.pathsep.join(part for part in kept["PATH"].split(os.pathsep) if part != here)
    # Predictions are kept in the state folder of whoever serves: here it is one that nobody misses.
    return kept | {"BENTOML_DO_NOT_TRACK": "true", "XDG_STATE_HOME": tempfile.mkdtemp(dir=folder)}


@pytest.fixture(scope="module")
def served(copy) -> Iterator[int]:
    """`make serve` in the copy, on a port that is free; the port."""
    port = free_port()
    base = getattr(sys, "_base_executable", sys.executable)
    command = ["make", "serve", f"PORT={port}", f"PYTHON={base}", "ACCELERATOR=cpu"]
    with running(command, copy, port, log="serve.log"):
        yield port


@contextmanager
def running(command: list[str], copy: Path, port: int, *, log: str) -> Generator[None, None, None]:
    """A service, from when it is ready until it is told to end."""
    with (copy / log).open("wb") as sink:
        process = subprocess.Popen(
            command, cwd=copy, stdout=sink, stderr=subprocess.STDOUT, env=shell_environment(copy),
            start_new_session=True,
        )  # fmt: skip

    # One client: each would read the certificates of the machine anew.
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False)

    def ready() -> bool:
        assert process.poll() is None, f"{command} ended:\n{(copy / log).read_text()}"
        return client.get("/readyz").is_success

    try:
        with client:
            wait_until(ready, INSTALL_SECONDS, what=f"readiness of {command}")
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


def pasted(text: str, copy: Path, port: int) -> str:
    """What a block prints when it is pasted into a shell in the project's folder."""
    text = text.replace("localhost:3000", f"localhost:{port}")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=copy, env=shell_environment(copy),
        capture_output=True, text=True, timeout=RUN_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{text}\nended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_make_serve_needs_no_torch(copy, served):
    installed = subprocess.run(
        [copy / ".venv/serve/bin/pip", "list", "--format=json"], capture_output=True, check=True, text=True
    ).stdout

    names = {package["name"].lower() for package in json.loads(installed)}

    assert "onnxruntime" in names
    assert names.isdisjoint({"torch", "onnx", "pandas", "matplotlib"})


@pytest.fixture(scope="module")
def paste(copy, served) -> Callable[[str], str]:
    """Run the block for a client that starts so; return what it prints."""
    return lambda start: pasted(block(SERVE + start), copy, served)


@pytest.fixture(scope="module")
def answer(paste) -> dict[str, Any]:
    """The answer to the HTTP call; its request stays in request.json."""
    return json.loads(paste("rul simulate --bundle fd001 --units 1 --truncate --seed 6 --format"))


def test_the_http_call_returns_the_answer_that_is_shown(copy, answer):
    attention = answer["predictions"][0]["attention"]
    last = json.loads((copy / "request.json").read_text())["windows"][0]["last_cycle"]
    assert sum(attention["weights"]) == pytest.approx(1, abs=1e-5)
    assert attention["cycles"] == list(range(last - len(attention["cycles"]) + 1, last + 1))
    got = cut_short(answer)
    found = differences(got, json.loads(SHOWN[0]), tolerance=ANOTHER_PROCESSOR)
    assert found == [], f"show this:\n{json.dumps(got, indent=2, ensure_ascii=False)}"


def test_readings_are_kept_explained_and_decided_on(paste):
    printed = paste("rul simulate --bundle fd001 --units 1 --truncate --seed 6 |")

    stored, explained, decided = (json.loads(line) for line in printed.replace("}{", "}\n{").splitlines())
    assert stored["stored"] == stored["last_cycle"] == decided["last_cycle"]
    assert explained["prediction"]["rul"] == pytest.approx(stored["prediction"]["rul"], abs=1e-4)
    assert explained["prediction"]["explanation"]["sentence"]
    assert decided["decision"]["act_in_cycles"] >= 0


def test_the_client_prints_the_output_shown_in_the_readme(paste):
    printed = paste("rul simulate --bundle fd001 --units 3")

    assert printed == next(text for language, text in BLOCKS if language == "text")


@pytest.mark.usefixtures("answer")
@pytest.mark.parametrize(
    ("start", "said"),
    [
        ("python - <<'PYTHON'", ["{rul:.1f} cycles left", "weights sum to 1.0000"]),
        ("python - <<'STREAM'", ["\nunit 1: {rul:.1f} cycles left\nEND"]),
        ("pip install", ["STARTreadings [-1, -1, ", ": {rul:.1f} cycles left ({interval[lower]:.1f} to"]),
    ],
    ids=["gRPC", "a stream", "tritonclient"],
)
def test_other_calls_answer_the_same(paste, start, said):
    printed = paste(start)

    shown = json.loads(SHOWN[0])["predictions"][0]
    for text in said:
        assert text.format(**shown) in f"START{printed}END"


def test_the_shell_commands_give_the_same_table_here_and_by_the_service(paste):
    printed = paste("rul simulate --bundle fd001 --units 5")

    rows = [line.split(",") for line in printed.splitlines() if re.match(r"^\d+,", line)]
    here, by_the_service = rows[:5], rows[5:]
    assert len(here) == len(by_the_service) == 5
    for one, other in zip(chain(*here), chain(*by_the_service), strict=True):
        # Batches of other sizes differ in the last bit of a float32, which five decimals show.
        assert one == other or float(other) == pytest.approx(float(one), rel=1e-6, abs=2e-5)


@pytest.fixture(scope="module")
def walked_through(copy) -> str:
    """What training on a fleet of one's own prints."""
    (copy / ".venv").mkdir(exist_ok=True)
    # What `make setup` makes is what runs this test: it is not made twice.
    (copy / ".venv/dev").symlink_to(Path(sys.executable).parents[1], target_is_directory=True)
    return pasted(block("make setup").replace("make setup\n", ""), copy, 0)


def test_the_readers_own_fleet_trains_exports_and_passes_its_check(copy, walked_through):
    assert "RMSE" in walked_through
    assert (copy / "bundles/pumps/model.onnx").is_file()


def test_the_readers_own_fleet_is_served_and_predicts_its_file_unchanged(copy, walked_through):
    command = "rul serve --bundle bundles/pumps"
    assert f"`{command}`" in README
    port = free_port()

    arguments = [*f".venv/dev/bin/{command}".split(), f"--port={port}"]
    with running(arguments, copy, port, log="pumps.log"):
        printed = pasted(block(DEV + "rul predict"), copy, port)

    rows = [line for line in printed.splitlines() if re.match(r"^P-\d{3},", line)]
    assert len(rows) == 30


@pytest.mark.system
def test_the_compose_file_is_accepted(copy):
    command = " ".join(compose())

    pasted(block("docker compose config").replace("docker compose", command), copy, 0)


def test_every_block_of_the_readme_is_run_by_a_test():
    run_here = (
        "make serve", "make test", "make setup", "docker compose config",
        *(f"{SERVE}rul simulate --bundle fd001 --units {units}" for units in (1, 3, 5)),
        f"{SERVE}python", f"{SERVE}pip install", f"{DEV}rul predict",
    )  # fmt: skip

    assert [text for text in BASH if not text.startswith(run_here)] == []
    assert sorted(language for language, _ in BLOCKS if language != "bash") == ["json", "text"]
