// A panel of the readings of one cycle, and a table of all numbers of a life.

import { h, put } from "./dom.js";
import { readingAt, truthText, usualAt, worded } from "./facts.js";
import { number, percent, rulWithInterval, signed } from "./format.js";

/** Make the panel of one cycle; returns `{ root, show(cycle, name) }`. */
export function readingsPanel(facts, { explainAt, onCycle }) {
  const slider = h("input", {
    type: "range", "aria-label": "Cycle", min: facts.first, max: facts.latest, value: facts.at,
    oninput: () => onCycle(Number(slider.value)),
  });
  const title = h("h2", {});
  const body = h("div", {});
  const again = explainAt && h("button", { type: "button", onclick: () => explainAt(shown) });
  let shown = facts.at;
  let marked = null;

  function show(cycle, name = marked) {
    shown = cycle ?? facts.at;
    marked = name;
    slider.value = shown;
    put(title, `Cycle ${shown}`);
    slider.setAttribute("aria-valuetext", `Cycle ${shown}: ${wordsAt(facts, shown)}`);
    put(body, cycleFacts(facts, shown), readingsAt(facts, shown, marked));
    if (again) {
      again.hidden = shown === facts.at || !facts.place.has(shown);
      put(again, `Explain the answer at cycle ${shown}`);
    }
  }
  const root = h("section", { class: "card readings", "aria-label": "Readings of a cycle" },
    title, slider, body, again);
  return { root, show };
}

function wordsAt(facts, cycle) {
  const past = facts.byCycle.predictions.get(cycle);
  const takes = facts.byCycle.contributions.get(cycle);
  return [past?.rul !== undefined && `${rulWithInterval(past)} cycles left`, takes !== undefined && `contribution ${signed(takes)}`].filter(Boolean).join(", ") || "no prediction";
}

function cycleFacts(facts, cycle) {
  const past = facts.byCycle.predictions.get(cycle);
  const rows = [
    ["RUL then", past?.rul !== undefined && rulWithInterval(past)],
    ["Truth", past?.truth !== undefined && truthText(facts, past.truth)],
    ["Contribution", facts.byCycle.contributions.has(cycle) && signed(facts.byCycle.contributions.get(cycle))],
    ["Evidence", facts.byCycle.evidence.get(cycle) != null && percent(facts.byCycle.evidence.get(cycle), 1)],
    ["Attention", facts.byCycle.attention.has(cycle) && percent(facts.byCycle.attention.get(cycle), 1)],
  ].filter(([, value]) => value);
  return rows.length > 0 && h("dl", { class: "cycle-facts" }, rows.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

function readingsAt(facts, cycle, marked) {
  if (!facts.place.has(cycle)) return h("p", { class: "muted small" }, "No reading is stored for this cycle.");
  const at = facts.byCycle.contributions.has(cycle) ? facts.explainedPlace.get(cycle) : undefined;
  const settings = facts.model.columns.filter((column) => column.role === "setting");
  const row = ({ name, unit, role }) => {
    const value = readingAt(facts, name, cycle);
    const usual = usualAt(facts, name, cycle);
    const side = value === null || !usual ? "" : value > usual[1] ? "above" : value < usual[0] ? "below" : "";
    const takes = at === undefined ? null : facts.contributions?.[name]?.[at];
    return h("tr", { class: name === marked ? "marked" : null },
      h("th", { scope: "row" }, name, unit && h("span", { class: "muted" }, ` ${unit}`)),
      h("td", { class: "num" }, side && h("span", { class: "outside", title: `${side} its healthy range` }, side === "above" ? "▲ " : "▼ ", h("span", { class: "unseen" }, `${side} healthy `)), worded(facts, name, value)),
      facts.explanation && h("td", { class: "num muted" }, usual ? `${worded(facts, name, usual[0])}–${worded(facts, name, usual[1])}` : role === "setting" ? "setting" : ""),
      facts.contributions && h("td", { class: `num ${takes > 0.005 ? "adds" : takes < -0.005 ? "takes" : ""}` }, takes === null || takes === undefined ? "" : signed(takes)));
  };
  return h("table", { class: "dense" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Column"), h("th", { scope: "col", class: "num" }, "Reading"), facts.explanation && h("th", { scope: "col", class: "num" }, "Healthy"), facts.contributions && h("th", { scope: "col", class: "num" }, "Cycles"))),
    h("tbody", {}, [...facts.sensors, ...settings].map(row)));
}

/** Make a table of the charts' data; it is filled when it is opened. */
export function table(facts) {
  const place = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Numbers of the charts" });
  const details = h("details", { class: "fold" }, h("summary", {}, "The numbers as a table"), place);
  details.addEventListener("toggle", () => {
    if (!details.open || place.hasChildNodes()) return;
    const names = facts.sensors.map(({ name }) => name);
    const cycles = [...new Set([...facts.byCycle.predictions.keys(), ...facts.readings.cycles])].sort((a, b) => b - a);
    const line = (cycle) => {
      const past = facts.byCycle.predictions.get(cycle) ?? {};
      const figures = [...[past.rul, past.lower, past.upper].map((value) => number(value, 1)), truthText(facts, past.truth, 1)];
      const shares = [signed(facts.byCycle.contributions.get(cycle)), percent(facts.byCycle.evidence.get(cycle), 1), percent(facts.byCycle.attention.get(cycle), 1)];
      return h("tr", {}, h("th", { scope: "row" }, cycle), [...figures, ...shares, ...names.map((name) => worded(facts, name, readingAt(facts, name, cycle)))].map((text) => h("td", { class: "num" }, text)));
    };
    const heads = ["Cycle", "RUL", "From", "To", "Truth", "Contribution", "Evidence", "Attention", ...names];
    put(place, h("table", { class: "dense" }, h("thead", {}, h("tr", {}, heads.map((text) => h("th", { scope: "col" }, text)))), h("tbody", {}, cycles.map(line))));
  });
  return details;
}
