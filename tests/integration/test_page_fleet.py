"""The web page's fleet, in real Chromium on a real service with 1,400 pumps."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from playwright.sync_api import expect

from tests.browser import desktop, each_look, every_look, expecting
from tests.integration.conftest import running
from tests.page_fleet import HEARD, STRANGE, fill, predict, window
from tests.tiny_bundle import pumps

UNITS = 1400
"""More than one request of the page may read."""


@pytest.fixture(scope="module")
def service(tiny_bundle, tmp_path_factory):
    with running(
        tmp_path_factory.mktemp("page"), str(tiny_bundle.path), max_request_windows="500", costs="1:10"
    ) as started:
        fill(started.http, units=UNITS, earlier=(4, 0))
        yield started


@pytest.fixture(scope="module")
def client(service):
    with service.client() as opened:
        yield opened


def remove(client, made):
    """Take a unit out of the fleet again."""
    outcome = {"kind": "removed", "cycle": made["last_cycle"], "model": "tiny"}
    assert client.post(f"/v1/units/{made['unit']}/outcomes", json=outcome).is_success


def rows(page):
    return page.locator(".rows [role=row]")


def shown(opened):
    """The page, once it lists the fleet."""
    opened.go("#/")
    rows(opened.page).first.wait_for()
    return opened.page


def first_unit(page):
    return rows(page).first.locator("a")


@every_look
def test_the_fleet_is_shown_by_urgency_and_accessible(opened):
    page = shown(opened)

    expect(page.get_by_role("heading", name="Fleet")).to_be_visible()
    expect(page.locator(".count")).to_contain_text(f"{UNITS:,} units")
    lower = [int(re.split(r"\D", text)[0]) for text in page.locator(".ends").all_inner_texts()]
    assert lower == sorted(lower)
    expect(page.get_by_text("Expected to fail within")).to_be_visible()
    opened.check_fits()
    opened.check_accessible()
    opened.shoot("fleet")


@desktop
@pytest.mark.parametrize("state", ["insufficient_history", "out_of_distribution"])
def test_a_capped_rul_is_no_exact_number_in_any_state(opened, state):
    page = shown(opened)
    answer = {"rul": 125, "rul_state": state, "interval": {"coverage": 0.9, "lower": 90, "upper": 125}}
    words = """async (answer) => {
        const { figures } = await import("/page/answer.js");
        return figures(answer, { last: 10, cap: 125 }).map((part) => part.textContent ?? "").join(" ");
    }"""

    said = page.evaluate(words, answer)

    assert "≥ 125" in said
    assert "until about" not in said
    assert "90 to 125" not in said


@each_look
def test_a_unit_unlike_the_training_data_is_never_healthy_or_green(opened):
    opened.go(f"#/?q={STRANGE}")
    row = rows(opened.page).first
    row.wait_for()

    expect(row.locator(".badge")).to_have_text(re.compile("Unlike training"))
    expect(row).not_to_have_class(re.compile("healthy"))
    expect(row).to_have_class(re.compile("unknown"))
    opened.check_accessible()
    opened.shoot("fleet-strange")


@desktop
def test_no_unit_of_the_filter_healthy_is_unlike_the_training_data(opened):
    opened.go("#/?state=healthy")
    rows(opened.page).first.wait_for()
    opened.page.get_by_label("Search units by name").fill(STRANGE)

    expect(opened.page.get_by_text("No unit matches")).to_be_visible()
    opened.shoot("fleet-none")


@desktop
def test_a_search_narrows_the_list_and_stays_in_the_address(opened):
    page = shown(opened)
    page.keyboard.press("/")
    page.keyboard.type("PUMP-0042")

    expect(rows(page)).to_have_count(1)
    expect(first_unit(page)).to_have_text("pump-0042")
    expect(page.locator(".count")).to_contain_text("1 unit")
    page.reload()
    expect(rows(page)).to_have_count(1)
    opened.shoot("fleet-search")


@each_look
def test_a_state_filters_the_list_and_leaves_again(opened):
    page = shown(opened)
    chip = page.get_by_role("button", name="Degrading")
    chip.click()

    expect(chip).to_have_attribute("aria-pressed", "true")
    expect(first_unit(page)).to_be_visible()
    expect(page.locator(".rows .badge").filter(has_not_text="Degrading")).to_have_count(0)
    opened.check_accessible()
    opened.shoot("fleet-degrading")
    chip.click()
    expect(page.locator(".count")).to_contain_text(f"{UNITS:,} units")


@desktop
def test_another_horizon_shows_other_probabilities(opened):
    page = shown(opened)

    def total():
        return sum(map(int, re.findall(r"(\d+)%", " ".join(page.locator(".rows .fails").all_inner_texts()))))

    before = total()
    page.locator(".horizons button").nth(1).click()

    expect(page.locator(".horizons button").nth(1)).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".heads .fails")).to_have_text("Fails in 15")
    assert total() > before > 0


@desktop
def test_the_pointer_anywhere_on_a_row_finds_its_whole_name_and_the_time_of_its_last_answer(opened):
    page = shown(opened)

    titles = page.evaluate(
        """() => [...document.querySelector('.rows .row').querySelectorAll('.cell')].map((cell) => {
            const { x, y, width, height } = cell.getBoundingClientRect();
            return document.elementFromPoint(x + width / 2, y + height / 2).closest('[title]')?.title;
        })"""
    )

    name = rows(page).first.locator("a").inner_text()
    assert len(set(titles)) == 1
    assert re.fullmatch(
        rf"{name}\n90% interval, in cycles\n(RUL changes by .*\n)?predicted .*\d.*", titles[0]
    )


@desktop
def test_on_paper_every_unit_that_was_read_stands_below_the_one_before(opened):
    page = shown(opened)
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")

    tops = page.evaluate("[...document.querySelectorAll('.rows .row')].map((row) => row.offsetTop)")
    assert len(tops) >= 200
    assert {below - above for above, below in pairwise(tops)} == {48}
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert rows(page).count() < len(tops)


@each_look
def test_paper_has_light_colours_and_the_screen_its_own_again(opened):
    page = shown(opened)
    root = page.locator("html")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    expect(root).to_have_attribute("data-theme", "light")
    page.emulate_media(media="print")
    expect(page.locator(".rows .bar-range").first).to_have_css("print-color-adjust", "exact")
    page.evaluate("dispatchEvent(new Event('afterprint'))")

    expect(root).to_have_attribute("data-theme", opened.look.theme)


@each_look
def test_with_colours_of_the_system_intervals_and_choices_are_seen(opened):
    page = shown(opened)
    bar = page.locator(".rows .bar-range").first
    colour = bar.evaluate("(one) => getComputedStyle(one).backgroundColor")
    page.emulate_media(forced_colors="active")

    expect(bar).to_have_css("background-color", colour)
    pressed = page.locator(".horizons button").evaluate_all(
        "all => all.map((one) => [one.ariaPressed, getComputedStyle(one).outlineStyle])"
    )
    assert sorted(pressed) == [["false", "none"], ["true", "solid"]]
    lines = page.locator(".bar nav a").evaluate_all(
        "all => all.map((one) => getComputedStyle(one).borderBottomColor)"
    )
    assert lines[0] not in lines[1:]
    opened.shoot("fleet-forced-colours")


@each_look
def test_no_row_overlaps_the_next_in_a_large_font(opened):
    page = shown(opened)
    page.evaluate("document.documentElement.style.fontSize = '24px'")
    page.evaluate("dispatchEvent(new Event('resize'))")
    page.evaluate("() => new Promise(requestAnimationFrame)")

    boxes = page.locator(".rows .row").evaluate_all(
        """all => all.map((row) => [row, ...row.children].map((one) => one.getBoundingClientRect()))
            .map(([row, ...cells]) => [row.top, row.bottom, Math.max(...cells.map((cell) => cell.bottom))])"""
    )
    assert all(content <= bottom for _, bottom, content in boxes)
    assert all(below[0] >= above[1] - 1 for above, below in pairwise(boxes))
    opened.shoot("fleet-large-font")


@each_look
def test_the_list_holds_few_rows_and_scrolls_to_its_end(opened):
    page = shown(opened)
    last = f'.rows [aria-rowindex="{UNITS + 1}"]'
    page.wait_for_function(
        "row => (scrollTo(0, document.documentElement.scrollHeight), document.querySelector(row))", arg=last
    )

    expect(page.locator(last)).to_be_visible()
    assert rows(page).count() < 60
    opened.shoot("fleet-end")


@each_look
def test_the_arrow_keys_move_through_the_units(opened):
    page = shown(opened)
    first_unit(page).focus()
    for _ in range(30):
        page.keyboard.press("ArrowDown")

    focused = page.locator(".rows [role=row]:focus-within")
    expect(focused).to_have_attribute("aria-rowindex", "32")
    expect(focused).to_be_in_viewport()
    page.keyboard.press("ArrowUp")
    expect(focused).to_have_attribute("aria-rowindex", "31")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("#/unit/tiny/pump-"))


@desktop
def test_arrow_keys_that_are_quicker_than_frames_all_count(opened):
    page = shown(opened)
    first_unit(page).focus()
    page.evaluate(
        """() => { for (let i = 0; i < 60; i++) document.activeElement.dispatchEvent(
             new KeyboardEvent("keydown", { key: "ArrowDown", bubbles: true })); }"""
    )

    focused = page.locator(".rows [role=row]:focus-within")
    expect(focused).to_have_attribute("aria-rowindex", "62")
    expect(focused).to_be_in_viewport()


@desktop
def test_a_new_prediction_appears_by_itself(opened, client):
    opened.go("#/?q=newcomer")
    page = opened.page
    expect(page.get_by_text("No unit matches")).to_be_visible()
    expect(page.locator("#live")).to_have_text("Live")
    made = window(0, pumps(units=1, seed=99)[0], 30) | {"unit": f"newcomer-{opened.look.width}"}
    predict(client, [made])

    expect(first_unit(page).filter(has_text=str(opened.look.width))).to_be_visible()
    remove(client, made)


@desktop
def test_a_paused_list_stays_as_it_is(opened, client):
    opened.go("#/?q=later")
    page = opened.page
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#live")).to_have_text("Paused")
    made = window(0, pumps(units=1, seed=99)[0], 31) | {"unit": f"later-{opened.look.width}"}
    with client.stream("GET", "/v1/events") as events:
        lines = events.iter_lines()
        next(lines)
        predict(client, [made])
        assert any(made["unit"] in line for line in lines)
    assert rows(page).count() == 0
    page.get_by_role("button", name="Resume").click()

    expect(first_unit(page)).to_be_visible()
    remove(client, made)


@desktop
def test_an_event_leaves_focus_and_a_click_that_has_begun(opened, client):
    opened.go("#/?q=pump-000")
    page = opened.page
    rows(page).first.wait_for()
    expect(page.locator("#live")).to_have_text("Live")
    chip = page.locator(".chip").filter(has_text="Degrading")
    made = window(0, pumps(units=1, seed=99)[0], 32) | {"unit": "pump-000x"}
    chip.hover()
    page.mouse.down()
    predict(client, [made])
    page.get_by_role("link", name="pump-000x").wait_for()
    focused = page.evaluate("document.activeElement.className")
    page.mouse.up()

    assert focused == "chip degrading"
    expect(chip).to_have_attribute("aria-pressed", "true")
    remove(client, made)


@desktop
def test_an_event_keeps_a_unit_that_fits_the_filter_by_its_health_alone(opened, client):
    page = opened.page
    life = pumps(units=1, seed=99)[0]
    made = window(0, life, 4) | {"unit": "brief", "last_cycle": 40}
    predict(client, [made])
    opened.go("#/?q=brief&state=healthy")
    expect(page.locator(".rows .badge")).to_contain_text("Little history")
    expect(page.locator("#live")).to_have_text("Live")
    heard = page.evaluate_handle(HEARD, "brief")
    predict(client, [made | {"last_cycle": 41}])
    page.evaluate("({ heard }) => heard", heard)

    assert page.locator(".rows .cycle").all_inner_texts() == ["41"]
    remove(client, made | {"last_cycle": 41})


@desktop
@expecting("ERR_FAILED")
def test_no_unit_is_missing_from_the_list_after_events_of_units_that_it_does_not_reach(opened, client):
    units = client.get("/v1/units?limit=1000").json()["units"]
    better = units[100] | {"interval": units[-1]["interval"]}
    events = "".join(f"event: units\ndata: {json.dumps(of)}\n\n" for of in ([better], units[800:860]))
    page = opened.page
    page.route("**/v1/events", lambda route: route.abort())
    page.route(
        "**/v1/events", lambda route: route.fulfill(content_type="text/event-stream", body=events), times=1
    )
    shown(opened)
    expect(page.locator("#live")).to_have_text("Connecting")
    page.wait_for_function(
        "() => (scrollTo(0, 210 * 48), document.querySelector('.rows [aria-rowindex=\"220\"]'))"
    )

    listed = page.locator(".rows a").all_inner_texts()
    names = [unit["unit"] for unit in units if unit["unit"] != better["unit"]]
    first = names.index(listed[0])
    assert listed == names[first : first + len(listed)]


@desktop
def test_the_list_begins_with_one_page(opened):
    asked = []
    opened.page.on("request", lambda request: asked.append(request.url))
    shown(opened)
    expect(opened.page.locator("#live")).to_have_text("Live")

    assert len([url for url in asked if "/v1/units?" in url]) == 1


@desktop
def test_a_click_on_a_unit_counts_while_another_takes_its_place(opened, client):
    opened.go("#/?q=pump-000")
    page = opened.page
    expect(page.locator("#live")).to_have_text("Live")
    life = pumps(units=1, seed=99)[0]
    made = window(0, life, len(life.cycles)) | {"unit": "pump-000z"}
    heard = page.evaluate_handle(HEARD, "pump-000z")
    pressed = rows(page).last.locator("a")
    name = pressed.inner_text()
    pressed.hover()
    page.mouse.down()
    predict(client, [made])
    page.evaluate("({ heard }) => heard", heard)
    page.mouse.up()

    expect(page).to_have_url(re.compile(f"#/unit/tiny/{name}$"))
    remove(client, made)


@desktop
def test_a_unit_in_focus_has_one_row_after_it_was_out_of_view(opened):
    page = shown(opened)
    name = first_unit(page).inner_text()
    first_unit(page).focus()
    for place, row in ((100 * 48, 101), (0, 2)):
        page.wait_for_function(
            f"""() => (scrollTo(0, {place}), document.querySelector('.rows [aria-rowindex="{row}"]'))"""
        )

    expect(page.get_by_role("link", name=name, exact=True)).to_have_count(1)
    expect(first_unit(page)).to_be_focused()


@desktop
def test_a_unit_in_focus_that_becomes_less_urgent_lies_on_no_other(opened, client):
    opened.page.clock.install()
    page = shown(opened)
    body = client.get("/v1/units?limit=200").json()
    units = {unit["unit"]: unit for unit in body["units"]}
    name = rows(page).nth(1).locator("a").inner_text()
    units[name]["interval"] |= {"lower": 39, "upper": 40}
    rows(page).nth(1).locator("a").focus()
    page.route("**/v1/units?*", lambda route: route.fulfill(json=body))
    page.clock.fast_forward(11_000)
    expect(page.locator(".rows [aria-rowindex='3'] a")).to_have_text(body["units"][2]["unit"])

    places = rows(page).evaluate_all("all => all.map((row) => row.style.transform)")
    assert len(places) == len(set(places))
    expect(page.get_by_role("link", name=name, exact=True)).to_be_focused()


@desktop
def test_a_unit_in_focus_leaves_the_list_when_it_ends(opened, client):
    life = pumps(units=1, seed=99)[0]
    both = [window(0, life, 30) | {"unit": f"leaver-{name}"} for name in "ab"]
    predict(client, both)
    opened.page.clock.install()
    opened.go("#/?q=leaver")
    links = opened.page.locator(".rows a")
    expect(links).to_have_count(2)
    links.first.focus()
    remove(client, both[0])
    opened.page.clock.fast_forward(11_000)

    expect(links).to_have_text(["leaver-b"])
    remove(client, both[1])


@desktop
@pytest.mark.parametrize("width", [1024, 870])
def test_no_column_of_the_list_is_cut_off_in_a_narrow_window(opened, width):
    opened.page.set_viewport_size({"width": width, "height": 768})
    page = shown(opened)

    beyond = page.evaluate(
        """() => [...document.querySelectorAll('.heads .cell, .rows .row .cell')].filter((cell) => {
            const table = cell.closest('.table').getBoundingClientRect();
            const range = document.createRange();
            range.selectNodeContents(cell);
            const rights = [cell, range].map((one) => one.getBoundingClientRect().right);
            return Math.max(...rights) > table.right;
        }).map((cell) => cell.className)"""
    )
    assert beyond == []


@desktop
def test_a_list_that_cannot_be_read_has_no_count(opened):
    page = shown(opened)
    page.route("**/v1/units?*", lambda route: route.abort())
    page.get_by_label("Search units by name").fill("zz")

    expect(page.get_by_role("alert")).to_contain_text("No connection")
    expect(page.locator(".count")).to_be_empty()
    opened.problems.clear()


@desktop
@expecting("503")
def test_a_list_that_once_could_not_be_read_again_stays_and_is_read_later(opened):
    opened.page.clock.install()
    page = shown(opened)
    page.route("**/v1/units?*", lambda route: route.fulfill(status=503, json={"title": "Busy"}), times=1)
    pause = page.locator(".toolbar").get_by_role("button", name=re.compile("Pause|Resume"))
    pause.click()
    for then in (pause.click, lambda: page.clock.fast_forward(11_000)):
        with page.expect_response(re.compile(r"/v1/units\?")):
            then()

    expect(rows(page).first).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)


@desktop
def test_a_search_that_the_reader_leaves_changes_no_address(opened):
    opened.page.clock.install()
    page = shown(opened)
    page.clock.pause_at(datetime.now(UTC) + timedelta(minutes=1))
    page.get_by_label("Search units by name").fill("pump-0042")
    page.get_by_role("navigation").get_by_role("link", name="Models").click()
    page.locator(".model-card").wait_for()
    page.clock.fast_forward(1000)

    assert page.evaluate("location.hash") == "#/models"


@desktop
def test_a_horizon_is_named_with_its_units(opened):
    page = shown(opened)

    names = page.locator(".horizons button").evaluate_all("all => all.map((one) => one.textContent)")
    assert names
    assert all(re.fullmatch(r"[\d.,]+ within \d+ cycles", name) for name in names), names


@desktop
@pytest.mark.parametrize("width", [860, 390, 320])
def test_the_intervals_of_all_units_have_one_scale_on_a_phone(opened, width):
    opened.page.set_viewport_size({"width": width, "height": 844})
    page = shown(opened)

    bands = page.locator(".rows .band").evaluate_all(
        "all => all.map((one) => one.getBoundingClientRect()).map(({ left, width }) => [left, width])"
    )
    assert len({tuple(band) for band in bands}) == 1
    assert bands[0][1] > 40


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
        "() => (scrollTo(0, 300 * 48), document.querySelector('.rows [aria-rowindex=\"305\"]'))"
    )
    deep = page.locator('.rows [aria-rowindex="305"] a')
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
