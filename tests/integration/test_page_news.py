"""The web page when time passes: old answers, lost connections, changes of colleagues, keys that end."""

from __future__ import annotations

import re
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from time import monotonic

import pytest
from playwright.sync_api import expect

from service.edge.keys import GRANTABLE, add_key, revoke_key
from tests.browser import desktop, each_look, expecting, screenshot_folder, visit
from tests.integration.conftest import running
from tests.page_fleet import HEARD
from tests.page_unit import falls_silent, lives, read_on, refused_readings, show

SECONDS = 60


@pytest.fixture(scope="module")
def http(service):
    with service.client(timeout=SECONDS) as client:
        yield client


@each_look
@expecting("422")
def test_nothing_is_counted_from_an_answer_that_later_readings_have_not(opened, http, look):
    unit = f"refused-{look}"
    last = falls_silent(http, unit, seed=5, share=0.4, refused=60)
    page = show(opened, unit)

    heading = f"Cycles left, as answered at cycle {last}, 60 cycles ago"
    expect(page.get_by_role("heading", name=heading)).to_be_visible()
    expect(page.get_by_role("heading", name="Fails within")).to_have_count(0)
    expect(page.get_by_role("region", name="When to act")).to_have_count(0)
    opened.check_fits()
    opened.check_accessible()
    opened.shoot("unit-refused")


@desktop
def test_the_age_of_a_units_answer_grows(opened, http):
    lives(http, "ageing", seed=5, share=0.3)
    opened.set_service_clock()
    opened.page.clock.install()
    page = show(opened, "ageing")
    opened.page.clock.fast_forward(120_000)

    expect(page.locator(".unit-head")).to_contain_text("answered 2 min ago")


@desktop
def test_ages_are_by_the_clock_of_the_service_if_the_readers_is_wrong(opened, http):
    lives(http, "in-time", seed=5, share=0.3)
    opened.page.clock.install(time=datetime.now(UTC) + timedelta(hours=3))
    opened.go("#/?q=in-time")

    expect(opened.page.locator(".rows time")).to_have_text(re.compile(r"^\d+ s$"))


@desktop
def test_the_list_says_by_itself_that_readings_are_not_answered(opened, http):
    lives(http, "quiet", seed=5, share=0.4)
    opened.go("#/?q=quiet")
    row = opened.page.locator(".rows [role=row]")
    expect(row).to_have_count(1)
    last = refused_readings(http, "quiet", refused=60)

    expect(row.locator(".stale")).to_have_text(f"not answered since cycle {last}")


@contextmanager
def cut_off(opened):
    """The page's event stream is silent for longer than it may, and cannot be opened again."""
    page = opened.page
    expect(page.locator("#live")).to_have_text("Live")
    page.route("**/v1/events", lambda route: route.abort())
    page.clock.fast_forward(41_000)
    expect(page.locator("#live")).to_have_text("Connecting")
    yield
    page.unroute("**/v1/events")
    expect(page.locator("#live")).to_have_text("Live")


@desktop
@expecting("ERR_FAILED")
def test_a_silent_event_stream_is_opened_again(opened, http):
    lives(http, "heard", seed=5, share=0.3)
    opened.page.clock.install()
    opened.go("#/")

    with cut_off(opened):
        opened.shoot("silent")


@desktop
def test_an_event_stream_that_ends_at_once_is_opened_again_later_each_time(opened):
    page, times = opened.page, []

    def end(route):
        times.append(monotonic())
        route.fulfill(content_type="text/event-stream", body=": open\n\n")

    page.route("**/v1/events", end)
    opened.go("#/models")
    page.locator(".model-card").wait_for()
    opened.go("#/")
    for _ in range(3):
        page.wait_for_event("requestfinished", lambda request: request.url.endswith("/v1/events"))

    first, second, third = times[:3]  # a busy machine only adds to what is between them
    assert second - first > 0.9
    assert third - second > 1.9


@desktop
def test_an_answer_that_does_not_come_is_not_waited_for_without_end(opened):
    page = opened.page
    opened.go("#/models")
    page.locator(".model-card").wait_for()
    page.evaluate("import('/page/api.js').then(({ limits }) => (limits.answer = 0.2))")
    page.route("**/v1/units/*", lambda route: None)
    opened.go("#/unit/fd001/late")

    expect(page.get_by_role("alert")).to_contain_text("No connection")


@desktop
@expecting("ERR_FAILED")
def test_a_unit_shows_the_readings_that_came_while_the_event_stream_was_closed(opened, http):
    lives(http, "missed", seed=5, share=0.3)
    opened.page.clock.install()
    page = show(opened, "missed")
    expect(page.locator(".unit-head")).to_contain_text("Cycle 68 ")

    with cut_off(opened), http.stream("GET", "/v1/events") as events:
        lines = events.iter_lines()
        next(lines)
        read_on(http, "missed", seed=5)
        assert any("missed" in line for line in lines)

    expect(page.locator(".unit-head")).to_contain_text("Cycle 69 ")


