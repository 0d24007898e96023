"""The web page's charts as they are drawn, in real Chromium: texts of the canvas and its pixels."""

from __future__ import annotations

import re
from itertools import pairwise

from playwright.sync_api import expect

from tests.browser import desktop
from tests.page_unit import lives, show

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


def figure(page, title):
    return page.locator("figure.chart").filter(has_text=title).first


@desktop
def test_the_ticks_of_shares_are_as_far_apart_as_they_are_drawn(opened, service):
    with service.client() as client:
        for seed in (7, 9, 12):
            lives(client, f"ticks-{seed}", seed=seed, share=0.7)
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
def test_a_single_reading_is_shown_as_a_point(opened, service):
    with service.client() as client:
        life = client.get("/v1/models/fd001/simulated?seed=7").json()
        columns = {name: values[0] for name, values in life["columns"].items()}
        client.post("/v1/units/new-born/cycles", json={"columns": columns}).raise_for_status()
    page = show(opened, "new-born")

    canvas = page.locator(".cycle-title ~ figure canvas").first
    assert canvas.evaluate(PIXELS, "--trace") > 0
