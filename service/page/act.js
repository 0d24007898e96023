// When to act: the cost of a failure against a planned stop, and the stop with the lowest expected cost per cycle.

import { h, put, svg } from "./dom.js";
import { number, percent } from "./format.js";

const PAUSE_MS = 150;
const RATIOS = [1.5, 2, 3, 4, 5, 7, 10, 15, 20, 30, 50, 100];
const USUAL_RATIO = 10;

/** Return the cost of a failure in planned stops, by a model's costs; `USUAL_RATIO` if it has none. */
export function ratioOf(costs) {
  return costs ? Math.round((100 * costs.failure) / costs.planned) / 100 : USUAL_RATIO;
}

/**
 * Make the panel with the cost slider, whose value is kept in `costs.ratio`.
 *
 * `ask({ planned, failure })` resolves to `{ decision, curve }`; `onAct(cycle)` receives the best cycle. The panel
 * removes itself if the service answers 404.
 */
export function actPanel({ ask, onAct, signal, costs }) {
  const ratios = [...new Set([...RATIOS, costs.ratio])].sort((a, b) => a - b);
  const words = h("div", { class: "act-words", "aria-live": "polite" });
  const ratio = h("output", { for: "costs" });
  const slider = h("input", {
    type: "range", id: "costs", min: 0, max: ratios.length - 1, step: 1, value: ratios.indexOf(costs.ratio),
    oninput: () => {
      costs.ratio = chosen();
      say();
      words.ariaBusy = "true";
      turn += 1;
      clearTimeout(waiting);
      waiting = setTimeout(load, PAUSE_MS);
    },
  });
  const root = h("section", { class: "figure act", "aria-label": "When to act" }, h("h2", {}, "When to act"), words,
    h("label", { for: "costs", class: "small" }, "A failure costs ", ratio, " a planned stop"), slider);
  let waiting = null;
  let turn = 0;

  const chosen = () => ratios[Number(slider.value)];
  function say() {
    put(ratio, `${chosen()}×`);
    slider.setAttribute("aria-valuetext", `${chosen()} times a planned stop`);
  }

  async function load() {
    const mine = (turn += 1);
    words.ariaBusy = "true";
    try {
      const found = await ask({ planned: 1, failure: chosen() });
      if (mine !== turn || signal.aborted) return;
      put(words, found.decision ? verdict(found) : h("p", { class: "muted" }, "No advice: the unit's age is unknown, or the answer is not reliable."));
      onAct(found.decision?.act_at_cycle ?? null);
    } catch (error) {
      if (error.name === "AbortError" || mine !== turn) return;
      if (error.status === 404) root.remove();
      else put(words, h("p", { class: "muted" }, error.detail || error.message));
    }
    if (mine === turn) words.ariaBusy = "false";
  }

  say();
  load();
  return root;
}

function verdict({ decision, curve }) {
  const { act_in_cycles: ahead, act_at_cycle: at } = decision;
  const [headline, meaning] = at === null ? ["Run to failure", "no planned stop costs less"]
    : ahead <= 0 ? ["Act now", "each further cycle costs more than it earns"]
    : [`Cycle ${number(at)}`, `in ${number(ahead)} ${ahead === 1 ? "cycle" : "cycles"}`];
  return [
    h("p", { class: "answer-middle" }, headline),
    h("p", { class: "muted" }, meaning),
    h("ul", { class: "costs" }, compared(decision, "run_to_failure_cost_per_cycle", "running to failure"), compared(decision, "fixed_interval_cost_per_cycle", "a fixed interval")),
    curve?.in_cycles?.length > 1 && costCurve(curve, decision),
  ];
}

function compared(decision, name, words) {
  const saved = 1 - decision.cost_per_cycle / decision[name];
  return Number.isFinite(saved) && saved > 0.005 && h("li", {}, h("strong", {}, `${percent(saved)} cheaper`), ` than ${words}`);
}

function costCurve({ in_cycles: cycles, cost_per_cycle: costs }, { act_in_cycles: best }) {
  const sorted = [...costs].sort((a, b) => a - b);
  const [low, high] = [sorted[0], Math.max(sorted[Math.floor(sorted.length * 0.9)], sorted[0] * 1.05)];
  const span = cycles.at(-1) - cycles[0] || 1;
  const x = (cycle) => (100 * (cycle - cycles[0])) / span;
  const y = (cost) => 28 - (24 * (Math.min(cost, high) - low)) / (high - low || 1);
  const points = cycles.map((cycle, i) => `${x(cycle).toFixed(2)},${y(costs[i]).toFixed(2)}`).join(" ");
  return h("div", { class: "curve" },
    svg("svg", { viewBox: "0 0 100 32", preserveAspectRatio: "none", "aria-hidden": "true" },
      best !== null && svg("line", { x1: x(best), x2: x(best), y1: 0, y2: 32, class: "best" }),
      svg("polyline", { points, class: "cost" })),
    h("p", { class: "curve-ends muted" }, h("span", {}, "now"), h("span", {}, "expected cost per cycle"), h("span", {}, `+${number(cycles.at(-1))}`)));
}
