"""The web page's models and the figures behind it, in real Chromium with a shipped and a tiny model."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser import desktop, each_look, expecting, screenshot_folder, visit
from tests.integration.conftest import KEY, running
from tests.key_files import key_file
from tests.other_bundles import renamed
from tests.page_fleet import fill, predict, window
from tests.page_unit import lives
from tests.tiny_bundle import pumps

UNITS = 60


@pytest.fixture(scope="module")
def service(tiny_bundle, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    with running(folder, f"{tiny_bundle.path},fd001", workers="2") as started:
        fill(started.http, units=UNITS)
        with started.client() as client:
            for unit in client.get("/v1/units", params={"limit": 10}).json()["units"]:
                outcome = {"kind": "failed", "cycle": unit["last_cycle"] + 2, "model": "tiny"}
                assert client.post(f"/v1/units/{unit['unit']}/outcomes", json=outcome).is_success
        yield started


def monitoring(service, name):
    reply = service.ask("GET", f"/v1/models/{name}/monitoring")
    assert reply.status_code == 200, reply.text
    return reply.json()


@each_look
def test_a_model_is_shown_with_its_card_figures_and_columns(opened):
    opened.go("#/models/tiny")
    page = opened.page
    expect(page.get_by_role("heading", name="Models")).to_be_visible()
    expect(page.get_by_label("Card")).to_contain_text("the last 12 cycles")
    expect(page.locator("[aria-label='Drift'] .badge")).to_have_text(re.compile("Drift|As in training"))
    expect(page.locator("[aria-label='Coverage']")).to_contain_text("predictions of units that failed")
    expect(page.locator("[aria-label='Answers']")).to_contain_text(f"{UNITS * 4} windows")
    expect(page.get_by_role("region", name="Columns")).to_contain_text("bearing_temperature")

    opened.check_fits()
    opened.check_accessible()
    opened.shoot("model-tiny", whole=True)


@each_look
def test_a_model_without_requests_says_that_figures_need_windows(opened):
    opened.go("#/models/fd001")
    expect(opened.page.locator("[aria-label='Drift'] .badge")).to_have_text("Too few readings")
    expect(opened.page.locator("[aria-label='Accuracy']")).to_contain_text("RMSE")

    opened.check_fits()
    opened.check_accessible()
    opened.shoot("model-fd001", whole=True)


@desktop
def test_the_models_are_chosen_by_their_names(opened):
    opened.go("#/models")
    tabs = opened.page.get_by_role("navigation", name="Models")
    tabs.get_by_role("link", name="tiny").click()

    expect(opened.page.get_by_label("Card")).to_contain_text("1.0.0")
    expect(tabs.get_by_role("link", name="tiny")).to_have_attribute("aria-current", "true")


@desktop
def test_a_model_that_is_not_loaded_is_named(opened):
    opened.go("#/models/nothing")

    expect(opened.page.get_by_text("No model nothing is loaded.")).to_be_visible()


def test_monitoring_adds_up_all_workers(service):
    answers = [monitoring(service, "tiny") for _ in range(10)]  # some of each worker

    for found in answers:
        assert found["windows"] == UNITS * 4
        assert sum(found["states"].values()) == UNITS * 4
        assert found["coverage"]["predictions"] == 40
        assert found["coverage"]["coverage"] == found["coverage"]["covered"] / 40
        assert set(found["columns"]) >= {"vibration", "current"}


def test_monitoring_gives_entropy_of_every_head_with_its_band(service):
    heads = monitoring(service, "tiny")["entropy"]

    assert [head["head"] for head in heads] == ["mean", "0", "1", "2", "3", "4"]
    assert all(0 <= head["low"] < head["high"] <= 1.0001 for head in heads)
    assert all(0 <= head["below"] + head["above"] <= 1 for head in heads)


def test_monitoring_of_a_model_without_windows_has_no_means(service):
    found = monitoring(service, "fd001")

    assert found["windows"] == 0
    assert {head["mean"] for head in found["entropy"]} == {None}
    assert found["coverage"]["coverage"] is None


def test_monitoring_of_an_unknown_model_is_not_found(service):
    assert service.ask("GET", "/v1/models/nothing/monitoring").status_code == 404


@desktop
def test_the_column_of_probabilities_has_a_horizon_of_the_listed_models(opened, service):
    with service.client() as client:
        predict(client, [window(0, pumps(units=1, seed=99)[0], 40) | {"unit": "seen-0"}])
        lives(client, "seen-1", seed=5, share=0.2)
        lives(client, "seen-2", seed=6, share=0.2)
        horizons = client.get("/v1/models/fd001").json()["manifest"]["horizons"]
    usual = f"Fails in {horizons[1]}"
    page = opened.page
    opened.go("#/?q=seen-")
    heading = page.get_by_role("columnheader", name="Fails in")
    expect(page.locator(".rows a")).to_have_count(3)

    expect(heading).to_have_text(usual)
    page.get_by_role("button", name="15 cycles").click()
    expect(heading).to_have_text("Fails in 15")
    page.get_by_label("Model", exact=True).select_option("fd001")
    expect(heading).to_have_text(usual)


@desktop
def test_a_small_deviation_of_a_column_is_not_shown_as_none(opened):
    opened.go("#/models/fd001")
    row = opened.page.get_by_role("row").filter(has_text="setting_2")

    expect(row.get_by_role("cell").nth(1)).to_have_text("0.00029")


@desktop
def test_a_column_that_is_constant_in_training_has_no_deviation(opened):
    opened.go("#/models/fd001")
    row = opened.page.get_by_role("row").filter(has_text="setting_3")

    expect(row.get_by_role("cell").nth(1)).to_have_text("0")


@desktop
def test_a_model_that_is_swapped_or_unloaded_is_shown_as_it_serves(browser, look, tiny_bundle, tmp_path):
    newer = renamed(tmp_path / "fd001-v2", "fd003", name="fd001", version="2")
    keys = str(key_file(tmp_path, KEY))
    with (
        running(tmp_path, f"{tiny_bundle.path},fd001", keys_file=keys) as started,
        visit(browser, started.http, look, screenshot_folder(tmp_path), expects="40") as opened,
    ):
        page = opened.page
        page.clock.install()
        opened.go("#/models/fd001")
        page.get_by_role("textbox", name="Key").fill(KEY)
        page.keyboard.press("Enter")
        expect(page.get_by_label("Card")).to_contain_text("FD001")
        expect(page.get_by_label("Drift")).to_be_visible()
        body = {"bundle": str(newer.path)}
        assert started.ask("POST", "/v1/models/fd001", key=KEY, json=body).is_success
        page.clock.fast_forward(11_000)
        expect(page.get_by_label("Card")).to_contain_text("FD003")
        assert started.ask("DELETE", "/v1/models/fd001", key=KEY).is_success
        page.clock.fast_forward(11_000)
        page.get_by_role("button", name="Try again").click()

        expect(page.get_by_text("No model fd001 is loaded.")).to_be_visible()


@desktop
@expecting("503")
def test_figures_that_cannot_be_read_are_said_once(opened):
    page = opened.page
    page.clock.install()
    opened.go("#/models/tiny")
    page.get_by_label("Drift").wait_for()
    page.route("**/monitoring", lambda route: route.fulfill(status=503, json={"title": "Busy"}))
    page.clock.fast_forward(11_000)
    again = page.get_by_role("button", name="Try again")
    again.focus()
    with page.expect_response("**/monitoring"):
        page.clock.fast_forward(11_000)

    expect(again).to_be_focused()
