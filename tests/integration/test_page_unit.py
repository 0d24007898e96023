"""The web page's unit view, in real Chromium on a real service: its answer, life, reasons, changes."""

from __future__ import annotations

import re
from operator import ne

import pytest
from playwright.sync_api import expect

from tests.browser import desktop, each_look, every_look, expecting
from tests.page_unit import falls_silent, lives, read_on, show

SECONDS = 60


@pytest.fixture(scope="module")
def http(service):
    with service.client(timeout=SECONDS) as client:
        lives(client, "worn", seed=7, share=0.8)
        lives(client, "gone", seed=3, share=1.0)
        client.post("/v1/units/gone/outcomes", json={"kind": "failed", "cycle": 176}).raise_for_status()
        yield client


@pytest.fixture
def opened(http, opened):
    """The page, with both units stored."""
    return opened


@every_look
def test_a_unit_says_how_long_how_sure_why_and_when_to_act(opened):
    page = show(opened, "worn")

    answer = page.get_by_role("region", name="Answer")
    expect(answer.locator(".answer-rul")).to_have_text(re.compile(r"^\d+$"))
    expect(answer.locator(".answer-middle")).to_have_text(re.compile(r"^\d+ to \d+$"))
    expect(answer.locator(".risks li")).to_have_count(3)
    expect(page.get_by_role("region", name="Why").locator(".sentence")).to_contain_text("healthy range")
    expect(page.get_by_role("region", name="Why").locator(".trust")).to_contain_text("Explanation")
    expect(page.get_by_role("region", name="When to act").locator(".answer-middle")).not_to_be_empty()
    opened.check_fits()
    opened.check_accessible()
    opened.shoot("unit", whole=True)


@each_look
def test_every_chart_has_the_same_cycle_axis_and_a_text(opened):
    page = show(opened, "worn")

    plots = page.locator(".u-over").evaluate_all(
        "all => all.map(one => one.getBoundingClientRect()).map(box => `${box.left} ${box.width}`)"
    )
    assert len(plots) >= 7
    assert len(set(plots)) == 1
    for name in page.locator(".plot").evaluate_all("all => all.map(one => one.getAttribute('aria-label'))"):
        assert re.search(r"\d", name)


@each_look
def test_a_click_in_the_heatmap_shows_the_readings_of_its_cycle(opened):
    page = show(opened, "worn")
    page.get_by_role("button", name="Last 60 cycles").click()
    canvas = page.locator("canvas.heatmap").first
    box = canvas.bounding_box()
    canvas.click(position={"x": box["width"] * 0.5, "y": 24})

    panel = page.get_by_role("region", name="Readings of a cycle")
    cycle = int(panel.get_by_role("heading").inner_text().split()[1])
    assert 130 < cycle < 175
    marked = panel.locator("tr.marked")
    expect(marked).to_have_count(1)
    expect(page.locator("figure [role=status]")).to_contain_text(f"cycle {cycle}")
    name = marked.locator("th").inner_text().split()[0]
    stored = opened.page.evaluate(
        "async () => (await fetch('/v1/units/worn?model=fd001&limit=1000')).json().then(one => one.readings)"
    )
    reading = stored["columns"][name][stored["cycles"].index(cycle)]
    shown = marked.locator("td").first.inner_text().replace(",", "")
    assert float(re.search(r"[\d.]+$", shown)[0]) == pytest.approx(reading, rel=1e-3)
    opened.shoot("unit-cell", whole=True)


@desktop
def test_the_arrow_keys_move_through_the_heatmap(opened):
    page = show(opened, "worn")
    page.locator("canvas.heatmap").first.focus()
    said = page.locator("figure [role=status]")
    page.keyboard.press("End")
    last = said.inner_text()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowDown")

    cycle = re.compile(r"cycle (\d+)")
    assert int(cycle.search(said.inner_text())[1]) == int(cycle.search(last)[1]) - 1
    assert said.inner_text().split(",")[0] != last.split(",")[0]


@desktop
def test_the_cycle_slider_moves_the_cursor_of_every_chart(opened):
    page = show(opened, "worn")
    places = "all => all.map((line) => line.style.transform)"
    before = page.locator(".u-cursor-x").evaluate_all(places)
    page.get_by_role("slider", name="Cycle").focus()
    page.keyboard.press("ArrowLeft")

    slider = page.get_by_role("slider", name="Cycle")
    expect(slider).to_have_attribute("aria-valuetext", re.compile("Cycle 181"))
    assert all(map(ne, before, page.locator(".u-cursor-x").evaluate_all(places)))
    texts = page.locator("figure:has(.plot) .readout").all_inner_texts()
    assert sum(bool(text) for text in texts) >= 6  # RUL was not predicted at this cycle


