// One answer in words: RUL, interval, failure probabilities, reasons and warnings.

import { h, svg } from "./dom.js";
import { isCapped, number, percent, rulText } from "./format.js";

const FEW_WARNINGS = 3;
const STATES = {
  out_of_distribution: "Readings unlike the training data: the RUL is not reliable.",
  insufficient_history: "Too few cycles for a reliable answer.",
};

/** RUL, interval and failure probabilities; `last` is the cycle of the answer, `ago` the number of later cycles without one. */
export function figures(prediction, { last, cap, ended = false, ago = 0 }) {
  const { interval, rul_state: state } = prediction;
  const [capped, strange] = [isCapped(prediction), state === "out_of_distribution"];
  const around = Math.round(last + prediction.rul);
  return [
    h("div", { class: "figure" },
      h("h2", {}, `Cycles left${ended ? ", as last answered" : ago ? `, as answered at cycle ${number(last)}, ${number(ago)} ${ago === 1 ? "cycle" : "cycles"} ago` : ""}`),
      h("p", { class: "answer-rul" }, rulText(prediction)),
      h("p", { class: "muted" }, strange ? "a guess" : capped ? `past cycle ${around}; the model counts to ${number(cap)}` : `until about cycle ${around}`)),
    h("div", { class: "figure" },
      h("h2", {}, `How sure: ${percent(interval.coverage)} interval`),
      h("p", { class: "answer-middle" }, strange ? "Not known" : capped ? `${number(interval.lower)} or more` : `${number(interval.lower)} to ${number(interval.upper)}`),
      !strange && band(prediction, cap),
      STATES[state] && h("p", { class: "error" }, STATES[state])),
    !ago && h("div", { class: "figure" }, h("h2", {}, "Fails within"),
      strange ? h("p", { class: "muted" }, "No probability can be given.") : risks(prediction.failure_probability)),
  ];
}

function band({ rul, interval }, cap) {
  const most = Math.max(cap, interval.upper);
  const x = (value) => (100 * Math.max(0, value)) / most;
  return svg("svg", { class: "interval", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("rect", { x: 0, y: 4, width: 100, height: 2, rx: 1, class: "rail" }),
    svg("rect", { x: x(interval.lower), y: 2, width: Math.max(0.5, x(interval.upper) - x(interval.lower)), height: 6, class: "span" }),
    svg("rect", { x: Math.max(0, x(rul) - 0.4), y: 0, width: 0.8, height: 10, class: "point" }));
}

function risks(probabilities = {}) {
  const tone = (value) => (value >= 0.5 ? "critical" : value >= 0.1 ? "degrading" : "healthy");
  return h("ul", { class: "risks" }, Object.entries(probabilities).map(([horizon, value]) =>
    h("li", {}, h("span", {}, `${horizon} cycles`), h("span", { class: `risk ${tone(value)}`, style: { "--size": value } }), h("span", { class: "num" }, percent(value)))));
}

/** Reasons: the sentence, its clauses, the trust and the warnings. */
export function reasons(prediction) {
  const { explanation, trust, warnings = [] } = prediction;
  const [first, ...more] = explanation?.clauses ?? [];
  const sentence = first ? `${first.text}.` : (explanation?.sentence ?? summary(prediction));
  return [
    h("h2", {}, "Why"),
    sentence ? h("p", { class: "sentence" }, sentence) : h("p", { class: "muted" }, "This model gives no reasons for its answers."),
    more.length > 0 && h("ul", { class: "clauses" }, more.map((clause) => h("li", { class: clause.cycles < 0 ? "takes" : "adds" }, clauseText(clause)))),
    first && explanation.together && h("p", { class: "small" }, `${explanation.together.text}.`),
    trust && h("p", { class: `trust ${trust}` }, h("strong", {}, `Explanation ${trust}`), h("span", { class: "muted" }, ` ${grounds(trust, explanation)}`)),
    warnings.length > 0 && h("div", { class: "warnings" },
      h("ul", { "aria-label": "Warnings" }, warnings.slice(0, FEW_WARNINGS).map(warning)),
      warnings.length > FEW_WARNINGS && h("details", {}, h("summary", {}, `${warnings.length - FEW_WARNINGS} more warnings`),
        h("ul", { "aria-label": "More warnings" }, warnings.slice(FEW_WARNINGS).map(warning)))),
  ];
}

function warning({ code, detail, column }) {
  return h("li", {}, h("strong", {}, column ?? code.replaceAll("_", " ")), ` ${detail}`);
}

function clauseText({ column, text }) {
  return [h("strong", {}, column), `${text.slice(column.length)}.`];
}

/** The grounds of the trust, with their figures if there are any. */
function grounds(trust, explanation) {
  const { agreement, needed_agreement: needed, skill, needed_skill: least } = explanation ?? {};
  if (agreement === null) return "Too few cycles to judge it: do not act on it alone.";
  const figures = agreement === undefined ? "" : ` (rank agreement ${number(agreement, 2)}, needed ${number(needed, 2)})`;
  if (trust === "supported") return `Hiding cycles one at a time confirms it${figures}.`;
  if (agreement >= needed && skill < least) return `The model knows too little of wear (skill ${number(skill, 2)}, needed ${number(least, 2)}): do not act on it alone.`;
  return `Hiding cycles one at a time does not confirm it${figures}: do not act on it alone.`;
}

/** Make a sentence for an answer without one: the sensors with the largest contributions. */
function summary({ sensor_contributions: sensors }) {
  const weights = Object.entries(sensors ?? {}).sort(([, a], [, b]) => Math.abs(b) - Math.abs(a)).slice(0, 3);
  if (!weights.length) return "";
  return `${weights.map(([name, cycles]) => `${name} ${cycles < 0 ? "takes" : "adds"} ${number(Math.abs(cycles), 1)}`).join(", ")} cycles.`;
}