@desktop
@expecting("503")
def test_a_unit_that_once_could_not_be_read_again_stays_and_says_so(opened, http):
    lives(http, "steady", seed=5, share=0.3)
    page = show(opened, "steady")
    expect(page.locator("#live")).to_have_text("Live")
    page.route(
        "**/v1/units/steady?*limit=1000", lambda route: route.fulfill(status=503, json={"title": "Busy"})
    )
    read_on(http, "steady", seed=5)
    notice = page.locator("main").get_by_role("status").filter(has_text="could not be read again: Busy")
    expect(notice).to_be_visible()
    expect(page.locator(".life")).to_be_visible()
    page.unroute("**/v1/units/steady?*limit=1000")
    notice.get_by_role("button", name="Try again").click()

    expect(page.locator(".unit-head")).to_contain_text("Cycle 69 ")
    expect(notice).to_be_hidden()


@desktop
def test_an_outcome_that_a_colleague_reports_appears_by_itself(opened, http):
    lives(http, "shared", seed=5, share=0.3)
    opened.page.clock.install()
    page = show(opened, "shared")
    outcome = {"model": "fd001", "kind": "failed", "cycle": 70}
    http.post("/v1/units/shared/outcomes", json=outcome).raise_for_status()
    page.clock.fast_forward(11_000)

    expect(page.get_by_text("Failed at cycle 70.")).to_be_visible()
    expect(page.get_by_role("region", name="When to act")).to_have_count(0)


@desktop
@expecting("422")
def test_a_unit_whose_last_readings_have_no_answer_is_not_read_again_without_a_change(opened, http):
    falls_silent(http, "still", seed=5, share=0.4, refused=60)
    opened.page.clock.install()
    page = show(opened, "still")
    asked = []
    page.on("request", lambda request: asked.append(request.url))

    for _ in range(2):
        with page.expect_response(re.compile("limit=1$")):
            page.clock.fast_forward(11_000)

    assert [url for url in asked if "limit=1000" in url] == []


@desktop
def test_a_renamed_unit_changes_its_name_in_the_list(opened, http):
    lives(http, "old-name", seed=5, share=0.3)
    page = opened.page
    page.clock.install()
    opened.go("#/?q=-name")
    names = page.locator(".rows a")
    expect(names).to_have_text(["old-name"])
    http.post("/v1/units/old-name/rename", json={"model": "fd001", "to": "new-name"}).raise_for_status()
    page.clock.fast_forward(11_000)

    expect(names).to_have_text(["new-name"])


@desktop
def test_a_page_whose_key_has_ended_says_since_when_it_is_old(browser, look, tmp_path):
    file = tmp_path / "keys.toml"
    file.touch()
    tool, screen = add_key(file, "tool", GRANTABLE), add_key(file, "screen", ["predict"])
    with (
        running(tmp_path, "fd001", keys_file=str(file)) as started,
        started.client(timeout=SECONDS, headers={"x-api-key": tool}) as http,
        visit(browser, started.http, look, screenshot_folder(tmp_path), expects="401") as opened,
    ):
        lives(http, "kept", seed=5, share=0.3)
        page = opened.page
        opened.go("#/")
        page.get_by_role("textbox", name="Key").fill(screen)
        page.keyboard.press("Enter")
        expect(page.locator("#live")).to_have_text("Live")
        revoke_key(file, "screen")
        page.get_by_role("button", name="Cancel").click()

        expect(page.locator("#stale")).to_have_text(
            re.compile(r"Not updated since \d\d:\d\d: the API key is not valid\.")
        )
        expect(page.locator(".rows a")).to_have_text("kept")
        opened.check_accessible()
        opened.shoot("key-ended")
        page.get_by_role("button", name="Try again").click()
        page.get_by_role("textbox", name="Key").fill(tool)
        page.keyboard.press("Enter")
        expect(page.locator("#live")).to_have_text("Live")
        expect(page.locator("#stale")).to_be_hidden()


@desktop
def test_the_summary_counts_on_while_no_unit_matches_the_filter(opened, http):
    lives(http, "count-1", seed=5, share=0.3)
    page = opened.page
    page.clock.install()
    opened.go("#/?q=count-&state=critical")
    units = page.locator(".states .title")
    expect(page.get_by_text("No unit matches")).to_be_visible()
    expect(units).to_have_text("Units1")
    lives(http, "count-2", seed=5, share=0.3)
    with http.stream("GET", "/v1/events") as events:
        lines = events.iter_lines()
        next(lines)
        read_on(http, "count-2", seed=5)
        assert any("count-2" in line for line in lines)
    page.clock.fast_forward(11_000)

    expect(units).to_have_text("Units2")


@desktop
@expecting("503")
def test_an_event_does_not_pass_for_a_list_that_could_not_be_read(opened, http):
    lives(http, "lonely", seed=5, share=0.3)
    page = opened.page
    page.route("**/v1/units?*", lambda route: route.fulfill(status=503, json={"title": "Not ready"}))
    opened.go("#/")
    expect(page.locator("#live")).to_have_text("Live")
    heard = page.evaluate_handle(HEARD, "lonely")
    read_on(http, "lonely", seed=5)
    page.evaluate("({ heard }) => heard", heard)

    expect(page.get_by_role("alert")).to_contain_text("Not ready")
    expect(page.locator(".rows a")).to_have_count(0)