@desktop
def test_a_drag_zooms_every_chart_and_a_double_click_shows_the_whole_life(opened):
    page = show(opened, "worn")
    whole = page.get_by_role("button", name="Whole life")
    pictures = "all => all.map((canvas) => canvas.toDataURL())"
    before = page.locator(".life canvas").evaluate_all(pictures)
    box = page.locator(".u-over").first.bounding_box()
    page.mouse.move(box["x"] + 60, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 260, box["y"] + 40, steps=4)
    page.mouse.up()

    expect(whole).to_have_attribute("aria-pressed", "false")
    zoomed = page.locator(".life canvas").evaluate_all(pictures)
    assert len(zoomed) >= 8
    assert all(map(ne, before, zoomed))
    page.locator(".u-over").nth(1).dblclick()
    expect(whole).to_have_attribute("aria-pressed", "true")


@desktop
def test_an_answer_of_the_past_is_explained_from_the_readings_until_then(opened, http):
    page = show(opened, "worn", query="?cycle=100")

    past = http.get("/v1/units/worn/explanation?model=fd001&cycle=100").json()["prediction"]
    expect(page.locator(".answer-rul")).to_have_text(re.compile(str(round(past["rul"]))))
    expect(page.get_by_text("The answer as it was at cycle 100.")).to_be_visible()
    opened.shoot("unit-past")
    page.get_by_role("link", name=re.compile("To the latest")).click()
    expect(page.get_by_text("The answer as it was")).to_have_count(0)


@desktop
@expecting("422")
def test_a_past_cycle_without_an_answer_has_not_that_of_another(opened, http):
    last = falls_silent(http, "silent-past", seed=5, share=0.4, refused=60)
    opened.go(f"#/unit/fd001/silent-past?cycle={last + 60}")

    expect(opened.page.get_by_role("heading", name=f"No answer at cycle {last + 60}")).to_be_visible()
    expect(opened.page.locator(".answer-rul")).to_have_count(0)
    opened.page.get_by_role("link", name=re.compile("To the latest")).click()
    expect(opened.page.locator(".answer-rul")).to_be_visible()


@desktop
def test_a_past_answer_without_stored_readings_is_the_stored_one(opened, http):
    life = http.get("/v1/models/fd001/simulated?seed=5").json()["columns"]
    windows = [
        {"unit": "twice", "last_cycle": end, "columns": {name: of[:end] for name, of in life.items()}}
        for end in (20, 120)
    ]
    asked = {"windows": windows, "explain": "none"}
    early, late = http.post("/v1/predict", json=asked).raise_for_status().json()["predictions"]
    assert round(early["rul"]) != round(late["rul"])
    page = show(opened, "twice", query="?cycle=20")

    expect(page.locator(".answer-rul")).to_contain_text(str(round(early["rul"])))


@each_look
def test_each_head_shows_where_it_looks(opened):
    page = show(opened, "worn")
    page.get_by_text("Head by head").click()

    canvas = page.get_by_label(re.compile("Attention of 5 heads"))
    canvas.wait_for()
    canvas.focus()
    page.keyboard.press("Home")
    expect(page.locator(".heads-at")).to_contain_text("At cycle 123")
    assert len(page.locator(".heads-at .num").all_inner_texts()) == 5
    opened.check_accessible()
    opened.shoot("unit-heads")


@pytest.mark.parametrize(
    ("unit", "last", "read"),
    [("gappy", range(15, 20), 20), ("new-window", range(45, 55), 10)],
    ids=["a short gap", "a gap after which the window begins anew"],
)
@desktop
def test_heads_are_of_the_window_that_was_answered_where_cycles_have_no_reading(
    opened, http, unit, last, read
):
    whole = http.get("/v1/models/fd001/simulated?seed=7").json()["columns"]
    kept = [*range(10), *last]
    body = {"cycles": kept, "columns": {name: [values[i] for i in kept] for name, values in whole.items()}}
    http.post(f"/v1/units/{unit}/cycles", json=body).raise_for_status()

    page = show(opened, unit)
    page.get_by_text("Head by head").click()

    page.get_by_label(f"Attention of 5 heads at each of {read} cycles.").wait_for()


@desktop
def test_the_first_cycle_may_be_0(opened, http):
    first = http.get("/v1/models/fd001/simulated?seed=7").json()["columns"]
    body = {"cycles": [0, 1], "columns": {name: values[:2] for name, values in first.items()}}
    http.post("/v1/units/new/cycles", json=body).raise_for_status()

    page = show(opened, "new", query="?cycle=0")

    expect(page.get_by_text("The answer as it was at cycle 0.")).to_be_visible()


