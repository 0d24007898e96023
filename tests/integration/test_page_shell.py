"""The web page's shell: both front ends, keys, theme, errors, what is empty, in real Chromium."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser import desktop, each_look, screenshot_folder, visit
from tests.integration.conftest import KEY, running
from tests.page_fleet import fill

SECURITY = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


@pytest.fixture(scope="module")
def locked(tiny_bundle, tmp_path_factory):
    with running(
        tmp_path_factory.mktemp("locked"), str(tiny_bundle.path), api_keys=KEY, log_level="error"
    ) as started:
        yield started


@pytest.fixture
def service(behind_envoy):
    return behind_envoy


def test_every_file_of_the_page_comes_from_the_service_with_its_policy(http):
    page = http.get("/")
    links = re.findall(r'(?:src|href)="(/page/[^"]+)"', page.text)

    assert page.headers["content-type"].startswith("text/html")
    assert len(links) >= 6
    for name in ["/", *links]:
        reply = http.get(name)
        assert reply.status_code == 200
        assert {header: reply.headers[header] for header in SECURITY} == SECURITY
    assert re.findall(r"<script(?! (?:type=\"module\" )?src=)|\son\w+=|\sstyle=|javascript:", page.text) == []


def test_a_browser_that_has_a_file_is_not_sent_it_again(http):
    first = http.get("/page/app.js")
    again = http.get("/page/app.js", headers={"if-none-match": first.headers["etag"]})

    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]


@pytest.mark.parametrize("name", ["nothing.js", "../routes.py", "%2e%2e/settings.py", "vendor", ""])
def test_no_other_file_is_served(http, name):
    assert http.get(f"/page/{name}").status_code == 404


def test_the_vendored_library_comes_with_its_licence(http):
    assert "MIT" in http.get("/page/vendor/uPlot.LICENSE").text


@desktop
def test_calls_of_the_page_carry_the_cookie_of_a_gateway(opened):
    opened.page.context.add_cookies([{"name": "session", "value": "of-a-gateway", "url": opened.base}])

    with opened.page.expect_request("**/v1/models") as call:
        opened.go("")

    assert call.value.all_headers().get("cookie") == "session=of-a-gateway"


@each_look
def test_a_search_without_a_unit_says_what_to_change(opened):
    opened.go("#/?q=nothing-has-this-name")
    expect(opened.page.get_by_text("No unit matches")).to_be_visible()
    expect(opened.page.get_by_text("Change the search or the filter.")).to_be_visible()

    opened.check_fits()
    opened.check_accessible()
    opened.shoot("empty")


@desktop
def test_an_unknown_view_leads_back_to_the_fleet(opened):
    opened.go("#/nowhere")
    opened.page.get_by_role("link", name="To the fleet").click()

    expect(opened.page.get_by_role("heading", name="Fleet")).to_be_visible()


@desktop
@pytest.mark.parametrize("place", ["#/unit/tiny/100%", "#/models/%E0%A4%A"])
def test_an_address_that_is_not_encoded_is_not_found(opened, place):
    opened.go("#/")
    opened.page.get_by_role("heading", name="Fleet").wait_for()
    opened.go(place)

    expect(opened.page.get_by_role("alert")).to_contain_text("No such page")


@desktop
def test_a_page_that_is_open_while_the_service_is_renewed_keeps_the_files_it_began_with(opened):
    opened.go("#/")
    opened.page.get_by_role("heading", name="Fleet").wait_for()
    renewed = 'import { renewed } from "./dom.js"; export const show = renewed;'
    opened.page.route(
        "**/page/models.js", lambda route: route.fulfill(content_type="text/javascript", body=renewed)
    )
    opened.page.get_by_role("navigation").get_by_role("link", name="Models").click()

    expect(opened.page.locator(".model-card")).to_be_visible()


@desktop
@pytest.mark.parametrize(
    ("expects", "status", "body"),
    [
        ("502", 502, "<html><title>502 Bad Gateway</title></html>"),
        ("404", 404, "404 page not found"),
        ("\0", 200, "<html><title>Sign on</title></html>"),
        ("\0", 200, '{"units": [{"unit": "a"'),
    ],
)
def test_an_answer_that_is_not_of_the_service_or_is_cut_off_is_named(opened, status, body):
    opened.page.route("**/v1/units?*", lambda route: route.fulfill(status=status, body=body))
    opened.go("#/")

    expect(opened.page.get_by_role("alert")).to_contain_text(f"Status {status} without JSON")
    expect(opened.page.get_by_text("stores no units")).to_have_count(0)


@desktop
def test_a_stream_that_brings_nothing_is_not_live(opened):
    opened.page.add_init_script(
        """window.asked = 0;
        const { fetch } = window;
        window.fetch = (address, options) => {
            if (address !== "/v1/events") return fetch(address, options);
            window.asked += 1;
            const { signal } = options;
            const start = (held) => signal.addEventListener("abort", () => held.error(signal.reason));
            return Promise.resolve(new Response(new ReadableStream({ start })));
        };"""
    )
    opened.page.clock.install()
    opened.go("#/")
    opened.page.wait_for_function("() => window.asked === 1")
    expect(opened.page.locator("#live")).to_be_empty()
    opened.page.clock.fast_forward(41_000)
    opened.page.wait_for_function("() => window.asked === 2")

    expect(opened.page.locator("#live")).to_have_text("Connecting")


@desktop
def test_more_tabs_than_a_browser_has_connections_are_all_fresh(opened):
    opened.go("#/")
    expect(opened.page.locator("#live")).to_have_text("Live")
    others = [opened.page.context.new_page() for _ in range(6)]
    for other in others:
        other.goto(opened.base, wait_until="commit")
    for other in others[2:]:
        expect(other.locator("#live")).to_have_text("Live")

    live = opened.page.locator("#live")
    expect(live).to_have_text("Every 10 s")
    opened.page.evaluate("dispatchEvent(new Event('focus'))")
    expect(live).to_have_text("Live")


@desktop
def test_the_theme_changes_and_is_remembered(opened):
    opened.go("#/")
    root = opened.page.locator("html")
    expect(root).to_have_attribute("data-theme", "light")
    opened.page.get_by_role("button", name="Use dark colours").click()

    expect(root).to_have_attribute("data-theme", "dark")
    opened.page.reload()
    expect(root).to_have_attribute("data-theme", "dark")
    opened.page.get_by_role("button", name="Use light colours").click()
    expect(root).to_have_attribute("data-theme", "light")


@desktop
def test_the_keyboard_skips_to_the_content(opened):
    opened.go("#/")
    opened.page.keyboard.press("Tab")
    expect(opened.page.get_by_text("Skip to content")).to_be_focused()
    opened.page.keyboard.press("Enter")

    expect(opened.page.locator("#main")).to_be_focused()
    opened.page.reload()
    expect(opened.page.get_by_role("link", name="Fleet")).to_have_attribute("aria-current", "page")


@desktop
def test_each_view_fits_into_the_width_of_a_small_phone_and_of_a_window_at_400_percent(opened):
    opened.page.set_viewport_size({"width": 320, "height": 640})
    views = {"#/models": "Models", "#/": "Fleet", "#/models/tiny": "Models", "#/try": "Try"}
    for place, name in views.items():
        opened.go(place)
        expect(opened.page.locator("#main h1").first).to_contain_text(name)

        assert opened.page.evaluate("document.documentElement.scrollWidth") == 320


@each_look
def test_with_keys_on_the_page_asks_for_one_and_keeps_it_in_memory_only(locked, browser, look, tmp_path):
    with visit(browser, locked.http, look, screenshot_folder(tmp_path), expects="401") as opened:
        page = opened.page
        opened.go("#/")
        dialog = page.get_by_role("dialog", name="API key")
        expect(dialog).to_be_visible()
        opened.check_accessible()
        opened.shoot("key")
        dialog.get_by_label("Key").fill("schl\u00fcssel")
        dialog.get_by_role("button", name="Use key").click()
        expect(page.get_by_role("alert")).to_contain_text("ASCII")
        dialog.get_by_label("Key").fill("wrong")
        dialog.get_by_role("button", name="Use key").click()
        expect(page.get_by_role("alert")).to_have_text("the API key is not valid")
        dialog.get_by_label("Key").fill(KEY)
        page.keyboard.press("Enter")

        expect(page.get_by_text("No running units")).to_be_visible()
        expect(page.get_by_label("Commands")).to_contain_text("/v1/units/UNIT/cycles?model=tiny'")
        opened.check_accessible()
        opened.shoot("no-units")
        kept = page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")
        assert KEY not in kept
        page.reload()
        expect(dialog).to_be_visible()


@desktop
def test_a_key_can_be_forgotten(locked, browser, look, tmp_path):
    with visit(browser, locked.http, look, screenshot_folder(tmp_path), expects="401") as opened:
        opened.go("#/")
        opened.page.get_by_role("textbox", name="Key").fill(KEY)
        opened.page.keyboard.press("Enter")
        forget = opened.page.get_by_role("button", name="Forget key")
        for width in (430, 320, opened.look.width):
            opened.page.set_viewport_size({"width": width, "height": opened.look.height})
            expect(forget).to_be_in_viewport(ratio=1)
        forget.click()

        expect(opened.page.get_by_role("dialog", name="API key")).to_be_visible()
        opened.page.keyboard.press("Escape")
        expect(opened.page.get_by_role("alert")).to_contain_text("API key")
        opened.page.get_by_role("button", name="Try again").click()
        expect(opened.page.get_by_role("dialog", name="API key")).to_be_visible()


@desktop
def test_trying_again_asks_for_a_key_again(locked, browser, look, tmp_path):
    with visit(browser, locked.http, look, screenshot_folder(tmp_path), expects="401") as opened:
        page = opened.page
        opened.go("#/try")
        dialog = page.get_by_role("dialog", name="API key")
        dialog.get_by_role("textbox").fill(KEY)
        page.keyboard.press("Enter")
        page.locator(".life").wait_for()
        page.evaluate("import('/page/api.js').then(({ setKey }) => setKey('ended'))")
        page.get_by_role("button", name="Take a simulated unit").click()
        dialog.get_by_role("button", name="Cancel").click()
        page.get_by_role("button", name="Try again").click()

        expect(dialog).to_be_visible()


@desktop
def test_a_service_that_ends_is_named_and_waited_for(browser, look, tiny_bundle, tmp_path):
    with visit(browser, "http://127.0.0.1", look, screenshot_folder(tmp_path), expects="ERR_") as opened:
        with running(tmp_path, str(tiny_bundle.path)) as first:
            fill(first.http, units=3, earlier=(0,))
            opened.base = first.http
            opened.go("#/")
            expect(opened.page.locator("#live")).to_have_text("Live")
        expect(opened.page.locator("#live")).to_have_text("Connecting")
        opened.shoot("connecting")
        with running(tmp_path, str(tiny_bundle.path), port=first.port):
            expect(opened.page.locator("#live")).to_have_text("Live")


@desktop
def test_a_fleet_of_which_every_unit_has_ended_leads_to_them(browser, look, tiny_bundle, tmp_path):
    with (
        running(tmp_path, str(tiny_bundle.path)) as started,
        visit(browser, started.http, look, screenshot_folder(tmp_path)) as opened,
    ):
        fill(started.http, units=1, earlier=(0,))
        outcome = {"kind": "failed", "cycle": 80}
        assert started.ask("POST", "/v1/units/pump-0000/outcomes", json=outcome).is_success
        opened.go("#/")
        expect(opened.page.get_by_role("heading", name="No running units")).to_be_visible()
        opened.check_accessible()
        opened.page.get_by_role("main").get_by_role("link", name="failed").click()

        expect(opened.page.get_by_role("link", name="pump-0000")).to_be_visible()


@desktop
def test_without_a_store_the_page_says_so(browser, look, tiny_bundle, tmp_path):
    with (
        running(tmp_path, str(tiny_bundle.path), store="false") as started,
        visit(browser, started.http, look, screenshot_folder(tmp_path), expects="404") as opened,
    ):
        opened.go("#/")

        expect(opened.page.get_by_text("This service stores no units")).to_be_visible()
        assert started.ask("GET", "/v1/events").status_code == 404
        opened.shoot("no-store")
