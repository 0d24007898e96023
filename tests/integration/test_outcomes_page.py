"""docs/outcomes.md is true: its commands run against a real service, and answer as the page says."""

import json
import re
import sqlite3
import stat
import tomllib
from contextlib import closing

import httpx
import pytest

from export.bundle import find_bundle
from export.seal import read_bundle
from service.settings import PREFIX, Settings
from tests.asking import golden_windows
from tests.integration.conftest import metric, metrics_of, running
from tests.programs import ROOT, bash_blocks, pasted
from tests.waiting import wait_until

PAGE = ROOT / "docs" / "outcomes.md"
FEED, REPORT, TRAIN, BACKUP, RESTORE, _ = bash_blocks(PAGE)
SECONDS = 60


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outcomes")
    with running(folder, "fd001", workers="2") as started:
        windows = golden_windows(read_bundle(find_bundle("fd001")).golden)
        known = next(window.json() for window in windows if window.last_cycle is not None)
        asked = [known | {"unit": unit, "last_cycle": 120} for unit in ("17", "18", "19")]
        with httpx.Client(base_url=started.http, trust_env=False, timeout=SECONDS) as http:
            assert http.post("/v1/predict", json={"model": "fd001", "windows": asked}).status_code == 200
            # An outcome that the other worker takes waits a second at most for predictions of this one.
            wait_until(lambda: len(http.get("/v1/units").json()["units"]) == 3, SECONDS, what="three units")
        yield started


def typed(text, service):
    folder = service.log.parent
    return pasted(
        text.replace("http://localhost:3000", service.http), folder, XDG_STATE_HOME=str(folder / "state")
    )


def documents(text):
    """The JSON documents that stand one after the other."""
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        document, at = decoder.raw_decode(text, at)
        yield document


def test_the_commands_of_the_page_answer_as_it_says(service):
    failed, removed, fleet, unit = documents(typed(FEED, service))

    assert [failed["result"], removed["result"]] == ["created", "created"]
    assert failed["predictions"][0]["truth"] == 72.0
    assert "error" in failed["predictions"][0]
    assert "error" not in removed["predictions"][0]
    assert [found["unit"] for found in fleet["units"]] == ["19"]
    assert unit["outcome"]["cycle"] == 192
    again, *_ = documents(typed(FEED, service))
    assert again["result"] == "unchanged"
    assert again["predictions"] == failed["predictions"]

    reported = typed(REPORT.replace("postgresql://rul@db/rul", store_of(service)), service)
    rows = [line.split(",") for line in reported.splitlines() if line.startswith("fd001,")]
    assert [row[2:5] for row in rows] == [["1", "1", "2"]] * 2
    # A worker that is not scraped shows what it has counted a moment later.
    wait_until(lambda: metric(service, "rul_coverage_trials_total") >= 1, SECONDS, what="the counts")
    assert metric(service, "rul_outcomes_total", kind="failed") == 1
    assert metric(service, "rul_coverage_trials_total", model="fd001") == 1


def store_of(service):
    return f"sqlite:///{service.log.parent}/state/rulserve/rulserve.db"


def test_stored_readings_and_failures_become_a_file_and_the_fleet_that_trains_on_it(service):
    body = {
        "model": "fd001",
        "cycles": [191, 192],
        "columns": {"sensor_2": [643.5, 644.0], "sensor_3": [1601.2, 1602.9]},
        "store": False,
    }
    for unit in ("17", "19"):
        assert service.ask("POST", f"/v1/units/{unit}/cycles", json=body).status_code == 200

    typed(TRAIN.replace("rul trajectories", f"rul trajectories --store {store_of(service)}"), service)

    header, *rows = (service.log.parent / "units.csv").read_text("utf-8").splitlines()
    assert header.startswith("unit,cycle,failed,setting_1")
    assert [row[:9] for row in rows] == ["17,191,0,", "17,192,1,", "19,191,0,", "19,192,0,"]
    failure = tomllib.loads((service.log.parent / "engines.toml").read_text("utf-8"))["failure"]
    assert failure == {"column": "failed", "at_least": 1.0}


def test_a_copy_of_a_store_in_use_is_restored_by_the_commands_of_the_page(service, tmp_path):
    store = store_of(service).removeprefix("sqlite:///")
    restored = tmp_path / "rulserve.db"
    restored.write_bytes(b"another file")

    of_sqlite, _ = BACKUP.split("pg_dump")
    said = pasted(of_sqlite.replace("$HOME/.local/state/rulserve/rulserve.db", store), tmp_path)
    (copy,) = tmp_path.glob("copy-*.db")
    assert said == "ok\n"
    pasted(RESTORE.splitlines()[0].replace("copy-2026-01-31.db", copy.name), tmp_path, store=str(restored))

    with closing(sqlite3.connect(restored)) as connection:
        assert connection.execute("SELECT count(*) FROM predictions").fetchone() == (3,)
    assert stat.S_IMODE(restored.stat().st_mode) == 0o600


def test_every_metric_and_setting_that_the_page_names_exists(service):
    text = PAGE.read_text("utf-8")
    known = {name for name, _ in metrics_of(service)}
    named = set(re.findall(r"`(rul_[a-z_]+)", text))

    assert {name for name in named if name not in known and f"{name}_count" not in known} == set()
    settings = {f"{PREFIX}{field}".upper() for field in Settings.model_fields}
    assert set(re.findall(rf"\b{PREFIX}[A-Z_]*[A-Z]\b", text)) <= settings