@desktop
def test_a_dearer_failure_never_means_to_act_later(opened):
    page = show(opened, "worn")
    act = page.get_by_role("region", name="When to act")
    slider = page.get_by_role("slider", name="A failure costs")

    words = act.locator(".act-words")

    def act_at(key):
        slider.press(key)
        expect(words).to_have_attribute("aria-busy", "false")
        text = words.inner_text()
        return int(found[1]) if (found := re.search(r"Cycle (\d+)", text)) else 1000 * ("Run" in text)

    cheap = act_at("Home")
    opened.shoot("unit-cheap")
    assert cheap > 0, "a cheap failure is worth waiting for"
    assert act_at("End") <= cheap


@each_look
def test_a_failed_unit_shows_the_truth_and_no_advice(opened):
    page = show(opened, "gone")

    expect(page.locator("h1 + .badge")).to_have_text(re.compile("Failed"))
    expect(page.get_by_text("Failed at cycle 176.")).to_be_visible()
    expect(page.locator("figure.tall")).to_contain_text("dashed: truth")
    expect(page.get_by_role("region", name="When to act")).to_have_count(0)
    opened.check_accessible()
    opened.shoot("unit-failed", whole=True)


@desktop
def test_a_removed_unit_ran_at_least_until_its_removal(opened, http):
    lives(http, "sold", seed=3, share=0.6)
    http.post("/v1/units/sold/outcomes", json={"kind": "removed", "cycle": 110}).raise_for_status()
    page = show(opened, "sold")

    expect(page.locator("figure.tall .chart-note")).to_contain_text("dashed: truth is at least this")
    panel = page.get_by_role("region", name="Readings of a cycle")
    page.get_by_role("slider", name="Cycle").fill("100")
    expect(panel.locator(".cycle-facts")).to_contain_text("Truth≥ 10")
    page.get_by_text("The numbers as a table").click()
    row = page.get_by_role("region", name="Numbers of the charts").locator("tr", has_text=re.compile("^100"))
    expect(row).to_contain_text("≥ 10.0")


@desktop
def test_a_unit_without_stored_readings_has_its_answers(opened, http):
    life = http.get("/v1/models/fd001/simulated?seed=5").json()
    columns = {name: values[:60] for name, values in life["columns"].items()}
    asked = {"windows": [{"unit": "asked", "last_cycle": 60, "columns": columns}]}
    (expected,) = http.post("/v1/predict", json=asked).raise_for_status().json()["predictions"]
    page = show(opened, "asked")

    expect(page.locator(".answer-rul")).to_contain_text(str(round(expected["rul"])))
    expect(page.get_by_text("No reading is stored for this cycle.")).to_be_visible()
    expect(page.get_by_role("region", name="When to act")).to_contain_text("A failure costs 10")
    opened.check_accessible()


@each_look
def test_a_unit_unlike_the_training_data_is_neither_healthy_nor_sure(opened, http):
    life = http.get("/v1/models/fd001/simulated?seed=4").json()
    columns = {
        name: [value * (1.02 if name.startswith("sensor") else 1) for value in values[:100]]
        for name, values in life["columns"].items()
    }
    body = {"cycles": life["cycles"][:100], "columns": columns}
    http.post("/v1/units/strange/cycles", json=body).raise_for_status()
    page = show(opened, "strange")

    expect(page.locator("h1 + .badge")).to_have_text(re.compile("Unlike training"))
    expect(page.get_by_text("Not known")).to_be_visible()
    expect(page.get_by_text("No probability can be given.")).to_be_visible()
    expect(page.get_by_role("list", name="Warnings").locator("li")).to_have_count(3)
    opened.check_fits()
    opened.check_accessible()
    opened.shoot("unit-strange", whole=True)


@each_look
def test_the_numbers_stand_in_a_table_too(opened, http):
    lives(http, "short", seed=7, share=0.05)  # axe reads each cell
    cycles = http.get("/v1/units/short?model=fd001").json()["readings"]["cycles"]
    page = show(opened, "short")
    page.get_by_text("The numbers as a table").click()

    table = page.get_by_role("region", name="Numbers of the charts")
    expect(table.locator("tbody tr")).to_have_count(len(cycles))
    expect(table.locator("tbody tr").first).to_contain_text(str(cycles[-1]))
    opened.check_fits()
    opened.check_accessible()


