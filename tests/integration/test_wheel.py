"""The built wheel, without the source tree, serves from any folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from service.settings import Settings
from tests.environments import borrowing_environment
from tests.integration.conftest import running

ROOT = Path(__file__).parents[2]
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
SECONDS = 300


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([*PIP, "wheel", "--no-deps", "--wheel-dir", folder, ROOT], check=True, timeout=SECONDS)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory) -> Path:
    folder = borrowing_environment(tmp_path_factory.mktemp("environment"))
    python = str(folder / "bin/python")
    subprocess.run([*PIP, "--python", python, "install", "--no-deps", wheel], check=True, timeout=SECONDS)
    return folder


def test_the_wheel_holds_types_bundles_and_the_page_and_no_tests(wheel):
    names = ZipFile(wheel).namelist()

    folders = {name.partition("/")[0] for name in names}
    assert {f"{package}/py.typed" for package in ("model", "export", "service", "rul_client")} <= set(names)
    assert {"export/bundles/fd001/model.onnx", "service/page/index.html"} <= set(names)
    assert {"service/page/vendor/uPlot.LICENSE", "service/page/vendor/uPlot.iife.min.js"} <= set(names)
    assert {folder for folder in folders if not folder.endswith(".dist-info")} == {
        "model", "export", "service", "rul_client",
    }  # fmt: skip


@pytest.mark.usefixtures("no_settings")
def test_an_installed_wheel_serves_every_shipped_bundle_from_any_folder(environment, tmp_path):
    code = "import service.app; print(service.app.__file__)"
    found = subprocess.run(
        [environment / "bin/python", "-c", code],
        cwd=tmp_path, capture_output=True, text=True, check=True, timeout=SECONDS,
    ).stdout  # fmt: skip

    with running(tmp_path, "", command=[str(environment / "bin/rul"), "serve"]) as server:
        models = server.ask("GET", "/v1/models").json()["models"]

    assert Path(found.strip()).is_relative_to(environment)
    shipped = [Path(folder).name for folder in Settings().bundle_names()]
    assert sorted(model["name"] for model in models) == shipped
