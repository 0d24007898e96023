"""The web page's changes of units, in real Chromium on a real service: outcomes, new names, deletions."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser import desktop, each_look, expecting
from tests.page_unit import lives, show

SECONDS = 60


@pytest.fixture(scope="module")
def http(service):
    with service.client(timeout=SECONDS) as client:
        lives(client, "worn", seed=7, share=0.8)
        yield client


@each_look
def test_an_outcome_is_reported_after_a_question_and_can_be_corrected(opened, http):
    unit = f"ending-{opened.look.width}"
    lives(http, unit, seed=5, share=0.9)
    page = show(opened, unit)
    page.get_by_role("button", name="Report outcome").click()
    dialog = page.get_by_role("dialog")
    opened.check_accessible()
    opened.shoot("unit-outcome")
    dialog.get_by_role("button", name="Cancel").click()
    assert http.get(f"/v1/units/{unit}?model=fd001").json()["outcome"] is None
    page.get_by_role("button", name="Report outcome").click()
    dialog.get_by_label("It was removed").check()
    dialog.get_by_role("button", name="Report").click()

    expect(page.get_by_text(re.compile("Removed at cycle"))).to_be_visible()
    page.get_by_role("button", name="Correct outcome").click()
    dialog.get_by_label("It failed").check()
    dialog.get_by_role("button", name="Correct").click()
    expect(page.get_by_text(re.compile("Failed at cycle"))).to_be_visible()
    assert http.get(f"/v1/units/{unit}?model=fd001").json()["outcome"]["kind"] == "failed"


@desktop
def test_a_unit_is_renamed_and_deleted_behind_a_menu(opened, http):
    lives(http, "misspelt", seed=5, share=0.4)
    page = show(opened, "misspelt")
    page.get_by_label("More").click()
    opened.check_accessible()
    page.get_by_role("heading", level=1).click()
    expect(page.get_by_role("button", name="Rename")).to_be_hidden()
    page.get_by_label("More").click()
    page.get_by_role("button", name="Rename").click()
    page.get_by_label("New name").fill("well spelt")
    page.get_by_role("dialog").get_by_role("button", name="Rename").click()
    expect(page.get_by_role("heading", name="Unit well spelt")).to_be_visible()
    page.get_by_label("More").click()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()

    expect(page.get_by_role("heading", name="Fleet")).to_be_visible()
    assert http.get("/v1/units/well%20spelt?model=fd001").status_code == 404


@desktop
@expecting("409")
def test_the_dialog_shows_a_refusal(opened, http):
    lives(http, "first", seed=5, share=0.2)
    page = show(opened, "first")
    page.get_by_label("More").click()
    page.get_by_role("button", name="Rename").click()
    page.get_by_label("New name").fill("worn")
    page.get_by_role("dialog").get_by_role("button", name="Rename").click()

    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("worn")


@desktop
@pytest.mark.parametrize("keys", [["Escape"], ["Shift+Tab", "Shift+Tab"], ["Tab", "Tab", "Tab"]])
def test_the_menu_closes_by_escape_and_when_focus_leaves(http, opened, keys):
    page = show(opened, "worn")
    page.get_by_label("More").press("Enter")
    rename = page.get_by_role("button", name="Rename")
    expect(rename).to_be_visible()
    for key in keys:
        page.keyboard.press(key)

    expect(rename).to_be_hidden()


@desktop
def test_a_name_is_text_and_never_markup(opened, http):
    name = "<img src=x onerror=alert(1)>/a b"
    lives(http, name, seed=5, share=0.2)
    page = show(opened, name)

    expect(page.get_by_role("heading", level=1)).to_have_text(f"Unit {name}")
    expect(page.locator("main img")).to_have_count(0)