@desktop
def test_a_new_reading_appears_by_itself_unless_somebody_works_on_the_page(opened, http):
    lives(http, "growing", seed=9, share=0.3)
    page = show(opened, "growing")
    life = http.get("/v1/models/fd001/simulated?seed=9").json()
    expect(page.locator("#live")).to_have_text("Live")
    before = int(0.3 * len(life["cycles"]))
    expect(page.locator(".unit-head")).to_contain_text(f"Cycle {before} ")
    columns = {name: values[before] for name, values in life["columns"].items()}
    http.post("/v1/units/growing/cycles", json={"columns": columns}).raise_for_status()

    expect(page.locator(".unit-head")).to_contain_text(f"Cycle {before + 1} ")
    page.get_by_role("slider", name="A failure costs").press("Home")
    http.post("/v1/units/growing/cycles", json={"columns": columns}).raise_for_status()
    page.get_by_text(f"There is an answer for cycle {before + 2}.").wait_for()
    expect(page.locator(".unit-head")).to_contain_text(f"Cycle {before + 1} ")
    page.get_by_role("button", name="Show it").click()
    expect(page.locator(".unit-head")).to_contain_text(f"Cycle {before + 2} ")
    expect(page.get_by_role("region", name="When to act")).to_contain_text("1.5")


@desktop
def test_a_new_reading_leaves_the_focus_that_entered_from_the_header(opened, http):
    lives(http, "entered", seed=9, share=0.3)
    page = show(opened, "entered")
    expect(page.locator("#live")).to_have_text("Live")
    page.locator("#theme").focus()
    page.keyboard.press("Tab")
    read_on(http, "entered", seed=9)
    page.get_by_text("There is an answer for cycle").wait_for()

    expect(page.locator(".crumb a").first).to_be_focused()


@desktop
def test_a_new_reading_leaves_the_place_of_a_reader_who_has_scrolled(opened, http):
    lives(http, "scrolled", seed=9, share=0.3)
    page = show(opened, "scrolled")
    expect(page.locator("#live")).to_have_text("Live")
    page.evaluate("scrollTo(0, 600)")
    before = page.locator(".unit-head p").last.inner_text().split(" ·")[0]
    read_on(http, "scrolled", seed=9)
    expect(page.locator(".unit-head")).not_to_contain_text(f"{before} ")

    assert page.evaluate("scrollY") == 600


@desktop
def test_the_readings_of_a_cycle_fit_into_a_phone(opened):
    opened.page.set_viewport_size({"width": 360, "height": 740})
    page = show(opened, "worn")

    width, room = page.locator(".readings").evaluate("(one) => [one.scrollWidth, one.clientWidth]")
    assert width <= room


@desktop
@expecting("404")
def test_the_page_says_that_a_unit_is_unknown(opened):
    opened.go("#/unit/fd001/nobody")

    expect(opened.page.get_by_role("alert")).to_contain_text("nobody")


@each_look
@expecting("422")
def test_a_unit_whose_last_readings_have_no_answer_says_since_which_cycle(opened, http, look):
    unit = f"silent-{look}"
    last = falls_silent(http, unit, seed=5, share=0.4, refused=60)
    words = f"not answered since cycle {last}"
    opened.set_service_clock(ahead_seconds=60)
    opened.go(f"#/?q={unit}")
    expect(opened.page.locator(".rows [role=row] .stale")).to_have_text(words)
    opened.check_fits()
    opened.shoot("fleet-silent")
    page = show(opened, unit)

    expect(page.locator(".unit-head .stale")).to_contain_text(words)
    panel = page.get_by_role("region", name="Readings of a cycle")
    expect(panel.get_by_role("heading")).to_have_text(f"Cycle {last}")
    opened.check_accessible()
    opened.shoot("unit-silent")


@desktop
def test_a_unit_whose_last_reading_is_answered_says_nothing_of_the_kind(opened):
    opened.set_service_clock(ahead_seconds=60)
    opened.go("#/?q=worn")
    expect(opened.page.locator(".rows [role=row]")).to_have_count(1)
    expect(opened.page.locator(".stale")).to_have_count(0)
    page = show(opened, "worn")

    expect(page.locator(".stale")).to_have_count(0)


@desktop
def test_the_whole_life_of_more_than_1000_cycles_is_shown(opened, http):
    life = http.get("/v1/models/fd001/simulated?seed=5").json()["columns"]
    columns = {name: [values[i % 40] for i in range(1100)] for name, values in life.items()}
    body = {"cycles": [*range(1, 1101)], "columns": columns}
    http.post("/v1/units/aged/cycles", json=body).raise_for_status()
    page = show(opened, "aged")

    expect(page.get_by_role("slider", name="Cycle")).to_have_attribute("min", "1")
    page.get_by_text("The numbers as a table").click()
    table = page.get_by_role("region", name="Numbers of the charts")
    expect(table.locator("tbody tr")).to_have_count(1100)


