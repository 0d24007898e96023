"""The web page with 10,000 units: a first view at once, few rows in the document, the rest by scrolling."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser import desktop, each_look
from tests.integration.conftest import running
from tests.page_fleet import fill

UNITS = 10_000
DEEP = 1000
"""A row that is reached by scrolling."""


@pytest.fixture(scope="module")
def service(tiny_bundle, tmp_path_factory):
    folder = tmp_path_factory.mktemp("large")
    with running(folder, str(tiny_bundle.path), max_request_windows="500", costs="1:10") as started:
        fill(started.http, units=UNITS, earlier=(0,))
        yield started


@each_look
def test_ten_thousand_units_are_counted_shown_and_scrolled(opened):
    page = opened.page
    opened.go("#/")
    rows = page.locator(".rows [role=row]")
    rows.first.wait_for()
    expect(page.locator(".count")).to_contain_text(f"{UNITS:,} units")
    deep = page.locator(f'.rows [aria-rowindex="{DEEP}"]')
    while not deep.count():
        page.mouse.wheel(0, 20 * opened.look.height)
        page.wait_for_function("document.querySelector('.rows [role=row]')")

    expect(deep).to_be_visible()
    assert rows.count() < 60
    opened.shoot("large")
    page.get_by_label("Search units by name").fill("pump-9999")
    expect(rows).to_have_count(1)


@desktop
def test_a_list_that_is_read_again_keeps_the_readers_place(opened):
    page = opened.page
    opened.go("#/")
    deep = page.locator('.rows [aria-rowindex="1300"]')
    page.locator(".rows [role=row]").first.wait_for()
    page.wait_for_function(
        "() => (scrollTo(0, 1300 * 48), document.querySelector('.rows [aria-rowindex=\"1300\"]'))"
    )
    deep.scroll_into_view_if_needed()
    place = page.evaluate("scrollY")
    name = deep.locator("a").inner_text()
    pause = page.locator(".toolbar").get_by_role("button", name=re.compile("Pause|Resume"))
    pause.dispatch_event("click")
    with page.expect_response(re.compile("after=")):
        pause.dispatch_event("click")

    expect(deep.locator("a")).to_have_text(name)
    expect(deep).to_be_in_viewport()
    assert page.evaluate("scrollY") == place


@desktop
def test_going_back_from_a_unit_returns_to_its_place_in_the_list(opened):
    page = opened.page
    opened.go("#/?q=pump-1")
    page.locator(".rows [role=row]").first.wait_for()
    page.wait_for_function(
        "() => (scrollTo(0, 700 * 48), document.querySelector('.rows [aria-rowindex=\"705\"]'))"
    )
    deep = page.locator('.rows [aria-rowindex="705"] a')
    place, name = page.evaluate("scrollY"), deep.inner_text()
    deep.click()
    expect(page.locator(".unit-head h1")).to_have_text(f"Unit {name}")
    page.go_back()

    expect(deep).to_have_text(name)
    expect(deep).to_be_focused()
    assert page.evaluate("scrollY") == place
    page.get_by_role("navigation").get_by_role("link", name="Fleet").click()
    expect(page.locator(".rows [aria-rowindex='2']")).to_be_in_viewport()
    assert page.evaluate("scrollY") == 0
