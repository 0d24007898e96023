"""The web page's changes of units, its advice and its charts as they are drawn, in real Chromium."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from playwright.sync_api import expect

from tests.browser import desktop, each_look, expecting
from tests.integration.conftest import running
from tests.page_unit import lives, show

SECONDS = 60
# Each text that a canvas shows, with its canvas and its box in pixels.
RECORD = """
  const draw = CanvasRenderingContext2D.prototype.fillText;
  window.texts = [];
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...rest) {
    const { width } = this.measureText(text);
    const left = this.textAlign === "right" ? x - width : this.textAlign === "center" ? x - width / 2 : x;
    const size = parseFloat(/[\\d.]+px/.exec(this.font)[0]);
    window.texts.push({ text, canvas: this.canvas, left, right: left + width, top: y, bottom: y + size });
    return draw.call(this, text, x, y, ...rest);
  };
"""
# The texts of a figure's canvas, each once, as it was last drawn.
TEXTS = """(figure) => Object.values(Object.fromEntries(window.texts
  .filter(({ canvas }) => figure.contains(canvas)).map(({ canvas, ...box }) => [box.text, box])))"""
# How many pixels of a canvas have the colour of a variable.
PIXELS = """(canvas, name) => {
  const dot = document.createElement("canvas").getContext("2d");
  dot.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(name);
  dot.fillRect(0, 0, 1, 1);
  const [r, g, b] = dot.getImageData(0, 0, 1, 1).data;
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let found = 0;
  for (let i = 0; i < data.length; i += 4) {
    found += data[i] === r && data[i + 1] === g && data[i + 2] === b && data[i + 3] === 255;
  }
  return found;
}"""


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """A service with costs of its own."""
    with running(tmp_path_factory.mktemp("costs"), "fd001", costs="fd001=800:9600") as started:
        yield started


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
    expect(page.locator("#announcer")).to_have_text("Outcome reported")
    expect(page.locator("#main")).to_be_focused()
    page.get_by_role("button", name="Correct outcome").click()
    dialog.get_by_label("It failed").check()
    dialog.get_by_role("button", name="Correct").click()
    expect(page.get_by_text(re.compile("Failed at cycle"))).to_be_visible()
    assert http.get(f"/v1/units/{unit}?model=fd001").json()["outcome"]["kind"] == "failed"


@desktop
def test_a_past_answer_stays_that_of_its_cycle_when_an_outcome_is_reported(opened, http):
    lives(http, "seen-then", seed=5, share=0.9)
    page = show(opened, "seen-then", query="?cycle=30")
    then = page.locator(".answer-rul").inner_text()
    page.get_by_role("button", name="Report outcome").click()
    page.get_by_role("dialog").get_by_role("button", name="Report").click()

    expect(page.get_by_text("Failed at cycle")).to_be_visible()
    expect(page.get_by_text("The answer as it was at cycle 30.")).to_be_visible()
    expect(page.locator(".answer-rul")).to_have_text(then)


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


@each_look
def test_the_dialogs_of_a_unit_with_a_long_name_have_their_buttons_in_view(opened, http):
    name = f"{opened.look.width}-" + "x" * 200
    lives(http, name, seed=5, share=0.2)
    page = show(opened, name)
    page.get_by_role("button", name="Report outcome").click()

    expect(page.get_by_role("dialog").get_by_role("button", name="Report")).to_be_in_viewport(ratio=1)


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
def test_the_menu_closes_by_escape_and_when_focus_leaves(http, opened):
    page = show(opened, "worn")
    rename = page.get_by_role("button", name="Rename")
    for keys in (["Escape"], ["Shift+Tab", "Shift+Tab"], ["Tab", "Tab", "Tab"]):
        page.get_by_label("More").press("Enter")
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


@desktop
def test_advice_begins_with_the_costs_that_the_service_is_given(opened, http):
    lives(http, "dear", seed=5, share=0.8)
    life = http.get("/v1/models/fd001/simulated?seed=5").json()["columns"]
    window = {"unit": "asked", "last_cycle": 90, "columns": {name: life[name][30:90] for name in life}}
    http.post("/v1/predict", json={"windows": [window]}).raise_for_status()
    decision = http.get("/v1/units/dear/decision?model=fd001").raise_for_status().json()["decision"]
    page = show(opened, "dear")
    act = page.get_by_role("region", name="When to act")

    expect(act).to_contain_text("A failure costs 12")
    expect(act).to_contain_text(f"Cycle {decision['act_at_cycle']}")
    page.get_by_role("slider", name="A failure costs").press("ArrowRight")
    expect(act).to_contain_text("A failure costs 15")
    show(opened, "asked")
    expect(act).to_contain_text("A failure costs 12")
    opened.go("#/try")
    expect(act).to_contain_text("A failure costs 12")


@each_look
def test_the_range_that_a_drag_chooses_is_seen_in_both_themes(http, opened):
    page = show(opened, "worn")
    colour = page.locator(".more").evaluate(
        "(one) => ((one.style.background = 'var(--accent-soft)'), getComputedStyle(one).backgroundColor)"
    )

    expect(page.locator(".u-select").first).to_have_css("background-color", colour)


def figure(page, title):
    return page.locator("figure.chart").filter(has_text=title).first


@desktop
def test_the_ticks_of_shares_are_as_far_apart_as_they_are_drawn(opened, http):
    for seed in (7, 9, 12):
        lives(http, f"ticks-{seed}", seed=seed, share=0.7)
    opened.page.add_init_script(RECORD)
    for seed in (7, 9, 12):
        page = show(opened, f"ticks-{seed}")
        page.reload()
        page.locator(".life").wait_for()
        texts = figure(page, "Evidence and attention").evaluate(TEXTS)
        ticks = sorted(float(one["text"].rstrip("%")) for one in texts)
        steps = {round(b - a, 6) for a, b in pairwise(ticks)}

        assert len(steps) == 1, ticks


@desktop
def test_the_stop_and_the_failure_of_a_simulated_unit_are_named_beside_each_other(opened):
    opened.page.add_init_script(RECORD)
    opened.go("#/try")
    opened.page.locator(".life").wait_for()
    expect(opened.page.locator(".act .answer-middle")).to_have_text(re.compile("Cycle"))
    chart = figure(opened.page, "Remaining useful life")
    opened.page.wait_for_function(
        f"(f) => ({TEXTS})(f).some(({{ text }}) => text.startsWith('act'))", arg=chart.element_handle()
    )
    texts = {one["text"]: one for one in chart.evaluate(TEXTS)}

    [act] = [one for text, one in texts.items() if text.startswith("act at")]
    fails = texts["fails"]
    assert act["right"] <= fails["left"] or fails["right"] <= act["left"] or act["top"] >= fails["bottom"]


@desktop
def test_a_single_reading_is_shown_as_a_point(opened, http):
    life = http.get("/v1/models/fd001/simulated?seed=7").json()
    columns = {name: values[0] for name, values in life["columns"].items()}
    http.post("/v1/units/new-born/cycles", json={"columns": columns}).raise_for_status()
    page = show(opened, "new-born")

    canvas = page.locator(".cycle-title ~ figure canvas").first
    assert canvas.evaluate(PIXELS, "--trace") > 0