@desktop
def test_the_page_says_that_a_cycle_is_not_a_number(opened):
    opened.go("#/unit/fd001/worn?cycle=abc")

    expect(opened.page.get_by_role("alert")).to_contain_text("expected a whole number, got abc")


@desktop
@pytest.mark.parametrize("unit", [".", ".."])
def test_a_unit_that_no_browser_can_ask_for_is_said_to_be_one(opened, unit):
    opened.go(f"#/unit/fd001/{unit}")

    expect(opened.page.get_by_role("alert")).to_contain_text("Browsers remove the names . and ..")


@desktop
def test_a_sentence_about_all_sensors_together_stands_once(opened, http):
    life = http.get("/v1/models/fd001/simulated?seed=7").json()
    columns = {
        name: [v * 1.5 if name.startswith("sensor") else v for v in life["columns"][name][:90]]
        for name in life["columns"]
    }
    body = {"model": "fd001", "cycles": life["cycles"][:90], "columns": columns}
    http.post("/v1/units/together/cycles", json=body).raise_for_status()
    page = show(opened, "together")

    why = page.get_by_role("region", name="Why").inner_text()
    assert why.count("Together, the") == 1


@desktop
def test_every_clause_stands_as_the_answer_words_it(opened, http):
    lives(http, "worded", seed=7, share=0.95)
    page = show(opened, "worded")

    shown = page.get_by_role("region", name="Why").locator(".clauses li").all_inner_texts()

    explained = http.get("/v1/units/worded/explanation?model=fd001").json()["prediction"]["explanation"]
    assert "mostly" in explained["clauses"][1]["text"]
    assert shown == [f"{clause['text']}." for clause in explained["clauses"][1:]]


@desktop
def test_no_chart_shows_a_capped_rul_as_an_exact_number(opened, http):
    lives(http, "young", seed=7, share=0.15)
    page = show(opened, "young")

    expect(page.locator(".charts figure").first).to_contain_text(re.compile(r"≥ 125 \(\d+\+\)"))


@desktop
def test_heads_that_could_not_be_read_are_read_when_their_fold_is_opened_again(opened):
    page = show(opened, "worn")
    page.route("**/infer", lambda route: route.abort(), times=1)
    fold = page.locator("summary").filter(has_text="Head by head")
    fold.click()
    expect(page.get_by_role("alert")).to_contain_text("does not answer")
    fold.click()
    fold.click()

    expect(page.get_by_label(re.compile("Attention of 5 heads"))).to_be_visible()
    opened.problems.clear()


@desktop
def test_no_name_is_disguised_by_characters_that_are_invisible_or_turn_the_text(opened, http):
    name, said = "pump-\u202e1\u200b", "pump-⟨U+202E⟩1⟨U+200B⟩"
    lives(http, name, seed=7, share=0.4)
    page = show(opened, name)
    page.get_by_role("button", name="Report outcome").click()

    expect(page).to_have_title(f"{said} · rulserve")
    expect(page.locator("h1")).to_have_text(f"Unit {said}")
    expect(page.locator("dialog h2")).to_have_text(f"How did unit {said} end?")
    opened.go("#/?q=pump-")
    row = page.locator(".rows [role=row]")
    expect(row.locator("a")).to_have_text(said)
    expect(row).to_have_attribute("title", re.compile(f"^{re.escape(said)}\n"))


@desktop
def test_the_cycle_of_the_last_answer_does_not_run_into_the_rul(opened, http):
    last = falls_silent(http, "silent-wide", seed=7, share=0.6, refused=45)
    opened.set_service_clock(ahead_seconds=60)
    opened.go("#/?q=silent-wide")
    row = opened.page.locator(".rows [role=row]").first
    for width in (1440, 1101, 870):
        opened.page.set_viewport_size({"width": width, "height": 800})
        expect(row.locator(".stale")).to_have_text(f"not answered since cycle {last}")

        stale, rul = opened.page.evaluate(  # in one go: an event may draw the row anew
            """() => [".rows .stale", ".rows .rul b"].map((part) => {
                const range = document.createRange();
                range.selectNodeContents(document.querySelector(part));
                return range.getBoundingClientRect().toJSON();
            })"""
        )
        assert stale["right"] < rul["left"]
