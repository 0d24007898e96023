// Parts that several views share: states, errors, loading, empty.

import { askAgain } from "./api.js";
import { h } from "./dom.js";

export const STATES = {
  critical: { label: "Critical", tone: "critical", mark: "▲" },
  degrading: { label: "Degrading", tone: "degrading", mark: "◆" },
  healthy: { label: "Healthy", tone: "healthy", mark: "●" },
  unknown: { label: "Unlike training", tone: "unknown", mark: "?" },
  out_of_distribution: { label: "Unlike training", tone: "unknown", mark: "?" },
  insufficient_history: { label: "Little history", tone: "neutral", mark: "○" },
  failed: { label: "Failed", tone: "neutral", mark: "✕" },
  removed: { label: "Removed", tone: "neutral", mark: "–" },
};

/**
 * The displayed state of a unit. No other state is reliable if readings are unlike the training data;
 * "healthy" is not reliable if the history is too short.
 */
export function stateOf(unit) {
  const health = unit.health_state?.label ?? unit.health_state;
  if (unit.outcome) return unit.outcome.kind ?? unit.outcome;
  if (unit.rul_state === "out_of_distribution" || health === "unknown") return "unknown";
  if (unit.rul_state === "insufficient_history" && health === "healthy") return "insufficient_history";
  return health;
}

/** A badge for a state: word, colour and mark. */
export function badge(state) {
  const { label, tone, mark } = STATES[state] ?? { label: state, tone: "neutral", mark: "·" };
  return h("span", { class: `badge ${tone}` }, h("span", { class: "mark", "aria-hidden": "true" }, mark), label);
}

/** An error, with a button to try again, which may ask for a key again. */
export function failed(error, again) {
  return h(
    "div",
    { class: "empty", role: "alert" },
    h("h2", {}, error.title ?? "Something went wrong"),
    h("p", {}, error.detail || error.message),
    error.errors?.length > 0 && h("ul", {}, error.errors.map((e) => h("li", {}, h("code", {}, e.pointer || "/"), " ", e.detail))),
    error.requestId && h("p", { class: "muted" }, "Request ", h("code", {}, error.requestId)),
    h("p", {}, h("button", { type: "button", onclick: () => (askAgain(), again()) }, "Try again")),
  );
}

/** An empty place: what it means, and what to do. */
export function empty(title, ...children) {
  return h("div", { class: "empty" }, h("h2", {}, title), children);
}

export function loading(text = "Loading") {
  return h("p", { class: "loading", role: "status" }, text);
}
