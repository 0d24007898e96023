// The data of a life for its charts: predictions, readings and reasons by cycle.

import { number } from "./format.js";

const NEAR_SETTINGS = 0.05; // of the range of a setting in training

/** Collect the data of the charts, by cycle. */
export function factsOf(life) {
  const { prediction } = life;
  const { attention, explanation } = prediction;
  const predictions = new Map(life.predictions.map((one) => [one.cycle, one]));
  const seen = [...predictions.keys(), ...life.readings.cycles, ...(attention?.cycles ?? []), life.at];
  const [first, latest] = [seen.reduce((a, b) => Math.min(a, b)), seen.reduce((a, b) => Math.max(a, b))]; // may be too many for arguments
  const reach = Math.min(prediction.interval.upper, Math.max(40, 0.6 * (latest - first)));
  const fails = life.fails ?? 0;
  const ahead = life.end ? Math.max(0, life.end.cycle - latest) : reach;
  const weights = (name) => new Map((attention?.cycles ?? []).map((cycle, i) => [cycle, attention[name]?.[i] ?? null]));
  const explained = explanation?.cycles ?? attention?.cycles;
  return {
    ...life,
    attention,
    explanation,
    explained,
    contributions: explanation?.contributions,
    byCycle: { predictions, contributions: weights("contributions"), evidence: weights("evidence"), attention: weights("weights") },
    place: new Map(life.readings.cycles.map((cycle, i) => [cycle, i])),
    explainedPlace: new Map(explained?.map((cycle, i) => [cycle, i])),
    sensors: sensorsByWeight(life),
    decimals: decimalsOf(life.model),
    first,
    last: Math.max(fails, Math.ceil(latest + ahead)),
    latest,
  };
}

/** Sort the sensors: first those of the explanation's clauses, then by size of contribution. */
function sensorsByWeight({ model, prediction }) {
  const named = (prediction.explanation?.clauses ?? []).map((clause) => clause.column).reverse();
  const weigh = ({ name }) => 1e6 * (named.indexOf(name) + 1) + Math.abs(prediction.sensor_contributions?.[name] ?? 0);
  return model.columns.filter((column) => column.role === "sensor").sort((a, b) => weigh(b) - weigh(a));
}

/** Return the decimals of each column: two to three digits of its deviation within a regime. */
function decimalsOf({ columns, regimes }) {
  const spread = (i) => Math.min(...regimes.map((regime) => regime.standard_deviation[i]).filter((one) => one > 1e-9));
  return Object.fromEntries(columns.map(({ name }, i) => [name, Math.min(5, Math.max(0, Math.ceil(0.7 - Math.log10(spread(i))) || 0))]));
}

/** Format a true RUL; for a removed unit, and at the cap, it is a lower bound. */
export function truthText({ end, model }, truth, decimals = 0) {
  if (truth === undefined) return "–";
  return `${end?.kind === "removed" || truth >= model.cap ? "≥ " : ""}${number(truth, decimals)}`;
}

/** Format a reading of a column. */
export function worded(facts, name, value) {
  return number(value, facts.decimals[name]);
}

export function readingAt(facts, name, cycle) {
  const at = facts.place.get(cycle);
  return at === undefined ? null : (facts.readings.columns[name]?.[at] ?? null);
}

/** Return the healthy range of a sensor at a cycle, from the explained cycle with the nearest settings. */
export function usualAt(facts, name, cycle) {
  const usual = facts.explanation?.usual?.[name];
  if (!usual) return null;
  if (isFlat(usual)) return [usual.lower[0], usual.upper[0]];
  if (!facts.explainedPlace.has(cycle)) facts.explainedPlace.set(cycle, nearestSettings(facts, cycle));
  const at = facts.explainedPlace.get(cycle);
  return at === null ? null : [usual.lower[at], usual.upper[at]];
}

/** Whether a sensor has the same range at all cycles, as with one operating regime. */
export function isFlat({ lower, upper }) {
  return lower.every((value) => value === lower[0]) && upper.every((value) => value === upper[0]);
}

/** Return the index of the explained cycle with the nearest settings; null if none is near. */
function nearestSettings(facts, cycle) {
  const settings = facts.model.columns.filter((column) => column.role === "setting");
  const apart = (other) => Math.max(...settings.map(({ name, low, high }) => Math.abs(readingAt(facts, name, cycle) - readingAt(facts, name, other)) / (high - low || 1)));
  const found = facts.explained.map((other, i) => [apart(other), i]).reduce((best, one) => (one[0] < best[0] ? one : best));
  return found[0] < NEAR_SETTINGS ? found[1] : null;
}
