// The fleet's summary: units by state and expected failures within each horizon; its buttons filter the list.

import { arrange, h, put } from "./dom.js";
import { number } from "./format.js";
import { STATES } from "./parts.js";

const STATE_ORDER = ["critical", "degrading", "healthy", "unknown"];
const ALWAYS_SHOWN = STATE_ORDER.slice(0, 3);
const toneOf = (state) => STATES[state]?.tone ?? "neutral";

/** Each state and horizon keeps its button while the view lives, so that an event interrupts neither focus nor a click. */
export class Summary {
  constructor({ onState, onHorizon }) {
    Object.assign(this, { onState, onHorizon });
    this.made = new Map();
    this.element = h("section", { class: "summary", "aria-label": "Summary" });
    this.units = h("b");
    this.stack = h("div", { class: "stack", "aria-hidden": "true" });
    this.chips = h("div", { class: "chips", role: "group", "aria-label": "Filter by state" });
    this.states = h("div", { class: "card states" }, h("div", { class: "title" }, h("span", {}, "Units"), this.units), this.stack, this.chips);
    this.failing = h("div", { class: "card failing" }, h("div", { class: "title" }, h("span", {}, "Expected to fail within")));
    // The list has ended units only if their filter is chosen.
    this.ended = h("span", { class: "ended" }, ["failed", "removed"].map((state) => this.chip(state)));
  }

  /** Show a summary and the chosen state and horizon; null shows nothing. */
  draw(summary, { state: chosen, horizon } = {}) {
    if (!summary) return put(this.element);
    const states = Object.entries(summary.states).filter(([state, n]) => n > 0 || ALWAYS_SHOWN.includes(state));
    states.sort(([a], [b]) => STATE_ORDER.indexOf(a) - STATE_ORDER.indexOf(b));
    this.units.textContent = number(summary.units);
    put(this.stack, states.map(([state, n]) => n > 0 && h("span", { class: toneOf(state), style: { "flex-grow": n } })));
    arrange(this.chips, [...states.map(([state, n]) => this.chip(state, n)), this.ended]);
    const groups = this.groups(summary.fails_within ?? {});
    arrange(this.failing, [this.failing.firstChild, ...groups]);
    arrange(this.element, groups.length ? [this.states, this.failing] : [this.states]);
    for (const button of this.element.querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String(button.dataset.state === chosen || button.dataset.horizon === String(horizon)));
    }
  }

  /** Return the element of this name; the first call makes it. */
  kept(name, make) {
    if (!this.made.has(name)) this.made.set(name, make());
    return this.made.get(name);
  }

  chip(state, count = null) {
    const chip = this.kept(`state ${state}`, () => h(
      "button", { type: "button", class: `chip ${toneOf(state)}`, dataset: { state }, onclick: () => this.onState(state) },
      h("span", { class: "mark", "aria-hidden": "true" }, STATES[state]?.mark ?? "·"), STATES[state]?.label ?? state, count !== null && h("b"),
    ));
    if (count !== null) chip.lastChild.textContent = number(count);
    return chip;
  }

  /** Make one group of buttons for all models with the same horizons. */
  groups(byModel) {
    const groups = new Map();
    for (const [model, expected] of Object.entries(byModel)) {
      const horizons = Object.keys(expected).map(Number).sort((a, b) => a - b);
      if (!horizons.length) continue;
      const name = horizons.join();
      const group = groups.get(name) ?? { models: [], horizons, sums: horizons.map(() => 0) };
      group.models.push(model);
      horizons.forEach((horizon, i) => (group.sums[i] += expected[horizon]));
      groups.set(name, group);
    }
    return [...groups].map(([name, { models, horizons, sums }]) => {
      const said = models.join(", ");
      const of = this.kept(`models ${name}`, () => h("span", { class: "muted small of" }));
      const group = this.kept(`group ${name}`, () => h("div", { class: "horizons", role: "group" }));
      of.textContent = said;
      group.setAttribute("aria-label", groups.size > 1 ? said : "Horizon of the column");
      arrange(group, [...(groups.size > 1 ? [of] : []), ...horizons.map((horizon, i) => this.horizon(`${name} ${horizon}`, horizon, sums[i]))]);
      return group;
    });
  }

  horizon(name, horizon, expected) {
    const button = this.kept(`horizon ${name}`, () => h(
      "button", { type: "button", dataset: { horizon }, title: "Show this probability in the list", onclick: () => this.onHorizon(horizon) },
      h("b"), h("span", { class: "unseen" }, " within "), h("span", { class: "muted small" }, `${horizon} cycles`),
    ));
    button.firstChild.textContent = expected > 0 && expected < 9.95 ? number(expected, 1) : number(expected);
    return button;
  }
}
