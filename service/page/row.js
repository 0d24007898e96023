// One unit of the fleet as a row: state, RUL with its interval as a band, probability, trend, age.

import { h, svg } from "./dom.js";
import { age, isCapped, moment, nameText, number, percent, rulText, secondsSince } from "./format.js";
import { STATES, badge, stateOf } from "./parts.js";

const LISTED_SECONDS = 5; // a prediction is listed within a second or two of its readings
const hashOf = (unit) => `#/unit/${encodeURIComponent(unit.model)}/${encodeURIComponent(unit.unit)}`;

/** Make the row; `scale`: cycles at the right end of the band, `horizon`: of the probability. */
export function unitRow(unit, { horizon, scale }) {
  const state = stateOf(unit);
  const tone = STATES[state]?.tone ?? "neutral";
  const chance = state === "unknown" ? undefined : unit.failure_probability?.[horizon];
  const seen = unit.last_reading_at ?? unit.predicted_at;
  const cell = (name, ...content) => h("div", { class: `cell ${name}`, role: "cell" }, content);
  return h(
    "div", { class: `row ${tone}`, role: "row", title: meaning(unit) },
    cell("unit", h("a", { href: hashOf(unit) }, nameText(unit.unit)), h("span", { class: "muted small model" }, unit.model)),
    cell("state", badge(state), unanswered(unit)),
    cell("rul", h("b", {}, rulText(unit)), h("span", { class: "word muted" }, " cycles left")),
    cell("range", h("span", { class: "ends muted" }, ends(unit)), band(unit, scale, state)),
    cell("fails", percent(chance), h("span", { class: "word muted" }, ` in ${horizon ?? "–"}`)),
    cell("trend", spark(unit), trend(unit)),
    cell("cycle", number(unit.last_cycle)),
    cell("age", h("time", { datetime: seen }, age(seen)), h("span", { class: "word muted" }, " ago")),
  );
}

/** The tooltip of the row. Cells have none of their own, because the row's link covers them. */
function meaning(unit) {
  return [
    nameText(unit.unit),
    `${percent(unit.interval.coverage)} interval, in cycles`,
    hasTrend(unit) && `RUL changes by ${trendText(unit)} cycles per cycle; ${number(-1)} is ordinary wear`,
    unanswered(unit) && `readings go to cycle ${number(unit.last_reading_cycle)}`,
    unit.last_reading_at ? `last reading ${moment(unit.last_reading_at)}` : `predicted ${moment(unit.predicted_at)}`,
  ].filter(Boolean).join("\n");
}

/** A note of the last answered cycle, if later readings have no answer. */
function unanswered(unit) {
  if (!(unit.last_reading_cycle > unit.last_cycle && secondsSince(unit.last_reading_at) > LISTED_SECONDS)) return null;
  return h("span", { class: "small stale" }, `not answered since cycle ${number(unit.last_cycle)}`);
}

/** The interval as a bar on 0..scale with the RUL as a mark in it. */
function band(unit, scale, state) {
  const { lower, upper } = unit.interval;
  const at = (cycles) => `${Math.min(100, (100 * cycles) / (scale || 1))}%`;
  const width = `max(4px, ${Math.min(100, (100 * (upper - lower)) / (scale || 1))}%)`;
  return h(
    "div", { class: `band ${state === "unknown" ? "doubt" : ""}`, "aria-hidden": "true" },
    h("span", { class: "bar-range", style: { left: at(lower), width } }),
    h("span", { class: "bar-point", style: { left: at(unit.rul) } }),
  );
}

/** The ends of the interval; at the cap its upper end is open. */
function ends(unit) {
  const { lower, upper } = unit.interval;
  return isCapped(unit) ? `${number(lower)}+` : `${number(lower)}–${number(upper)}`;
}

/** The unit's last RULs as a line. */
function spark(unit) {
  const values = unit.recent ?? [];
  if (values.length < 2) return h("span", { class: "spark none", "aria-hidden": "true" });
  const top = Math.max(...values) || 1;
  const points = values.map((value, i) => `${((i / (values.length - 1)) * 76 + 2).toFixed(1)},${(22 - (value / top) * 20).toFixed(1)}`);
  const [x, y] = points.at(-1).split(",");
  return svg("svg", { class: "spark", viewBox: "0 0 80 24", "aria-hidden": "true" }, svg("polyline", { points: points.join(" ") }), svg("circle", { cx: x, cy: y, r: 2.2 }));
}

const hasTrend = (unit) => unit.trend !== null && unit.trend !== undefined;
const trendText = (unit) => `${unit.trend >= 0.05 ? "+" : ""}${number(unit.trend, 1)}`;

function trend(unit) {
  if (!hasTrend(unit)) return h("span", { class: "slope muted" }, "–");
  return h("span", { class: `slope ${unit.trend < -1.5 ? "fast" : ""}` }, trendText(unit));
}
